//! The short form of `cargo xtask sim`: a few seeds hold every invariant, a seed replays exactly,
//! and a broken driver is seen.

use lockkeeper_sim::plant::Plant;
use lockkeeper_sim::runner::run_many;
use lockkeeper_sim::{Options, run};

#[test]
fn the_first_seeds_hold_every_invariant() {
    let report = run_many(0..100, 2, 1, Options::default());
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    assert!(report.faults >= 20 * report.seeds, "{} faults", report.faults);
}

#[test]
fn a_seed_replays_exactly() {
    let told = Options { story: true, ..Options::default() };
    assert_eq!(run(7, told).story, run(7, told).story);
}

/// The others take more seeds than a quick test has; `--plant NAME` finds them.
#[test]
fn a_broken_driver_is_seen() {
    for (name, plant, _) in Plant::ALL {
        if matches!(plant, Plant::NoReplay | Plant::NoticesOverTcpOnly | Plant::SilenceIsRefusal) {
            continue;
        }
        let report = run_many(0..20, 2, 1, Options { plant, ..Options::default() });
        assert!(!report.violations.is_empty(), "{name} was not seen");
    }
}
