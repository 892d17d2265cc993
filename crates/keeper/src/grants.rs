//! What happens when a range becomes free: the first waiter gets it, and is told until it answers
//! (R3.3). An unanswered callback is a held lock (I9).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bytes::Handle;
use crate::event::Event;
use crate::identity::{ClientId, GrantId, Incarnation};
use crate::keeper::Keeper;
use crate::locking::Obstacle;
use crate::parking::{About, Asked, Parked};
use crate::range::Range;
use crate::request::{Form, GrantAnswer, Mode, ProbeAnswer, Question};
use crate::step::{Grant, Message};
use crate::table::{FileId, OwnerId, Terms};
use crate::time::Time;
use crate::timer::Timer;
use crate::waiters::{Waiter, WaiterId, Wish};

/// A waiter that asked within this time is there; a Linux client asks every 30 s.
const FRESH: Duration = Duration::from_secs(45);
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// A callback that has not been answered.
pub struct OpenGrant {
    pub owner: OwnerId,
    pub file: FileId,
    pub range: Range,
    pub terms: Terms,
    /// What the owner had in the range before, for the case that it says "I do not want it".
    pub before: Vec<(Range, Terms)>,
    pub handle: Handle,
    pub form: Form,
    pub attempt: u32,
    pub since: Duration,
    /// The step in which it was last sent.
    pub step: u64,
    /// The last attempt has not been reported on.
    pub in_flight: bool,
    /// An attempt was not answered: the peer may have taken the lock and lost only its answer.
    pub maybe_taken: bool,
}

impl OpenGrant {
    /// A weaker lock was granted over a stronger one. The stronger stays until the owner has
    /// accepted: only so can it be given back.
    fn weakens(&self) -> bool {
        self.before.iter().any(|(_, terms)| terms.mode > self.terms.mode)
    }
}

/// What became of a waiter whose turn had come.
enum Turn {
    Taken,
    Asked,
    PassedOver,
}

#[derive(Default)]
pub struct Grants {
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

    pub fn len(&self) -> usize {
        self.open.len()
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
    /// The peer's answer to a `Message::Grant`. A late one, to a callback that is no longer open,
    /// changes nothing.
    pub fn handle_granted(&mut self, grant: GrantId, answer: GrantAnswer, now: Time) {
        let Some(open) = self.grants.open.get_mut(&grant) else { return };
        let (owner, file) = (open.owner, open.file);
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
            GrantAnswer::Denied => self.leave_grant(grant, now),
        }
        self.hear_client(self.owners.host(owner), now);
        self.tidy(owner, file);
        self.end_grace_if_complete(now);
    }

    pub(crate) fn resend_grant(&mut self, grant: GrantId, now: Time) {
        if let Some(open) = self.grants.open.get_mut(&grant) {
            open.attempt += 1;
            open.step = self.steps;
            open.maybe_taken |= std::mem::replace(&mut open.in_flight, true);
            self.send_grant(grant, now);
        }
    }

    /// Something in `freed` may be free now: grants what waits for it, first come first served.
    pub(crate) fn wake(&mut self, file: FileId, mut freed: Range, now: Time) {
        let (mut at, mut closed_by) = (0, None);
        while let Some(&id) = self.files.file(file).queue.get(at) {
            let Some(waiter) = self.waiters.get(id) else { break };
            let Waiter { owner, range, mode, passed_over, .. } = *waiter;
            at += 1;
            if passed_over || !range.overlaps(freed) {
                continue;
            }
            // Behind an exclusive claim on all of it only two can be served: who made the claim,
            // and who holds something that the claim waits for.
            if closed_by.is_some_and(|by| by != owner) && self.table.owner_len(owner) == 0 {
                continue;
            }
            let wish = Wish { owner, file, range, mode, place: Some(id) };
            match self.obstacle(wish, true, &Asked::default()) {
                // What its owner has not answered yet comes first.
                None if self.grants.on(owner, file, range).is_some() => {}
                None => match self.turn_of(id, now) {
                    Turn::Taken => {
                        at -= 1;
                        self.grant_waiter(id, now);
                    }
                    // It is in nobody's way any more, wherever it wanted to be.
                    Turn::PassedOver => {
                        freed = freed.hull(range);
                        continue;
                    }
                    Turn::Asked => {}
                },
                Some(Obstacle::Releasable(holder)) => {
                    self.ask_for_waiter(holder, id, About::Holder, now);
                }
                Some(Obstacle::Firm) => {}
            }
            if mode == Mode::Exclusive && range.covers(freed) {
                closed_by = Some(owner);
            }
        }
    }

    fn ask_for_waiter(&mut self, host: ClientId, waiter: WaiterId, about: About, now: Time) {
        if !self.parking.is_asking(host, waiter) {
            self.ask(host, Question::Reachable, Parked::Waiter(waiter, about), now);
        }
    }

    /// Locks have become releasable: whoever waits for one may have it asked for.
    pub(crate) fn wake_everywhere(&mut self, now: Time) {
        let files: BTreeSet<FileId> = self.waiters.iter().map(|(_, waiter)| waiter.file).collect();
        for file in files {
            self.wake(file, Range::ALL, now);
        }
    }

    /// Whether a waiter whose turn has come is there to take it. If that is not known, it is asked;
    /// meanwhile it is in the way of those behind it, as before.
    fn turn_of(&mut self, id: WaiterId, now: Time) -> Turn {
        let Some(waiter) = self.waiters.get(id) else { return Turn::PassedOver };
        let host = self.owners.host(waiter.owner);
        let recorded = self.clients.incarnation(host);
        let known = waiter.incarnation.is_known() && recorded.is_known();
        if known && waiter.incarnation != recorded {
            // I7: whoever asked then may be gone; whoever is there now will ask again.
            self.pass_over(id);
            return Turn::PassedOver;
        }
        if now.mono.saturating_sub(waiter.polled) <= FRESH {
            return Turn::Taken;
        }
        self.ask_for_waiter(host, id, About::Waiter, now);
        Turn::Asked
    }

    fn pass_over(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.passed_over = true;
            let client = self.owners.host(waiter.owner);
            self.event(Event::PassedOver { client });
        }
    }

    /// What a probe said of a waiter whose turn it is.
    pub(crate) fn judge_waiter(&mut self, id: WaiterId, answer: Option<ProbeAnswer>, now: Time) {
        let Some(waiter) = self.waiters.get_mut(id) else { return };
        let (file, range) = (waiter.file, waiter.range);
        match answer {
            Some(ProbeAnswer::Alive) => waiter.polled = now.mono,
            _ => self.pass_over(id),
        }
        self.wake(file, range, now);
    }

    /// Gives a waiter its lock, and begins to tell it so.
    fn grant_waiter(&mut self, id: WaiterId, now: Time) {
        let Some(waiter) = self.forget_waiter(id, now) else { return };
        let Waiter {
            file, owner, range, mode, incarnation, monitored, handle, form, since, ..
        } = waiter;
        let terms = Terms { mode, incarnation, monitored, confirmed: true };
        let before = self.table.owned(owner, file, range);
        let before: Vec<(Range, Terms)> = before
            .filter_map(|held| {
                Some((held.range.overlap(range)?, Terms { confirmed: true, ..held.terms }))
            })
            .collect();
        let open = OpenGrant {
            owner,
            file,
            range,
            terms,
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
                self.grant_quietly(file, owner, below, terms, now);
            }
            // Who asks for a lock in this epoch knows of the one it had.
            self.grant_quietly(file, owner, *stronger, *held, now);
            rest = above;
        }
        if let Some(rest) = rest {
            self.grant_quietly(file, owner, rest, terms, now);
        }
        let grant = GrantId(self.ids.take());
        self.grants.insert(grant, open);
        self.send_grant(grant, now);
    }

    fn send_grant(&mut self, id: GrantId, now: Time) {
        let Some(open) = self.grants.open.get(&id) else { return };
        let owner = self.owners.owner(open.owner).clone();
        let Some(tracked) = self.clients.get(owner.host) else { return };
        let grant = Grant {
            id,
            to: tracked.row.address,
            owner,
            name: tracked.row.name.clone(),
            handle: open.handle.clone(),
            range: open.range,
            mode: open.terms.mode,
            form: open.form,
            attempt: open.attempt,
            since: open.since,
        };
        // In case the answer itself gets lost on its way to us.
        self.timers.set(Timer::Grant(id), now.mono + RETRY_MAX);
        self.step.messages.push(Message::Grant(grant));
    }

    /// A host is found to have rebooted to `to`: what a callback to that incarnation had left in
    /// the hands of an earlier one is now the callback's.
    pub(crate) fn inherit_grants(&mut self, host: ClientId, to: Incarnation, now: Time) {
        let owners = &self.owners;
        let of_host =
            self.grants.open.iter_mut().filter(|(_, open)| {
                owners.host(open.owner) == host && open.terms.incarnation == to
            });
        let mut inherited = Vec::new();
        for (_, open) in of_host {
            let old = open.before.extract_if(.., |(_, terms)| terms.incarnation != to);
            inherited.extend(old.map(|(range, _)| (open.file, open.owner, range, open.terms)));
        }
        for (file, owner, range, terms) in inherited {
            self.grant(file, owner, range, terms, now);
        }
    }

    /// The owner knows that the lock is its own: what it had before is history.
    fn accept_grant(&mut self, id: GrantId, now: Time) {
        let Some(open) = self.close_grant(id) else { return };
        self.finish_and_wake(open.file, vec![open], None, now);
    }

    /// A client that took the lock, and whose answer was lost, denies the next attempt: it waits no
    /// more. It may be using the new lock or the old one (I9), so it keeps both; it gives back what
    /// it does not use.
    fn leave_grant(&mut self, id: GrantId, now: Time) {
        let Some(open) = self.close_grant(id) else { return };
        self.wake(open.file, open.range, now);
    }

    /// The owner does not want it: back to what it had (I6: nothing else goes).
    fn undo_grant(&mut self, id: GrantId, now: Time) {
        let Some(open) = self.close_grant(id) else { return };
        let client = self.owners.host(open.owner);
        self.event(Event::GrantUndone { client, grant: id });
        self.release_quietly(open.file, open.owner, open.range, now);
        for (range, terms) in open.before {
            self.grant_quietly(open.file, open.owner, range, terms, now);
        }
        self.wake(open.file, open.range, now);
    }

    fn close_grant(&mut self, id: GrantId) -> Option<OpenGrant> {
        self.timers.stop(Timer::Grant(id));
        let open = self.grants.remove(id)?;
        // A callback that has not even left must not overtake what closed it.
        if open.step == self.steps {
            let not_it = |message: &Message| !matches!(message, Message::Grant(g) if g.id == id);
            self.step.messages.retain(not_it);
        }
        Some(open)
    }

    /// The owner acts on the range itself, so it knows: callbacks there are over.
    pub(crate) fn close_grants(&mut self, owner: OwnerId, file: FileId, range: Range, now: Time) {
        while let Some(grant) = self.grants.on(owner, file, range) {
            self.accept_grant(grant, now);
        }
    }

    /// The same for an owner that is about to get the range anew: nothing may become free before
    /// it has it. `finish_settled` does the rest.
    pub(crate) fn settle_grants(
        &mut self,
        owner: OwnerId,
        file: FileId,
        range: Range,
    ) -> Vec<OpenGrant> {
        let mut settled = Vec::new();
        while let Some(grant) = self.grants.on(owner, file, range) {
            settled.extend(self.close_grant(grant));
        }
        settled
    }

    pub(crate) fn finish_and_wake(
        &mut self,
        file: FileId,
        settled: Vec<OpenGrant>,
        except: Option<Range>,
        now: Time,
    ) {
        if let Some(freed) = self.finish_settled(settled, except, now) {
            self.wake(file, freed, now);
        }
    }

    /// Weakens, outside `except`, what settled callbacks had left strong; says where somebody may
    /// have been waiting for that, or for the callback to be over.
    pub(crate) fn finish_settled(
        &mut self,
        settled: Vec<OpenGrant>,
        except: Option<Range>,
        now: Time,
    ) -> Option<Range> {
        let mut freed: Option<Range> = None;
        for open in settled {
            let waits = self.waiters.of_owner_on(open.owner, open.file).next().is_some();
            if open.weakens() {
                let parts = match except {
                    None => (Some(open.range), None),
                    Some(except) => open.range.without(except),
                };
                for part in [parts.0, parts.1].into_iter().flatten() {
                    self.grant_quietly(open.file, open.owner, part, open.terms, now);
                }
            } else if !waits {
                continue;
            }
            freed = Some(freed.map_or(open.range, |freed| freed.hull(open.range)));
        }
        freed
    }

    /// The lock under a callback was taken away by somebody else: nothing is left to accept.
    pub(crate) fn forget_grants(&mut self, owner: OwnerId, file: FileId, range: Range) {
        while let Some(grant) = self.grants.on(owner, file, range) {
            self.close_grant(grant);
        }
    }

    /// Takes a waiter out of its queue, and lets those pass whom it kept waiting.
    pub(crate) fn stop_waiting(&mut self, id: WaiterId, now: Time) {
        if let Some(waiter) = self.forget_waiter(id, now) {
            self.wake(waiter.file, waiter.range, now);
        }
    }

    pub(crate) fn line_up(&mut self, waiter: Waiter) {
        let id = WaiterId(self.ids.take());
        self.owners.add_use(waiter.owner);
        self.files.file_mut(waiter.file).queue.push(id);
        if let Some(tracked) = self.clients.get_mut(self.owners.host(waiter.owner)) {
            tracked.waiting += 1;
            tracked.count_taken(waiter.incarnation);
        }
        self.waiters.insert(id, waiter);
    }

    pub(crate) fn forget_waiter(&mut self, id: WaiterId, now: Time) -> Option<Waiter> {
        let waiter = self.waiters.remove(id)?;
        self.parking.forget_waiter(id);
        self.files.file_mut(waiter.file).queue.retain(|other| *other != id);
        self.owners.end_use(waiter.owner);
        if let Some(tracked) = self.clients.get_mut(self.owners.host(waiter.owner)) {
            tracked.waiting -= 1;
            tracked.count_given_back(waiter.incarnation);
            tracked.idle_since = now.mono;
        }
        Some(waiter)
    }
}

fn back_off(attempt: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << attempt.saturating_sub(1).min(10)).min(RETRY_MAX)
}
