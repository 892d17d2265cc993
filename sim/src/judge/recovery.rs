//! The recovery window (B4.7), and what depends on it: the end of a grace period, and reboot reports
//! that a reclaim would have refuted (B3.11).

use keeper::identity::{ClientId, Incarnation};
use keeper::request::{ProbeAnswer, Question};

use crate::judge::input::ObservedInput;
use crate::model::CellState;
use crate::packet::Call;
use crate::queue::{Ms, SECOND};
use crate::world::World;

/// Grace continues for this long after the last reclaim.
const QUIET: Ms = 15 * SECOND;
/// How long a host can refute a reboot report that its status monitor confirms.
const REFUTE: Ms = 15 * SECOND;
/// A longer commit extends the window by its duration.
const STALL: Ms = SECOND;

impl World {
    /// The first call of a peer begins the window; a connection or an answer alone does not.
    pub(crate) fn note_call(&mut self, input: &ObservedInput) {
        if matches!(input, ObservedInput::Request(..) | ObservedInput::Heard(_))
            && self.model.window.is_none()
        {
            self.model.window = Some(self.now);
        }
        if let ObservedInput::Request(_, request) = input
            && let Call::Lock { reclaim: true, .. } | Call::Share { reclaim: true, .. } =
                request.call
        {
            self.model.reclaims.insert(request.truth.host, self.now);
        }
    }

    /// A commit took `took`; hosts could not reclaim meanwhile.
    pub(crate) fn note_stall(&mut self, took: Ms) {
        if took >= STALL {
            self.note_pause(took);
        }
    }

    /// No decision was made for `took`.
    pub(crate) fn note_pause(&mut self, took: Ms) {
        if let Some(began) = &mut self.model.window {
            *began += took;
            if !self.model.grace_over {
                self.coverage.reach("store stalls during a grace period");
                if self.hosts.iter().any(|host| host.reclaim.is_some()) {
                    self.coverage.reach("store stalls during a reclaim");
                }
            }
        }
        // Pauses of store and lease may overlap.
        let now = self.now;
        for report in &mut self.model.host_reports {
            report.at = (report.at + took).min(now);
        }
        for at in self.model.reclaims.values_mut() {
            *at = (*at + took).min(now);
        }
    }

    /// The earliest end of the window; `None` before it has begun.
    pub(crate) fn window_ends(&self) -> Option<Ms> {
        let window = self.scenario.config.window.as_millis() as Ms;
        self.model.window.map(|began| began + window)
    }

    /// The window ended by its deadline: neither too early nor too late.
    pub(crate) fn judge_deadline(&mut self) {
        let Some(ends) = self.window_ends() else {
            return self.violate("B4.7", || "grace ended before a first call".to_owned());
        };
        let window = self.scenario.config.window.as_millis() as Ms;
        if self.now < ends {
            self.violate("I4", || "grace ended before its deadline".to_owned());
        }
        if self.now > ends + SECOND {
            self.coverage.reach("grace extended");
        }
        if self.now > ends + window + QUIET {
            self.violate("B4.8", || "grace lasted longer than two windows".to_owned());
        }
    }

    /// B3.11: locks that a host which reported a reboot has not reclaimed.
    pub(crate) fn unreclaimed_allowed(
        &mut self,
        client: ClientId,
        host: usize,
        to: Option<u32>,
        old: CellState,
    ) -> Result<Result<(), String>, String> {
        if !old.unconfirmed {
            return Err("it was confirmed".to_owned());
        }
        let (address, name) = (self.hosts[host].address, &self.hosts[host].name);
        let window = self.scenario.config.window.as_millis() as Ms;
        let reclaimed = self.model.reclaims.get(&host).copied().unwrap_or(0);
        let said = self.model.probes.get(&(client, Question::State)).copied();
        let own = self.model.host_reports.iter().filter(|report| {
            let named = report.name.names_same_machine(name);
            let state = report.state.is_some() && (to.is_none() || report.state == to);
            report.source == address && named && state
        });
        let (mut ripe, mut false_report) = (false, false);
        for report in own {
            let since = report.at.max(reclaimed);
            let state = Incarnation(report.state.unwrap_or(0));
            let vouched = said == Some(ProbeAnswer::InState(state)) && self.now >= since + REFUTE;
            ripe |= vouched || self.now >= since + window;
            false_report |= report.speaker != Some(host);
        }
        if !ripe {
            return Err("a reclaim could still have refuted the report".to_owned());
        }
        if false_report {
            self.coverage.reach("false report believed for want of a reclaim");
            return Ok(Ok(()));
        }
        if old.incarnation == 0 && self.model.was_open {
            // Reclaimed in an open grace: which kernel did is not known (B4.91).
            return Ok(Ok(()));
        }
        Ok(Err("its own honest report took it".to_owned()))
    }
}
