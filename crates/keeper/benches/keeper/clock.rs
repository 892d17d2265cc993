//! CPU time of this thread. Unlike wall time it does not grow while others run, and the keeper
//! never waits.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The seconds that the work took, and its result.
pub fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = ran();
    let done = work();
    let seconds = (ran() - start).as_secs_f64();
    assert!(seconds > 0.0, "the system has no clock for threads");
    (seconds, done)
}

fn ran() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
