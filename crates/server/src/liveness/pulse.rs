//! A connection's pulse: what is known of the kernel at its other end, and how often it is asked.

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub struct Pulse {
    pub state: State,
    /// When the other end last acknowledged anything, by data or by an empty segment.
    pub life: Instant,
    /// Questions since then that were not answered: keep-alive and window probes, retransmissions.
    pub unanswered: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Established,
    /// Ended by a reset or by the kernel's own patience: the socket's error says which.
    Closed,
    /// One side has said goodbye (FIN): what comes now proves nothing.
    Closing,
}

/// How often the kernel asks a silent peer whether it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rhythm {
    pub idle: Duration,
    pub every: Duration,
    /// So many questions without an answer end the connection.
    pub count: u32,
}

/// A peer that is silent for about a quarter of an hour is dropped: as long as a rebooted client
/// repeats its notice, so that its reset can still be seen.
pub const CALM: Rhythm =
    Rhythm { idle: Duration::from_secs(60), every: Duration::from_secs(30), count: 30 };

/// Three questions within ten seconds, the first at once unless something came just now. The count
/// is out of reach: asking must not end a connection.
pub const URGENT: Rhythm =
    Rhythm { idle: Duration::from_secs(1), every: Duration::from_secs(3), count: 100 };
