//! Whether requests of several connections are decided as one batch: a task that has put requests into
//! the engine's inbox then lets the other connections that are ready do so first. With one connection that would
//! only delay it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Turns of different connections in a row, less those of the same, from which on requests gather.
const ALTERNATING: u64 = 4;
/// So many turns of one connection in a row end it.
const ALTERNATING_MAX: u64 = 16;

/// Who took turns lately. Counts may be lost when threads change them at once: then it adapts later.
#[derive(Default)]
pub(super) struct Turns {
    last: AtomicU64,
    alternating: AtomicU64,
}

impl Turns {
    /// Notes a turn in which this connection made requests. Whether to wait for those of others.
    pub(super) fn note(&self, connection: u64) -> bool {
        let is_other = self.last.load(Ordering::Relaxed) != connection;
        let before = self.alternating.load(Ordering::Relaxed);
        let now = match is_other {
            true => (before + 1).min(ALTERNATING_MAX),
            false => before.saturating_sub(1),
        };
        // Mostly neither changes, and the line stays in the caches of all processors.
        if is_other {
            self.last.store(connection, Ordering::Relaxed);
        }
        if now != before {
            self.alternating.store(now, Ordering::Relaxed);
        }
        now >= ALTERNATING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_connection_never_waits() {
        let turns = Turns::default();
        assert!((0..1_000).all(|_| !turns.note(7)));
    }

    #[test]
    fn connections_that_take_turns_wait_for_each_other_until_one_is_left() {
        let turns = Turns::default();
        let waits = (0..100).filter(|turn| turns.note(turn % 8)).count();
        assert!(waits > 90, "{waits}");
        let waits = (0..100).filter(|_| turns.note(3)).count();
        assert!(waits <= 16, "{waits}");
    }
}
