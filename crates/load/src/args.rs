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
    /// How long each measurement lasts
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// How long the load runs before it is measured
    #[arg(long, default_value_t = 0.3)]
    pub warm_up_seconds: f64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

impl LoadArgs {
    pub fn plan(&self) -> Result<Plan> {
        let seconds = |value: f64| {
            ensure!((0.0..=600.0).contains(&value), "{value} is not between 0 and 600 seconds");
            Ok(Duration::from_secs_f64(value))
        };
        let (warm_up, measured) = (seconds(self.warm_up_seconds)?, seconds(self.seconds)?);
        Ok(Plan {
            operations: some_or(&self.operations, &Operation::ALL),
            shapes: some_or(&self.shapes, &Shape::ALL),
            timing: Timing { warm_up, measured },
        })
    }
}

fn some_or<T: Clone>(named: &[T], all: &[T]) -> Vec<T> {
    if named.is_empty() { all.to_vec() } else { named.to_vec() }
}
