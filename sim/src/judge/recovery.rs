//! The recovery window as an observer with a watch sees it (R2.6), and what it decides: the end of a
//! grace period, and reboot reports that a reclaim would have refuted (R6.1).

use keeper::identity::{ClientId, Incarnation};
use keeper::request::{ProbeAnswer, Question};

use crate::judge::note::Note;
use crate::model::Cell;
use crate::packet::Call;
use crate::queue::{Ms, SECOND};
use crate::world::World;

/// Grace goes on for this long after the last sign that hosts are coming back.
const QUIET: Ms = 15 * SECOND;
/// How long a host has to refute a reboot report, if its status monitor says the same.
const REFUTE: Ms = 15 * SECOND;
/// A commit that takes longer keeps hosts from reclaiming.
const STALL: Ms = SECOND;

impl World {
    /// The first call of a peer begins the window; a bare connection or an answer does not.
    pub fn note_call(&mut self, input: &Note) {
        if matches!(input, Note::Request(..) | Note::Heard(_)) && self.model.window.is_none() {
            self.model.window = Some(self.now);
        }
        if let Note::Request(_, request) = input
            && let Call::Lock { reclaim: true, .. } | Call::Share { reclaim: true, .. } =
                request.call
        {
            self.model.reclaims.insert(request.truth.host, self.now);
        }
    }

    /// A commit took so long: that is no time for anybody who waits to reclaim.
    pub fn note_stall(&mut self, took: Ms) {
        if took >= STALL {
            self.note_pause(took);
        }
    }

    /// Nothing was decided for so long.
    pub fn note_pause(&mut self, took: Ms) {
        if let Some(began) = &mut self.model.window {
            *began += took;
            if !self.model.grace_over {
                self.tally.reach("store stalls during a grace period");
                if self.hosts.iter().any(|host| host.reclaim.is_some()) {
                    self.tally.reach("store stalls during a reclaim");
                }
            }
        }
        for claim in &mut self.model.claims {
            claim.at += took;
        }
        for at in self.model.reclaims.values_mut() {
            *at += took;
        }
    }

    /// When the window may end at the earliest; `None` before it has begun.
    pub fn window_ends(&self) -> Option<Ms> {
        let window = self.scenario.config.window.as_millis() as Ms;
        self.model.window.map(|began| began + window)
    }

    /// The window was due: not too early, not too late.
    pub fn judge_deadline(&mut self) {
        let Some(ends) = self.window_ends() else {
            return self.violate("R2.6", || "grace ended before a first call".to_owned());
        };
        let window = self.scenario.config.window.as_millis() as Ms;
        if self.now < ends {
            self.violate("I4", || "grace ended before its deadline".to_owned());
        }
        if self.now > ends + SECOND {
            self.tally.reach("grace extended");
        }
        if self.now > ends + window + QUIET {
            self.violate("R2.6", || "grace lasted longer than two windows".to_owned());
        }
    }

    /// R6.1 (2): what was not reclaimed by a host that reported a reboot.
    pub fn unreclaimed_allowed(
        &mut self,
        client: ClientId,
        host: usize,
        to: Option<u32>,
        old: Cell,
    ) -> Result<Result<(), String>, String> {
        if !old.unconfirmed {
            return Err("it was confirmed".to_owned());
        }
        let (address, name) = (self.hosts[host].address, &self.hosts[host].name);
        let window = self.scenario.config.window.as_millis() as Ms;
        let reclaimed = self.model.reclaims.get(&host).copied().unwrap_or(0);
        let said = self.model.probes.get(&(client, Question::State)).copied();
        let own = self.model.claims.iter().filter(|claim| {
            let named = claim.name.names_same_machine(name);
            let state = claim.state.is_some() && (to.is_none() || claim.state == to);
            claim.source == address && named && state
        });
        let (mut ripe, mut false_report) = (false, false);
        for claim in own {
            let since = claim.at.max(reclaimed);
            let state = Incarnation(claim.state.unwrap_or(0));
            let vouched = said == Some(ProbeAnswer::InState(state)) && self.now >= since + REFUTE;
            ripe |= vouched || self.now >= since + window;
            false_report |= claim.speaker != Some(host);
        }
        if !ripe {
            return Err("a reclaim could still have refuted the report".to_owned());
        }
        if false_report {
            self.tally.reach("false report believed for want of a reclaim");
            return Ok(Ok(()));
        }
        Ok(Err("its own honest report took it".to_owned()))
    }
}
