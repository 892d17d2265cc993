//! Grants: a freed range goes to its waiters, and a callback repeats until the waiter answers
//! (B2.11). An unanswered callback is a held lock (I9).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bytes::Handle;
use crate::event::Event;
use crate::identity::{ClientId, GrantId, Incarnation};
use crate::interned::{FileId, OwnerId};
use crate::keeper::Keeper;
use crate::locking::Obstacle;
use crate::parking::ProbeHistory;
use crate::range::Range;
use crate::request::{Form, GrantAnswer, Mode, ProbeAnswer};
use crate::step::{Grant, Message};
use crate::table::LockKind;
use crate::time::Time;
use crate::timer::{RETRY_MAX, Timer, back_off};
use crate::waiter_probes::ProbeSubject;
use crate::waiters::{Waiter, WaiterId, WantedLock};

/// A waiter whose host was heard within this time is present; a Linux client repeats a blocked
/// request every 30 s.
const HEARD_FRESH: Duration = Duration::from_secs(45);

/// A callback that has not been answered.
pub(crate) struct OpenGrant {
    pub owner: OwnerId,
    pub file: FileId,
    pub range: Range,
    pub kind: LockKind,
    /// What the owner held in the range before, restored if it denies the grant.
    pub before: Vec<(Range, LockKind)>,
    pub handle: Handle,
    pub form: Form,
    pub attempt: u32,
    pub since: Duration,
    /// The step in which it was last sent.
    pub step: u64,
    /// The last attempt has no result yet.
    pub in_flight: bool,
    /// An attempt was not answered: the peer may have taken the lock although its answer was lost.
    pub maybe_taken: bool,
}

impl OpenGrant {
    /// Whether it grants a weaker lock over a stronger one. The stronger lock stays until the owner
    /// accepts, so that a denial can restore it.
    fn weakens(&self) -> bool {
        self.before.iter().any(|(_, kind)| kind.mode > self.kind.mode)
    }
}

#[derive(Default)]
pub(crate) struct Grants {
    open: BTreeMap<GrantId, OpenGrant>,
    by_owner: BTreeSet<(OwnerId, GrantId)>,
}

impl Grants {
    fn insert(&mut self, id: GrantId, grant: OpenGrant) {
        self.by_owner.insert((grant.owner, id));
        self.open.insert(id, grant);
    }

    fn remove(&mut self, id: GrantId) -> Option<OpenGrant> {
        let grant = self.open.remove(&id)?;
        self.by_owner.remove(&(grant.owner, id));
        Some(grant)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn has_open(&self, owner: OwnerId) -> bool {
        let bounds = (owner, GrantId(0))..=(owner, GrantId(u64::MAX));
        self.by_owner.range(bounds).next().is_some()
    }

    fn on(&self, owner: OwnerId, file: FileId, range: Range) -> Option<GrantId> {
        if self.open.is_empty() {
            return None;
        }
        let bounds = (owner, GrantId(0))..=(owner, GrantId(u64::MAX));
        let mut ids = self.by_owner.range(bounds).map(|(_, id)| *id);
        ids.find(|id| {
            self.open.get(id).is_some_and(|open| open.file == file && open.range.overlaps(range))
        })
    }
}

impl Keeper {
    /// Ignores an answer to a callback that is no longer open.
    pub(crate) fn use_grant_answer(&mut self, grant: GrantId, answer: GrantAnswer, now: Time) {
        let Some(open) = self.grants.open.get_mut(&grant) else { return };
        let owner = open.owner;
        let retry = now.mono + back_off(open.attempt);
        open.in_flight = false;
        match answer {
            GrantAnswer::Unsent => return self.timers.set(Timer::Grant(grant), retry),
            GrantAnswer::Unclear => {
                open.maybe_taken = true;
                return self.timers.set(Timer::Grant(grant), retry);
            }
            GrantAnswer::Accepted => self.accept_grant(grant, now),
            GrantAnswer::Denied if !open.maybe_taken => self.undo_grant(grant, now),
            // A client that took the lock, and whose answer was lost, denies the next attempt,
            // because it no longer waits.
            GrantAnswer::Denied => {
                self.leave_grant(grant);
            }
        }
        self.hear_client(self.owners.host(owner), now);
    }

    pub(crate) fn resend_grant(&mut self, grant: GrantId, now: Time) {
        if let Some(open) = self.grants.open.get_mut(&grant) {
            open.attempt += 1;
            open.step = self.steps;
            open.maybe_taken |= std::mem::replace(&mut open.in_flight, true);
            self.send_grant(grant, now);
        }
    }

    /// Grants the waiters of `freed` that no held lock prevents, in order of arrival (B2.13).
    pub(crate) fn wake(&mut self, file: FileId, freed: Range, now: Time) {
        let mut next = WaiterId(0);
        while let Some(&id) = self.files[file].waiters.range(next..).next() {
            next = WaiterId(id.0 + 1);
            let Some(waiter) = self.waiters.get(id) else { continue };
            if waiter.passed_over || !waiter.range.overlaps(freed) {
                continue;
            }
            let wanted = waiter.wanted(id);
            let WantedLock { owner, range, mode, .. } = wanted;
            match self.obstacle(wanted, &ProbeHistory::default()) {
                // The owner's open callback on this range must be answered first.
                None if self.grants.on(owner, file, range).is_some() => {}
                None if self.takes_turn(id, now) => {
                    self.grant_waiter(id, now);
                    let all_taken = mode == Mode::Exclusive && range.covers(freed);
                    if all_taken && self.waiters.of_owner_on(owner, file).next().is_none() {
                        break;
                    }
                }
                Some(Obstacle::Releasable(holder)) => {
                    self.ask_for_waiter(holder, id, ProbeSubject::Holder, now);
                }
                None | Some(Obstacle::Firm) => {}
            }
        }
    }

    /// Whether a waiter whose turn has come is present to take it. If that is unknown its host is
    /// probed, and the turn goes to the waiters after it.
    fn takes_turn(&mut self, id: WaiterId, now: Time) -> bool {
        let Some(waiter) = self.waiters.get_mut(id) else { return false };
        let host = self.owners.host(waiter.owner);
        let Some(tracked) = self.clients.get(host) else { return false };
        let recorded = tracked.row.incarnation;
        let known = waiter.incarnation.is_known() && recorded.is_known();
        if known && waiter.incarnation != recorded {
            // I7: the kernel that asked may be gone; the present one will ask again.
            waiter.passed_over = true;
            self.event(Event::PassedOver { client: host });
            return false;
        }
        if tracked.last_seen.is_some_and(|seen| now.mono.saturating_sub(seen) <= HEARD_FRESH) {
            return true;
        }
        self.ask_for_waiter(host, id, ProbeSubject::Waiter, now);
        false
    }

    /// Uses the answer of a probe of a waiter's host; `None` counts as absent. An absent waiter is
    /// passed over until its host is heard.
    pub(crate) fn judge_waiter(&mut self, id: WaiterId, answer: Option<ProbeAnswer>) {
        let Some(waiter) = self.waiters.get_mut(id) else { return };
        if answer == Some(ProbeAnswer::Alive) {
            let (file, range) = (waiter.file, waiter.range);
            return self.free(file, range);
        }
        waiter.passed_over = true;
        let client = self.owners.host(waiter.owner);
        if let Some(tracked) = self.clients.get_mut(client) {
            tracked.absent.insert(id);
        }
        self.event(Event::PassedOver { client });
    }

    /// A host was heard: the turns of its waiters that were absent come again, and those of which
    /// that is being asked do not wait for the answer.
    pub(crate) fn try_absent_again(&mut self, host: ClientId) {
        let Some(tracked) = self.clients.get_mut(host) else { return };
        let absent = std::mem::take(&mut tracked.absent);
        for id in absent.into_iter().chain(self.waiter_probes.take_own(host)) {
            if let Some(waiter) = self.waiters.get_mut(id) {
                waiter.passed_over = false;
                let (file, range) = (waiter.file, waiter.range);
                self.free(file, range);
            }
        }
    }

    /// Turns a waiter into a lock and opens its callback.
    fn grant_waiter(&mut self, id: WaiterId, now: Time) {
        let Some(waiter) = self.remove_waiter(id, now) else { return };
        let Waiter {
            file,
            owner,
            range,
            mode,
            incarnation,
            monitored,
            reports,
            handle,
            form,
            since,
            ..
        } = waiter;
        let kind = LockKind { mode, incarnation, monitored, confirmed: true, reports };
        let before = self.table.owned(owner, file, range);
        let before: Vec<(Range, LockKind)> = before
            .filter_map(|held| {
                Some((held.range.overlap(range)?, LockKind { confirmed: true, ..held.kind }))
            })
            .collect();
        let open = OpenGrant {
            owner,
            file,
            range,
            kind,
            before,
            handle,
            form,
            attempt: 1,
            since,
            step: self.steps,
            in_flight: true,
            maybe_taken: false,
        };
        let mut rest = Some(range);
        for (stronger, held) in open.before.iter().filter(|(_, held)| held.mode > mode) {
            let Some((below, above)) = rest.map(|rest| rest.without(*stronger)) else { break };
            if let Some(below) = below {
                self.insert_lock(file, owner, below, kind, now);
            }
            // A request in this epoch proves that the owner knows of its earlier lock.
            self.insert_lock(file, owner, *stronger, *held, now);
            rest = above;
        }
        if let Some(rest) = rest {
            self.insert_lock(file, owner, rest, kind, now);
        }
        let grant = GrantId(self.ids.take());
        self.grants.insert(grant, open);
        self.send_grant(grant, now);
    }

    fn send_grant(&mut self, id: GrantId, now: Time) {
        let Some(open) = self.grants.open.get(&id) else { return };
        let owner = self.owners.key(open.owner).clone();
        let Some(tracked) = self.clients.get(owner.host) else { return };
        let grant = Grant {
            id,
            to: tracked.row.address,
            owner,
            name: tracked.row.name.clone(),
            handle: open.handle.clone(),
            range: open.range,
            mode: open.kind.mode,
            form: open.form,
            attempt: open.attempt,
            since: open.since,
        };
        // Covers the loss of the attempt's result.
        self.timers.set(Timer::Grant(id), now.mono + RETRY_MAX);
        self.step.messages.push(Message::Grant(grant));
    }

    /// After a reboot to `to`: what open callbacks to that incarnation had left to an earlier one
    /// now belongs to the callback's lock.
    pub(crate) fn inherit_grants(&mut self, host: ClientId, to: Incarnation, now: Time) {
        let owners = &self.owners;
        let of_host = self
            .grants
            .open
            .iter_mut()
            .filter(|(_, open)| owners.host(open.owner) == host && open.kind.incarnation == to);
        let mut inherited = Vec::new();
        for (_, open) in of_host {
            let old = open.before.extract_if(.., |(_, kind)| kind.incarnation != to);
            inherited.extend(old.map(|(range, _)| (open.file, open.owner, range, open.kind)));
        }
        for (file, owner, range, kind) in inherited {
            self.insert_lock(file, owner, range, kind, now);
        }
    }

    /// The owner has taken the lock; what it held before is void.
    fn accept_grant(&mut self, id: GrantId, now: Time) {
        let Some(open) = self.leave_grant(id) else { return };
        if open.weakens() {
            self.insert_lock(open.file, open.owner, open.range, open.kind, now);
        }
    }

    /// Closes a callback without knowing whether the owner took the lock. It may use the new lock
    /// or the old one (I9), so it keeps both and unlocks what it does not use.
    fn leave_grant(&mut self, id: GrantId) -> Option<OpenGrant> {
        let open = self.close_grant(id)?;
        // Other requests of the owner were held up by the callback.
        if self.waiters.of_owner_on(open.owner, open.file).next().is_some() {
            self.free(open.file, open.range);
        }
        Some(open)
    }

    /// Restores what the owner held before (I6: nothing else is released).
    fn undo_grant(&mut self, id: GrantId, now: Time) {
        let Some(open) = self.close_grant(id) else { return };
        let client = self.owners.host(open.owner);
        self.event(Event::GrantUndone { client, grant: id });
        self.release(open.file, open.owner, open.range, now);
        for (range, kind) in open.before {
            self.insert_lock(open.file, open.owner, range, kind, now);
        }
        self.free(open.file, open.range);
    }

    fn close_grant(&mut self, id: GrantId) -> Option<OpenGrant> {
        self.timers.stop(Timer::Grant(id));
        let open = self.grants.remove(id)?;
        // A callback that has not been sent yet must not follow what closed it.
        if open.step == self.steps {
            let not_it = |message: &Message| !matches!(message, Message::Grant(g) if g.id == id);
            self.step.messages.retain(not_it);
        }
        Some(open)
    }

    /// Closes the callbacks on a range in which the owner acts, or in which its lock was taken
    /// away. Acting there proves nothing of the rest of a callback's range: a client may have given
    /// up its wait without a CANCEL.
    pub(crate) fn close_grants(&mut self, owner: OwnerId, file: FileId, range: Range) {
        while let Some(grant) = self.grants.on(owner, file, range) {
            self.leave_grant(grant);
        }
    }

    pub(crate) fn enqueue_waiter(&mut self, waiter: Waiter) {
        let id = WaiterId(self.ids.take());
        self.owners[waiter.owner] += 1;
        self.files[waiter.file].waiters.insert(id);
        if let Some(tracked) = self.clients.count_entry(self.owners.host(waiter.owner)) {
            tracked.waiting += 1;
            tracked.taken.count(waiter.incarnation, waiter.reports);
        }
        self.waiters.insert(id, waiter);
    }

    pub(crate) fn remove_waiter(&mut self, id: WaiterId, now: Time) -> Option<Waiter> {
        let waiter = self.waiters.remove(id)?;
        self.waiter_probes.remove_waiter(id);
        self.files[waiter.file].waiters.remove(&id);
        self.owners[waiter.owner] -= 1;
        let host = self.owners.host(waiter.owner);
        if let Some(tracked) = self.clients.uncount_entry(host) {
            tracked.waiting -= 1;
            tracked.absent.remove(&id);
            tracked.taken.uncount(waiter.incarnation, waiter.reports);
            tracked.idle_since = now.mono;
            if tracked.is_unnoticed_idle() {
                self.clients.queue(host);
            }
        }
        self.touch(waiter.owner, waiter.file);
        Some(waiter)
    }
}
