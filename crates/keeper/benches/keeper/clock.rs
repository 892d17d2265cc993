//! How long this thread has run. Unlike time on the wall, it does not grow while others run, and
//! the keeper never waits for anything.

use std::fs;
use std::time::Duration;

/// From the scheduler's own account of this thread; its first number is in nanoseconds.
fn ran() -> Duration {
    let account = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = account.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// Seconds that the work took, and what came of it.
pub fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = ran();
    let done = work();
    let seconds = (ran() - start).as_secs_f64();
    assert!(seconds > 0.0, "the kernel keeps no account of threads (CONFIG_SCHED_INFO)");
    (seconds, done)
}
