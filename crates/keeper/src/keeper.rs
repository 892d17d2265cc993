//! The keeper: its state, how it starts, and how its work is taken from it. The decisions are in
//! the files beside this one, each about one noun.

use std::sync::Arc;
use std::time::Duration;

use crate::change::{Change, Client, Exactness, Lock, Protocol, Snapshot};
use crate::clients::Clients;
use crate::config::Config;
use crate::event::Event;
use crate::files::Files;
use crate::grace::Recovery;
use crate::grants::Grants;
use crate::identity::{Caller, ClientId, Epoch, HostKey, Incarnation, LockId, Owner, RequestId};
use crate::ids::Ids;
use crate::map::Seed;
use crate::notices::Notices;
use crate::owners::Owners;
use crate::parking::{Parked, Parking};
use crate::planted::{self, Bug};
use crate::range::Range;
use crate::reboots::Ballots;
use crate::request::{Mode, OwnerName, ProbeAnswer, Question};
use crate::shares::Shares;
use crate::step::{Message, Refusal, Reply, Step};
use crate::table::{Edit, FileId, Held, OwnerId, Table, Terms};
use crate::time::Time;
use crate::timer::{Timer, Timers};
use crate::waiters::Waiters;

/// A host with nothing for this long is unregistered (R1.5).
const IDLE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How many of our addresses we remember for a host.
const USED_MAX: usize = 16;

pub struct Keeper {
    pub(crate) config: Config,
    pub(crate) epoch: Epoch,
    pub(crate) exactness: Exactness,
    pub(crate) started: Time,
    pub(crate) stopped: bool,
    pub(crate) ids: Ids,
    pub(crate) clients: Clients,
    pub(crate) owners: Owners,
    pub(crate) files: Files,
    pub(crate) table: Table,
    pub(crate) shares: Shares,
    pub(crate) waiters: Waiters,
    pub(crate) grants: Grants,
    pub(crate) parking: Parking,
    pub(crate) ballots: Ballots,
    pub(crate) recovery: Recovery,
    pub(crate) notices: Notices,
    pub(crate) timers: Timers,
    pub(crate) step: Step,
    /// Emptied after each use; kept for its memory.
    edit: Edit,
}

impl Keeper {
    /// Takes up what a store gave back. The first step is the start itself: it must be committed
    /// before any socket opens (I3).
    pub fn restore(saved: Snapshot, epoch: Epoch, config: Config, now: Time) -> Self {
        let seed = Seed(config.seed);
        let recovery = Recovery::starting(now.mono + config.window(Protocol::Nlm));
        let mut keeper = Self {
            epoch,
            exactness: saved.exactness,
            started: now,
            stopped: false,
            ids: Ids::after(&saved),
            clients: Clients::new(seed),
            owners: Owners::new(seed),
            files: Files::new(seed),
            table: Table::new(config.seed),
            shares: Shares::default(),
            waiters: Waiters::default(),
            grants: Grants::default(),
            parking: Parking::default(),
            ballots: Ballots::default(),
            recovery,
            notices: Notices::default(),
            timers: Timers::default(),
            step: Step::default(),
            edit: Edit::default(),
            config,
        };
        keeper.recover(saved, now);
        keeper
    }

    /// Everything to be done since the last call, as one unit.
    pub fn poll_step(&mut self) -> Option<Step> {
        if let Some(below) = self.ids.grown() {
            self.step.changes.insert(0, Change::IdsBelow(below));
        }
        (!self.step.is_empty()).then(|| std::mem::take(&mut self.step))
    }

    /// When `handle_timeout` wants to be called (`Time::mono`).
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.next()
    }

    pub fn handle_timeout(&mut self, now: Time) {
        let by = match planted::has(Bug::WallClockDecides) {
            true => {
                self.started.mono
                    + Duration::from_millis(now.wall_ms.saturating_sub(self.started.wall_ms))
            }
            false => now.mono,
        };
        while let Some(timer) = self.timers.expire(by) {
            match timer {
                Timer::Window => self.end_window(now),
                Timer::HeldBack => self.answer_held_back(now),
                Timer::Idle => self.unregister_idle(now),
                Timer::Grant(grant) => self.resend_grant(grant, now),
                Timer::Notice(notice) => self.send_notice(notice, now),
                Timer::Probe(host, question) if planted::has(Bug::SilentProbeKills) => {
                    self.use_answer(host, question, Some(ProbeAnswer::Gone), now);
                }
                Timer::Probe(host, question) => self.use_answer(host, question, None, now),
            }
        }
    }

    /// A clean stop (R4.6): the last step before the process ends.
    pub fn handle_stop(&mut self, _now: Time) {
        self.stopped = true;
        self.change(Change::Stopped);
        self.event(Event::Stopped);
    }

    pub(crate) fn reply(&mut self, to: RequestId, reply: Reply) {
        self.step.messages.push(Message::Reply(to, reply));
    }

    pub(crate) fn change(&mut self, change: Change) {
        self.step.changes.push(change);
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.step.events.push(event);
    }

    /// A host speaks: it is there.
    pub(crate) fn hear(&mut self, host: &HostKey, now: Time) {
        if let Some(client) = self.clients.find_host(host) {
            self.hear_client(client, now);
        }
        self.hear_anybody(now);
    }

    pub(crate) fn hear_client(&mut self, client: ClientId, now: Time) {
        if let Some(tracked) = self.clients.get_mut(client) {
            tracked.last_seen = Some(now.mono);
            tracked.crashed = false;
        }
    }

    /// Any sign of this address that does not come as a request here (a file operation).
    pub fn handle_heard(&mut self, address: std::net::IpAddr, now: Time) {
        let there: Vec<ClientId> =
            self.clients.hosts_at(address).map(|tracked| tracked.row.id).collect();
        for client in there {
            self.hear_client(client, now);
        }
        self.hear_anybody(now);
    }

    /// Changes a row of the client tracker, durably.
    pub(crate) fn update_client(&mut self, id: ClientId, update: impl FnOnce(&mut Client)) {
        if let Some(tracked) = self.clients.get_mut(id) {
            update(Arc::make_mut(&mut tracked.row));
            let row = tracked.row.clone();
            self.change(Change::Client(row));
        }
    }

    /// The row of a calling host: made, or brought up to date, in the step of its first lock
    /// (R1.5).
    pub(crate) fn register(
        &mut self,
        caller: &Caller,
        monitored: bool,
        incarnation: Incarnation,
        now: Time,
    ) -> Result<ClientId, Refusal> {
        let monitored = monitored || planted::has(Bug::UnmonitoredRegisters);
        if planted::has(Bug::NameStopsAll) && self.clients.iter().any(|tracked| tracked.unreached) {
            return Err(Refusal::TooManyClients);
        }
        let ours = caller.lane.ours();
        if let Some(id) = self.clients.find_host(&caller.host) {
            let Some(tracked) = self.clients.get(id) else { return Ok(id) };
            let row = &tracked.row;
            let learns_state = incarnation.is_known() && !row.incarnation.is_known();
            if (monitored && !row.monitored) || learns_state || !row.used.contains(&ours) {
                let newly_monitored = monitored && !row.monitored;
                self.update_client(id, |row| {
                    row.monitored |= monitored;
                    if learns_state {
                        row.incarnation = incarnation;
                    }
                    if !row.used.contains(&ours) {
                        row.used.push(ours);
                        let extra = row.used.len().saturating_sub(USED_MAX);
                        row.used.drain(..extra);
                    }
                });
                if newly_monitored {
                    self.event(Event::Registered { client: id });
                }
            }
            return Ok(id);
        }
        self.make_room(Protocol::Nlm)?;
        let row = Client {
            id: ClientId(self.ids.take()),
            protocol: Protocol::Nlm,
            address: caller.host.address(),
            name: caller.host.name().clone(),
            incarnation,
            reboot: None,
            monitored,
            fenced: false,
            used: vec![ours],
            registered_at_ms: now.wall_ms,
            epoch: self.epoch,
            registrant: None,
        };
        Ok(self.insert_client(row, now))
    }

    pub(crate) fn insert_client(&mut self, row: Client, now: Time) -> ClientId {
        let (id, monitored) = (row.id, row.monitored);
        let row = Arc::new(row);
        self.change(Change::Client(row.clone()));
        self.clients.insert(row, now.mono);
        self.hear_client(id, now);
        if !self.timers.is_set(Timer::Idle) {
            self.timers.set(Timer::Idle, now.mono + IDLE_MAX);
        }
        if monitored {
            self.event(Event::Registered { client: id });
        }
        id
    }

    /// Room for one more client (R1.3): who holds something, or may come to reclaim it, stays.
    pub(crate) fn make_room(&mut self, protocol: Protocol) -> Result<(), Refusal> {
        if self.clients.len() < self.config.limits.clients {
            return Ok(());
        }
        let mut leaves = None;
        if !self.recovery.in_grace {
            leaves = self.clients.longest_idle();
        }
        // A host that locks matters more than somebody who only wants to be told.
        if leaves.is_none() && protocol == Protocol::Nlm {
            leaves = self.clients.longest_silent_registrant();
        }
        self.unregister(leaves.ok_or(Refusal::TooManyClients)?);
        Ok(())
    }

    pub(crate) fn unregister(&mut self, id: ClientId) {
        if let Some(tracked) = self.clients.remove(id) {
            self.forget_notices(id);
            self.change(Change::ClientGone(id));
            if tracked.row.monitored {
                self.event(Event::Unregistered { client: id });
            }
        }
    }

    pub(crate) fn unregister_idle(&mut self, now: Time) {
        if self.recovery.in_grace {
            return self.timers.set(Timer::Idle, self.recovery.ends.max(now.mono) + IDLE_MAX / 24);
        }
        let mut next = now.mono + IDLE_MAX;
        let mut idle = Vec::new();
        for tracked in self.clients.hosts() {
            if tracked.has_nothing() && !tracked.row.fenced {
                match tracked.idle_since + IDLE_MAX {
                    due if due <= now.mono => idle.push(tracked.row.id),
                    due => next = next.min(due),
                }
            }
        }
        for id in idle {
            self.unregister(id);
        }
        if self.clients.len() > 0 {
            self.timers.set(Timer::Idle, next);
        }
    }

    pub(crate) fn is_host_fenced(&self, host: ClientId) -> bool {
        self.clients.get(host).is_some_and(|tracked| tracked.row.fenced)
    }

    /// Holds a request back until a question about a host is answered.
    pub(crate) fn ask(&mut self, host: ClientId, question: Question, parked: Parked, now: Time) {
        // Waiters have a bound of their own, and nobody would ask again on their behalf.
        let bounded = !matches!(parked, Parked::Waiter(_));
        if bounded && self.parking.len() >= self.config.limits.parked {
            return self.turn_away(parked);
        }
        self.parking.await_probe(host, question, parked);
        let timer = Timer::Probe(host, question);
        if !self.timers.is_set(timer) {
            self.timers.set(timer, now.mono + PROBE_MAX);
            self.step.messages.push(Message::Probe(host, question));
        }
    }

    /// The answer to a `Message::Probe`.
    pub fn handle_probed(
        &mut self,
        client: ClientId,
        question: Question,
        answer: ProbeAnswer,
        now: Time,
    ) {
        let asked = self.timers.due(Timer::Probe(client, question));
        let asked = asked.map(|due| due.saturating_sub(PROBE_MAX));
        let seen = self.clients.get(client).and_then(|tracked| tracked.last_seen);
        let spoke = question == Question::Reachable && asked.is_some() && seen >= asked;
        let answer = match answer {
            // It did not answer us, and yet it reads and writes.
            ProbeAnswer::Silent if spoke => ProbeAnswer::Alive,
            answer => answer,
        };
        if answer == ProbeAnswer::Alive {
            self.hear_client(client, now);
        }
        self.use_answer(client, question, Some(answer), now);
    }

    /// Goes on with what was waiting for an answer; `None` if nobody could say. Then the safe side
    /// is that whoever holds something lives, and that whoever waits is not there.
    fn use_answer(
        &mut self,
        client: ClientId,
        question: Question,
        answer: Option<ProbeAnswer>,
        now: Time,
    ) {
        self.timers.stop(Timer::Probe(client, question));
        self.parking.answer(client, question);
        let lives = answer.unwrap_or(ProbeAnswer::Alive);
        // One at a time: what is decided for one may withdraw another.
        while let Some(parked) = self.parking.pop_answered(client, question) {
            match parked {
                Parked::Claim(claim) => self.judge_claim(client, claim, lives, now),
                Parked::Waiter(waiter) => self.judge_waiter(client, waiter, answer, now),
                Parked::Lock(request, asked) if question == Question::SameKernel => {
                    self.judge_incarnation(client, request, asked, lives, now);
                }
                Parked::Lock(request, mut asked) => {
                    self.judge_holder(client, self.wish(&request), lives, now);
                    asked.holders.push(client);
                    self.decide_lock(request, asked, now);
                }
                Parked::Share(request, mut asked) => {
                    self.judge_sharer(client, &request, lives, now);
                    asked.holders.push(client);
                    self.decide_share(request, asked, now);
                }
                Parked::Test(request) => self.decide_test(request, now),
            }
        }
    }

    /// There is no room to hold this back.
    fn turn_away(&mut self, parked: Parked) {
        let why = Refusal::TooManyParked;
        match parked {
            Parked::Lock(request, _) => self.refuse_lock(&request, None, why),
            Parked::Share(request, _) => self.refuse_share(&request, why),
            Parked::Test(request) => {
                self.reply(request.id, Reply::Test(crate::step::Tested::Grace));
            }
            Parked::Claim(claim) => self.resolve(claim.request, false),
            Parked::Waiter(_) => {}
        }
    }

    pub(crate) fn intern_owner(
        &mut self,
        host: ClientId,
        caller: &Caller,
        name: &OwnerName,
    ) -> OwnerId {
        let owner = Owner {
            host,
            lane: crate::locking::lane(caller),
            number: name.number,
            tag: name.tag.clone(),
        };
        self.number_owner(&owner)
    }

    pub(crate) fn number_owner(&mut self, owner: &Owner) -> OwnerId {
        let id = self.owners.intern(owner);
        if let Some(tracked) = self.clients.get_mut(owner.host) {
            tracked.owners.insert(id);
        }
        id
    }

    /// Gives a range to an owner, and whatever that frees to who waits for it.
    pub(crate) fn grant(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        terms: Terms,
        now: Time,
    ) {
        let freed = self.grant_quietly(file, owner, range, terms, now);
        if freed && !planted::has(Bug::DowngradeWakesNobody) {
            self.wake(file, range, now);
        }
    }

    /// The same without waking anybody; says whether something became free.
    pub(crate) fn grant_quietly(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        terms: Terms,
        now: Time,
    ) -> bool {
        let mut edit = std::mem::take(&mut self.edit);
        let mut next_id = || LockId(self.ids.take());
        self.table.grant(file, owner, range, terms, now.wall_ms, &mut next_id, &mut edit);
        let weakened = terms.mode == Mode::Shared
            && edit.gone.iter().any(|held| held.terms.mode == Mode::Exclusive);
        self.record(&mut edit, now);
        self.edit = edit;
        weakened
    }

    /// Takes a range from an owner without waking anybody; says what became free.
    pub(crate) fn release_quietly(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        now: Time,
    ) -> Option<Range> {
        let mut edit = std::mem::take(&mut self.edit);
        let mut next_id = || match planted::has(Bug::FragmentsShareId) {
            true => LockId(self.ids.next()),
            false => LockId(self.ids.take()),
        };
        self.table.release(file, owner, range, &mut next_id, &mut edit);
        let freed = edit.gone.iter().filter_map(|held| held.range.overlap(range));
        let freed = freed.reduce(Range::hull);
        self.record(&mut edit, now);
        self.edit = edit;
        freed
    }

    /// Writes down what an operation did to the table, and keeps the counts true.
    pub(crate) fn record(&mut self, edit: &mut Edit, now: Time) {
        for held in edit.gone.drain(..) {
            self.change(Change::LockGone(held.id));
            self.count_out(&held, now);
        }
        for held in edit.new.drain(..) {
            let lock = self.row_of(&held);
            self.change(Change::Lock(lock));
            self.count_in(&held);
        }
    }

    pub(crate) fn row_of(&self, held: &Held) -> Lock {
        Lock {
            id: held.id,
            file: self.files.key(held.file).clone(),
            owner: self.owners.owner(held.owner).clone(),
            range: held.range,
            mode: held.terms.mode,
            incarnation: held.terms.incarnation,
            monitored: held.terms.monitored,
            since_ms: held.since_ms,
        }
    }

    pub(crate) fn count_in(&mut self, held: &Held) {
        let host = self.owners.host(held.owner);
        if let Some(tracked) = self.clients.get_mut(host) {
            tracked.locks += 1;
            tracked.count_taken(held.terms.incarnation);
            if !held.terms.confirmed {
                self.recovery.count_unconfirmed(tracked, held.terms.monitored);
            }
        }
    }

    pub(crate) fn count_out(&mut self, held: &Held, now: Time) {
        let host = self.owners.host(held.owner);
        if let Some(tracked) = self.clients.get_mut(host) {
            tracked.locks -= 1;
            tracked.count_given_back(held.terms.incarnation);
            tracked.idle_since = now.mono;
            if !held.terms.confirmed {
                self.recovery.count_confirmed(tracked, held.terms.monitored);
            }
        }
    }

    /// Forgets the numbers of an owner and a file that nothing needs any more.
    pub(crate) fn tidy(&mut self, owner: OwnerId, file: FileId) {
        if self.table.file_len(file) == 0 {
            self.files.forget_unused(file);
        }
        self.tidy_owner(owner);
    }

    pub(crate) fn tidy_owner(&mut self, owner: OwnerId) {
        if self.table.owner_len(owner) == 0
            && let Some(host) = self.owners.find_host(owner)
            && self.owners.forget_unused(owner)
            && let Some(tracked) = self.clients.get_mut(host)
        {
            tracked.owners.remove(&owner);
        }
    }
}

/// After this long a probe that was not answered counts as "alive".
const PROBE_MAX: Duration = Duration::from_secs(30);
