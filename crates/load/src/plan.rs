//! The measurements of one server.

use std::time::Duration;

use crate::{OpenError, Operation, Session, Shape, Target, Timing};

#[derive(Debug, Clone)]
pub struct Plan {
    pub steps: Vec<(Operation, Shape)>,
    pub timing: Timing,
}

impl Plan {
    pub fn steps(&self) -> impl Iterator<Item = (Operation, Shape)> + '_ {
        self.steps.iter().copied()
    }

    /// How long one step takes.
    pub fn step_time(&self) -> Duration {
        self.timing.warm_up + self.timing.measured
    }

    pub fn measures(&self, operation: Operation) -> bool {
        self.steps().any(|(planned, _)| planned == operation)
    }

    /// Whether a lock manager is needed.
    pub fn locks(&self) -> bool {
        self.steps().any(|(operation, _)| operation.locks())
    }

    /// Opens a session for all steps.
    pub async fn open(&self, target: Target) -> Result<Session, OpenError> {
        Session::open(target, &self.steps).await
    }
}
