//! Warnings that a peer can provoke must not fill the log: each is told once in a while.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(10);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// One kind of warning.
pub struct Rarely {
    /// Milliseconds since the start before which nothing is told; 0 at first.
    silent_until_ms: AtomicU64,
}

impl Rarely {
    pub const fn new() -> Self {
        Self { silent_until_ms: AtomicU64::new(0) }
    }

    /// Whether it is time to tell.
    pub fn due(&self) -> bool {
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
    fn a_warning_is_told_at_once_and_then_not_again_for_a_while() {
        let rarely = Rarely::new();
        assert!(rarely.due());
        assert!((0..1000).all(|_| !rarely.due()));
    }
}
