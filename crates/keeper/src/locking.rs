//! LOCK, TEST, UNLOCK, CANCEL: the decisions, in the order in which they are taken.

use std::ops::ControlFlow;

use crate::bytes::FileKey;
use crate::clients::Tracked;
use crate::deadlock::Search;
use crate::event::Event;
use crate::identity::{Caller, ClientId, Owner};
use crate::keeper::Keeper;
use crate::parking::{Asked, Parked};
use crate::range::Range;
use crate::request::{
    CancelRequest, LockRequest, Mode, OwnerName, Question, TestRequest, UnlockRequest,
};
use crate::step::{Cancelled, Holder, Outcome, Refusal, Reply, Tested};
use crate::table::{FileId, OwnerId, Terms};
use crate::time::Time;
use crate::waiters::{Waiter, WaiterId, Wish};

/// An owner that has no number yet: it holds nothing and waits for nothing.
const NOBODY: OwnerId = OwnerId(u32::MAX);

/// What is in the way of a lock.
pub(crate) enum Obstacle {
    /// A lock that stays, or an earlier waiter.
    Firm,
    /// Only locks that may be given to somebody else if this host fails a probe (R4.5).
    Releasable(ClientId),
}

impl Keeper {
    pub fn handle_lock(&mut self, request: LockRequest, now: Time) {
        self.hear(&request.caller, now);
        self.decide_lock(request, Asked::default(), now);
    }

    /// Fenced? A packet of a dead kernel? Another state than we know (R6.2)? A reclaim (R3.6)? Held
    /// back by grace (R4.2)? Something in the way? Would waiting close a circle (R3.4)?
    pub(crate) fn decide_lock(&mut self, request: LockRequest, asked: Asked, now: Time) {
        let host = self.clients.find_host(&request.caller.host);
        if let Some(host) = host {
            if self.is_host_fenced(host) {
                return self.refuse_lock(&request, Some(host), Refusal::Fenced);
            }
            if self.is_ghost(host, &request, now) {
                self.event(Event::Ghost { client: host, incarnation: request.incarnation });
                return self.refuse_lock(&request, Some(host), Refusal::Ghost);
            }
            let known = self.clients.incarnation(host);
            if asked.kernel != Some(known) && self.sees_reboot(host, &request, now) {
                let asked = Asked { kernel: Some(known), arrived: self.ids.next(), ..asked };
                let oldest = self.clients.get(host).map_or(known, Tracked::oldest);
                let question = Question::SameKernel(oldest);
                return self.ask(host, question, Parked::Lock(request, asked), now);
            }
        }
        // What was swept may have ended grace, and others may have come in before us.
        let host = host.filter(|host| self.clients.get(*host).is_some());
        if request.reclaim {
            return self.reclaim_lock(request, host, now);
        }
        let wish = self.wish(host, &request);
        if request.wait {
            self.refresh_waiter(wish.place, &request, now);
        }
        if self.grace_holds_back(wish, true) {
            return self.hold_back(Parked::Lock(request, asked), now);
        }
        match self.obstacle(wish, request.wait, &asked) {
            None => self.take(request, host, wish, now),
            Some(Obstacle::Releasable(holder)) => {
                self.ask(holder, Question::Reachable, Parked::Lock(request, asked), now);
            }
            Some(Obstacle::Firm) if !request.wait => self.reply_lock(&request, Outcome::Denied),
            Some(Obstacle::Firm) if self.closes_circle(wish) => {
                self.refuse_deadlock(&request, wish, now)
            }
            Some(Obstacle::Firm) => self.wait(request, host, wish, now),
        }
    }

    pub fn handle_test(&mut self, request: TestRequest, now: Time) {
        self.hear(&request.caller, now);
        self.decide_test(request, now);
    }

    pub(crate) fn decide_test(&mut self, request: TestRequest, now: Time) {
        let TestRequest { range, mode, .. } = request;
        let (owner, file) = self.numbers(&request.caller, &request.owner, &request.file);
        let wish = Wish { owner, file: file.unwrap_or(NO_FILE), range, mode, place: None };
        if self.grace_holds_back(wish, false) {
            return self.hold_back(Parked::Test(request), now);
        }
        let holder = self.table.conflict(wish.file, owner, range, mode).map(|held| {
            let owner = self.owners.owner(held.owner);
            Holder {
                owner: OwnerName { number: owner.number, tag: owner.tag.clone() },
                range: held.range,
                mode: held.terms.mode,
            }
        });
        let tested = holder.map_or(Tested::Free, Tested::Held);
        self.reply(request.id, Reply::Test(tested));
    }

    /// Always granted: what is not held is not held afterwards either. Only who cuts its locks into
    /// pieces far beyond every limit gets no answer, and asks again: any other refusal would make it
    /// forget a lock that we hold.
    pub fn handle_unlock(&mut self, request: UnlockRequest, now: Time) {
        let host = self.hear(&request.caller, now);
        let UnlockRequest { id, caller, owner, file, range } = request;
        for parked in self.parking.withdraw(&caller, &owner, &file, range, None) {
            self.reply(parked, Reply::Lock(Outcome::Refused(Refusal::Withdrawn)));
        }
        self.unlock_remembered(&caller, &owner, &file, range);
        if let (owner, Some(file)) = self.numbers_of(host, &caller, &owner, &file)
            && owner != NOBODY
        {
            if let Err(why) = self.has_room_to_split(owner, file)
                && self.splits(owner, file, range)
            {
                self.event(Event::Refused { client: host, why });
                return self.reply(id, Reply::Nothing);
            }
            self.give_up(owner, file, range, now);
            self.tidy(owner, file);
            self.end_grace_if_complete(now);
        }
        self.reply(id, Reply::Unlock);
    }

    /// An owner gives up a range and what it waits for in it. Nobody is woken before all of it is
    /// gone: a callback must not leave for a lock that the same request takes back.
    fn give_up(&mut self, owner: OwnerId, file: FileId, range: Range, now: Time) {
        let of_owner = self.waiters.of_owner_on(owner, file);
        let inside = of_owner.filter(|(_, waiter)| range.covers(waiter.range));
        let waiting: Vec<WaiterId> = inside.map(|(id, _)| id).collect();
        let mut freed: Option<Range> = None;
        for id in waiting {
            let part = self.forget_waiter(id, now).map(|waiter| waiter.range);
            freed = hull(freed, part);
        }
        let settled = self.settle_grants(owner, file, range);
        freed = hull(freed, self.release_quietly(file, owner, range, now));
        freed = hull(freed, self.finish_settled(settled, Some(range), now));
        if let Some(freed) = freed {
            self.wake(file, freed, now);
        }
    }

    /// Whether an UNLOCK would cut one lock into two.
    pub(crate) fn splits(&self, owner: OwnerId, file: FileId, range: Range) -> bool {
        let mut owned = self.table.owned(owner, file, range);
        owned.any(|held| matches!(held.range.without(range), (Some(_), Some(_))))
    }

    pub fn handle_cancel(&mut self, request: CancelRequest, now: Time) {
        self.hear(&request.caller, now);
        let CancelRequest { id, caller, owner, file, range, mode } = request;
        for parked in self.parking.withdraw(&caller, &owner, &file, range, Some(mode)) {
            self.reply(parked, Reply::Lock(Outcome::Refused(Refusal::Withdrawn)));
        }
        let mut cancelled = Cancelled::Done;
        if let (owner, Some(file)) = self.numbers(&caller, &owner, &file)
            && owner != NOBODY
        {
            if let Some(waiter) = self.place(owner, file, range, mode) {
                self.stop_waiting(waiter, now);
            } else if self.owner_holds(owner, file, range, mode) {
                cancelled = Cancelled::TooLate;
                self.close_grants(owner, file, range, now);
            }
            self.tidy(owner, file);
        }
        self.end_grace_if_complete(now);
        self.reply(id, Reply::Cancel(cancelled));
    }

    /// What is in the way: a held lock, or, for who is ready to wait, an earlier waiter too.
    pub(crate) fn obstacle(&self, wish: Wish, queues: bool, asked: &Asked) -> Option<Obstacle> {
        let Wish { owner, file, range, mode, .. } = wish;
        let releasable = self.recovery.unconfirmed > 0 && self.may_release();
        let mut obstacle = None;
        self.table.conflicts(file, owner, range, mode, &mut |held| {
            let host = self.owners.host(held.owner);
            if releasable && !held.terms.confirmed && !asked.holders.contains(&host) {
                obstacle.get_or_insert(Obstacle::Releasable(host));
                return ControlFlow::Continue(());
            }
            obstacle = Some(Obstacle::Firm);
            ControlFlow::Break(())
        });
        // What an owner holds already it need not wait for: a lost callback, or a downgrade.
        let queues = queues && !self.owner_holds(owner, file, range, mode);
        if obstacle.is_none() && queues && self.is_behind_another(wish) {
            obstacle = Some(Obstacle::Firm);
        }
        obstacle
    }

    fn is_behind_another(&self, wish: Wish) -> bool {
        if wish.file == NO_FILE {
            return false;
        }
        let queue = &self.files.file(wish.file).queue;
        let earlier = queue.iter().take_while(|id| Some(**id) != wish.place);
        earlier
            .filter_map(|id| self.waiters.get(*id))
            .any(|waiter| waiter.is_in_the_way_of(wish, &self.table))
    }

    fn closes_circle(&self, wish: Wish) -> bool {
        wish.owner != NOBODY
            && Search::new(&self.table, &self.files, &self.waiters).closes_circle(wish)
    }

    fn refuse_deadlock(&mut self, request: &LockRequest, wish: Wish, now: Time) {
        if let Some(waiter) = wish.place {
            self.stop_waiting(waiter, now);
            self.tidy(wish.owner, wish.file);
        }
        if let Some(client) = self.clients.find_host(&request.caller.host) {
            self.event(Event::Deadlock { client });
        }
        self.reply_lock(request, Outcome::Deadlock);
    }

    /// The lock is free: it is this owner's, in this step.
    fn take(&mut self, request: LockRequest, host: Option<ClientId>, wish: Wish, now: Time) {
        let terms = terms(&request);
        // A waiter has its room already.
        if wish.place.is_none()
            && let Err(refusal) = self.has_room(host, wish, terms)
        {
            return self.refuse_lock(&request, None, refusal);
        }
        match self.admit(&request, host, now) {
            Ok((owner, file)) => {
                if let Some(waiter) = wish.place {
                    self.forget_waiter(waiter, now);
                }
                if self.recovery.unconfirmed > 0 {
                    self.confirm_unchanged(owner, file, request.range, request.mode);
                }
                let settled = self.settle_grants(owner, file, request.range);
                self.grant(file, owner, request.range, terms, now);
                self.finish_and_wake(file, settled, Some(request.range), now);
                self.tidy(owner, file);
                self.end_grace_if_complete(now);
                self.reply_lock(&request, Outcome::Granted);
            }
            Err(refusal) => self.refuse_lock(&request, None, refusal),
        }
    }

    /// Gets in line, or keeps its place there.
    fn wait(&mut self, request: LockRequest, host: Option<ClientId>, wish: Wish, now: Time) {
        if wish.place.is_none()
            && let Err(refusal) = self.has_room_to_wait(host, wish)
        {
            return self.refuse_lock(&request, None, refusal);
        }
        let (owner, file) = match self.admit(&request, host, now) {
            Ok(numbers) => numbers,
            Err(refusal) => return self.refuse_lock(&request, None, refusal),
        };
        let LockRequest { range, mode, incarnation, form, .. } = request;
        if wish.place.is_none() {
            self.line_up(Waiter {
                file,
                owner,
                range,
                mode,
                incarnation,
                monitored: request.monitored,
                handle: request.handle.clone(),
                form,
                since_ms: now.wall_ms,
                since: now.mono,
                polled: now.mono,
                passed_over: false,
            });
        }
        self.reply_lock(&request, Outcome::Blocked);
        // Only others that wait are in the way: look at them again, in case their turn was missed.
        if self.table.conflict(file, owner, range, mode).is_none() {
            self.wake(file, range, now);
        }
    }

    /// A waiter that asks again shows that it is there, and what it is now.
    fn refresh_waiter(&mut self, place: Option<WaiterId>, request: &LockRequest, now: Time) {
        let Some(waiter) = place.and_then(|place| self.waiters.get_mut(place)) else { return };
        if let Some(tracked) = self.clients.get_mut(self.owners.host(waiter.owner)) {
            tracked.count_given_back(waiter.incarnation);
            tracked.count_taken(request.incarnation);
        }
        waiter.incarnation = request.incarnation;
        waiter.monitored |= request.monitored;
        waiter.handle = request.handle.clone();
        waiter.form = request.form;
        waiter.polled = now.mono;
        waiter.passed_over = false;
    }

    /// Registers the host if it is new (R1.5), and gives owner and file their numbers.
    pub(crate) fn admit(
        &mut self,
        request: &LockRequest,
        host: Option<ClientId>,
        now: Time,
    ) -> Result<(OwnerId, FileId), Refusal> {
        let LockRequest { caller, monitored, incarnation, .. } = request;
        let host = self.register(caller, host, *monitored, *incarnation, now)?;
        let owner = self.intern_owner(host, &request.caller, &request.owner);
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
            if held.range.first() > next || held.terms.mode < mode {
                return false;
            }
            match held.range.last().checked_add(1) {
                Some(after) if held.range.last() < range.last() => next = after,
                _ => return true,
            }
        }
        false
    }

    pub(crate) fn wish(&self, host: Option<ClientId>, request: &LockRequest) -> Wish {
        let LockRequest { range, mode, caller, owner, file, .. } = request;
        let (range, mode) = (*range, *mode);
        let (owner, file) = self.numbers_of(host, caller, owner, file);
        let place = file.and_then(|file| self.place(owner, file, range, mode));
        Wish { owner, file: file.unwrap_or(NO_FILE), range, mode, place }
    }

    /// The entry of a request that waits already.
    fn place(&self, owner: OwnerId, file: FileId, range: Range, mode: Mode) -> Option<WaiterId> {
        let mut waiting = self.waiters.of_owner_on(owner, file);
        let same = waiting.find(|(_, waiter)| waiter.range == range && waiter.mode == mode);
        same.map(|(id, _)| id)
    }

    /// The numbers of owner and file, as far as they have any.
    pub(crate) fn numbers(
        &self,
        caller: &Caller,
        owner: &OwnerName,
        file: &FileKey,
    ) -> (OwnerId, Option<FileId>) {
        self.numbers_of(self.clients.find_host(&caller.host), caller, owner, file)
    }

    /// The same when the host has been looked up.
    pub(crate) fn numbers_of(
        &self,
        host: Option<ClientId>,
        caller: &Caller,
        owner: &OwnerName,
        file: &FileKey,
    ) -> (OwnerId, Option<FileId>) {
        let file = self.files.find(file);
        let owner = host.and_then(|host| self.owners.find(&owner_on(host, caller, owner)));
        (owner.unwrap_or(NOBODY), file)
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

fn terms(request: &LockRequest) -> Terms {
    Terms {
        mode: request.mode,
        incarnation: request.incarnation,
        monitored: request.monitored,
        confirmed: true,
    }
}

fn hull(a: Option<Range>, b: Option<Range>) -> Option<Range> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.hull(b)),
        (a, b) => a.or(b),
    }
}

/// The way a caller came is part of who an owner is.
pub(crate) fn owner_on(host: ClientId, caller: &Caller, owner: &OwnerName) -> Owner {
    Owner { host, lane: caller.lane, number: owner.number, tag: owner.tag.clone() }
}

/// A file that has no number yet: nothing is on it.
pub(crate) const NO_FILE: FileId = FileId(u32::MAX);
