//! Time is an argument. Decisions use `mono`; `wall` is stored and shown, never compared (I13).

use std::time::Duration;

/// One moment, by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Since some fixed moment of this process; never goes back.
    pub mono: Duration,
    /// Milliseconds since 1970 as people count them; may jump.
    pub wall_ms: u64,
}
