//! Reboots that an operator confirms (B3.70): of a pending report, what was held when it first came
//! goes, and nothing that was taken since; without a report, everything goes.

use keeper::Keeper;
use keeper::event::{Event, Proof};
use keeper::identity::ClientId;
use keeper::step::Step;

use crate::judge::input::ObservedInput;
use crate::model::{CellState, PendingReport};
use crate::world::World;

impl World {
    /// Records the pending reports and suspects, for the judgement of the next step. A report that
    /// was dropped and comes again is a new one.
    pub(crate) fn note_pending(&mut self, keeper: &Keeper) {
        let before = std::mem::take(&mut self.model.pending_reports);
        self.model.suspects.clear();
        for view in keeper.clients(ClientId(0)) {
            let client = view.client.id;
            if view.suspect {
                self.model.suspects.insert(client);
            }
            let Some(pending) = view.pending else { continue };
            let (state, first_at_ms) = (pending.to.map(|to| to.0), pending.first_at_ms);
            let known = before.get(&client);
            let known = known.filter(|it| (it.state, it.first_at_ms) == (state, first_at_ms));
            let shown = known.map_or(self.model.serial, |it| it.shown);
            let report = PendingReport { state, first_at_ms, shown };
            self.model.pending_reports.insert(client, report);
        }
    }

    /// Whether the confirmation may release this; it may hit a live holder.
    pub(crate) fn confirmation_allowed(
        &mut self,
        client: ClientId,
        to: u32,
        old: CellState,
        inputs: &[ObservedInput],
    ) -> Result<Result<(), String>, String> {
        if !inputs.iter().any(|input| matches!(input, ObservedInput::Operator(..))) {
            return Err("no operator was there".to_owned());
        }
        // In a batch the report may have come, or gone, just before.
        let pending = self.model.pending_reports.get(&client).filter(|_| inputs.len() == 1);
        let Some(report) = pending else { return Ok(Ok(())) };
        if report.state == Some(to) && old.incarnation == to {
            return Err(format!("I7: a confirmation of state {to} freed a lock of that state"));
        }
        if old.taken > report.shown && !old.by_callback {
            return Err("B3.70: it was taken after the report that was confirmed".to_owned());
        }
        Ok(Ok(()))
    }

    /// What was held before the report came is gone.
    pub(crate) fn judge_confirmed(&mut self, inputs: &[ObservedInput], step: &Step) {
        let [ObservedInput::Operator(_)] = inputs else { return };
        for event in &step.events {
            let Event::Rebooted { client, to, proof: Proof::Operator(_), .. } = event else {
                continue;
            };
            let Some(host) = self.host_of(*client) else { continue };
            let pending = self.model.pending_reports.get(client).copied();
            let before = match pending {
                // The pending report may be any of these; it is not older than the first.
                Some(report) => {
                    let reports = self.model.host_reports.iter();
                    let same = reports.filter(|it| it.state == report.state);
                    same.map(|it| it.serial).min().unwrap_or(0)
                }
                None if self.model.suspects.contains(client) => continue,
                None => self.model.serial,
            };
            let spared = pending.and_then(|report| report.state);
            let goes = |cell: &CellState| {
                cell.strength > 0 && Some(cell.incarnation) != spared && cell.taken < before
            };
            let left = self.hosts[host]
                .processes()
                .find(|process| self.model.table[*process].iter().flatten().any(goes));
            if let Some(process) = left {
                let who = self.who(process);
                self.violate("B3.70", || {
                    format!("the reboot to {} was confirmed, and {who} still holds", to.0)
                });
            }
            self.coverage.reach(match pending {
                Some(_) => "pending reboot confirmed",
                None => "reboot confirmed without a report",
            });
        }
    }
}
