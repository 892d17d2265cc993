//! `cargo xtask sim`: runs seeds, tells the story of one that fails, counts what was reached.

use std::process::ExitCode;

use lockkeeper_sim::runner::run_many;
use lockkeeper_sim::{Options, run};

const USAGE: &str = "\
usage: lockkeeper-sim [--seeds N] [--from S]   run N seeds (1000), beginning with S (0)
       lockkeeper-sim --seed S                 run one seed and tell its story
built with --cfg planted also:
       lockkeeper-sim --plants                 the bugs that can be planted
       lockkeeper-sim --plant NAME ...         plant one and look for it";

/// How much of a failing story is worth reading at once.
const STORY_LINES: usize = 60;
/// After so many violations there is enough to read.
const VIOLATIONS_MAX: usize = 20;

#[derive(Default)]
struct Arguments {
    seeds: u64,
    from: u64,
    seed: Option<u64>,
    plant: Option<String>,
    options: Options,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments { seeds: 1000, ..Arguments::default() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match &*word {
            "--seeds" => found.seeds = value.parse().ok()?,
            "--from" => found.from = value.parse().ok()?,
            "--seed" => found.seed = Some(value.parse().ok()?),
            #[cfg(planted)]
            "--plant" => {
                planted::plant(&value, &mut found.options)?;
                found.plant = Some(value);
            }
            _ => return None,
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    #[cfg(planted)]
    if std::env::args().nth(1).as_deref() == Some("--plants") {
        return planted::list();
    }
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match (arguments.seed, &arguments.plant) {
        (Some(seed), _) => tell(seed, arguments.options, usize::MAX),
        (None, None) => run_seeds(&arguments),
        (None, Some(name)) => hunt(&arguments, name),
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

fn run_seeds(arguments: &Arguments) -> ExitCode {
    let seeds = arguments.from..arguments.from + arguments.seeds;
    let report = run_many(seeds, threads(), VIOLATIONS_MAX, arguments.options);
    if let Some((seed, _)) = report.violations.first() {
        tell(*seed, arguments.options, STORY_LINES);
        println!("\nto see all of it: cargo xtask sim --seed {seed}\n");
        for (seed, violation) in &report.violations {
            println!("seed {seed}: {violation}");
        }
    }
    println!();
    for (what, count) in report.tally.rows() {
        println!("{count:>10}  {what}");
    }
    let missed = if arguments.seeds >= 1000 { report.tally.never_reached() } else { Vec::new() };
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

/// Looks for the first seed that sees a planted bug.
fn hunt(arguments: &Arguments, name: &str) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = arguments.from..arguments.from + arguments.seeds;
    let report = run_many(seeds, threads(), 1, arguments.options);
    match report.violations.first() {
        Some((seed, violation)) => {
            println!("planted {name} seed {seed} invariant {}", violation.rule);
            ExitCode::SUCCESS
        }
        None => {
            println!("planted {name} seed none");
            ExitCode::FAILURE
        }
    }
}

fn tell(seed: u64, options: Options, lines: usize) -> ExitCode {
    let outcome = run(seed, Options { story: true, ..options });
    let skipped = outcome.story.len().saturating_sub(lines);
    if skipped > 0 {
        println!("seed {seed}: ... {skipped} lines before this");
    }
    for line in &outcome.story[skipped..] {
        println!("{line}");
    }
    let violations = u64::from(outcome.violation.is_some());
    println!(
        "1 seeds, {} events, {} faults, {violations} violations",
        outcome.events, outcome.faults
    );
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(planted)]
mod planted {
    use std::process::ExitCode;

    use keeper::planted::Bug;
    use lockkeeper_sim::Options;
    use lockkeeper_sim::plant::Plant;

    pub fn list() -> ExitCode {
        for bug in Bug::ALL {
            println!("{}\t{}", bug.name(), bug.does());
        }
        for (name, _, does) in Plant::ALL {
            println!("{name}\t{does}");
        }
        ExitCode::SUCCESS
    }

    pub fn plant(name: &str, options: &mut Options) -> Option<()> {
        match Plant::named(name) {
            Some(plant) => options.plant = plant,
            None => options.keeper_plant = Some(Bug::named(name)?),
        }
        Some(())
    }
}
