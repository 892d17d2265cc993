//! `cargo bench -p lockkeeper-keeper`: how fast and how small the keeper is, each figure beside its
//! bar. `-- --check` ends with 1 if a bar is missed; `--instructions` takes only what does not
//! depend on the machine, which is what CI can judge.
//!
//! Seconds are those that the thread ran, and the best of some runs: other work on the machine can
//! only make them worse.
//! Instructions are counted by valgrind, and memory is what a process of its own has; for both,
//! this program runs itself again.

// A bench needs a clock and reads its process's statistics.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::disallowed_macros)]

mod child;
mod clock;
mod report;
mod strangers;
mod waiting;
mod world;

use std::process::ExitCode;

use clock::timed;
use report::{Bar, Report};
use world::{Host, World};

const PAIRS_PER_SECOND_MIN: f64 = 1_000_000.0;
const RELEASE_SECONDS_MAX: f64 = 1.0;
const BYTES_PER_LOCK_MAX: f64 = 200.0;
/// Cost with 1,000,000 locks on a file, relative to 1,000.
const GROWTH_MAX: f64 = 3.0;
/// The measured cost of the hot path plus 15 %. Lower these when it becomes cheaper.
const PAIR_INSTRUCTIONS_MAX: f64 = 8_500.0;
const TEST_INSTRUCTIONS_MAX: f64 = 1_700.0;

const FILES: u32 = 1_000;
const MANY: u32 = 1_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((part, rest)) = child::asked(&arguments) {
        return child::run(part, rest);
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let mut report = Report::default();
    let done = match has("--instructions") {
        true => instructions(&mut report),
        false => everything(&mut report),
    };
    if let Err(error) = done {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    if has("--check") && report.misses > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn everything(report: &mut Report) -> Result<(), String> {
    pairs(Files::Idle, report);
    pairs(Files::Busy, report);
    release(report);
    waiting::seconds(report);
    memory(report)?;
    instructions(report)
}

/// Whether other locks are held in the files all the time.
#[derive(Clone, Copy, PartialEq)]
enum Files {
    Idle,
    Busy,
}

/// Uncontended locks and unlocks of 100 owners on 10 hosts.
fn pairs(files: Files, report: &mut Report) {
    const ROUNDS: u32 = 20;
    let mut world = World::new();
    if files == Files::Busy {
        for file in 0..FILES {
            world.lock(Host(file % 10), file % 100, file, 10);
        }
    }
    let mut round_of_pairs = |round: u32| {
        for file in 0..FILES {
            let owner = (file + round) % 100;
            world.lock(Host(owner % 10), owner, file, 0);
            world.unlock(Host(owner % 10), owner, file, 0);
        }
    };
    let best = best_of(30, || timed(|| (0..ROUNDS).for_each(&mut round_of_pairs)).0);
    let name = match files {
        Files::Idle => "lock+unlock pairs a second, 1,000 files",
        Files::Busy => "the same, another lock on each file",
    };
    report.add(name, f64::from(ROUNDS * FILES) / best, Bar::Min(PAIRS_PER_SECOND_MIN));
}

/// A host with 1,000,000 locks over 10,000 files reboots while 10,000 others wait for one each.
fn release(report: &mut Report) {
    const LOCKED: u32 = 10_000;
    let best = best_of(3, || {
        let mut world = World::new();
        let dead = Host(0);
        for lock in 0..MANY {
            world.lock(dead, lock % 100, lock % LOCKED, u64::from(lock / LOCKED));
        }
        for file in 0..LOCKED {
            world.wait(Host(1 + file % 100), file, file, u64::from(file % 100));
        }
        let (seconds, freed_and_granted) = timed(|| world.reboot(dead));
        assert_eq!(freed_and_granted, (MANY as usize, LOCKED as usize));
        seconds
    });
    let name = "seconds to free 1,000,000 locks of a host, 10,000 waiting";
    report.add(name, best, Bar::Max(RELEASE_SECONDS_MAX));
}

fn memory(report: &mut Report) -> Result<(), String> {
    for (name, part) in [
        ("bytes for each of 1,000,000 locks on one file", "one-file"),
        ("bytes for each of 1,000,000 locks over 10,000 files", "many-files"),
        ("bytes for each of 1,000,000 locks of 10,000 owners", "many-owners"),
    ] {
        report.add(name, child::memory_of(part)?, Bar::Max(BYTES_PER_LOCK_MAX));
    }
    Ok(())
}

/// One file with few and with many locks: the cost of a pair, and of a search without a result.
fn instructions(report: &mut Report) -> Result<(), String> {
    let spread = child::instructions_of(0)?;
    let name = "instructions for a lock+unlock pair, 1,000 files";
    report.add(name, spread.pair, Bar::Max(PAIR_INSTRUCTIONS_MAX));
    let name = "instructions for a test, 1,000 files";
    report.add(name, spread.test, Bar::Max(TEST_INSTRUCTIONS_MAX));

    let (few, many) = (child::instructions_of(FILES)?, child::instructions_of(MANY)?);
    let name = "lock+unlock with 1,000,000 locks on the file, in costs with 1,000";
    report.add(name, many.pair / few.pair, Bar::Max(GROWTH_MAX));
    let name = "conflict search with 1,000,000 locks on the file, in costs with 1,000";
    report.add(name, many.test / few.test, Bar::Max(GROWTH_MAX));
    waiting::instructions(report)?;
    strangers::instructions(report)
}

fn best_of(runs: u32, mut run: impl FnMut() -> f64) -> f64 {
    (0..runs).map(|_| run()).fold(f64::INFINITY, f64::min)
}
