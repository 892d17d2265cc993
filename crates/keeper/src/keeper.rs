//! The keeper: its state, how it starts, and how its work is taken from it. The decisions are in
//! the files beside this one, each about one noun.

use std::time::Duration;

use crate::change::{Change, Exactness, Lock, Protocol, Snapshot};
use crate::clients::Clients;
use crate::config::Config;
use crate::event::Event;
use crate::files::Files;
use crate::grace::Recovery;
use crate::grants::Grants;
use crate::identity::{Caller, ClientId, Epoch, LockId, Owner, RequestId};
use crate::ids::Ids;
use crate::locking::owner_on;
use crate::map::Seed;
use crate::notices::Notices;
use crate::owners::Owners;
use crate::parking::Parking;
use crate::range::Range;
use crate::reboots::Ballots;
use crate::request::{Mode, OwnerName};
use crate::shares::Shares;
use crate::step::{Message, Reply, Step};
use crate::table::{Edit, FileId, Held, OwnerId, Table, Terms};
use crate::time::Time;
use crate::timer::{Timer, Timers};
use crate::waiters::Waiters;

pub struct Keeper {
    pub(crate) config: Config,
    pub(crate) epoch: Epoch,
    pub(crate) exactness: Exactness,
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
    /// How many steps were taken from us.
    pub(crate) steps: u64,
    /// Emptied after each use; kept for its memory.
    edit: Edit,
}

impl Keeper {
    /// Takes up what a store gave back. The first step is the start itself: it must be committed
    /// before any socket opens (I3).
    pub fn restore(saved: Snapshot, epoch: Epoch, config: Config, now: Time) -> Self {
        let seed = Seed(config.seed);
        let recovery = Recovery::starting(config.window(Protocol::Nlm));
        let mut keeper = Self {
            epoch,
            exactness: saved.exactness,
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
            steps: 0,
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
        self.steps += 1;
        (!self.step.is_empty()).then(|| std::mem::take(&mut self.step))
    }

    /// When `handle_timeout` wants to be called (`Time::mono`).
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.next()
    }

    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(timer) = self.timers.expire(now.mono) {
            match timer {
                Timer::Window => self.end_window(now),
                Timer::HeldBack => self.answer_held_back(now),
                Timer::Idle => self.unregister_idle(now),
                Timer::Grant(grant) => self.resend_grant(grant, now),
                Timer::Notice(notice) => self.send_notice(notice, now),
                Timer::Probe(host, question) => self.use_answer(host, question, None, now),
                Timer::Report(host) => self.judge_report_again(host, now),
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

    pub(crate) fn intern_owner(
        &mut self,
        host: ClientId,
        caller: &Caller,
        name: &OwnerName,
    ) -> OwnerId {
        let owner = owner_on(host, caller, name);
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
        if freed {
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
        let mut next_id = || LockId(self.ids.take());
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
