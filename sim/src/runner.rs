//! Many seeds on a few threads. Each run is single-threaded and knows nothing of the others, so the
//! sum is the same in whatever order they finish.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::story::Violation;
use crate::tally::Tally;
use crate::world::{Options, run};

/// Every so many seeds one is run twice, with and without wall-clock jumps (I13).
const TWIN_EVERY: u64 = 32;
/// After so many violations there is enough to read.
const VIOLATIONS_MAX: usize = 20;

#[derive(Default)]
pub struct Report {
    pub seeds: u64,
    pub events: u64,
    pub faults: u64,
    pub tally: Tally,
    pub violations: Vec<(u64, Violation)>,
}

pub fn run_many(seeds: std::ops::Range<u64>, threads: usize, options: Options) -> Report {
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
                    let outcome = run(seed, options);
                    let mut violation = outcome.violation;
                    if seed % TWIN_EVERY == 0 && violation.is_none() {
                        violation = clock_mattered(seed, options);
                    }
                    let Ok(mut report) = report.lock() else { return };
                    report.seeds += 1;
                    report.events += outcome.events;
                    report.faults += outcome.faults;
                    report.tally.add(&outcome.tally);
                    report.violations.extend(violation.map(|violation| (seed, violation)));
                    if report.violations.len() >= VIOLATIONS_MAX {
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

/// I13: the same story, whatever the wall clock does.
fn clock_mattered(seed: u64, options: Options) -> Option<Violation> {
    let jumping = run(seed, Options { story: true, ..options });
    let steady = run(seed, Options { story: true, steady_wall: true, ..options });
    let differs = jumping.story.iter().zip(&steady.story).find(|(a, b)| a != b);
    let what = match differs {
        Some((a, b)) => format!("with a jumping wall clock\n  {a}\nwith a steady one\n  {b}"),
        None if jumping.story.len() != steady.story.len() => "one story is longer".to_owned(),
        None => return None,
    };
    Some(Violation { rule: "I13", what, at: 0 })
}
