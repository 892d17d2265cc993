//! Recovery: what a restart knows of the locks before it, the grace period in which their owners
//! reclaim them, and what becomes of those that nobody reclaims (R4).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::bytes::FileKey;
use crate::change::{Change, Exactness, Lock, Snapshot};
use crate::clients::Tracked;
use crate::config::{GraceMode, Unreachable};
use crate::event::{Event, GraceEnd, Release};
use crate::identity::{Caller, ClientId, Incarnation, LockId};
use crate::keeper::Keeper;
use crate::parking::Parked;
use crate::range::Range;
use crate::remembered::Remembered;
use crate::request::{LockRequest, Mode, OwnerName, ProbeAnswer};
use crate::step::{Outcome, Reply, Tested};
use crate::table::{FileId, Held, OwnerId, Terms};
use crate::time::Time;
use crate::timer::Timer;
use crate::waiters::Wish;
use crate::window::Window;

/// How long a request waits for the end of grace before it is told of it: a Linux client then
/// sleeps for 5 s, and answers within its time-out of 10 s (R4.2).
const HELD_BACK_MAX: Duration = Duration::from_secs(4);

/// Where a restart stands.
pub struct Recovery {
    pub in_grace: bool,
    /// After it, unconfirmed locks are releasable.
    pub window: Window,
    /// Locks and shares recovered and not reclaimed.
    pub unconfirmed: usize,
    /// Those of them that grace waits for.
    pub missing: usize,
    /// A peer was heard in this epoch: our network works.
    pub heard: bool,
    pub remembered: Remembered,
}

impl Recovery {
    pub fn starting(window: Duration) -> Self {
        Self {
            in_grace: false,
            window: Window::new(window),
            unconfirmed: 0,
            missing: 0,
            heard: false,
            remembered: Remembered::default(),
        }
    }

    /// Whether a host may still have something to reclaim.
    pub fn expects(&self, tracked: &Tracked, exactness: Exactness) -> bool {
        let reclaims = match exactness {
            Exactness::Exact => tracked.unconfirmed > 0,
            Exactness::Roster => self.in_grace,
        };
        reclaims && !self.window.is_over() && tracked.row.registrant.is_none()
    }

    pub fn count_unconfirmed(&mut self, tracked: &mut Tracked, monitored: bool) {
        tracked.unconfirmed += 1;
        self.unconfirmed += 1;
        if monitored {
            tracked.missing += 1;
            self.missing += 1;
        }
    }

    pub fn count_confirmed(&mut self, tracked: &mut Tracked, monitored: bool) {
        tracked.unconfirmed -= 1;
        self.unconfirmed -= 1;
        if monitored {
            tracked.missing -= 1;
            self.missing -= 1;
        }
    }
}

impl Keeper {
    /// The first step of an epoch.
    pub(crate) fn recover(&mut self, saved: Snapshot, now: Time) {
        let (clients, locks) = (saved.clients.len() as u64, saved.locks.len() as u64);
        for row in saved.clients.into_values() {
            self.clients.insert(row, now.mono);
        }
        for lock in saved.locks.into_values() {
            if self.is_over(lock.owner.host, lock.incarnation, lock.id.0) {
                self.change(Change::LockGone(lock.id));
            } else if self.exactness == Exactness::Roster {
                self.recovery.remembered.insert(lock);
            } else {
                self.recover_lock(lock, now);
            }
        }
        for share in saved.shares.into_values() {
            if self.is_over(share.owner.host, share.incarnation, share.id.0) {
                self.change(Change::ShareGone(share.id));
            } else if self.exactness == Exactness::Roster {
                self.recovery.remembered.shares.insert(share.id, share);
            } else {
                self.recover_share(share);
            }
        }
        self.begin(clients, locks, now);
    }

    /// Whether a record has nobody, or was ended by a reboot whose clean-up was cut short (R5.5).
    fn is_over(&self, host: ClientId, incarnation: Incarnation, id: u64) -> bool {
        let row = self.clients.get(host).map(|tracked| &tracked.row);
        row.is_none_or(|row| row.reboot.is_some_and(|reboot| reboot.ended(incarnation, id)))
    }

    fn begin(&mut self, clients: u64, locks: u64, now: Time) {
        let exact = self.exactness == Exactness::Exact;
        let expected = self
            .clients
            .hosts()
            .filter(|tracked| if exact { tracked.missing > 0 } else { tracked.row.monitored });
        let hosts = expected.count() as u64;
        let grace = hosts > 0;
        self.recovery.in_grace = grace;
        self.change(Change::Started { epoch: self.epoch, grace });
        self.event(Event::Started { epoch: self.epoch, clients, locks, exact });
        if grace {
            self.event(Event::GraceStarted { hosts });
        } else {
            self.forget_remembered();
        }
        self.open_window(now);
        if clients > 0 {
            self.timers.set(Timer::Idle, now.mono);
        }
        self.owe_restart_notices(now);
    }

    fn recover_lock(&mut self, lock: Lock, now: Time) {
        let held = Held {
            id: lock.id,
            file: self.files.intern(&lock.file),
            owner: self.number_owner(&lock.owner),
            range: lock.range,
            terms: Terms {
                mode: lock.mode,
                incarnation: lock.incarnation,
                monitored: lock.monitored,
                confirmed: false,
            },
            since_ms: lock.since_ms,
        };
        let Held { file, owner, range, terms, .. } = held;
        let contradicts = self.table.conflict(file, owner, range, terms.mode).is_some();
        if contradicts || !self.table.insert(held) {
            return self.distrust(lock, now);
        }
        self.count_in(&held);
    }

    /// Records that contradict each other cannot all be true, whatever the store says of itself:
    /// they are a roster.
    fn distrust(&mut self, lock: Lock, now: Time) {
        self.exactness = Exactness::Roster;
        self.recovery.remembered.insert(lock);
        let held: Vec<Held> = self.table.after(LockId(0)).collect();
        for held in held {
            let row = self.row_of(&held);
            self.recovery.remembered.insert(row);
            self.table.remove(held.id);
            self.count_out(&held, now);
            self.tidy(held.owner, held.file);
        }
    }

    /// Whether a new request must wait for the end of grace (R4.2, R4.4). An owner that asks for
    /// what it held is not new: its reply may have died in the crash.
    pub(crate) fn grace_holds_back(&self, wish: Wish, owner_excepted: bool) -> bool {
        if !self.recovery.in_grace {
            return false;
        }
        if self.exactness == Exactness::Roster {
            return true;
        }
        if owner_excepted && self.table.owned(wish.owner, wish.file, wish.range).next().is_some() {
            return false;
        }
        match self.config.grace {
            GraceMode::Strict => true,
            GraceMode::Instant => self.meets_unconfirmed(wish),
        }
    }

    fn meets_unconfirmed(&self, wish: Wish) -> bool {
        let mut meets = false;
        let Wish { owner, file, range, mode, .. } = wish;
        self.table.conflicts(file, owner, range, mode, &mut |held| {
            meets = !held.terms.confirmed;
            if meets { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        meets
    }

    pub(crate) fn hold_back(&mut self, parked: Parked, now: Time) {
        if self.parking.len() >= self.config.limits.parked {
            return self.tell_grace(parked);
        }
        self.parking.hold_back(now.mono + HELD_BACK_MAX, parked);
        if !self.timers.is_set(Timer::HeldBack) {
            self.timers.set(Timer::HeldBack, now.mono + HELD_BACK_MAX);
        }
    }

    pub(crate) fn answer_held_back(&mut self, now: Time) {
        while let Some(parked) = self.parking.pop_held_back(Some(now.mono)) {
            self.tell_grace(parked);
        }
        if let Some(next) = self.parking.first_deadline() {
            self.timers.set(Timer::HeldBack, next);
        }
    }

    fn tell_grace(&mut self, parked: Parked) {
        match parked {
            Parked::Lock(request, _) => self.reply_lock(&request, Outcome::Grace),
            Parked::Share(request, _) => self.reply(request.id, Reply::Share(Outcome::Grace)),
            Parked::Test(request) => self.reply(request.id, Reply::Test(Tested::Grace)),
            Parked::Claim(_) | Parked::Waiter(..) => {}
        }
    }

    /// "I held this before you restarted" (R3.6).
    pub(crate) fn reclaim_lock(&mut self, request: LockRequest, host: Option<ClientId>, now: Time) {
        self.note_reclaim(host, now);
        let (owner, file) = self.numbers(&request.caller, &request.owner, &request.file);
        if let Some(file) = file
            && self.owner_holds(owner, file, request.range, request.mode)
        {
            if self.splits(owner, file, request.range)
                && let Err(why) = self.has_room_to_split(owner, file)
            {
                return self.refuse_lock(&request, host, why);
            }
            let settled = self.settle_grants(owner, file, request.range);
            let before = self.unconfirmed_of(host);
            self.confirm_owned(owner, file, request.range, now);
            self.tell_reclaimed(host, before);
            self.finish_and_wake(file, settled, Some(request.range), now);
            self.reply_lock(&request, Outcome::Granted);
            return self.end_grace_if_complete(now);
        }
        if !self.recovery.in_grace {
            return self.reply_lock(&request, Outcome::Grace);
        }
        let known = host.filter(|host| self.may_reclaim(*host));
        let wish = Wish {
            owner,
            file: file.unwrap_or(crate::locking::NO_FILE),
            range: request.range,
            mode: request.mode,
            place: None,
        };
        match known {
            Some(host)
                if self.exactness == Exactness::Roster
                    && self.table.conflict(wish.file, owner, wish.range, wish.mode).is_none() =>
            {
                self.reclaim_from_roster(request, host, wish, now);
            }
            _ => {
                if let Some(client) = host {
                    self.event(Event::ReclaimRefused { client });
                }
                // A request that waits is never told "denied".
                let outcome = if request.wait { Outcome::Grace } else { Outcome::Denied };
                self.reply_lock(&request, outcome);
            }
        }
    }

    pub(crate) fn unconfirmed_of(&self, host: Option<ClientId>) -> usize {
        host.and_then(|host| self.clients.get(host)).map_or(0, |tracked| tracked.unconfirmed)
    }

    /// A host reclaims: it is the kernel that took what it held, whatever becomes of this.
    pub(crate) fn note_reclaim(&mut self, host: Option<ClientId>, now: Time) {
        if let Some(tracked) = host.and_then(|host| self.clients.get_mut(host)) {
            tracked.reclaimed = Some(now.mono);
            self.note_progress(now);
        }
    }

    /// Says so once a host has nothing left to reclaim; `before` is how much it had.
    pub(crate) fn tell_reclaimed(&mut self, host: Option<ClientId>, before: usize) {
        if let Some(client) = host
            && before > 0
            && self.unconfirmed_of(host) == 0
        {
            self.event(Event::Reclaimed { client });
        }
    }

    /// I5: only hosts that were known before this epoch.
    pub(crate) fn may_reclaim(&self, host: ClientId) -> bool {
        self.clients
            .get(host)
            .is_some_and(|tracked| tracked.row.monitored && tracked.row.epoch < self.epoch)
    }

    /// The owner knows of what it has in a range. A reclaim weakens nothing (I6): a client that
    /// reclaims less than is recorded has an upgrade under way, and its grant may still reach it.
    fn confirm_owned(&mut self, owner: OwnerId, file: FileId, range: Range, now: Time) {
        // What lies wholly in the range is confirmed where it is: nothing need be written.
        for mode in [Mode::Shared, Mode::Exclusive] {
            self.confirm_unchanged(owner, file, range, mode);
        }
        let own: Vec<Held> = self.table.owned(owner, file, range).collect();
        for held in own {
            if let Some(part) = held.range.overlap(range) {
                let terms = Terms { confirmed: true, ..held.terms };
                self.grant(file, owner, part, terms, now);
            }
        }
    }

    /// Confirms the locks that lie wholly in the range and have this mode already.
    pub(crate) fn confirm_unchanged(
        &mut self,
        owner: OwnerId,
        file: FileId,
        range: Range,
        mode: Mode,
    ) {
        let own = self.table.owned(owner, file, range);
        let unchanged = own.filter(|held| {
            !held.terms.confirmed && held.terms.mode == mode && range.covers(held.range)
        });
        let unchanged: Vec<Held> = unchanged.collect();
        for held in unchanged {
            self.table.confirm(held.id);
            if let Some(tracked) = self.clients.get_mut(self.owners.host(owner)) {
                self.recovery.count_confirmed(tracked, held.terms.monitored);
            }
        }
    }

    fn reclaim_from_roster(&mut self, request: LockRequest, host: ClientId, wish: Wish, now: Time) {
        // A reclaim carries no state: it is of the incarnation that we knew.
        let terms = Terms {
            mode: request.mode,
            incarnation: self.clients.incarnation(host),
            monitored: request.monitored,
            confirmed: true,
        };
        // It may have had more than the limit, by giving back in pieces.
        let room = self.has_entry(Some(host), self.table.file_len(wish.file), 2);
        match room.and_then(|()| self.admit(&request, Some(host), now)) {
            Ok((owner, file)) => {
                let LockRequest { caller, owner: name, file: key, range, .. } = &request;
                self.unlock_remembered(caller, name, key, *range);
                self.grant(file, owner, *range, terms, now);
                self.tidy(owner, file);
                self.reply_lock(&request, Outcome::Granted);
            }
            Err(refusal) => self.refuse_lock(&request, Some(host), refusal),
        }
    }

    /// An owner gave up or took anew what a roster remembers of it.
    pub(crate) fn unlock_remembered(
        &mut self,
        caller: &Caller,
        owner: &OwnerName,
        file: &FileKey,
        range: Range,
    ) {
        if self.recovery.remembered.is_empty() {
            return;
        }
        if let Some(owner) = self.owner(caller, owner) {
            for id in self.recovery.remembered.take_covered(&owner, file, range) {
                self.change(Change::LockGone(id));
            }
        }
    }

    /// With an exact store, grace need not last longer than the last reclaim (R4.3).
    pub(crate) fn end_grace_if_complete(&mut self, now: Time) {
        let complete = self.recovery.in_grace
            && self.exactness == Exactness::Exact
            && self.recovery.missing == 0;
        if complete {
            self.end_grace(GraceEnd::Complete, now);
        }
    }

    pub(crate) fn end_grace(&mut self, why: GraceEnd, now: Time) {
        self.recovery.in_grace = false;
        self.change(Change::GraceEnded);
        self.event(Event::GraceEnded { why });
        self.forget_remembered();
        self.timers.stop(Timer::HeldBack);
        while let Some(parked) = self.parking.pop_held_back(None) {
            match parked {
                Parked::Lock(request, asked) => self.decide_lock(request, asked, now),
                Parked::Share(request, asked) => self.decide_share(request, asked, now),
                Parked::Test(request) => self.decide_test(request, now),
                Parked::Claim(_) | Parked::Waiter(..) => {}
            }
        }
    }

    fn forget_remembered(&mut self) {
        let remembered = std::mem::take(&mut self.recovery.remembered);
        let mut counts: BTreeMap<ClientId, u64> = BTreeMap::new();
        for lock in remembered.locks.into_values() {
            *counts.entry(lock.owner.host).or_default() += 1;
            self.change(Change::LockGone(lock.id));
        }
        for share in remembered.shares.into_values() {
            *counts.entry(share.owner.host).or_default() += 1;
            self.change(Change::ShareGone(share.id));
        }
        for (client, count) in counts {
            self.event(Event::Released { client, count, why: Release::RosterEnd });
        }
    }

    /// Whether unconfirmed locks may go to somebody else, once their host fails a probe (R4.5).
    pub(crate) fn may_release(&self) -> bool {
        !self.recovery.in_grace
            && self.recovery.window.is_over()
            && self.config.unreachable != Unreachable::Retain
    }

    /// What a probe said of a host whose unconfirmed locks somebody wants.
    pub(crate) fn judge_holder(
        &mut self,
        holder: ClientId,
        wish: Wish,
        answer: ProbeAnswer,
        now: Time,
    ) {
        if answer == ProbeAnswer::Alive || !self.may_release() {
            return;
        }
        let Wish { owner, file, range, mode, .. } = wish;
        let mut lost = Vec::new();
        self.table.conflicts(file, owner, range, mode, &mut |held| {
            if !held.terms.confirmed && self.owners.host(held.owner) == holder {
                lost.push(*held);
            }
            ControlFlow::Continue(())
        });
        self.drop_locks(holder, lost, Release::Unanswered, now);
    }

    /// `unreachable = "immediate"`: the first failed notice is enough, unless the host has shown
    /// itself in another way, or nobody has.
    pub(crate) fn release_unreached(&mut self, client: ClientId, now: Time) {
        let Some(tracked) = self.clients.get(client) else { return };
        let applies = self.config.unreachable == Unreachable::Immediate
            && self.recovery.heard
            && tracked.last_seen.is_none()
            && tracked.unconfirmed > 0;
        if !applies {
            return;
        }
        let owners: Vec<_> = tracked.owners.iter().copied().collect();
        let mut lost = Vec::new();
        for owner in owners {
            lost.extend(self.table.of_owner(owner).filter(|held| !held.terms.confirmed));
        }
        self.drop_locks(client, lost, Release::Unreachable, now);
        self.drop_unconfirmed_shares(client, Release::Unreachable, now);
        self.end_grace_if_complete(now);
    }
}
