//! Limits log lines that peers can cause: each kind is logged at most every ten seconds.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(10);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The state of one kind of log line.
pub(crate) struct LogRateLimit {
    /// In milliseconds since [`START`]; nothing is logged before.
    silent_until_ms: AtomicU64,
}

impl LogRateLimit {
    pub(crate) const fn new() -> Self {
        Self { silent_until_ms: AtomicU64::new(0) }
    }

    /// Whether to log now. If so, the next ten seconds are silent.
    pub(crate) fn due(&self) -> bool {
        let now_ms = START.elapsed().as_millis() as u64;
        let until_ms = self.silent_until_ms.load(Ordering::Relaxed);
        let next_ms = now_ms + EVERY.as_millis() as u64;
        now_ms >= until_ms
            && self
                .silent_until_ms
                .compare_exchange(until_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_logged_at_once_and_the_next_ones_are_not() {
        let limit = LogRateLimit::new();
        assert!(limit.due());
        assert!((0..1000).all(|_| !limit.due()));
    }
}
