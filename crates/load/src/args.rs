//! The command-line arguments of a measurement.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::{Operation, Plan, Shape, Timing};

#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// What to measure, all by default: null, getattr, lookup, read-64K, read-1M, write-64K,
    /// write-1M, create-remove, lock-unlock (in the last two each call counts as one operation)
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub operations: Vec<Operation>,
    /// Connections and outstanding calls on each: 1x1,4x8,8x16 by default
    #[arg(long, value_delimiter = ',', value_name = "CxD")]
    pub shapes: Vec<Shape>,
    /// How long each measurement lasts; 2 by default, in a comparison 0.5
    #[arg(long)]
    pub seconds: Option<f64>,
    /// How long the load runs before it is measured; 0.3 by default, in a comparison 0.1
    #[arg(long)]
    pub warm_up_seconds: Option<f64>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

impl LoadArgs {
    /// Every operation in every shape, unless some are named.
    pub fn plan(&self) -> Result<Plan> {
        let all = |operation| Shape::ALL.map(|shape| (operation, shape));
        let steps = Operation::ALL.into_iter().flat_map(all).collect();
        self.plan_or(Plan { steps, timing: Timing::default() })
    }

    /// The steps of `default` unless operations or shapes are named, its times unless others are.
    pub fn plan_or(&self, default: Plan) -> Result<Plan> {
        let seconds = |value: Option<f64>, default: Duration| {
            let value = value.unwrap_or(default.as_secs_f64());
            ensure!((0.0..=600.0).contains(&value), "{value} is not between 0 and 600 seconds");
            Ok(Duration::from_secs_f64(value))
        };
        let timing = Timing {
            warm_up: seconds(self.warm_up_seconds, default.timing.warm_up)?,
            measured: seconds(self.seconds, default.timing.measured)?,
        };
        if self.operations.is_empty() && self.shapes.is_empty() {
            return Ok(Plan { timing, ..default });
        }
        let operations = some_or(&self.operations, &Operation::ALL);
        let shapes = some_or(&self.shapes, &Shape::ALL);
        let in_shapes = |operation| shapes.iter().map(move |shape| (operation, *shape));
        Ok(Plan { steps: operations.into_iter().flat_map(in_shapes).collect(), timing })
    }
}

fn some_or<T: Clone>(named: &[T], all: &[T]) -> Vec<T> {
    if named.is_empty() { all.to_vec() } else { named.to_vec() }
}
