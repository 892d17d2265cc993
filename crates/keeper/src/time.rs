//! Time as an argument. Decisions use `mono`; `wall_ms` is stored and shown, never compared (I13).

use std::time::Duration;

/// A point in time on two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Since a fixed point in this process; never goes back.
    pub mono: Duration,
    /// Milliseconds since 1970 UTC; may jump.
    pub wall_ms: u64,
}
