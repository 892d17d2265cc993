//! Clients that reboot under another address (B3.75): with `roaming`, their notice is believed from
//! there once the recorded address has been silent long enough. What this risks is in
//! docs/reboots.md: an admitted machine can take the locks of a client that is cut off.

use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::Protocol;
use crate::event::{Proof, Rejection};
use crate::identity::ClientId;
use crate::keeper::Keeper;
use crate::reboot_reports::RebootReport;
use crate::request::ProbeAnswer;
use crate::time::Time;

/// A notice must be repeated this often before it is believed from elsewhere.
const REPEATS_MIN: u32 = 2;

impl Keeper {
    /// The only host of that name at another address than `source`, if roaming is allowed.
    pub(crate) fn roaming_host(&self, source: IpAddr, name: &Name) -> Option<ClientId> {
        if !self.config.roaming {
            return None;
        }
        let named = self.clients.named(name).into_iter();
        let mut elsewhere = named.filter(|id| {
            self.clients.get(*id).is_some_and(|tracked| tracked.row.address != source)
        });
        let only = elsewhere.next()?;
        elsewhere.next().is_none().then_some(only)
    }

    /// Whether a report about the host came from another address than the recorded one.
    pub(crate) fn is_elsewhere(&self, host: ClientId, report: &RebootReport) -> bool {
        self.clients.get(host).is_some_and(|tracked| tracked.row.address != report.source)
    }

    /// Uses the answer of a probe of the recorded address, after its connections were silent.
    pub(crate) fn judge_roaming(
        &mut self,
        host: ClientId,
        report: RebootReport,
        answer: ProbeAnswer,
        now: Time,
    ) {
        if report.recorded != self.clients.incarnation(host) {
            return self.validate_for(host, report, now);
        }
        if answer == ProbeAnswer::Alive {
            self.reject_report(host, &report, Rejection::Alive, now);
            return self.resolve(report.request, false);
        }
        match report.to.filter(|_| self.has_roamed(host, &report, now)) {
            Some(to) => {
                let proof = Proof::Roamed(report.source);
                self.accept_reboot(host, to, report.arrived, proof, now);
                self.resolve(report.request, true);
            }
            None => {
                self.reject_report(host, &report, Rejection::Elsewhere, now);
                self.resolve(report.request, false);
            }
        }
    }

    /// Whether this is at least the second repeat of the notice from that address, and the recorded
    /// address was silent since the first and for a whole recovery window.
    fn has_roamed(&self, host: ClientId, report: &RebootReport, now: Time) -> bool {
        let Some(tracked) = self.clients.get(host) else { return false };
        let Some(pending) = &tracked.pending else { return false };
        let same = pending.to == report.to
            && pending.source == report.source
            && pending.why == Rejection::Elsewhere;
        let there = self.clients.hosts_at(tracked.row.address);
        let heard = there.filter_map(|neighbour| neighbour.last_seen).max();
        let silent_since = heard.unwrap_or(Duration::ZERO).max(pending.since);
        let window = self.config.window(&Protocol::NLM);
        same && pending.same_repeats + 1 >= REPEATS_MIN && now.mono >= silent_since + window
    }
}
