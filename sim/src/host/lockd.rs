//! The lock client of a kernel, as Linux 6.1 has it: one call at a time for each process, sent again
//! until answered; a blocked lock is asked for again and granted by callback; a refusal for grace is
//! tried again after five seconds; a signal cancels and then unlocks.

use std::rc::Rc;

use keeper::identity::{NoticeId, Transport};
use keeper::range::Range;
use keeper::request::{GrantAnswer, Mode};
use keeper::step::{Cancelled, Grant, Outcome, Reply};

use super::{Doing, Want};
use crate::cells::{self, FILES, strength};
use crate::engine::Answered;
use crate::packet::{Answer, Call, Request, ToHost, Truth};
use crate::queue::{MINUTE, Ms, SECOND};
use crate::scenario::Kind;
use crate::world::{Event, World};

impl World {
    /// A process decides what to do next.
    pub fn think(&mut self, process: usize) {
        if !matches!(self.processes[process].doing, Doing::Idle) {
            return;
        }
        let host = self.processes[process].host;
        // The reclaimer keeps everybody else out while it works.
        if self.hosts[host].reclaim.is_some() {
            return self.rest(process, SECOND);
        }
        if self.hosts[host].kind == Kind::Windows {
            return self.think_of_shares(process);
        }
        if self.winding_down() {
            return self.finish(process);
        }
        let file = self.random.index(FILES);
        let range = cells::draw_range(&mut self.random);
        let mode = if self.random.percent(55) { Mode::Exclusive } else { Mode::Shared };
        match self.random.below(20) {
            0..=10 => {
                let wait = self.random.percent(55);
                self.lock(process, file, range, mode, wait);
            }
            11..=12 => {
                self.processes[process].doing = Doing::Testing;
                self.call(process, Call::Test { file, range, mode }, 0);
            }
            13 => self.unlock(process, file, Range::ALL),
            _ => match self.something_held(process) {
                Some((file, held)) => {
                    let range = if self.random.percent(70) { held } else { range };
                    self.unlock(process, file, range);
                }
                None => self.unlock(process, file, range),
            },
        }
    }

    /// Gives everything back, one file after the other.
    fn finish(&mut self, process: usize) {
        match (0..FILES).find(|file| self.processes[process].believes_anything(*file)) {
            Some(file) => self.unlock(process, file, Range::ALL),
            None => self.processes[process].doing = Doing::Finished,
        }
    }

    fn something_held(&mut self, process: usize) -> Option<(usize, Range)> {
        let held: Vec<(usize, Range)> = (0..FILES)
            .flat_map(|file| {
                let stretches = cells::stretches(&self.processes[process].belief[file]);
                stretches.into_iter().map(move |(range, _)| (file, range))
            })
            .collect();
        if held.is_empty() { None } else { Some(*self.random.pick(&held)) }
    }

    fn lock(&mut self, process: usize, file: usize, range: Range, mode: Mode, wait: bool) {
        self.blocks += 1;
        let generation = self.hosts[self.processes[process].host].generation;
        let want = Want {
            file,
            range,
            mode,
            wait,
            block: self.blocks,
            generation,
            blocked: false,
            granted: None,
        };
        self.ask(process, want);
    }

    /// Sends a LOCK, for the first time or again with a new transaction id.
    fn ask(&mut self, process: usize, want: Want) {
        let host = &self.hosts[self.processes[process].host];
        // What a callback said before a restart of the server is forgotten with it.
        let want = Want { generation: host.generation, granted: None, ..want };
        let call = Call::Lock {
            file: want.file,
            range: want.range,
            mode: want.mode,
            wait: want.wait,
            reclaim: false,
            state: host.state,
        };
        self.processes[process].doing = Doing::Locking(want);
        self.call(process, call, want.block);
        if want.wait
            && !self.winding_down()
            && self.random.per_mille(80)
            && let Some(request) = self.processes[process].call.clone()
        {
            let pause = self.random.between(500, 4 * SECOND);
            self.later(pause, Event::Impatience { request });
        }
    }

    /// The kernel forgets first and tells the server then.
    fn unlock(&mut self, process: usize, file: usize, range: Range) {
        self.processes[process].forget(file, range);
        self.processes[process].doing = Doing::Unlocking;
        self.call(process, Call::Unlock { file, range }, 0);
    }

    pub fn rest(&mut self, process: usize, pause: Ms) {
        self.processes[process].doing = Doing::Idle;
        let turn = self.processes[process].turn;
        self.later(pause, Event::Think { process, turn });
    }

    pub fn rest_a_while(&mut self, process: usize) {
        let pause = if self.winding_down() {
            self.random.between(1, 200)
        } else {
            self.random.between(50, 12 * SECOND)
        };
        self.rest(process, pause);
    }

    pub fn call(&mut self, process: usize, call: Call, block: u64) {
        let request = self.request_of(process, call, block);
        self.processes[process].call = Some(request.clone());
        self.processes[process].answered = false;
        self.post(request);
    }

    pub fn request_of(&mut self, process: usize, call: Call, block: u64) -> Rc<Request> {
        let it = &mut self.processes[process];
        it.turn += 1;
        let host = &mut self.hosts[it.host];
        host.xid = host.xid.wrapping_add(1);
        let state_matters = matches!(call, Call::Lock { .. });
        Rc::new(Request {
            call,
            xid: host.xid,
            from: host.address,
            name: host.name.clone(),
            lane: host.lanes[it.lane],
            number: it.number,
            tag: it.tag.clone(),
            form: host.kind.form(),
            monitored: host.monitored,
            stateless: state_matters && host.kind == Kind::Netboot,
            truth: Truth {
                host: it.host,
                life: host.life,
                process: Some(process),
                block,
                honest: true,
            },
        })
    }

    /// Sends a request, and again until it is answered.
    pub fn post(&mut self, request: Rc<Request>) {
        let patience = self.hosts[request.truth.host].kind.patience();
        self.send_to_server(&request);
        self.later(patience, Event::Retransmit { request });
    }

    pub fn retransmit(&mut self, request: Rc<Request>) {
        let host = &self.hosts[request.truth.host];
        let same = |other: &Rc<Request>| Rc::ptr_eq(other, &request);
        let waited_for = request.truth.process.is_some_and(|process| {
            let it = &self.processes[process];
            !it.answered && it.call.as_ref().is_some_and(same)
        });
        let reclaimed = host
            .reclaim
            .as_ref()
            .and_then(|reclaim| reclaim.current.as_ref())
            .is_some_and(|(_, current)| same(current));
        if host.up && host.life == request.truth.life && (waited_for || reclaimed) {
            self.post(request);
        }
    }

    pub fn deliver(&mut self, host: usize, life: u32, message: ToHost) {
        if !self.hosts[host].up || self.hosts[host].life != life {
            return;
        }
        match message {
            ToHost::Answer { request, answer, decided } => {
                self.take_answer(host, request, answer, decided);
            }
            ToHost::Grant { grant, block, decided } => {
                let what = Answered::Grant(grant.id, grant.attempt);
                let known = self.hosts[host].granted.iter().find(|(known, _)| *known == what);
                let answer = match known {
                    Some((_, answer)) => *answer,
                    None => self.answer_grant(host, &grant, block, decided),
                };
                self.hosts[host].granted.push((what, answer));
                if self.hosts[host].granted.len() > 20 {
                    self.hosts[host].granted.remove(0);
                }
                self.send_grant_answer(host, grant.id, grant.attempt, answer);
            }
            ToHost::Notice { notice, attempt, state } => {
                self.take_notice(host, state);
                self.send_notice_answer(host, notice, attempt);
            }
        }
    }

    fn take_answer(&mut self, host: usize, request: Rc<Request>, answer: Answer, decided: u64) {
        match request.call {
            Call::Notify { .. } => return self.announced(host, &request),
            Call::Lock { reclaim: true, .. } | Call::Share { reclaim: true, .. }
                if request.truth.honest =>
            {
                return self.reclaimed(host, &request, &answer, decided);
            }
            _ => {}
        }
        let Some(process) = request.truth.process else { return };
        let waits = self.processes[process].call.as_ref().is_some_and(|c| Rc::ptr_eq(c, &request));
        if !waits {
            return;
        }
        // The kernel's own list of locks is the reclaimer's while it works.
        if self.hosts[host].reclaim.is_some() {
            self.processes[process].answered = true;
            let life = self.hosts[host].life;
            let message = ToHost::Answer { request, answer, decided };
            return self.later(100, Event::ToHost { host, life, message });
        }
        self.processes[process].call = None;
        self.processes[process].turn += 1;
        match (self.processes[process].doing, answer) {
            (Doing::Locking(want), Answer::Keeper(Reply::Lock(outcome))) => {
                self.lock_answered(process, want, outcome, decided);
            }
            (Doing::Cancelling(want), Answer::Keeper(Reply::Cancel(cancelled))) => {
                // Some kernels unlock in any case.
                if cancelled == Cancelled::TooLate || self.random.percent(50) {
                    self.unlock(process, want.file, want.range);
                } else {
                    self.rest_a_while(process);
                }
            }
            (Doing::Sharing { file, access, deny, .. }, answer) => {
                self.shared(process, file, (access, deny), &answer, decided);
            }
            (Doing::Locking(want), Answer::NoLocks) => self.abandon(process, want),
            (Doing::Finished, _) => {}
            _ => self.rest_a_while(process),
        }
    }

    fn lock_answered(&mut self, process: usize, want: Want, outcome: Outcome, decided: u64) {
        match outcome {
            Outcome::Granted => self.locked(process, want, decided),
            Outcome::Blocked => match want.granted {
                Some(decided) => self.locked(process, want, decided),
                None => {
                    self.processes[process].doing = Doing::Locking(Want { blocked: true, ..want });
                    let host = self.processes[process].host;
                    let turn = self.processes[process].turn;
                    let poll = match self.hosts[host].waits_only {
                        true => 8 * MINUTE,
                        false => self.hosts[host].kind.poll_every(),
                    };
                    self.later(poll, Event::Poll { process, turn });
                    if self.random.percent(15) {
                        let pause = self.random.between(100, 40 * SECOND);
                        self.later(pause, Event::Signal { process, turn });
                    }
                }
            },
            Outcome::Grace => {
                self.processes[process].doing = Doing::Locking(want);
                let turn = self.processes[process].turn;
                self.later(5 * SECOND, Event::Poll { process, turn });
            }
            Outcome::Denied | Outcome::Deadlock | Outcome::Refused(_) => {
                self.abandon(process, want);
            }
        }
    }

    /// The program gets an error and the server gets no word: a wait may be left behind, or a lock
    /// whose answer died in a crash.
    fn abandon(&mut self, process: usize, want: Want) {
        self.model.abandoned.insert((process, want.file));
        // Of a downgrade that was done before a crash, and whose answer died in it, only the server
        // knows.
        for cell in cells::cells(want.range) {
            let it = &mut self.processes[process];
            let kept = self.model.table[process][want.file][cell].strength;
            if it.belief[want.file][cell] > strength(want.mode) && kept == strength(want.mode) {
                it.tainted[want.file][cell] = true;
            }
        }
        self.rest_a_while(process);
    }

    fn locked(&mut self, process: usize, want: Want, decided: u64) {
        let host = self.processes[process].host;
        // The server restarted while the answer was under way: nobody reclaims this one for us.
        if want.generation != self.hosts[host].generation {
            return self.ask(process, want);
        }
        self.believe(process, want.file, want.range, strength(want.mode), decided);
        self.rest_a_while(process);
    }

    /// Asks again for what is blocked, or was refused for grace.
    pub fn poll(&mut self, process: usize) {
        if self.processes[process].call.is_none() {
            self.ask_for_share(process);
        }
        if let Doing::Locking(want) = self.processes[process].doing
            && self.processes[process].call.is_none()
        {
            self.ask(process, want);
        }
    }

    pub fn signal(&mut self, process: usize) {
        let Doing::Locking(want) = self.processes[process].doing else { return };
        if self.processes[process].call.is_some() || !want.blocked {
            return;
        }
        self.processes[process].doing = Doing::Cancelling(want);
        let Want { file, range, mode, block, .. } = want;
        self.call(process, Call::Cancel { file, range, mode }, block);
    }

    /// A signal while the LOCK itself is unanswered: the kernel gives the call up, cancels and
    /// unlocks. Only when the server has the LOCK already: one that overtakes the UNLOCK on the way
    /// is what no server can help against.
    pub fn impatient(&mut self, request: &Rc<Request>) {
        let Some(process) = request.truth.process else { return };
        let host = &self.hosts[request.truth.host];
        let waits = self.processes[process].call.as_ref().is_some_and(|c| Rc::ptr_eq(c, request));
        let Some(engine) = &self.server.engine else { return };
        let held_back = self.model.asked.values().any(|(asked, _)| Rc::ptr_eq(asked, request));
        let with_worker = engine.working.iter().any(|working| Rc::ptr_eq(working, request));
        let free = host.up && host.reclaim.is_none();
        let Doing::Locking(want) = self.processes[process].doing else { return };
        let has_it = with_worker || (held_back && engine.stage.is_none());
        if waits && has_it && free && want.wait {
            self.tally.reach(match with_worker {
                true => "gave up a LOCK that waits for a worker",
                false => "gave up a LOCK that was held back",
            });
            self.processes[process].call = None;
            self.processes[process].doing = Doing::Cancelling(want);
            let Want { file, range, mode, block, .. } = want;
            self.call(process, Call::Cancel { file, range, mode }, block);
        }
    }

    /// A LOCK of a life that is over, and known to be: a late packet.
    pub fn haunt(&mut self, request: &Rc<Request>) {
        let Call::Lock { state, .. } = request.call else { return };
        let host = request.truth.host;
        // A netboot client begins with the state that it had before.
        if self.hosts[host].kind == Kind::Netboot {
            return;
        }
        let gone = self.model.gone_states.get(&(host, state)).copied();
        // What comes over TCP comes over a connection that we have.
        let Some(engine) = &self.server.engine else { return };
        let mut lanes = self.hosts[host].lanes.iter();
        let lane = lanes.position(|lane| *lane == request.lane).unwrap_or(0);
        // One that is younger than the news may be a new kernel's, for all that the server knows.
        let opened = engine.connections.carries(host, request.truth.life, lane);
        let comes = request.lane.transport() == Transport::Udp
            || opened.is_some_and(|opened| gone.is_some_and(|at| opened < at));
        if self.hosts[host].life > request.truth.life
            && comes
            && gone.is_some_and(|at| at + MINUTE > self.now)
        {
            self.fault("late packet of a dead kernel");
            let xid = request.xid ^ 0x5555_0000;
            self.arrive(Rc::new(Request { xid, ..(**request).clone() }));
        }
    }

    fn answer_grant(
        &mut self,
        host: usize,
        grant: &Rc<Grant>,
        block: u64,
        decided: u64,
    ) -> GrantAnswer {
        if self.random.per_mille(self.chaos_per_mille(20)) {
            self.fault("garbled grant answer");
            return GrantAnswer::Unclear;
        }
        let found = self.hosts[host].processes().find(|process| {
            let it = &self.processes[*process];
            let (Doing::Locking(want) | Doing::Cancelling(want)) = it.doing else { return false };
            want.wait
                && self.file_of(&grant.handle) == Some(want.file)
                && want.range == grant.range
                && it.number == grant.owner.number
                && self.hosts[host].lanes[it.lane] == grant.lane()
                && want.block == block
        });
        let Some(process) = found else { return GrantAnswer::Denied };
        if let Doing::Locking(want) = self.processes[process].doing {
            let want = Want { granted: Some(decided), ..want };
            self.processes[process].doing = Doing::Locking(want);
            if !want.blocked {
                self.tally.reach("GRANTED overtakes BLOCKED");
            }
            // While the reclaimer works the process sleeps on; it asks again afterwards.
            if self.processes[process].call.is_none() && self.hosts[host].reclaim.is_none() {
                self.processes[process].turn += 1;
                self.locked(process, want, decided);
            }
        }
        GrantAnswer::Accepted
    }

    fn send_notice_answer(&mut self, host: usize, notice: NoticeId, attempt: u32) {
        self.send_small_answer(host, crate::engine::Answered::Notice(notice, attempt));
    }
}
