//! Recovery after a restart: the locks and shares recovered, the grace period in which their owners
//! reclaim them, and what becomes of those never reclaimed.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::bytes::FileKey;
use crate::change::{Change, Exactness, Lock, Snapshot};
use crate::clients::TrackedClient;
use crate::config::{GraceMode, Unreachable};
use crate::event::{Event, GraceEnd, Release};
use crate::identity::{Caller, ClientId, Incarnation, LockId};
use crate::interned::{FileId, OwnerId};
use crate::keeper::Keeper;
use crate::locking::NO_FILE;
use crate::namespaces;
use crate::parking::Parked;
use crate::range::Range;
use crate::remembered::RosterRecords;
use crate::request::{LockRequest, Mode, OwnerName, ProbeAnswer};
use crate::step::{Outcome, Reply, TestResult};
use crate::table::{HeldLock, LockKind};
use crate::time::Time;
use crate::timer::Timer;
use crate::waiters::WantedLock;
use crate::window::Window;

/// How long grace holds a request back before it is answered DENIED_GRACE_PERIOD. A Linux client
/// then sleeps 5 s before it asks again; its call times out after 10 s (B4.9).
const HELD_BACK_MAX: Duration = Duration::from_secs(4);

/// State of the recovery in this epoch.
pub(crate) struct Recovery {
    pub in_grace: bool,
    /// Once it is over, unconfirmed locks are releasable.
    pub window: Window,
    /// Locks and shares recovered and not yet reclaimed.
    pub unconfirmed: usize,
    /// Those of them that grace waits for: the monitored ones.
    pub missing: usize,
    /// Hosts that ceased to be missing something during this input.
    pub reclaimers: Vec<ClientId>,
    /// A peer was heard in this epoch, so the network works.
    pub heard: bool,
    /// Reclaims of what an exact store does not have.
    pub unrecorded: u64,
    pub remembered: RosterRecords,
}

impl Recovery {
    pub(crate) fn starting(window: Duration) -> Self {
        Self {
            in_grace: false,
            window: Window::new(window),
            unconfirmed: 0,
            missing: 0,
            reclaimers: Vec::new(),
            heard: false,
            unrecorded: 0,
            remembered: RosterRecords::default(),
        }
    }

    /// Whether the host may still have something to reclaim.
    pub(crate) fn expects(&self, tracked: &TrackedClient, exactness: Exactness) -> bool {
        let reclaims = match exactness {
            Exactness::Exact => tracked.missing > 0,
            Exactness::Roster | Exactness::Open => self.in_grace,
        };
        reclaims && !self.window.has_ended() && tracked.row.is_host()
    }

    pub(crate) fn count_unconfirmed(&mut self, tracked: &mut TrackedClient, monitored: bool) {
        tracked.unconfirmed += 1;
        self.unconfirmed += 1;
        if monitored {
            tracked.missing += 1;
            tracked.expected = true;
            self.missing += 1;
        }
    }

    pub(crate) fn count_confirmed(&mut self, tracked: &mut TrackedClient, monitored: bool) {
        tracked.unconfirmed -= 1;
        self.unconfirmed -= 1;
        if monitored {
            tracked.missing -= 1;
            self.missing -= 1;
            if tracked.missing == 0 {
                self.reclaimers.push(tracked.row.id);
            }
        }
    }
}

impl Keeper {
    /// Restores the saved state; the first step of an epoch.
    pub(crate) fn recover(&mut self, saved: Snapshot, now: Time) {
        let (clients, locks) = (saved.clients.len() as u64, saved.locks.len() as u64);
        for row in saved.clients.into_values() {
            self.clients.insert(row, now.mono);
        }
        if self.exactness == Exactness::Open {
            self.register_roster_copy(now);
        }
        for lock in saved.locks.into_values() {
            if self.has_ended(lock.owner.host, lock.incarnation, lock.id.0) {
                self.change(Change::LockGone(lock.id));
            } else if !self.exactness.is_exact() {
                self.recovery.remembered.insert(lock);
            } else {
                self.recover_lock(lock, now);
            }
        }
        for share in saved.shares.into_values() {
            if self.has_ended(share.owner.host, share.incarnation, share.id.0) {
                self.change(Change::ShareGone(share.id));
            } else if !self.exactness.is_exact() {
                self.recovery.remembered.shares.insert(share.id, share);
            } else {
                self.recover_share(share);
            }
        }
        self.move_replaced_namespaces();
        self.find_former_addresses();
        self.note_used_addresses();
        self.begin(clients, locks, now);
    }

    /// Whether the record's host is gone, or the record was ended by a reboot whose sweep was cut
    /// short (B3.18).
    fn has_ended(&self, host: ClientId, incarnation: Incarnation, id: u64) -> bool {
        let row = self.clients.get(host).map(|tracked| &tracked.row);
        row.is_none_or(|row| row.reboot.is_some_and(|reboot| reboot.ended(incarnation, id)))
    }

    fn begin(&mut self, clients: u64, locks: u64, now: Time) {
        let exact = self.exactness.is_exact();
        let expected = self
            .clients
            .hosts()
            .filter(|tracked| if exact { tracked.missing > 0 } else { tracked.row.monitored });
        let hosts = expected.count() as u64;
        // Hosts that the store lacks may reclaim as well.
        let grace = hosts > 0 || self.exactness == Exactness::Open;
        self.recovery.in_grace = grace;
        let recorded = grace.then_some(self.exactness);
        self.change(Change::Started { epoch: self.epoch, grace: recorded });
        let exactness = self.exactness;
        self.event(Event::Started { epoch: self.epoch, clients, locks, exactness });
        if grace {
            self.event(Event::GraceStarted { hosts });
        } else {
            self.end_remembered(now);
        }
        self.open_window(now);
        self.await_reconnection();
        if self.clients.len() > 0 {
            self.timers.set(Timer::Idle, now.mono);
        }
        self.queue_restart_notices(now);
    }

    fn recover_lock(&mut self, lock: Lock, now: Time) {
        if !self.insert_unconfirmed(&lock) {
            self.treat_as_roster(lock, now);
        }
    }

    /// Inserts a recorded lock as unconfirmed; false if it contradicts another.
    pub(crate) fn insert_unconfirmed(&mut self, lock: &Lock) -> bool {
        let held = HeldLock {
            id: lock.id,
            file: self.files.intern(&lock.file),
            owner: self.intern_owner(&lock.owner),
            range: lock.range,
            kind: recorded_kind(lock),
            since_ms: lock.since_ms,
        };
        let HeldLock { file, owner, range, kind, .. } = held;
        let contradicts = self.table.conflict(file, owner, range, kind.mode).is_some();
        if contradicts || !self.table.insert(held) {
            self.touch(owner, file);
            return false;
        }
        self.count_in(&held);
        true
    }

    /// Handles a record that contradicts another: the saved locks cannot all be true, whatever the
    /// store says of itself, so all of them become a roster.
    fn treat_as_roster(&mut self, lock: Lock, now: Time) {
        self.exactness = Exactness::Roster;
        self.recovery.remembered.insert(lock);
        let held: Vec<HeldLock> = self.table.after(LockId(0)).collect();
        for held in held {
            let row = self.row_of(&held);
            self.recovery.remembered.insert(row);
            self.table.remove(held.id);
            self.count_out(&held, now);
            self.touch(held.owner, held.file);
        }
    }

    /// Whether a new request must wait for the end of grace (B4.9, B4.10). With `owner_excepted`, an
    /// owner may lock what it already held: its reply may have been lost in the crash.
    pub(crate) fn grace_holds_back(&self, wanted: WantedLock, owner_excepted: bool) -> bool {
        if !self.recovery.in_grace {
            return false;
        }
        if !self.exactness.is_exact() {
            return true;
        }
        if owner_excepted
            && self.table.owned(wanted.owner, wanted.file, wanted.range).next().is_some()
        {
            return false;
        }
        match self.config.grace {
            GraceMode::Strict => true,
            GraceMode::Instant => self.conflicts_with_unconfirmed(wanted),
        }
    }

    fn conflicts_with_unconfirmed(&self, wanted: WantedLock) -> bool {
        let mut meets = false;
        let WantedLock { owner, file, range, mode, .. } = wanted;
        self.table.conflicts(file, owner, range, mode, &mut |held| {
            meets = !held.kind.confirmed;
            if meets { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        meets
    }

    pub(crate) fn hold_back(&mut self, parked: Parked, now: Time) {
        if self.has_room_to_park(&parked).is_err() {
            return self.reply_grace(parked);
        }
        self.parking.hold_back(now.mono + HELD_BACK_MAX, parked);
        if !self.timers.is_set(Timer::HeldBack) {
            self.timers.set(Timer::HeldBack, now.mono + HELD_BACK_MAX);
        }
    }

    pub(crate) fn answer_held_back(&mut self, now: Time) {
        while let Some(parked) = self.parking.pop_held_back(now.mono) {
            self.reply_grace(parked);
        }
        if let Some(next) = self.parking.first_deadline() {
            self.timers.set(Timer::HeldBack, next);
        }
    }

    fn reply_grace(&mut self, parked: Parked) {
        match parked {
            Parked::Lock(request, _) => self.reply_lock(&request, Outcome::Grace),
            Parked::Share(request, _) => self.reply(request.id, Reply::Share(Outcome::Grace)),
            Parked::Test(request) => self.reply(request.id, Reply::Test(TestResult::Grace)),
            Parked::RebootReport(_) => {}
        }
    }

    /// A LOCK with `reclaim` set (B4.12).
    pub(crate) fn reclaim_lock(&mut self, request: LockRequest, host: Option<ClientId>, now: Time) {
        self.note_reclaim(host, now);
        let LockRequest { caller, owner: name, range, mode, .. } = &request;
        let (mut owner, file) = self.ids_of(caller, name, &request.file);
        if let Some(file) = file
            && !self.owner_holds(owner, file, *range, *mode)
            && self.adopt_former_owner(
                host,
                caller,
                name,
                namespaces::Request::Reclaim,
                |keeper, former| keeper.owner_holds(former, file, *range, *mode),
            )
        {
            owner = self.ids_of(caller, name, &request.file).0;
        }
        if let Some(file) = file
            && self.owner_holds(owner, file, request.range, request.mode)
        {
            if self.would_split(owner, file, request.range)
                && let Err(why) = self.has_room_to_split(owner, file)
            {
                return self.refuse_lock(&request, host, why);
            }
            self.close_grants(owner, file, request.range);
            let before = self.missing_of(host);
            self.confirm_owned(owner, file, request.range, now);
            self.announce_reclaimed(host, before);
            return self.reply_lock(&request, Outcome::Granted);
        }
        if !self.recovery.in_grace {
            return self.reply_lock(&request, Outcome::Grace);
        }
        let file = file.unwrap_or(NO_FILE);
        let conflict = self.table.conflict(file, owner, request.range, request.mode);
        if conflict.is_none() && self.may_reclaim(host, request.admitted) {
            return self.reclaim_unrecorded(request, host, self.table.file_len(file), now);
        }
        if let Some(client) = host {
            self.event(Event::ReclaimRefused { client });
        }
        // A request that waits is never answered DENIED.
        let outcome = if request.wait { Outcome::Grace } else { Outcome::Denied };
        self.reply_lock(&request, outcome);
    }

    pub(crate) fn unconfirmed_of(&self, host: Option<ClientId>) -> usize {
        host.and_then(|host| self.clients.get(host)).map_or(0, |tracked| tracked.unconfirmed)
    }

    /// A reclaim proves, whatever its outcome, that the kernel that took the locks is alive.
    pub(crate) fn note_reclaim(&mut self, host: Option<ClientId>, now: Time) {
        if let Some(tracked) = host.and_then(|host| self.clients.get_mut(host)) {
            tracked.reclaimed = Some(now.mono);
            if tracked.taken.has_of(Incarnation::UNKNOWN, u32::MAX) {
                tracked.reclaimed_by_unknown.get_or_insert(now.mono);
            }
            self.note_progress(now);
        }
    }

    pub(crate) fn missing_of(&self, host: Option<ClientId>) -> usize {
        host.and_then(|host| self.clients.get(host)).map_or(0, |tracked| tracked.missing)
    }

    /// Emits `Reclaimed` if the host was missing `before` entries and is missing none.
    pub(crate) fn announce_reclaimed(&mut self, host: Option<ClientId>, before: usize) {
        if let Some(client) = host
            && before > 0
            && self.missing_of(host) == 0
        {
            self.event(Event::Reclaimed { client });
        }
    }

    /// I5: who may reclaim what is not recorded. If hosts may be missing from the store, any that
    /// an export admits; else those registered before this epoch.
    pub(crate) fn may_reclaim(&self, host: Option<ClientId>, admitted: bool) -> bool {
        let row = host.and_then(|host| self.clients.get(host)).map(|tracked| &tracked.row);
        match self.exactness {
            Exactness::Open => admitted,
            Exactness::Roster | Exactness::Exact => {
                row.is_some_and(|row| row.monitored && row.epoch < self.epoch)
            }
        }
    }

    /// The incarnation of a reclaim of what is not recorded. A reclaim carries none, so the
    /// recorded one applies; an open store may have lost a later one, and knows none (B4.91).
    pub(crate) fn reclaimed_incarnation(&self, host: Option<ClientId>) -> Incarnation {
        match (self.exactness, host) {
            (Exactness::Exact | Exactness::Roster, Some(host)) => self.clients.incarnation(host),
            _ => Incarnation::UNKNOWN,
        }
    }

    /// Notes a reclaim of what is not recorded, once it is granted.
    pub(crate) fn note_unrecorded(&mut self, client: ClientId, now: Time) {
        self.note_reclaim(Some(client), now);
        if self.exactness == Exactness::Open
            && let Some(tracked) = self.clients.get_mut(client)
        {
            tracked.reclaimed_by_unknown.get_or_insert(now.mono);
        }
        if self.exactness.is_exact() {
            self.recovery.unrecorded += 1;
            self.event(Event::ReclaimUnrecorded { client });
        }
    }

    /// Confirms what the owner holds in a range. A reclaim weakens nothing (I6): a client that
    /// reclaims less than is recorded has an upgrade under way, and its grant may still reach it.
    fn confirm_owned(&mut self, owner: OwnerId, file: FileId, range: Range, now: Time) {
        // Locks wholly inside the range are confirmed in place, without a change to store.
        for mode in [Mode::Shared, Mode::Exclusive] {
            self.confirm_unchanged(owner, file, range, mode);
        }
        let own: Vec<HeldLock> = self.table.owned(owner, file, range).collect();
        for held in own {
            if let Some(part) = held.range.overlap(range) {
                let kind = LockKind { confirmed: true, ..held.kind };
                self.insert_lock(file, owner, part, kind, now);
            }
        }
    }

    /// Confirms, in place, the locks of this mode that lie wholly inside the range.
    pub(crate) fn confirm_unchanged(
        &mut self,
        owner: OwnerId,
        file: FileId,
        range: Range,
        mode: Mode,
    ) {
        let own = self.table.owned(owner, file, range);
        let unchanged = own.filter(|held| {
            !held.kind.confirmed && held.kind.mode == mode && range.covers(held.range)
        });
        let unchanged: Vec<HeldLock> = unchanged.collect();
        for held in unchanged {
            self.table.confirm(held.id);
            if let Some(tracked) = self.clients.get_mut(self.owners.host(owner)) {
                self.recovery.count_confirmed(tracked, held.kind.monitored);
            }
        }
    }

    /// Grants a reclaim of what is not recorded and conflicts with nothing.
    fn reclaim_unrecorded(
        &mut self,
        request: LockRequest,
        host: Option<ClientId>,
        on_file: usize,
        now: Time,
    ) {
        let kind = LockKind {
            mode: request.mode,
            incarnation: self.reclaimed_incarnation(host),
            monitored: request.monitored,
            confirmed: true,
            reports: self.clients.reports(host),
        };
        // Earlier partial unlocks may have left the host above its limit.
        let room = self.has_entry(host, on_file, 2);
        match room.and_then(|()| self.register_and_intern(&request, host, now)) {
            Ok((owner, file)) => {
                self.note_unrecorded(self.owners.host(owner), now);
                let LockRequest { caller, owner: name, file: key, range, .. } = &request;
                self.adopt_remembered(self.owners.host(owner), caller, name);
                self.unlock_remembered(caller, name, key, *range);
                let before = self.missing_of(host);
                self.insert_reclaimed(owner, file, *range, kind, now);
                self.announce_reclaimed(host, before);
                self.reply_lock(&request, Outcome::Granted);
            }
            Err(refusal) => self.refuse_lock(&request, host, refusal),
        }
    }

    /// Gives a reclaimed range to its owner, except where it holds a stronger lock: a reclaim weakens
    /// nothing (I6).
    fn insert_reclaimed(
        &mut self,
        owner: OwnerId,
        file: FileId,
        range: Range,
        kind: LockKind,
        now: Time,
    ) {
        self.confirm_owned(owner, file, range, now);
        let own = self.table.owned(owner, file, range);
        let stronger = own.filter(|held| held.kind.mode > kind.mode);
        let stronger: Vec<Range> = stronger.map(|held| held.range).collect();
        self.insert_between(file, owner, range, &stronger, kind, now);
    }

    /// Drops roster records that the owner has unlocked or locked anew.
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

    /// With an exact store, grace ends with the last reclaim (B4.11).
    pub(crate) fn end_grace_if_complete(&mut self, now: Time) {
        let complete =
            self.recovery.in_grace && self.exactness.is_exact() && self.recovery.missing == 0;
        if complete {
            self.end_grace(GraceEnd::Complete, now);
        }
    }

    pub(crate) fn end_grace(&mut self, why: GraceEnd, now: Time) {
        self.recovery.in_grace = false;
        self.change(Change::GraceEnded);
        self.event(Event::GraceEnded { why });
        self.end_remembered(now);
        self.timers.stop(Timer::HeldBack);
        self.parking.resume_held_back();
    }

    /// Whether unconfirmed locks may be released once their host fails a probe (B4.15).
    pub(crate) fn may_release(&self) -> bool {
        !self.recovery.in_grace
            && self.recovery.window.has_ended()
            && self.config.unreachable != Unreachable::Retain
    }

    /// Uses the answer of a probe of a host whose unconfirmed locks are wanted by another owner.
    pub(crate) fn judge_holder(
        &mut self,
        holder: ClientId,
        wanted: WantedLock,
        answer: ProbeAnswer,
        now: Time,
    ) {
        if answer == ProbeAnswer::Alive || !self.may_release() {
            return;
        }
        let WantedLock { owner, file, range, mode, .. } = wanted;
        let mut lost = Vec::new();
        self.table.conflicts(file, owner, range, mode, &mut |held| {
            if !held.kind.confirmed && self.owners.host(held.owner) == holder {
                lost.push(*held);
            }
            ControlFlow::Continue(())
        });
        self.drop_locks(holder, lost, Release::Unanswered, now);
    }

    /// `unreachable = "immediate"`: releases unconfirmed locks after the first failed notice,
    /// unless the host was heard in this epoch or no peer was.
    pub(crate) fn release_unreached(&mut self, client: ClientId, now: Time) {
        let Some(tracked) = self.clients.get(client) else { return };
        let applies = self.config.unreachable == Unreachable::Immediate
            && self.recovery.heard
            && tracked.last_seen.is_none()
            && tracked.unconfirmed > 0;
        if !applies {
            return;
        }
        self.drop_unconfirmed(client, Release::Unreachable, now);
    }

    pub(crate) fn drop_unconfirmed(&mut self, client: ClientId, why: Release, now: Time) {
        let Some(tracked) = self.clients.get(client) else { return };
        let owners: Vec<_> = tracked.owners.iter().copied().collect();
        let mut lost = Vec::new();
        for owner in owners {
            lost.extend(self.table.of_owner(owner).filter(|held| !held.kind.confirmed));
        }
        self.drop_locks(client, lost, why.clone(), now);
        self.drop_unconfirmed_shares(client, why, now);
    }
}

/// A recorded lock, not reclaimed yet.
pub(crate) fn recorded_kind(lock: &Lock) -> LockKind {
    LockKind {
        mode: lock.mode,
        incarnation: lock.incarnation,
        monitored: lock.monitored,
        confirmed: false,
        reports: 0,
    }
}
