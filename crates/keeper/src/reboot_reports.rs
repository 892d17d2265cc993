//! Reboot reports: SM_NOTIFY and FREE_ALL (B3.8). Releasing a live host's lock is silent
//! corruption; keeping a dead host's lock is a nuisance. So a report counts only from the right
//! source, with a new state, and without a sign of life of the old kernel.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::Name;
use crate::clients::TrackedClient;
use crate::config::Verify;
use crate::event::{Event, Proof, Rejection, Release};
use crate::identity::{ClientId, Incarnation, RequestId, Transport};
use crate::keeper::Keeper;
use crate::parking::Parked;
use crate::request::{ProbeAnswer, Question, Source};
use crate::step::Reply;
use crate::sweep::SweepScope;
use crate::time::Time;
use crate::timer::Timer;
use crate::view::PendingReboot;

/// A report that repeats another after a longer silence than this is a new one. Linux repeats at
/// most 2 min apart.
const REPEAT_GAP_MAX: Duration = Duration::from_secs(15 * 60);

/// When a report arrived, in relation to what its host takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// What was taken before it has smaller ids.
    pub id: u64,
    /// What was taken before it has a smaller number (`LockKind::reports`), also if it was split
    /// since.
    pub reports: u32,
}

/// A report that a host rebooted, while a probe of that host is outstanding.
#[derive(Clone, Debug)]
pub(crate) struct RebootReport {
    /// `None` if a pending report is judged again without being repeated.
    pub request: Option<RequestId>,
    pub source: IpAddr,
    pub name: Name,
    /// The host's new state; `None` for FREE_ALL, which concerns everything before it.
    pub to: Option<Incarnation>,
    /// The host's recorded incarnation when the probe was sent.
    pub recorded: Incarnation,
    /// It came from the host's own address and names the host. Otherwise only a reset proves it.
    pub from_host: bool,
    /// It may be believed although it came from another address (B3.75).
    pub may_roam: bool,
    /// With `verify = "ask"`: it does not count until the status monitor at that address has
    /// answered the same state.
    pub unverified: bool,
    pub arrived: Arrival,
}

impl RebootReport {
    /// Whether it reports a state that is not older than the recorded one.
    fn is_news(&self) -> bool {
        self.to.is_none_or(|to| !self.recorded.is_known() || !to.is_before(self.recorded))
    }
}

/// A report may concern several hosts. Its sender is answered once all of them are decided, and
/// only if every decision was to accept.
#[derive(Default)]
pub(crate) struct PendingDecisions(BTreeMap<RequestId, PendingDecision>);

struct PendingDecision {
    open: usize,
    accepted: bool,
}

impl Keeper {
    /// SM_NOTIFY, or FREE_ALL if `to` is `None` (B3.17), which needs no new state.
    pub(crate) fn validate_report(
        &mut self,
        request: RequestId,
        source: Source,
        name: Name,
        to: Option<Incarnation>,
        now: Time,
    ) {
        self.hear_call(source.local, now);
        let forgeable = self.config.verify == Verify::Ask && source.transport == Transport::Udp;
        let reserved = source.reserved;
        let source = source.address.to_canonical();
        let hosts = self.reported_hosts(source, &name);
        let relayed = to.is_some_and(|to| {
            !self.is_recorded(&hosts, &name)
                && self.relay_unrecorded(source, &name, hosts.is_empty(), to, now)
        });
        let roams = reserved && !forgeable && self.roaming_host(source, &name).is_some();
        if hosts.is_empty() {
            if relayed {
                return self.reply(request, Reply::Acknowledged);
            }
            self.event(match to {
                Some(_) => Event::NoticeUnknown { source, name },
                None => Event::FreeAllRefused { source, name },
            });
            return self.reply(request, Reply::NoReply);
        }
        // FREE_ALL carries no state that a status monitor could confirm.
        let provable = to.is_some() || !forgeable;
        self.decisions.0.insert(request, PendingDecision { open: hosts.len(), accepted: true });
        for (host, own) in hosts {
            let report = RebootReport {
                request: Some(request),
                source,
                name: name.clone(),
                to,
                recorded: self.clients.incarnation(host),
                from_host: own && provable,
                may_roam: !own && to.is_some() && roams,
                unverified: forgeable,
                arrived: self.arrival(host).unwrap_or_default(),
            };
            match self.parking.merge_report(host, &report) {
                Some(earlier) => self.resolve(Some(earlier), false),
                None => self.validate_for(host, report, now),
            }
        }
    }

    /// Now, for a report about this host.
    pub(crate) fn arrival(&mut self, host: ClientId) -> Option<Arrival> {
        let id = self.ids.next();
        let tracked = self.clients.get_mut(host)?;
        Some(Arrival { id, reports: tracked.taken.mark_report() })
    }

    /// B3.6: the hosts of that name at that address, which report for themselves. If there are
    /// none, the only host at that address and all hosts of that name elsewhere; for these only a
    /// reset is proof, because machines may share an address or a name.
    fn reported_hosts(&self, source: IpAddr, name: &Name) -> Vec<(ClientId, bool)> {
        let of_name = self.clients.named(name);
        let is_there = |id: &&ClientId| {
            self.clients.get(**id).is_some_and(|tracked| tracked.row.address == source)
        };
        let named: Vec<_> = of_name.iter().filter(is_there).map(|id| (*id, true)).collect();
        if !named.is_empty() {
            // The client may have locked from its new address before its notice is believed.
            let roaming = self.roaming_host(source, name).map(|host| (host, false));
            return named.into_iter().chain(roaming).collect();
        }
        let mut there = self.clients.hosts_at(source).map(|tracked| tracked.row.id);
        let alone = there.next().filter(|_| there.next().is_none());
        alone.into_iter().chain(of_name).map(|host| (host, false)).collect()
    }

    /// Whether one of the reported hosts has this name. It is relayed once its reboot is accepted.
    fn is_recorded(&self, hosts: &[(ClientId, bool)], name: &Name) -> bool {
        hosts
            .iter()
            .filter_map(|(host, _)| self.clients.get(*host))
            .any(|tracked| tracked.row.name.names_same_machine(name))
    }

    pub(crate) fn validate_for(&mut self, host: ClientId, report: RebootReport, now: Time) {
        let Some(tracked) = self.clients.get(host) else {
            return self.resolve(report.request, true);
        };
        // A repeat changes nothing, unless locks of another incarnation remain.
        if report.to == Some(tracked.row.incarnation) && !tracked.has_other_incarnations() {
            self.drop_known_report(host);
            return self.resolve(report.request, true);
        }
        if tracked.has_nothing() {
            if report.from_host {
                self.accept_report(host, &report, Proof::NothingHeld, now);
            }
            return self.resolve(report.request, true);
        }
        let report = RebootReport { recorded: tracked.row.incarnation, ..report };
        if self.config.verify == Verify::Address && report.from_host && report.is_news() {
            self.accept_report(host, &report, Proof::Notice, now);
            return self.resolve(report.request, true);
        }
        match report.unverified && report.from_host {
            true => self.ask(host, Question::State, Parked::RebootReport(report), now),
            false => self.ask_same_kernel(host, Parked::RebootReport(report), now),
        }
    }

    /// Uses the status monitor's answer: it confirms a report (`verify = "ask"`), or one that no
    /// reclaim has refuted.
    pub(crate) fn judge_state(
        &mut self,
        host: ClientId,
        report: RebootReport,
        answer: ProbeAnswer,
        now: Time,
    ) {
        if report.recorded != self.clients.incarnation(host) || self.has_nothing(host) {
            return self.validate_for(host, report, now);
        }
        let agrees = report.to.is_some_and(|to| answer == ProbeAnswer::InState(to));
        if report.unverified {
            if agrees {
                return self.validate_for(host, RebootReport { unverified: false, ..report }, now);
            }
            self.reject_report(host, &report, Rejection::Unverified, now);
            return self.resolve(report.request, false);
        }
        self.judge_unreclaimed(host, report, Some(agrees), now);
    }

    /// B3.8: uses the answer of a probe of the old kernel.
    pub(crate) fn judge_report(
        &mut self,
        host: ClientId,
        report: RebootReport,
        about: Incarnation,
        answer: ProbeAnswer,
        now: Time,
    ) {
        let recorded = self.clients.incarnation(host);
        // The answer was about a kernel other than the one recorded now: a duplicate under another
        // name ends there. Or an operator has released meanwhile what the report was about.
        if report.recorded != recorded || self.has_nothing(host) {
            return self.validate_for(host, report, now);
        }
        // Silence proves nothing if the report is not the host's own or is older than what is
        // recorded.
        let counts = report.from_host && report.is_news();
        let repeated = self.may_repeat_old_report(host, now);
        let verdict = match answer {
            ProbeAnswer::Gone => Ok(Proof::Reset),
            ProbeAnswer::Silent if counts && repeated => Err(Rejection::Unproven),
            ProbeAnswer::Silent if counts => Ok(Proof::Notice),
            ProbeAnswer::Silent if report.may_roam && report.is_news() => {
                return self.ask(host, Question::Reachable, Parked::RebootReport(report), now);
            }
            ProbeAnswer::Silent if self.is_elsewhere(host, &report) => Err(Rejection::Elsewhere),
            ProbeAnswer::Silent => Err(Rejection::Unproven),
            ProbeAnswer::Alive | ProbeAnswer::InState(_) => {
                if counts && report.to.is_some() && self.unconfirmed_of(Some(host)) > 0 {
                    return self.judge_unreclaimed(host, report, None, now);
                }
                Err(Rejection::Alive)
            }
        };
        match verdict {
            // The answer covers one kernel only; locks of a later one are judged separately.
            Ok(_) if self.has_others(host, about, report.to, report.arrived) => {
                match self.release_kernel(host, about, report.arrived, now) {
                    true => self.validate_for(host, report, now),
                    false => {
                        self.reject_report(host, &report, Rejection::Unproven, now);
                        self.resolve(report.request, false);
                    }
                }
            }
            Ok(proof) => {
                self.accept_report(host, &report, proof, now);
                self.resolve(report.request, true);
            }
            Err(why) => {
                self.reject_report(host, &report, why, now);
                self.resolve(report.request, false);
            }
        }
    }

    fn accept_report(&mut self, host: ClientId, report: &RebootReport, proof: Proof, now: Time) {
        match report.to {
            Some(to) => self.accept_reboot(host, to, report.arrived, proof, now),
            None => {
                let count = self.sweep(host, SweepScope::Before(report.arrived), now);
                if let Some(tracked) = self.clients.get_mut(host) {
                    tracked.pending = tracked.pending.take().filter(|it| it.to.is_some());
                }
                let why = Release::FreeAll;
                self.event(Event::Released { client: host, count, why });
            }
        }
    }

    /// Keeps the report as pending: it is shown, and judged again when repeated.
    pub(crate) fn reject_report(
        &mut self,
        host: ClientId,
        report: &RebootReport,
        why: Rejection,
        now: Time,
    ) {
        let Some(tracked) = self.clients.get_mut(host) else { return };
        let RebootReport { name, source, to, arrived, .. } = report;
        // A FREE_ALL says less than a notice and does not displace one.
        if to.is_some() || tracked.pending.as_ref().is_none_or(|pending| pending.to.is_none()) {
            let before = tracked.pending.take().filter(|pending| {
                pending.to == *to && now.mono <= pending.last_at + REPEAT_GAP_MAX
            });
            // A notice from elsewhere counts only if it could be believed from there.
            let counts = u32::from(report.may_roam || why != Rejection::Elsewhere);
            let same = |it: &&PendingReboot| {
                it.why == why && (why != Rejection::Elsewhere || it.source == *source)
            };
            tracked.pending = Some(PendingReboot {
                name: name.clone(),
                source: *source,
                to: *to,
                why,
                repeats: before.as_ref().map_or(0, |pending| pending.repeats + 1),
                first_at_ms: before.as_ref().map_or(now.wall_ms, |pending| pending.first_at_ms),
                since: before.as_ref().filter(same).map_or(now.mono, |it| it.since),
                same_repeats: before.as_ref().filter(same).map_or(0, |it| it.same_repeats + counts),
                last_at: now.mono,
                first: before.as_ref().map_or(*arrived, |pending| pending.first),
                last: *arrived,
            });
        }
        self.event(match *to {
            Some(to) => Event::RebootPending { client: host, to, why },
            None => Event::FreeAllPending { client: host, source: *source, why },
        });
    }

    /// Drops a pending report of the state that is already recorded.
    pub(crate) fn drop_known_report(&mut self, host: ClientId) {
        self.timers.stop(Timer::Report(host));
        if let Some(tracked) = self.clients.get_mut(host) {
            let known = tracked.row.incarnation;
            tracked.pending = tracked.pending.take().filter(|it| it.to != Some(known));
        }
    }

    /// Drops a pending report: what it was about has been released otherwise.
    pub(crate) fn settle_report(&mut self, host: ClientId) {
        self.timers.stop(Timer::Report(host));
        if let Some(tracked) = self.clients.get_mut(host) {
            tracked.pending = None;
        }
    }

    fn has_nothing(&self, host: ClientId) -> bool {
        self.clients.get(host).is_some_and(TrackedClient::has_nothing)
    }

    /// Records the decision for one of the report's hosts; replies after the last.
    pub(crate) fn resolve(&mut self, request: Option<RequestId>, accepted: bool) {
        let Some(request) = request else { return };
        let Some(decision) = self.decisions.0.get_mut(&request) else { return };
        decision.open -= 1;
        decision.accepted &= accepted;
        if decision.open == 0 {
            let reply = if decision.accepted { Reply::Acknowledged } else { Reply::NoReply };
            self.decisions.0.remove(&request);
            self.reply(request, reply);
        }
    }
}
