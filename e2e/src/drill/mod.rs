//! Checks with real kernel clients. Each step is a named function; steps share the guests and the
//! server, but no directory.

pub mod context;

mod applications;
mod client_crash;
mod contents;
mod crash;
mod filesystems;
mod hung_disk;
mod increments;
mod large;
mod listing;
mod locker;
mod locks;
mod lost_store;
mod mounting;
mod names;
mod naming;
mod permissions;
mod reboots;
mod recorded;
mod recovery;
mod replaced;
mod roster;
mod server_crash;
mod site;
mod spoof;
mod standby;
mod waiting;

use std::time::Instant;

use anyhow::Result;

use context::Drill;

#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub name: &'static str,
    pub run: fn(&Drill) -> Result<()>,
    /// Not part of the short form.
    pub long: bool,
}

impl Step {
    const fn new(name: &'static str, run: fn(&Drill) -> Result<()>) -> Self {
        Self { name, run, long: false }
    }

    /// A step that the short form leaves out.
    const fn long(name: &'static str, run: fn(&Drill) -> Result<()>) -> Self {
        Self { name, run, long: true }
    }
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
        locks::STEPS,
        waiting::STEPS,
        client_crash::STEPS,
        reboots::STEPS,
        server_crash::STEPS,
        recovery::STEPS,
        roster::STEPS,
        lost_store::STEPS,
        naming::STEPS,
        spoof::STEPS,
        recorded::STEPS,
        increments::STEPS,
        standby::STEPS,
        filesystems::STEPS,
        replaced::STEPS,
        hung_disk::STEPS,
        applications::STEPS,
    ]
    .concat()
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    pub passed: usize,
    pub failed: usize,
}

/// Runs the steps one after another, a line for each, and the logs after a failure.
pub fn run(drill: &Drill, steps: &[Step]) -> Result<Summary> {
    let mut summary = Summary::default();
    for step in steps {
        let start = Instant::now();
        let outcome = (step.run)(drill);
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                summary.passed += 1;
                println!("ok    {}  {seconds:.1} s{}", step.name, measured(drill));
            }
            Err(error) => {
                summary.failed += 1;
                println!("FAIL  {}  {seconds:.1} s{}", step.name, measured(drill));
                println!("{error:#}\n{}", drill.logs());
                drill.recover()?;
            }
        }
    }
    Ok(summary)
}

fn measured(drill: &Drill) -> String {
    let notes = drill.take_notes();
    if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) }
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
