//! Reboot reports that only time decides (B3.11): the host holds locks from before the server's
//! restart, but all its connections are younger, so either kernel may answer a probe. The old
//! kernel would reclaim its locks; the report is accepted if no reclaim comes.

use std::time::Duration;

use crate::event::{Proof, Rejection, Release};
use crate::identity::ClientId;
use crate::interned::OwnerId;
use crate::keeper::Keeper;
use crate::parking::Parked;
use crate::reboot_reports::RebootReport;
use crate::request::Question;
use crate::shares::HeldShare;
use crate::time::Time;
use crate::timer::Timer;

/// How long the host has to refute a report by a reclaim, if its status monitor confirms the
/// report.
const REFUTE_TIME: Duration = Duration::from_secs(15);

impl Keeper {
    /// Accepts the report if no reclaim came: after `REFUTE_TIME` if the host's status monitor
    /// confirms it, otherwise after a whole window (B3.11). `agrees` is the status monitor's
    /// answer, `None` before it was asked.
    pub(crate) fn judge_unreclaimed(
        &mut self,
        host: ClientId,
        report: RebootReport,
        agrees: Option<bool>,
        now: Time,
    ) {
        let Some(tracked) = self.clients.get(host) else {
            return self.resolve(report.request, true);
        };
        let since = tracked.pending.as_ref().and_then(|pending| pending.refutable(report.to));
        let since = since.unwrap_or(now.mono);
        let since = tracked.reclaimed.map_or(since, |reclaimed| since.max(reclaimed));
        let (soon, late) = (since + REFUTE_TIME, since + self.recovery.window.length());
        if now.mono >= late || (now.mono >= soon && agrees == Some(true)) {
            return self.accept_unreclaimed(host, &report, now);
        }
        if now.mono >= soon && agrees.is_none() {
            return self.ask(host, Question::State, Parked::RebootReport(report), now);
        }
        self.reject_report(host, &report, Rejection::Unreclaimed, now);
        let again = if now.mono < soon { soon.min(late) } else { late };
        self.timers.set(Timer::Report(host), again);
        self.resolve(report.request, false);
    }

    /// Releases what the host held before the restart and has not reclaimed. Later locks stay: the
    /// kernel that answers took them, whatever state it was given.
    fn accept_unreclaimed(&mut self, host: ClientId, report: &RebootReport, now: Time) {
        let Some(to) = report.to else { return self.resolve(report.request, false) };
        let Some(tracked) = self.clients.get(host) else {
            return self.resolve(report.request, true);
        };
        let owners: Vec<OwnerId> = tracked.owners.iter().copied().collect();
        let (mut lost, mut kept) = (Vec::new(), false);
        for owner in owners {
            for held in self.table.of_owner(owner).filter(|held| held.kind.incarnation != to) {
                kept |= held.kind.confirmed;
                if !held.kind.confirmed {
                    lost.push(held);
                }
            }
            kept |= self.waiters.of_owner(owner).any(|(_, waiter)| waiter.incarnation != to);
        }
        let shares: Vec<HeldShare> = self.shares.of_host(host).copied().collect();
        kept |= shares.iter().any(|share| share.confirmed && share.incarnation != to);
        if kept {
            self.drop_locks(host, lost, Release::Unreclaimed, now);
            self.drop_unconfirmed_shares(host, Release::Unreclaimed, now);
            self.reject_report(host, report, Rejection::Alive, now);
            return self.resolve(report.request, false);
        }
        self.accept_reboot(host, to, report.arrived, Proof::Unreclaimed, now);
        self.resolve(report.request, true);
    }

    /// Judges a pending report whose time has come, repeated or not.
    pub(crate) fn recheck_report(&mut self, host: ClientId, now: Time) {
        let Some(tracked) = self.clients.get(host) else { return };
        let Some(pending) = &tracked.pending else { return };
        if Some(tracked.row.incarnation) == pending.to && !tracked.has_other_incarnations() {
            return self.drop_known_report(host);
        }
        if pending.why != Rejection::Unreclaimed || tracked.unconfirmed == 0 {
            return;
        }
        let report = RebootReport {
            request: None,
            source: pending.source,
            name: pending.name.clone(),
            to: pending.to,
            recorded: tracked.row.incarnation,
            from_host: true,
            may_roam: false,
            unverified: false,
            arrived: pending.last,
        };
        self.ask_same_kernel(host, Parked::RebootReport(report), now);
    }

    /// Time in which nothing could be decided does not count against a host.
    pub(crate) fn delay_reports(&mut self, lasted: Duration) {
        let delayed = self.clients.iter_mut().filter_map(|tracked| {
            tracked.reclaimed = tracked.reclaimed.map(|at| at + lasted);
            if let Some(pending) = &mut tracked.pending {
                pending.since += lasted;
                pending.last_at += lasted;
            }
            let delayed = tracked.pending.is_some() || tracked.unconfirmed > 0;
            delayed.then_some(tracked.row.id)
        });
        let delayed: Vec<ClientId> = delayed.collect();
        for host in delayed {
            for timer in [Timer::Report(host), Timer::LateReclaim(host)] {
                if let Some(due) = self.timers.due(timer) {
                    self.timers.set(timer, due + lasted);
                }
            }
        }
    }
}
