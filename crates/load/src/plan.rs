//! The measurements of one server.

use std::time::Duration;

use crate::{OpenError, Operation, Session, Shape, Target, Timing};

#[derive(Debug, Clone)]
pub struct Plan {
    pub operations: Vec<Operation>,
    pub shapes: Vec<Shape>,
    pub timing: Timing,
}

impl Plan {
    /// Each operation in each shape.
    pub fn steps(&self) -> impl Iterator<Item = (Operation, Shape)> + '_ {
        let shapes = |operation| self.shapes.iter().map(move |shape| (operation, *shape));
        self.operations.iter().flat_map(move |operation| shapes(*operation))
    }

    /// How long one step takes.
    pub fn step_time(&self) -> Duration {
        self.timing.warm_up + self.timing.measured
    }

    /// Whether a lock manager is needed.
    pub fn locks(&self) -> bool {
        self.operations.iter().any(|operation| operation.locks())
    }

    /// Opens a session for all steps.
    pub async fn open(&self, target: Target) -> Result<Session, OpenError> {
        let largest = Shape {
            connections: self.shapes.iter().map(|shape| shape.connections).max().unwrap_or(1),
            depth: self.shapes.iter().map(|shape| shape.depth).max().unwrap_or(1),
        };
        let fill = self.operations.iter().any(|operation| operation.bytes() > 0);
        Session::open(target, largest, fill).await
    }
}
