//! `cargo xtask sim`: runs seeds, prints the trace of one that fails and what was reached.

use std::process::ExitCode;

use lockkeeper_sim::Options;
use lockkeeper_sim::runner::{run_caught, run_many};

const USAGE: &str = "\
usage: lockkeeper-sim [--seeds N] [--from S] [--violations N]
                               run N seeds (1000), beginning with S (0); stop after N violations (20)
       lockkeeper-sim --seed S run one seed and print its trace";

/// The end of a failing trace that is printed.
const TRACE_LINES: usize = 60;

struct Arguments {
    seeds: u64,
    from: u64,
    /// Stop after this many.
    violations: usize,
    seed: Option<u64>,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments { seeds: 1000, from: 0, violations: 20, seed: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match &*word {
            "--seeds" => found.seeds = value.parse().ok()?,
            "--from" => found.from = value.parse().ok()?,
            "--seed" => found.seed = Some(value.parse().ok()?),
            "--violations" => found.violations = value.parse().ok()?,
            _ => return None,
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match arguments.seed {
        Some(seed) => print_trace(seed, usize::MAX),
        None => run_seeds(&arguments),
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

fn run_seeds(arguments: &Arguments) -> ExitCode {
    let seeds = arguments.from..arguments.from + arguments.seeds;
    let report = run_many(seeds, threads(), arguments.violations, Options::default());
    if let Some((seed, _)) = report.violations.first() {
        print_trace(*seed, TRACE_LINES);
        println!("\nto see all of it: cargo xtask sim --seed {seed}\n");
        for (seed, violation) in &report.violations {
            println!("seed {seed}: {violation}");
        }
    }
    println!();
    for (what, count) in report.coverage.rows() {
        println!("{count:>10}  {what}");
    }
    let missed = if arguments.seeds >= 1000 { report.coverage.never_reached() } else { Vec::new() };
    for what in &missed {
        println!("never reached: {what}");
    }
    println!(
        "{} seeds, {} events, {} faults, {} violations",
        report.seeds,
        report.events,
        report.faults,
        report.violations.len()
    );
    if report.violations.is_empty() && missed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print_trace(seed: u64, lines: usize) -> ExitCode {
    let outcome = run_caught(seed, Options { trace: true, ..Options::default() });
    let skipped = outcome.trace.len().saturating_sub(lines);
    if skipped > 0 {
        println!("seed {seed}: ... {skipped} lines before this");
    }
    for line in &outcome.trace[skipped..] {
        println!("{line}");
    }
    let violations = u64::from(outcome.violation.is_some());
    println!(
        "1 seeds, {} events, {} faults, {violations} violations",
        outcome.events, outcome.faults
    );
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
