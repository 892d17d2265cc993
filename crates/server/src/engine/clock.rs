//! The keeper's clock: monotonic since the start of the server, with the wall time beside it (I13).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keeper::time::Time;

/// Where the server's monotonic time starts.
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

    /// The time since the start, as in `Time::mono`.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Converts an instant to `Time::mono`; zero if it is before the start.
    pub fn mono(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }
}
