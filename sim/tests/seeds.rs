//! A few seeds as an ordinary test: `LOCKKEEPER_SEEDS` of them (50).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use lockkeeper_sim::Options;
use lockkeeper_sim::runner::run_many;

const SEEDS: u64 = 50;

#[test]
fn no_seed_breaks_a_rule() {
    let wanted = std::env::var("LOCKKEEPER_SEEDS").ok();
    let seeds = wanted.map_or(SEEDS, |wanted| wanted.parse().expect("LOCKKEEPER_SEEDS"));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let report = run_many(0..seeds, threads, 1, Options::default());
    if let Some((seed, violation)) = report.violations.first() {
        panic!("seed {seed}: {violation}\n(cargo xtask sim --seed {seed} prints the trace)");
    }
    assert_eq!(report.seeds, seeds);
}
