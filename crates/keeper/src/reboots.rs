//! Reboots: who says that a host rebooted, whether to believe it, and what goes when it did (R6.1,
//! R6.2). A lock taken from a host that lives is silent corruption; a lock kept for a dead host is
//! only a nuisance. So a claim needs the right source, news, and no sign of life.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::Reboot;
use crate::clients::Suspicion;
use crate::config::Verify;
use crate::event::{Doubt, Event, Proof, Release};
use crate::identity::{ClientId, Incarnation, LockId, RequestId, Transport};
use crate::keeper::Keeper;
use crate::parking::{Asked, Parked};
use crate::request::{FreeAllRequest, LockRequest, ProbeAnswer, Question, RebootNotice, Source};
use crate::step::Reply;
use crate::sweep::Ended;
use crate::time::Time;
use crate::timer::Timer;
use crate::view::PendingReboot;

/// A reply may be acknowledged this much later than the request came.
const LATE: Duration = Duration::from_secs(1);
/// How long a packet of a dead kernel may still be on its way.
const HAUNTED: Duration = Duration::from_secs(120);

/// "This host rebooted", waiting for what a probe says.
#[derive(Clone, Debug)]
pub struct Claim {
    /// `None` if it is judged again without a repeat.
    pub request: Option<RequestId>,
    pub source: IpAddr,
    pub name: Name,
    /// The state it is in now; `None` for FREE_ALL, which concerns everything before it.
    pub to: Option<Incarnation>,
    /// What the host was known to be in when it was asked.
    pub recorded: Incarnation,
    /// It came from the host's own address and names it. Otherwise only a reset proves it.
    pub speaks_for_itself: bool,
    /// It must not count before the status monitor at that address has answered the same state
    /// (`verify = "ask"`).
    pub unverified: bool,
    /// Everything taken so far is below this.
    pub arrived: u64,
}

impl Claim {
    /// Whether it speaks of a later state than the host was known to be in.
    fn is_news(&self) -> bool {
        self.to.is_none_or(|to| !self.recorded.is_known() || !to.is_before(self.recorded))
    }
}

/// A claim may concern several hosts; its sender is answered when all of them are judged, and only
/// if all were believed.
#[derive(Default)]
pub struct Ballots(BTreeMap<RequestId, Ballot>);

struct Ballot {
    open: usize,
    believed: bool,
}

impl Keeper {
    /// SM_NOTIFY.
    pub fn handle_reboot(&mut self, notice: RebootNotice, now: Time) {
        if !notice.incarnation.is_known() {
            return self.reply(notice.id, Reply::Heard);
        }
        let RebootNotice { id, source, name, incarnation } = notice;
        self.weigh(id, source, name, Some(incarnation), now);
    }

    /// FREE_ALL (R3.5): obeys the same rules, except that it needs no news.
    pub fn handle_free_all(&mut self, request: FreeAllRequest, now: Time) {
        self.weigh(request.id, request.source, request.name, None, now);
    }

    fn weigh(
        &mut self,
        request: RequestId,
        source: Source,
        name: Name,
        to: Option<Incarnation>,
        now: Time,
    ) {
        self.hear_call(source.local, now);
        let forgeable = self.config.verify == Verify::Ask && source.transport == Transport::Udp;
        let source = source.address.to_canonical();
        let hosts = self.claimed_hosts(source, &name);
        if hosts.is_empty() {
            self.event(Event::NoticeUnknown { source, name });
            return self.reply(request, Reply::Nothing);
        }
        // FREE_ALL names no state that could be compared.
        let provable = to.is_some() || !forgeable;
        self.ballots.0.insert(request, Ballot { open: hosts.len(), believed: true });
        let arrived = self.ids.next();
        for (host, own) in hosts {
            let claim = Claim {
                request: Some(request),
                source,
                name: name.clone(),
                to,
                recorded: self.clients.incarnation(host),
                speaks_for_itself: own && provable,
                unverified: forgeable,
                arrived,
            };
            self.weigh_for(host, claim, now);
        }
    }

    /// R6.1 (a): the hosts of that name at that address, which speak for themselves. If there are
    /// none, the only host at that address, and hosts of that name elsewhere: of these only a reset
    /// proves anything, because other machines may share an address or a name.
    fn claimed_hosts(&self, source: IpAddr, name: &Name) -> Vec<(ClientId, bool)> {
        let there: Vec<_> = self.clients.hosts_at(source).map(|tracked| &tracked.row).collect();
        let named = there.iter().filter(|row| row.name.names_same_machine(name));
        let named: Vec<_> = named.map(|row| (row.id, true)).collect();
        if !named.is_empty() {
            return named;
        }
        let alone = if let [only] = there.as_slice() { Some((only.id, false)) } else { None };
        let elsewhere = self.clients.hosts().filter(|t| t.row.name.names_same_machine(name));
        alone.into_iter().chain(elsewhere.map(|tracked| (tracked.row.id, false))).collect()
    }

    fn weigh_for(&mut self, host: ClientId, claim: Claim, now: Time) {
        let Some(tracked) = self.clients.get(host) else {
            return self.resolve(claim.request, true);
        };
        // A repeat changes nothing, unless something of another incarnation is still here.
        if claim.to == Some(tracked.row.incarnation) && !tracked.has_strangers() {
            self.settle_report(host);
            return self.resolve(claim.request, true);
        }
        if tracked.has_nothing() {
            if claim.speaks_for_itself {
                self.believe(host, &claim, Proof::NothingHeld, now);
            }
            return self.resolve(claim.request, true);
        }
        let claim = Claim { recorded: tracked.row.incarnation, ..claim };
        if self.config.verify == Verify::Address && claim.speaks_for_itself && claim.is_news() {
            self.believe(host, &claim, Proof::Notice, now);
            return self.resolve(claim.request, true);
        }
        let question = match claim.unverified && claim.speaks_for_itself {
            true => Question::State,
            false => Question::SameKernel(tracked.oldest()),
        };
        self.ask(host, question, Parked::Claim(claim), now);
    }

    /// What the host's status monitor said: it vouches for the notice (`verify = "ask"`), or for
    /// one that a reclaim has not refuted.
    pub(crate) fn judge_state(
        &mut self,
        host: ClientId,
        claim: Claim,
        answer: ProbeAnswer,
        now: Time,
    ) {
        if claim.recorded != self.clients.incarnation(host) {
            return self.weigh_for(host, claim, now);
        }
        let agrees = claim.to.is_some_and(|to| answer == ProbeAnswer::InState(to));
        if claim.unverified {
            if agrees {
                return self.weigh_for(host, Claim { unverified: false, ..claim }, now);
            }
            self.doubt(host, &claim, Doubt::Unverified, now);
            return self.resolve(claim.request, false);
        }
        self.judge_unreclaimed(host, claim, Some(agrees), now);
    }

    /// R6.1 (c): what a probe said of a host that is claimed to have rebooted.
    pub(crate) fn judge_claim(
        &mut self,
        host: ClientId,
        claim: Claim,
        about: Incarnation,
        answer: ProbeAnswer,
        now: Time,
    ) {
        let recorded = self.clients.incarnation(host);
        // The answer was about another kernel than the one we know of now: look at it anew. The
        // same news under another name ends there.
        if claim.recorded != recorded {
            return self.weigh_for(host, claim, now);
        }
        // Silence proves nothing for a stranger, nor for news that is older than what we know.
        let counts = claim.speaks_for_itself && claim.is_news();
        let verdict = match answer {
            ProbeAnswer::Gone => Ok(Proof::Reset),
            ProbeAnswer::Silent if counts => Ok(Proof::Notice),
            ProbeAnswer::Silent => Err(Doubt::Unproven),
            ProbeAnswer::Alive | ProbeAnswer::InState(_) => {
                if counts && claim.to.is_some() && self.unconfirmed_of(Some(host)) > 0 {
                    return self.judge_unreclaimed(host, claim, None, now);
                }
                Err(Doubt::Alive)
            }
        };
        match verdict {
            // It is known of one kernel only: what a later one took is judged by itself.
            Ok(_) if self.has_others(host, about, claim.to) => {
                match self.release_kernel(host, about, claim.arrived, now) {
                    true => self.weigh_for(host, claim, now),
                    false => {
                        self.doubt(host, &claim, Doubt::Unproven, now);
                        self.resolve(claim.request, false);
                    }
                }
            }
            Ok(proof) => {
                self.believe(host, &claim, proof, now);
                self.resolve(claim.request, true);
            }
            Err(why) => {
                self.doubt(host, &claim, why, now);
                self.resolve(claim.request, false);
            }
        }
    }

    /// Whether a host has something of another kernel than the one that was asked about.
    fn has_others(&self, host: ClientId, about: Incarnation, to: Option<Incarnation>) -> bool {
        let Some(tracked) = self.clients.get(host) else { return false };
        let other = |known: Incarnation| known.is_known() && known != about && Some(known) != to;
        tracked.has_others(about, to)
            || self.shares.of_host(host).any(|share| other(share.incarnation))
    }

    /// Takes from a host what one kernel took that is gone; false if there is more of it.
    fn release_kernel(
        &mut self,
        host: ClientId,
        about: Incarnation,
        arrived: u64,
        now: Time,
    ) -> bool {
        let count = self.sweep(host, Ended::Kernel { about, arrived }, now);
        self.event(Event::Released { client: host, count, why: Release::OldKernel });
        self.end_grace_if_complete(now);
        self.clients.get(host).is_none_or(|tracked| tracked.oldest() != about)
    }

    fn believe(&mut self, host: ClientId, claim: &Claim, proof: Proof, now: Time) {
        match claim.to {
            Some(to) => self.accept_reboot(host, to, claim.arrived, proof, now),
            None => {
                let count = self.sweep(host, Ended::Before(claim.arrived), now);
                let why = Release::FreeAll;
                self.event(Event::Released { client: host, count, why });
                self.end_grace_if_complete(now);
            }
        }
    }

    /// Not believed: it stays pending, is shown, and is judged again when it is repeated.
    pub(crate) fn doubt(&mut self, host: ClientId, claim: &Claim, why: Doubt, now: Time) {
        let Some(to) = claim.to else { return };
        if let Some(tracked) = self.clients.get_mut(host) {
            let before = tracked.pending.take().filter(|pending| pending.incarnation == to);
            tracked.pending = Some(PendingReboot {
                name: claim.name.clone(),
                source: claim.source,
                incarnation: to,
                why,
                repeats: before.as_ref().map_or(0, |pending| pending.repeats + 1),
                first_at_ms: before.as_ref().map_or(now.wall_ms, |pending| pending.first_at_ms),
                since: before.and_then(|pending| pending.refutable(claim.to)).unwrap_or(now.mono),
                arrived: claim.arrived,
            });
            self.event(Event::RebootPending { client: host, to, why });
        }
    }

    /// A pending report says no more than what is known.
    pub(crate) fn settle_report(&mut self, host: ClientId) {
        self.timers.stop(Timer::Report(host));
        if let Some(tracked) = self.clients.get_mut(host) {
            let known = tracked.row.incarnation;
            tracked.pending = tracked.pending.take().filter(|it| it.incarnation != known);
        }
    }

    /// One host of a claim is judged.
    pub(crate) fn resolve(&mut self, request: Option<RequestId>, believed: bool) {
        let Some(request) = request else { return };
        let Some(ballot) = self.ballots.0.get_mut(&request) else { return };
        ballot.open -= 1;
        ballot.believed &= believed;
        if ballot.open == 0 {
            let reply = if ballot.believed { Reply::Heard } else { Reply::Nothing };
            self.ballots.0.remove(&request);
            self.reply(request, reply);
        }
    }

    /// The host is now in `to`. That fact comes first; then everything of other incarnations goes
    /// (I7), except what is newer than the news itself.
    pub(crate) fn accept_reboot(
        &mut self,
        host: ClientId,
        to: Incarnation,
        arrived: u64,
        proof: Proof,
        now: Time,
    ) {
        let from = self.clients.incarnation(host);
        self.update_client(host, |row| {
            row.reboot = Some(Reboot { from, to, before: LockId(arrived) });
            row.incarnation = to;
        });
        if let Some(tracked) = self.clients.get_mut(host) {
            (tracked.suspect, tracked.crashed, tracked.pending) = (None, false, None);
            // A host that held nothing left nothing behind that could haunt us. One that reclaimed
            // nothing may have been told its old state, and have been here all the time.
            tracked.haunted = tracked.haunted.filter(|(gone, _)| *gone != to);
            if from != to && !matches!(proof, Proof::NothingHeld | Proof::Unreclaimed) {
                tracked.haunted = Some((from, now.mono + HAUNTED));
            }
        }
        self.timers.stop(Timer::Report(host));
        self.inherit_grants(host, to, now);
        let released = self.sweep(host, Ended::Reboot { to, arrived }, now);
        self.withdraw_parked(host, to);
        self.event(Event::Rebooted { client: host, to, proof, released });
        self.relay_reboot(host, to, now);
        self.end_grace_if_complete(now);
    }

    /// Requests of an earlier incarnation that are held back have nobody to answer to. If they have
    /// all the same (a status monitor that starts before its notifier tells the new kernel an old
    /// state), no answer makes them come again; a refusal would fail the program.
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
            self.reply(request, Reply::Nothing);
        }
    }

    /// A late packet of a kernel that is known to be gone. Only for a while: a state can come back
    /// without a reboot (a status monitor restarted in a container).
    pub(crate) fn is_ghost(&self, host: ClientId, request: &LockRequest, now: Time) -> bool {
        let Some(tracked) = self.clients.get(host) else { return false };
        let incarnation = request.incarnation;
        tracked.haunted.is_some_and(|(gone, until)| {
            // A status monitor that starts before its notifier gives the new kernel the old state.
            let young = request.connected.is_some_and(|since| since + HAUNTED >= until);
            let old = incarnation == gone || incarnation.is_before(gone);
            let other = incarnation.is_known() && incarnation != tracked.row.incarnation;
            old && other && !young && now.mono < until
        })
    }

    /// R6.2: looks at the state that a LOCK carries, and for stateless clients at its connection;
    /// true if the host must be asked first.
    pub(crate) fn sees_reboot(&mut self, host: ClientId, request: &LockRequest, now: Time) -> bool {
        let next = self.ids.next();
        let Some(tracked) = self.clients.get_mut(host) else { return false };
        // Owners are numbered anew after a reboot: until it is known which kernel asks, what one of
        // them holds may be another's.
        let asking = Timer::Probe(host, Question::SameKernel(tracked.oldest()));
        let undecided = request.stateless && self.timers.is_set(asking);
        let was_reset = std::mem::take(&mut tracked.reset);
        // A client that keeps no state shows its reboot by a new connection only.
        let before = tracked.last_lock.replace(now.mono);
        let reconnected = request.connected.is_some_and(|since| before.is_none_or(|at| since > at));
        let (recorded, is) = (tracked.row.incarnation, request.incarnation);
        let nothing = tracked.has_nothing();
        let news = is.is_known() && recorded.is_known() && is != recorded && !request.reclaim;
        if news {
            if nothing {
                self.record_incarnation(host, is);
            }
            return !nothing;
        }
        let reconnected = request.stateless && reconnected && !was_reset;
        if (reconnected || undecided) && !nothing && !request.reclaim {
            return true;
        }
        if was_reset && !nothing && !request.reclaim {
            if request.stateless {
                let released = self.sweep(host, Ended::Before(next), now);
                let (client, proof) = (host, Proof::Stateless);
                self.event(Event::Rebooted { client, to: recorded, proof, released });
                self.end_grace_if_complete(now);
            } else {
                tracked.suspect = Some(Suspicion::Reset);
                self.event(Event::Suspect { client: host, was: recorded, is });
            }
        }
        false
    }

    /// What a probe said of a host whose LOCK carried another state, or came over a new connection.
    /// If the host is known to be in a third state by now, the answer was about another kernel: it
    /// is looked at anew.
    pub(crate) fn judge_incarnation(
        &mut self,
        host: ClientId,
        request: LockRequest,
        asked: Asked,
        about: Incarnation,
        answer: ProbeAnswer,
        now: Time,
    ) {
        let (was, is) = (self.clients.incarnation(host), request.incarnation);
        if asked.kernel != Some(was) {
            return self.decide_lock(request, asked, now);
        }
        let gone = answer == ProbeAnswer::Gone;
        if was == is {
            if gone && request.stateless && self.has_others(host, about, None) {
                let more = self.release_kernel(host, about, asked.arrived, now);
                if let Some(tracked) = self.clients.get(host).filter(|_| more) {
                    let question = Question::SameKernel(tracked.oldest());
                    return self.ask(host, question, Parked::Lock(request, asked), now);
                }
            } else if gone && request.stateless {
                let released = self.sweep(host, Ended::Before(asked.arrived), now);
                let (client, proof) = (host, Proof::Stateless);
                self.event(Event::Rebooted { client, to: is, proof, released });
                self.end_grace_if_complete(now);
            }
        } else if gone && self.has_others(host, about, Some(is)) {
            let asked = match self.release_kernel(host, about, asked.arrived, now) {
                // The next one is asked about by itself.
                true => Asked { kernel: None, ..asked },
                false => asked,
            };
            return self.decide_lock(request, asked, now);
        } else {
            if gone {
                self.accept_reboot(host, is, self.ids.next(), Proof::Reset, now);
            } else {
                if let Some(tracked) = self.clients.get_mut(host) {
                    tracked.suspect = Some(Suspicion::State);
                }
                self.record_incarnation(host, is);
                self.event(Event::Suspect { client: host, was, is });
            }
        }
        self.decide_lock(request, asked, now);
    }

    fn record_incarnation(&mut self, host: ClientId, is: Incarnation) {
        self.update_client(host, |row| {
            row.incarnation = is;
            row.reboot = None;
        });
        // News that was not believed is overtaken, unless it said the same.
        if let Some(tracked) = self.clients.get_mut(host) {
            tracked.pending = tracked.pending.take().filter(|pending| pending.incarnation == is);
            tracked.haunted = tracked.haunted.filter(|(gone, _)| *gone != is);
        }
    }

    /// An old connection of this host was reset, without our having asked (R6.2). `life` is when there
    /// was the last sign of life on it: a host that has locked since may be another kernel than the
    /// one at its end, and its reset says nothing about who took that lock.
    pub fn handle_reset(&mut self, client: ClientId, life: Duration, _now: Time) {
        if let Some(tracked) = self.clients.get_mut(client) {
            tracked.reset |= tracked.last_lock.is_none_or(|at| at <= life + LATE);
        }
    }
}
