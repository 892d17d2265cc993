//! The time since the start, which no administrator can set back.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keeper::time::Time;

/// Time as the keeper wants it.
#[derive(Clone, Copy)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    pub fn now(&self) -> Time {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time { mono: self.elapsed(), wall_ms: wall.as_millis() as u64 }
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What the keeper calls that moment.
    pub fn mono(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }
}
