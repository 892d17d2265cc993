//! Many seeds on a few threads. Each run is single-threaded and knows nothing of the others, so the
//! sum is the same in whatever order they finish.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::story::Violation;
use crate::tally::Tally;
use crate::world::{Options, Outcome, run};

/// Every so many seeds one is run twice, with and without wall-clock jumps (I13).
const TWIN_EVERY: u64 = 32;

#[derive(Default)]
pub struct Report {
    pub seeds: u64,
    pub events: u64,
    pub faults: u64,
    pub tally: Tally,
    /// In the order of the seeds.
    pub violations: Vec<(u64, Violation)>,
}

/// Runs these seeds, or fewer if `enough` of them have failed. The first violation is that of the
/// lowest seed in any case: who began a lower one also ends it.
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
                        violation = clock_mattered(seed, options);
                    }
                    let Ok(mut report) = report.lock() else { return };
                    report.seeds += 1;
                    report.events += outcome.events;
                    report.faults += outcome.faults;
                    report.tally.add(&outcome.tally);
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

/// A keeper that panics has broken a rule, too.
pub fn run_caught(seed: u64, options: Options) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| run(seed, options))).unwrap_or_else(|_| Outcome {
        events: 0,
        faults: 0,
        tally: Tally::default(),
        violation: Some(Violation { rule: "panic", what: "the keeper panicked".to_owned(), at: 0 }),
        story: Vec::new(),
    })
}

/// I13: the same story, whatever the wall clock does.
fn clock_mattered(seed: u64, options: Options) -> Option<Violation> {
    let jumping = run_caught(seed, Options { story: true, ..options });
    let steady = run_caught(seed, Options { story: true, steady_wall: true });
    let differs = jumping.story.iter().zip(&steady.story).find(|(a, b)| a != b);
    let what = match differs {
        Some((a, b)) => format!("with a jumping wall clock\n  {a}\nwith a steady one\n  {b}"),
        None if jumping.story.len() != steady.story.len() => "one story is longer".to_owned(),
        None => return None,
    };
    Some(Violation { rule: "I13", what, at: 0 })
}
