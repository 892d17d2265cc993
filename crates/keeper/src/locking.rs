//! LOCK, TEST, UNLOCK and CANCEL. Each function reads in the order in which it decides.

use std::ops::ControlFlow;

use crate::bytes::FileKey;
use crate::change::Exactness;
use crate::deadlock::DeadlockSearch;
use crate::event::Event;
use crate::identity::{Caller, ClientId, Owner};
use crate::incarnations::KernelCheck;
use crate::interned::{FileId, OwnerId};
use crate::keeper::Keeper;
use crate::namespaces;
use crate::parking::{Parked, ProbeHistory};
use crate::range::Range;
use crate::request::{
    CancelRequest, LockRequest, Mode, OwnerName, Question, TestRequest, UnlockRequest,
};
use crate::step::{CancelOutcome, Holder, Outcome, Refusal, Reply, TestResult};
use crate::table::LockKind;
use crate::time::Time;
use crate::waiters::{Waiter, WaiterId, WantedLock};

/// An owner without an id: it holds nothing and waits for nothing.
const NO_OWNER: OwnerId = OwnerId(u32::MAX);

/// What prevents a lock.
pub(crate) enum Obstacle {
    /// A lock that stays.
    Firm,
    /// Only locks that may be released if this host fails a probe (B4.15).
    Releasable(ClientId),
}

impl Keeper {
    /// In this order: is the host fenced, the request stale, the kernel another than the recorded
    /// one (B3.14)? Is it a reclaim (B4.12), held back by grace (B4.9), obstructed, would waiting
    /// close a cycle (B2.16)?
    pub(crate) fn decide_lock(
        &mut self,
        request: LockRequest,
        mut history: ProbeHistory,
        now: Time,
    ) {
        let host = self.clients.find_host(&request.caller.host);
        if self.is_refused_by_fence(&request.caller, host, request.reclaim, now) {
            return self.refuse_lock(&request, host, Refusal::Fenced);
        }
        if let Some(host) = host {
            if self.is_stale(host, &request, now) {
                self.event(Event::StaleRequest { client: host, incarnation: request.incarnation });
                return self.refuse_lock(&request, Some(host), Refusal::StaleRequest);
            }
            let known = self.clients.incarnation(host);
            if history.kernel != Some(known) {
                let check = self.check_kernel(host, &request, now);
                if check != KernelCheck::Same {
                    history.kernel = Some(known);
                    history.arrived = history.arrived.or_else(|| self.arrival(host));
                    let parked = Parked::Lock(request, history);
                    return match check {
                        KernelCheck::Ask => self.ask_same_kernel(host, parked, now),
                        _ => self.parking.resume(parked),
                    };
                }
            }
        }
        if request.reclaim {
            return self.reclaim_lock(request, host, now);
        }
        if let (Exactness::Open, Some(host)) = (self.exactness, host) {
            self.identify_reclaimer(host, &request);
        }
        let wanted = self.wanted_lock(host, &request);
        if request.wait {
            self.refresh_waiter(wanted.waiter, &request);
        }
        if self.grace_holds_back(wanted, true) {
            return self.hold_back(Parked::Lock(request, history), now);
        }
        match self.obstacle(wanted, &history) {
            None => self.take(request, host, wanted, now),
            Some(Obstacle::Releasable(holder)) => {
                self.ask(holder, Question::Reachable, Parked::Lock(request, history), now);
            }
            Some(Obstacle::Firm) if !request.wait => self.reply_lock(&request, Outcome::Denied),
            Some(Obstacle::Firm) if self.closes_cycle(wanted) => {
                self.refuse_deadlock(&request, wanted, now)
            }
            Some(Obstacle::Firm) => self.wait(request, host, wanted, now),
        }
    }

    pub(crate) fn decide_test(&mut self, request: TestRequest, host: Option<ClientId>, now: Time) {
        let TestRequest { range, mode, .. } = request;
        let (owner, file) = self.ids_on(host, &request.caller, &request.owner, &request.file);
        let wanted = WantedLock { owner, file: file.unwrap_or(NO_FILE), range, mode, waiter: None };
        if self.grace_holds_back(wanted, false) {
            return self.hold_back(Parked::Test(request), now);
        }
        let holder = self.table.conflict(wanted.file, owner, range, mode).map(|held| {
            let owner = self.owners.key(held.owner);
            Holder {
                owner: OwnerName { number: owner.number, tag: owner.tag.clone() },
                range: held.range,
                mode: held.kind.mode,
            }
        });
        let tested = holder.map_or(TestResult::Free, TestResult::Held);
        self.reply(request.id, Reply::Test(tested));
    }

    /// Always granted: unlocking what is not held succeeds. Only an UNLOCK that would split locks
    /// beyond twice the limits gets no reply, so that the client retries: after any refusal it
    /// would forget a lock that the keeper still holds.
    pub(crate) fn decide_unlock(&mut self, request: UnlockRequest, now: Time) {
        let host = self.hear(&request.caller, now);
        let UnlockRequest { id, caller, owner, file, range } = request;
        for parked in self.parking.withdraw(&caller, &owner, &file, range, None) {
            self.reply(parked, Reply::Lock(Outcome::Refused(Refusal::Withdrawn)));
        }
        if self.addresses.has_former()
            && let (own, Some(file)) = self.ids_on(host, &caller, &owner, &file)
            && self.table.owned(own, file, range).next().is_none()
        {
            self.adopt_former_owner(
                host,
                &caller,
                &owner,
                namespaces::Request::Release,
                |keeper, former| keeper.table.owned(former, file, range).next().is_some(),
            );
        }
        self.unlock_remembered(&caller, &owner, &file, range);
        if let (owner, Some(file)) = self.ids_on(host, &caller, &owner, &file)
            && owner != NO_OWNER
        {
            if let Err(why) = self.has_room_to_split(owner, file)
                && self.would_split(owner, file, range)
            {
                self.event(Event::Refused { client: host, why });
                return self.reply(id, Reply::NoReply);
            }
            self.give_up(owner, file, range, now);
        }
        self.reply(id, Reply::Unlock);
    }

    /// Releases an owner's range, its waiters inside it and its open callbacks on it.
    fn give_up(&mut self, owner: OwnerId, file: FileId, range: Range, now: Time) {
        let of_owner = self.waiters.of_owner_on(owner, file);
        let inside = of_owner.filter(|(_, waiter)| range.covers(waiter.range));
        let waiting: Vec<WaiterId> = inside.map(|(id, _)| id).collect();
        for id in waiting {
            self.remove_waiter(id, now);
        }
        self.close_grants(owner, file, range);
        self.release(file, owner, range, now);
    }

    /// Whether releasing this range would split a lock in two.
    pub(crate) fn would_split(&self, owner: OwnerId, file: FileId, range: Range) -> bool {
        let mut owned = self.table.owned(owner, file, range);
        owned.any(|held| matches!(held.range.without(range), (Some(_), Some(_))))
    }

    pub(crate) fn decide_cancel(&mut self, request: CancelRequest, now: Time) {
        self.hear(&request.caller, now);
        let CancelRequest { id, caller, owner, file, range, mode } = request;
        for parked in self.parking.withdraw(&caller, &owner, &file, range, Some(mode)) {
            self.reply(parked, Reply::Lock(Outcome::Refused(Refusal::Withdrawn)));
        }
        let mut cancelled = CancelOutcome::Done;
        if let (owner, Some(file)) = self.ids_of(&caller, &owner, &file)
            && owner != NO_OWNER
        {
            if let Some(waiter) = self.find_waiter(owner, file, range, mode) {
                self.remove_waiter(waiter, now);
            } else if self.owner_holds(owner, file, range, mode) {
                cancelled = CancelOutcome::TooLate;
                self.close_grants(owner, file, range);
            }
        }
        self.reply(id, Reply::Cancel(cancelled));
    }

    /// The held locks that prevent this one. Waiters prevent nothing (B2.13).
    pub(crate) fn obstacle(&self, wanted: WantedLock, history: &ProbeHistory) -> Option<Obstacle> {
        let WantedLock { owner, file, range, mode, .. } = wanted;
        let releasable = self.recovery.unconfirmed > 0 && self.may_release();
        let mut obstacle = None;
        self.table.conflicts(file, owner, range, mode, &mut |held| {
            let host = self.owners.host(held.owner);
            if releasable && !held.kind.confirmed && !history.holders.contains(&host) {
                obstacle.get_or_insert(Obstacle::Releasable(host));
                return ControlFlow::Continue(());
            }
            obstacle = Some(Obstacle::Firm);
            ControlFlow::Break(())
        });
        obstacle
    }

    fn closes_cycle(&self, wanted: WantedLock) -> bool {
        wanted.owner != NO_OWNER
            && DeadlockSearch::new(&self.table, &self.waiters, wanted.owner).closes_cycle(wanted)
    }

    fn refuse_deadlock(&mut self, request: &LockRequest, wanted: WantedLock, now: Time) {
        if let Some(waiter) = wanted.waiter {
            self.remove_waiter(waiter, now);
        }
        if let Some(client) = self.clients.find_host(&request.caller.host) {
            self.event(Event::Deadlock { client });
        }
        self.reply_lock(request, Outcome::Deadlock);
    }

    /// Grants a lock that nothing prevents, registering its host if necessary.
    fn take(
        &mut self,
        request: LockRequest,
        host: Option<ClientId>,
        wanted: WantedLock,
        now: Time,
    ) {
        let kind = LockKind { reports: self.clients.reports(host), ..kind(&request) };
        // A waiter was counted when it queued.
        if wanted.waiter.is_none()
            && let Err(refusal) = self.has_room(host, wanted, kind)
        {
            return self.refuse_lock(&request, None, refusal);
        }
        match self.register_and_intern(&request, host, now) {
            Ok((owner, file)) => {
                if let Some(waiter) = wanted.waiter {
                    self.remove_waiter(waiter, now);
                }
                if self.recovery.unconfirmed > 0 {
                    self.confirm_unchanged(owner, file, request.range, request.mode);
                }
                self.close_grants(owner, file, request.range);
                self.insert_lock(file, owner, request.range, kind, now);
                self.reply_lock(&request, Outcome::Granted);
            }
            Err(refusal) => self.refuse_lock(&request, None, refusal),
        }
    }

    /// Queues the request, or keeps its place in the queue.
    fn wait(
        &mut self,
        request: LockRequest,
        host: Option<ClientId>,
        wanted: WantedLock,
        now: Time,
    ) {
        if wanted.waiter.is_none()
            && let Err(refusal) = self.has_room_to_wait(host, wanted)
        {
            return self.refuse_lock(&request, None, refusal);
        }
        let (owner, file) = match self.register_and_intern(&request, host, now) {
            Ok(ids_of) => ids_of,
            Err(refusal) => return self.refuse_lock(&request, None, refusal),
        };
        let LockRequest { range, mode, incarnation, form, .. } = request;
        if wanted.waiter.is_none() {
            self.enqueue_waiter(Waiter {
                file,
                owner,
                range,
                mode,
                incarnation,
                monitored: request.monitored,
                reports: self.clients.reports(host),
                handle: request.handle.clone(),
                form,
                since_ms: now.wall_ms,
                since: now.mono,
                passed_over: false,
            });
        }
        self.reply_lock(&request, Outcome::Blocked);
    }

    /// A repeated request shows that the waiter still exists, and brings it up to date.
    fn refresh_waiter(&mut self, waiter: Option<WaiterId>, request: &LockRequest) {
        let Some(waiter) = waiter.and_then(|id| self.waiters.get_mut(id)) else { return };
        if let Some(tracked) = self.clients.get_mut(self.owners.host(waiter.owner)) {
            tracked.taken.uncount(waiter.incarnation, waiter.reports);
            waiter.reports = tracked.taken.reports();
            tracked.taken.count(request.incarnation, waiter.reports);
        }
        waiter.incarnation = request.incarnation;
        waiter.monitored |= request.monitored;
        waiter.handle = request.handle.clone();
        waiter.form = request.form;
        waiter.passed_over = false;
    }

    /// Registers the host if it is new (B3.1) and interns owner and file.
    pub(crate) fn register_and_intern(
        &mut self,
        request: &LockRequest,
        host: Option<ClientId>,
        now: Time,
    ) -> Result<(OwnerId, FileId), Refusal> {
        let LockRequest { caller, monitored, incarnation, .. } = request;
        let host = self.register(caller, host, *monitored, *incarnation, now)?;
        let owner = self.intern_owner(&owner_on(host, caller, &request.owner));
        Ok((owner, self.files.intern(&request.file)))
    }

    /// Whether this owner's locks cover the range in at least this mode.
    pub(crate) fn owner_holds(
        &self,
        owner: OwnerId,
        file: FileId,
        range: Range,
        mode: Mode,
    ) -> bool {
        let mut next = range.first();
        for held in self.table.owned(owner, file, range) {
            if held.range.first() > next || held.kind.mode < mode {
                return false;
            }
            match held.range.last().checked_add(1) {
                Some(after) if held.range.last() < range.last() => next = after,
                _ => return true,
            }
        }
        false
    }

    pub(crate) fn wanted_lock(&self, host: Option<ClientId>, request: &LockRequest) -> WantedLock {
        let LockRequest { range, mode, caller, owner, file, .. } = request;
        let (range, mode) = (*range, *mode);
        let (owner, file) = self.ids_on(host, caller, owner, file);
        let waiter = file.and_then(|file| self.find_waiter(owner, file, range, mode));
        WantedLock { owner, file: file.unwrap_or(NO_FILE), range, mode, waiter }
    }

    /// The waiter of an identical request.
    fn find_waiter(
        &self,
        owner: OwnerId,
        file: FileId,
        range: Range,
        mode: Mode,
    ) -> Option<WaiterId> {
        let mut waiting = self.waiters.of_owner_on(owner, file);
        let same = waiting.find(|(_, waiter)| waiter.range == range && waiter.mode == mode);
        same.map(|(id, _)| id)
    }

    /// The interned ids of owner and file, as far as they have any.
    pub(crate) fn ids_of(
        &self,
        caller: &Caller,
        owner: &OwnerName,
        file: &FileKey,
    ) -> (OwnerId, Option<FileId>) {
        self.ids_on(self.clients.find_host(&caller.host), caller, owner, file)
    }

    /// `ids_of` for a host that has been looked up.
    pub(crate) fn ids_on(
        &self,
        host: Option<ClientId>,
        caller: &Caller,
        owner: &OwnerName,
        file: &FileKey,
    ) -> (OwnerId, Option<FileId>) {
        let file = self.files.find(file);
        let owner = host.and_then(|host| self.owners.find(&owner_on(host, caller, owner)));
        (owner.unwrap_or(NO_OWNER), file)
    }

    pub(crate) fn owner(&self, caller: &Caller, owner: &OwnerName) -> Option<Owner> {
        let host = self.clients.find_host(&caller.host)?;
        Some(owner_on(host, caller, owner))
    }

    pub(crate) fn reply_lock(&mut self, request: &LockRequest, outcome: Outcome) {
        self.reply(request.id, Reply::Lock(outcome));
    }

    pub(crate) fn refuse_lock(
        &mut self,
        request: &LockRequest,
        client: Option<ClientId>,
        why: Refusal,
    ) {
        let client = client.or_else(|| self.clients.find_host(&request.caller.host));
        self.event(Event::Refused { client, why });
        self.reply_lock(request, Outcome::Refused(why));
    }
}

fn kind(request: &LockRequest) -> LockKind {
    LockKind {
        mode: request.mode,
        incarnation: request.incarnation,
        monitored: request.monitored,
        confirmed: true,
        reports: 0,
    }
}

/// The namespace by which the caller came is part of the owner's identity.
pub(crate) fn owner_on(host: ClientId, caller: &Caller, owner: &OwnerName) -> Owner {
    Owner { host, namespace: caller.namespace, number: owner.number, tag: owner.tag.clone() }
}

/// A file without an id: it has no locks, waiters or shares.
pub(crate) const NO_FILE: FileId = FileId(u32::MAX);
