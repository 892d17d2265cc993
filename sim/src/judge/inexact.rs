//! Records of a roster or an open store (B4.95): which of them may become releasable when grace ends.

use keeper::event::Event;
use keeper::step::Step;

use crate::model::CellState;
use crate::world::World;

impl World {
    /// B2.80: a record that became releasable is left under a former address of the server, because
    /// it is not certain which owner the request means.
    pub(super) fn is_ambiguous(&self, process: usize, file: usize, step: &Step) -> bool {
        let ambiguous = |event: &Event| matches!(event, Event::OwnersAmbiguous { .. });
        self.model.kept.contains(&(process, file)) && step.events.iter().any(ambiguous)
    }

    /// B4.95: the end of an inexact grace made a record of a host that was not heard releasable.
    pub(super) fn became_releasable(
        &mut self,
        process: usize,
        file: usize,
        cell: usize,
        seen: CellState,
        step: &Step,
    ) -> bool {
        let host = self.processes[process].host;
        let recorded = self.model.remembered[process][file][cell];
        let (strength, incarnation) = (recorded.strength, recorded.incarnation);
        (strength, incarnation) == (seen.strength, seen.incarnation)
            && self.is_releasable(host, step)
    }

    pub(super) fn is_releasable(&mut self, host: usize, step: &Step) -> bool {
        let mut kept = step.events.iter().filter_map(|event| match event {
            Event::Releasable { client, .. } => Some(*client),
            _ => None,
        });
        self.model.recovering && kept.any(|client| self.host_of(client) == Some(host))
    }
}
