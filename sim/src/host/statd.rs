//! Boots and notices of a host: `sm-notify` after a boot, the status monitor that receives the
//! server's notices, and the reclaimer. A kernel drops a lock that it cannot reclaim without telling
//! its program.

use std::rc::Rc;

use keeper::bytes::Name;
use keeper::request::Mode;
use keeper::step::{Outcome, Refusal, Reply};

use super::{Activity, Announcement, Reclaim, ReclaimItem};
use crate::cells::{self, CELLS, FILES, Strength};
use crate::network::DELAY_MAX;
use crate::packet::{Answer, Call, GroundTruth, Request};
use crate::queue::{MINUTE, Ms, SECOND};
use crate::scenario::HostKind;
use crate::world::{Event, World};

impl World {
    pub(crate) fn crash_host(&mut self, host: usize) {
        if !self.hosts[host].up {
            return;
        }
        self.fault("host crash");
        self.trace(|w| format!("{} crashes", w.hosts[host].name));
        for process in self.hosts[host].processes() {
            if let Some(request) = self.processes[process].call.clone() {
                let pause = DELAY_MAX + self.random.between(10 * SECOND, 60 * SECOND);
                self.later(pause, Event::StaleRequest { request });
            }
        }
        let it = &mut self.hosts[host];
        it.up = false;
        it.reclaim = None;
        it.announcement = None;
        it.granted.clear();
        let life = it.life;
        for process in self.hosts[host].processes() {
            self.processes[process].die();
        }
        let stays_dead = self.scenario.dead_for_good && host == 1 && self.now > 2 * MINUTE;
        if stays_dead {
            self.hosts[host].never_back = true;
            self.coverage.reach("host dead for good");
            return;
        }
        let outage = DELAY_MAX + self.random.between(SECOND, 40 * SECOND);
        self.later(outage, Event::Boot { host, life });
    }

    pub(crate) fn boot_host(&mut self, host: usize) {
        let now = self.now;
        if let Some(successor) = self.hosts[host].successor.take() {
            self.coverage.reach("client boots with another address");
            self.hosts[host].never_back = true;
            self.hosts[successor].state = self.hosts[host].state;
            return self.boot_host(successor);
        }
        let it = &mut self.hosts[host];
        it.up = true;
        it.life += 1;
        it.server_state = 0;
        it.generation = 0;
        it.healthy_since = now;
        it.gave_up_announcing = false;
        it.xid = self.random.next() as u32;
        if it.kind != HostKind::Netboot {
            it.state = it.state.wrapping_add(2);
        }
        let state = it.state;
        self.trace(|w| format!("{} boots, now in state {state}", w.hosts[host].name));
        for process in self.hosts[host].processes() {
            let turn = self.processes[process].turn;
            let pause = self.random.between(10, 20 * SECOND);
            self.later(pause, Event::Think { process, turn });
        }
        let pause = self.random.between(50, 10 * SECOND);
        let life = self.hosts[host].life;
        self.later(pause, Event::FileAccess { host, life });
        if self.hosts[host].kind != HostKind::Netboot {
            // Sometimes programs lock before the notice is sent.
            let pause = if self.random.percent(60) { 5 } else { self.random.between(5, 30_000) };
            self.announce(host, state, true, pause);
            if self.random.percent(5) {
                self.free_all_of(host);
            }
        }
    }

    /// Some clients send FREE_ALL at boot.
    fn free_all_of(&mut self, host: usize) {
        let name = self.hosts[host].name.clone();
        let address = self.hosts[host].address;
        let request = self.loose_request(host, address, name.clone(), Call::FreeAll { name }, true);
        self.send_to_server(&request);
    }

    pub(crate) fn announce(&mut self, host: usize, state: u32, honest: bool, pause: Ms) {
        self.announcements += 1;
        let id = self.announcements;
        let announcement = Announcement { id, state, honest, started: self.now, pause: 2 * SECOND };
        self.hosts[host].announcement = Some(announcement);
        let life = self.hosts[host].life;
        self.later(pause, Event::Announce { host, life, id });
    }

    /// One round of `sm-notify`: the full name and the short one.
    pub(crate) fn announce_round(&mut self, host: usize, id: u64) {
        let Some(mut announcement) = self.hosts[host].announcement else { return };
        if announcement.id != id {
            return;
        }
        if announcement.started + 15 * MINUTE < self.now {
            self.hosts[host].announcement = None;
            self.hosts[host].gave_up_announcing = true;
            self.coverage.reach("reboot notice never answered");
            return;
        }
        let Announcement { state, honest, .. } = announcement;
        let from = self.hosts[host].notice_address;
        let full = self.hosts[host].name.clone();
        let short = Name::from(&*self.hosts[host].short_name());
        for name in [full, short] {
            let request =
                self.loose_request(host, from, name.clone(), Call::Notify { name, state }, honest);
            self.send_to_server(&request);
        }
        let life = self.hosts[host].life;
        self.later(announcement.pause, Event::Announce { host, life, id });
        announcement.pause = (announcement.pause * 2).min(120 * SECOND);
        self.hosts[host].announcement = Some(announcement);
    }

    /// Any reply to its own call ends `sm-notify` for this server; one to a notice that the host
    /// forged beside it does not.
    pub(crate) fn announced(&mut self, host: usize, request: &Request) {
        let Call::Notify { name, state } = &request.call else { return };
        let it = &mut self.hosts[host];
        let own = request.from == it.notice_address && it.name.names_same_machine(name);
        it.announcement = it
            .announcement
            .filter(|mine| !own || (mine.state, mine.honest) != (*state, request.truth.honest));
    }

    /// A request that no process awaits.
    pub(crate) fn loose_request(
        &mut self,
        host: usize,
        from: std::net::IpAddr,
        name: Name,
        call: Call,
        honest: bool,
    ) -> Rc<Request> {
        let it = &mut self.hosts[host];
        it.xid = it.xid.wrapping_add(1);
        let namespace = it.namespaces[0];
        let namespace = keeper::identity::OwnerNamespace::new(
            namespace.server_address(),
            keeper::identity::Transport::Udp,
            4,
        );
        Rc::new(Request {
            call,
            xid: it.xid,
            from,
            name,
            namespace,
            number: 0,
            tag: keeper::bytes::OwnerTag::from(""),
            form: it.kind.form(),
            monitored: true,
            stateless: false,
            truth: GroundTruth { host, life: it.life, process: None, block: 0, honest },
        })
    }

    /// The NSM state moves without a reboot: a container's status monitor restarted on this kernel.
    pub(crate) fn container_trap(&mut self, host: usize) {
        if !self.hosts[host].up || matches!(self.hosts[host].kind, HostKind::Netboot) {
            return;
        }
        self.fault("state moved without a reboot");
        self.hosts[host].state = self.hosts[host].state.wrapping_add(2);
        let state = self.hosts[host].state;
        self.trace(|w| format!("{} is in state {state} without a reboot", w.hosts[host].name));
        // The notifier of the host itself goes on beside that of a container.
        let announces = self.hosts[host].announcement.is_some();
        if self.random.percent(60) && !announces {
            self.coverage.reach("false reboot");
            self.announce(host, state, false, 10);
        }
    }

    /// The status monitor receives a notice of the server.
    pub(crate) fn take_notice(&mut self, host: usize, state: u32) {
        if self.hosts[host].deaf {
            self.coverage.reach("deaf holder");
            return;
        }
        if self.hosts[host].server_state == state {
            return;
        }
        self.hosts[host].server_state = state;
        self.hosts[host].generation += 1;
        self.trace(|w| format!("{} learns of server state {state}", w.hosts[host].name));
        if self.hosts[host].reclaim.is_none() {
            self.start_reclaim(host);
        }
    }

    fn start_reclaim(&mut self, host: usize) {
        let mut left = Vec::new();
        for process in self.hosts[host].processes() {
            for file in 0..FILES {
                let it = &self.processes[process];
                let mut held = it.belief[file];
                for cell in 0..CELLS {
                    if it.given_up[file][cell] {
                        held[cell] = 0;
                    }
                }
                for (range, strength) in cells::stretches(&held) {
                    let mode = if strength == 1 { Mode::Shared } else { Mode::Exclusive };
                    left.push(ReclaimItem { process, file, range, mode, share: None });
                }
                if let Some(sharing) = self.processes[process].shares[file]
                    && !sharing.given_up
                {
                    let share = Some((sharing.access, sharing.deny));
                    let (range, mode) = (keeper::range::Range::ALL, Mode::Shared);
                    left.push(ReclaimItem { process, file, range, mode, share });
                }
            }
        }
        left.reverse();
        let generation = self.hosts[host].generation;
        self.hosts[host].reclaim = Some(Reclaim { left, current: None, generation });
        self.reclaim_next(host);
    }

    fn reclaim_next(&mut self, host: usize) {
        let generation = self.hosts[host].generation;
        let Some(reclaim) = &mut self.hosts[host].reclaim else { return };
        if reclaim.generation != generation {
            // The server restarted again.
            return self.start_reclaim(host);
        }
        let Some(held) = reclaim.left.pop() else {
            self.hosts[host].reclaim = None;
            for process in self.hosts[host].processes() {
                self.poll(process);
            }
            return;
        };
        let ReclaimItem { process, file, range, mode, share } = held;
        let call = match share {
            Some((access, deny)) => Call::Share { file, access, deny, reclaim: true },
            None => Call::Lock { file, range, mode, wait: false, reclaim: true, state: 0 },
        };
        let turn = self.processes[process].turn;
        let request = self.request_of(process, call, 0);
        // The kernel reclaims, not the process, whose timers stay valid.
        self.processes[process].turn = turn;
        if let Some(reclaim) = &mut self.hosts[host].reclaim {
            reclaim.current = Some((held, request.clone()));
        }
        self.post(request);
    }

    pub(crate) fn reclaimed(
        &mut self,
        host: usize,
        request: &Rc<Request>,
        answer: &Answer,
        decided: u64,
    ) {
        let Some(reclaim) = &mut self.hosts[host].reclaim else { return };
        match &reclaim.current {
            Some((_, current)) if Rc::ptr_eq(current, request) => {}
            _ => return,
        }
        let Some((held, _)) = reclaim.current.take() else { return };
        if *answer == Answer::NoLocks {
            self.violate("B5.4", || "a reclaim was refused because the store stalls".to_owned());
        }
        let granted = [Reply::Lock(Outcome::Granted), Reply::Share(Outcome::Granted)];
        if granted.iter().any(|granted| *answer == Answer::Keeper(granted.clone())) {
            self.reclaim_held(held, decided);
        } else if held.share.is_some() {
            self.coverage.reach("silent give-up of a share");
            // A change of the share may have been committed, and its reply lost.
            let changing = matches!(self.processes[held.process].doing, Activity::Sharing { .. });
            let sharing = &mut self.processes[held.process].shares[held.file];
            let lost = sharing.is_some_and(|sharing| !sharing.tainted) && !changing;
            if let Some(sharing) = sharing {
                sharing.given_up = true;
                // The server may have the new one.
                sharing.tainted |= changing;
            }
            // The store may have lost that a fence was lifted.
            let fenced = Answer::Keeper(Reply::Share(Outcome::Refused(Refusal::Fenced)));
            let excused = *answer == fenced && self.model.open;
            if lost && !excused {
                let why = format!("the reclaim of a share was answered {answer:?}");
                self.judge_calm_loss(held.process, &why);
            }
        } else {
            self.coverage.reach("silent give-up");
            self.trace(|w| {
                format!(
                    "{} gives up {:?} of file {} silently",
                    w.who(held.process),
                    held.range,
                    held.file
                )
            });
            for cell in cells::cells(held.range) {
                self.processes[held.process].given_up[held.file][cell] = true;
            }
            self.judge_lost_reclaim(held, answer);
        }
        self.reclaim_next(host);
    }

    /// A granted reclaim restores locks that were released meanwhile.
    fn reclaim_held(&mut self, held: ReclaimItem, decided: u64) {
        if held.share.is_some() {
            let gone = self.model.unshared_at[held.process][held.file] > decided;
            if let Some(sharing) = &mut self.processes[held.process].shares[held.file] {
                sharing.tainted = gone;
            }
            return;
        }
        let strength: Strength = cells::strength(held.mode);
        for cell in cells::cells(held.range) {
            if self.processes[held.process].belief[held.file][cell] == strength {
                let gone = self.model.released_at[held.process][held.file][cell] > decided;
                self.processes[held.process].tainted[held.file][cell] = gone;
            }
        }
    }
}
