//! What must be seen with real kernel clients. Each step is a named function; steps share the
//! guests and the server, but no directory.

pub mod world;

mod contents;
mod crash;
mod large;
mod listing;
mod mounting;
mod names;
mod permissions;

use std::time::Instant;

use anyhow::Result;

use world::World;

#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub name: &'static str,
    pub run: fn(&World) -> Result<()>,
}

/// Every step, in the order in which they run.
pub fn steps() -> Vec<Step> {
    [
        mounting::STEPS,
        names::STEPS,
        permissions::STEPS,
        contents::STEPS,
        listing::STEPS,
        large::STEPS,
        crash::STEPS,
    ]
    .concat()
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
}

/// Runs the steps one after another, a line for each, and the logs after a failure.
pub fn run(world: &World, steps: &[Step]) -> Result<Tally> {
    let mut tally = Tally::default();
    for step in steps {
        let start = Instant::now();
        let outcome = (step.run)(world);
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                tally.passed += 1;
                println!("ok    {}  {seconds:.1} s", step.name);
            }
            Err(error) => {
                tally.failed += 1;
                println!("FAIL  {}  {seconds:.1} s\n{error:#}\n{}", step.name, world.logs());
                world.recover()?;
            }
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_step_has_a_name_of_its_own() {
        let names: Vec<_> = super::steps().iter().map(|step| step.name).collect();
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(names.len(), distinct.len());
    }
}
