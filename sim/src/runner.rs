//! Runs many seeds on several threads. Runs are independent, so the totals do not depend on the
//! order in which they finish.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::coverage::Coverage;
use crate::trace::Violation;
use crate::world::{Options, Outcome, run};

/// Every seed divisible by this is run again, with and without wall-clock jumps (I13).
const TWIN_EVERY: u64 = 32;

#[derive(Default)]
pub struct Report {
    pub seeds: u64,
    pub events: u64,
    pub faults: u64,
    pub coverage: Coverage,
    /// Ordered by seed.
    pub violations: Vec<(u64, Violation)>,
}

/// Runs `seeds`, stopping early after `enough` violations. The first violation is that of the lowest
/// failing seed: seeds are started in order, and a started one is finished.
pub fn run_many(
    seeds: std::ops::Range<u64>,
    threads: usize,
    enough: usize,
    options: Options,
) -> Report {
    let next = AtomicU64::new(seeds.start);
    let report = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = run_caught(seed, options);
                    let mut violation = outcome.violation;
                    if seed.is_multiple_of(TWIN_EVERY) && violation.is_none() {
                        violation = wall_clock_matters(seed, options);
                    }
                    let Ok(mut report) = report.lock() else { return };
                    report.seeds += 1;
                    report.events += outcome.events;
                    report.faults += outcome.faults;
                    report.coverage.add(&outcome.coverage);
                    report.violations.extend(violation.map(|violation| (seed, violation)));
                    if report.violations.len() >= enough {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut report = report.into_inner().unwrap_or_default();
    report.violations.sort_by_key(|(seed, _)| *seed);
    report
}

/// Runs one seed; a panic counts as a violation.
pub fn run_caught(seed: u64, options: Options) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| run(seed, options))).unwrap_or_else(|_| Outcome {
        events: 0,
        faults: 0,
        coverage: Coverage::default(),
        violation: Some(Violation { rule: "panic", what: "the keeper panicked".to_owned(), at: 0 }),
        trace: Vec::new(),
    })
}

/// I13: compares the traces of a run with and without wall-clock jumps.
fn wall_clock_matters(seed: u64, options: Options) -> Option<Violation> {
    let jumping = run_caught(seed, Options { trace: true, ..options });
    let steady = run_caught(seed, Options { trace: true, steady_wall: true });
    let differs = jumping.trace.iter().zip(&steady.trace).find(|(a, b)| a != b);
    let what = match differs {
        Some((a, b)) => format!("with a jumping wall clock\n  {a}\nwith a steady one\n  {b}"),
        None if jumping.trace.len() != steady.trace.len() => "one trace is longer".to_owned(),
        None => return None,
    };
    Some(Violation { rule: "I13", what, at: 0 })
}
