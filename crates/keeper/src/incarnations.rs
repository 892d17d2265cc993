//! Which kernel of a host is running (B3.14): what a LOCK shows of the kernel that sent it, what a
//! probe said of the earlier one, and what an accepted reboot does.

use std::time::Duration;

use crate::change::Reboot;
use crate::clients::SuspectReason;
use crate::event::{Event, Proof, Release};
use crate::identity::{ClientId, Incarnation, LockId};
use crate::keeper::Keeper;
use crate::parking::{Parked, ProbeHistory};
use crate::reboot_reports::Arrival;
use crate::request::{LockRequest, ProbeAnswer, Question};
use crate::step::Reply;
use crate::sweep::SweepScope;
use crate::time::Time;
use crate::timer::Timer;

/// A reply may be acknowledged this much later than its request arrived.
const ACK_DELAY_MAX: Duration = Duration::from_secs(1);
/// How long requests of a dead kernel may still arrive.
const QUARANTINE: Duration = Duration::from_secs(120);

/// How long after its states alternated a host is shown for that.
pub(crate) const ALTERNATION_SHOWN_FOR: Duration = Duration::from_secs(3600);

/// What a LOCK shows of the kernel that sent it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelCheck {
    /// No sign of another kernel.
    Same,
    /// Perhaps another kernel; the host must be probed first.
    Ask,
    /// Another kernel; what the earlier one held has been swept.
    Swept,
}

impl Keeper {
    /// Records the reboot to `to`, then releases everything of other incarnations (I7) except what
    /// is newer than the report. The record precedes the releases so that a sweep cut short is
    /// finished at the next start (B3.18).
    pub(crate) fn accept_reboot(
        &mut self,
        host: ClientId,
        to: Incarnation,
        arrived: Arrival,
        proof: Proof,
        now: Time,
    ) {
        let from = self.clients.incarnation(host);
        self.update_client(host, |row| {
            row.reboot = Some(Reboot { from, to, before: LockId(arrived.id) });
            row.incarnation = to;
        });
        if let Some(tracked) = self.clients.get_mut(host) {
            (tracked.suspect, tracked.crashed, tracked.pending) = (None, false, None);
            tracked.previous_state = None;
            // A host that held nothing has no requests under way. A host that reclaimed nothing, or
            // that an operator speaks for, may have been given its old state, and be the current
            // kernel.
            tracked.quarantine = tracked.quarantine.filter(|(gone, _)| *gone != to);
            let perhaps_current =
                matches!(proof, Proof::NothingHeld | Proof::Unreclaimed | Proof::Operator(_));
            if from != to && !perhaps_current {
                tracked.quarantine = Some((from, now.mono + QUARANTINE));
            }
        }
        self.timers.stop(Timer::Report(host));
        self.inherit_grants(host, to, now);
        let scope = match proof {
            Proof::Operator(_) => SweepScope::Confirmed { to, arrived },
            _ => SweepScope::Reboot { to, arrived },
        };
        let released = self.sweep(host, scope, now);
        self.withdraw_parked(host, to);
        self.event(Event::Rebooted { client: host, to, proof, released });
        self.relay_reboot(host, to, now);
    }

    /// Parked requests of an earlier incarnation get no reply. If their kernel lives after all (a
    /// status monitor started before its notifier gives the new kernel an old state), it retries; a
    /// refusal would fail the application.
    fn withdraw_parked(&mut self, host: ClientId, to: Incarnation) {
        let Some(key) = self.clients.get(host).map(|tracked| tracked.row.key()) else { return };
        let withdrawn = self.parking.take_out(|parked| match parked {
            Parked::Lock(request, _) => {
                let incarnation = request.incarnation;
                request.caller.host == key && incarnation.is_known() && incarnation.is_before(to)
            }
            _ => false,
        });
        for request in withdrawn {
            self.reply(request, Reply::NoReply);
        }
    }

    /// Whether a request was sent by a kernel known to be gone. Only for a while, because a state
    /// can return without a reboot (a status monitor restarted in a container).
    pub(crate) fn is_stale(&self, host: ClientId, request: &LockRequest, now: Time) -> bool {
        let Some(tracked) = self.clients.get(host) else { return false };
        let incarnation = request.incarnation;
        tracked.quarantine.is_some_and(|(gone, until)| {
            // A status monitor started before its notifier gives the new kernel the old state.
            let young = request.connected.is_some_and(|since| since + QUARANTINE >= until);
            let old = incarnation == gone || incarnation.is_before(gone);
            let other = incarnation.is_known() && incarnation != tracked.row.incarnation;
            old && other && !young && now.mono < until
        })
    }

    /// Compares the state of a LOCK, and for stateless clients its connection, with what is known
    /// of the host (B3.14).
    pub(crate) fn check_kernel(
        &mut self,
        host: ClientId,
        request: &LockRequest,
        now: Time,
    ) -> KernelCheck {
        let Some(tracked) = self.clients.get_mut(host) else { return KernelCheck::Same };
        // Owner numbers restart after a reboot: until it is known which kernel asks, its owners may
        // be mistaken for those of the other.
        let asking = Timer::Probe(host, Question::SameKernel(tracked.oldest(None)));
        let undecided = request.stateless && self.timers.is_set(asking);
        let was_reset = std::mem::take(&mut tracked.reset);
        // A stateless client shows its reboot only by a new connection.
        let before = tracked.last_lock.replace(now.mono);
        let reconnected = request.connected.is_some_and(|since| before.is_none_or(|at| since > at));
        let (recorded, is) = (tracked.row.incarnation, request.incarnation);
        let nothing = tracked.has_nothing();
        let news = is.is_known() && recorded.is_known() && is != recorded && !request.reclaim;
        if news {
            if !nothing {
                return KernelCheck::Ask;
            }
            self.record_incarnation(host, is, now);
            return KernelCheck::Same;
        }
        if nothing || request.reclaim {
            return KernelCheck::Same;
        }
        if undecided || (request.stateless && reconnected && !was_reset) {
            return KernelCheck::Ask;
        }
        if was_reset && request.stateless {
            let arrived = self.arrival(host).unwrap_or_default();
            let released = self.sweep(host, SweepScope::Before(arrived), now);
            let (client, proof) = (host, Proof::Stateless);
            self.event(Event::Rebooted { client, to: recorded, proof, released });
            return KernelCheck::Swept;
        }
        if was_reset {
            if let Some(tracked) = self.clients.get_mut(host) {
                tracked.suspect = Some(SuspectReason::Reset);
            }
            self.event(Event::Suspect { client: host, was: recorded, is });
        }
        KernelCheck::Same
    }

    /// Uses the answer of a probe of a host whose LOCK carried another state or came over a new
    /// connection. If the recorded state has changed meanwhile, the answer was about another kernel
    /// and the request is decided anew.
    pub(crate) fn judge_kernel(
        &mut self,
        host: ClientId,
        request: LockRequest,
        mut history: ProbeHistory,
        about: Incarnation,
        answer: ProbeAnswer,
        now: Time,
    ) {
        let (was, is) = (self.clients.incarnation(host), request.incarnation);
        let gone = answer == ProbeAnswer::Gone;
        let arrived = history.arrived.unwrap_or_default();
        if history.kernel != Some(was) {
            // Stale answer: decided anew below.
        } else if was == is {
            if gone && request.stateless && self.has_others(host, about, None, arrived) {
                if self.release_kernel(host, about, arrived, now) {
                    return self.ask_same_kernel(host, Parked::Lock(request, history), now);
                }
            } else if gone && request.stateless {
                let released = self.sweep(host, SweepScope::Before(arrived), now);
                let (client, proof) = (host, Proof::Stateless);
                self.event(Event::Rebooted { client, to: is, proof, released });
            }
        } else if gone && self.has_others(host, about, Some(is), arrived) {
            if self.release_kernel(host, about, arrived, now) {
                // The next kernel needs a probe of its own.
                history.kernel = None;
            }
        } else if gone {
            self.accept_reboot(host, is, arrived, Proof::Reset, now);
        } else {
            if let Some(tracked) = self.clients.get_mut(host) {
                tracked.suspect = Some(SuspectReason::State(arrived));
            }
            self.record_incarnation(host, is, now);
            self.event(Event::Suspect { client: host, was, is });
        }
        self.parking.resume(Parked::Lock(request, history));
    }

    fn record_incarnation(&mut self, host: ClientId, is: Incarnation, now: Time) {
        self.note_alternation(host, is, now);
        self.update_client(host, |row| {
            row.incarnation = is;
            row.reboot = None;
        });
        // A pending report is superseded, unless it reported the same state.
        if let Some(tracked) = self.clients.get_mut(host) {
            tracked.pending = tracked.pending.take().filter(|it| it.to.is_none_or(|to| to == is));
            tracked.quarantine = tracked.quarantine.filter(|(gone, _)| *gone != is);
        }
    }

    /// A kernel's state only grows. LOCKs that return to the state before are of two machines with
    /// one name behind one address, or of two status monitors on one machine (B3.74).
    fn note_alternation(&mut self, host: ClientId, is: Incarnation, now: Time) {
        let Some(tracked) = self.clients.get_mut(host) else { return };
        let was = tracked.row.incarnation;
        if tracked.previous_state.replace(was) == Some(is) {
            let before = tracked.alternated.replace(now.mono);
            if before.is_none_or(|at| now.mono > at + ALTERNATION_SHOWN_FOR) {
                self.event(Event::StatesAlternate { client: host, one: was, other: is });
            }
        }
    }

    /// Whether the host has locks, waiters or shares of a kernel other than `about` and `to`, not
    /// counting those without a state that were taken after the report.
    pub(crate) fn has_others(
        &self,
        host: ClientId,
        about: Incarnation,
        to: Option<Incarnation>,
        arrived: Arrival,
    ) -> bool {
        let tracked = self.clients.get(host);
        tracked.is_some_and(|tracked| tracked.taken.has_others(about, to, arrived.reports))
    }

    /// Releases what a dead kernel took; false if some of it is newer than the report and stays.
    pub(crate) fn release_kernel(
        &mut self,
        host: ClientId,
        about: Incarnation,
        arrived: Arrival,
        now: Time,
    ) -> bool {
        let count = self.sweep(host, SweepScope::Kernel { about, arrived }, now);
        self.event(Event::Released { client: host, count, why: Release::OldKernel });
        self.clients.get(host).is_none_or(|tracked| !tracked.taken.has_of(about, arrived.reports))
    }

    /// Notes that a connection last active at `last_activity` was reset. If the host has locked
    /// since, the reset says nothing about the kernel that took that lock.
    pub(crate) fn note_reset(&mut self, client: ClientId, last_activity: Duration) {
        if let Some(tracked) = self.clients.get_mut(client) {
            let before_lock = |at| at <= last_activity + ACK_DELAY_MAX;
            tracked.reset |= tracked.last_lock.is_none_or(before_lock);
        }
    }
}
