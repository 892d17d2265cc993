//! When a peer of a TCP connection is idle, or too slow to send or to read. Judged by progress, not by
//! the total time. No I/O and no clock.

use std::time::{Duration, Instant};

/// A peer that reads fewer bytes than this within `unread_time_max` is too slow.
const PROGRESS_MIN: u64 = 16 << 10;
/// A peer that sends fewer bytes of a record than this within `record_time_max` is too slow.
const RECORD_PROGRESS_MIN: u64 = 4 << 10;

/// Since when the peer has been idle, slow to send or slow to read.
pub(super) struct PeerTimers {
    /// When bytes were last received.
    pub(super) active: Instant,
    /// When a record was found incomplete, or the peer last made progress with it; and the bytes
    /// received by then.
    pub(super) record_since: Option<(Instant, u64)>,
    /// When the socket became full, or the peer last made progress; and the bytes written by then.
    pub(super) stuck_since: Option<(Instant, u64)>,
}

impl PeerTimers {
    pub(super) fn new() -> Self {
        Self { active: Instant::now(), record_since: None, stuck_since: None }
    }

    /// Whether the peer has sent too little of a record for too long. Less than
    /// [`RECORD_PROGRESS_MIN`] is no progress, so the total time depends on the size of the record and
    /// not on the speed of the link.
    pub(super) fn is_slow_record(
        &mut self,
        now: Instant,
        waits: bool,
        received: u64,
        max: Duration,
    ) -> bool {
        let since = match self.record_since {
            Some(since) if waits && received < since.1 + RECORD_PROGRESS_MIN => since,
            _ => (now, received),
        };
        self.record_since = waits.then_some(since);
        waits && now - since.0 > max
    }

    /// Whether the peer has left replies unread for too long. Less than [`PROGRESS_MIN`] is no
    /// progress: a byte now and then would hold a reply forever.
    pub(super) fn is_unread(
        &mut self,
        now: Instant,
        stuck: bool,
        written: u64,
        max: Duration,
    ) -> bool {
        let since = match self.stuck_since {
            Some(since) if stuck && written < since.1 + PROGRESS_MIN => since,
            _ => (now, written),
        };
        self.stuck_since = stuck.then_some(since);
        stuck && now - since.0 > max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B1.81
    #[test]
    fn a_record_may_take_any_time_while_it_makes_progress() {
        let (mut timers, start, max) = (PeerTimers::new(), Instant::now(), Duration::from_secs(30));
        let at = |seconds| start + Duration::from_secs(seconds);
        // 1 MiB at 9.6 kbit/s takes a quarter of an hour.
        for second in 0..900 {
            assert!(!timers.is_slow_record(at(second), true, second * 1200, max), "{second}");
        }
        // The server did not read for a minute.
        assert!(!timers.is_slow_record(at(960), false, 900 * 1200, max));
        assert!(!timers.is_slow_record(at(961), true, 900 * 1200, max));
        assert!(!timers.is_slow_record(at(991), true, 900 * 1200, max));
        assert!(timers.is_slow_record(at(992), true, 900 * 1200, max));
    }

    #[test]
    fn a_byte_now_and_then_does_not_keep_a_record_incomplete_for_ever() {
        let (mut timers, start, max) = (PeerTimers::new(), Instant::now(), Duration::from_secs(30));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..=30 {
            assert!(!timers.is_slow_record(at(second), true, second, max));
        }
        assert!(timers.is_slow_record(at(31), true, 31, max));
    }

    #[test]
    fn reading_a_byte_now_and_then_does_not_keep_a_reply_for_ever() {
        let (mut timers, start, max) = (PeerTimers::new(), Instant::now(), Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..60 {
            assert!(!timers.is_unread(at(second), true, second, max));
        }
        assert!(timers.is_unread(at(61), true, 61, max));
    }

    #[test]
    fn a_peer_that_reads_on_or_has_read_all_is_not_too_slow() {
        let (mut timers, start, max) = (PeerTimers::new(), Instant::now(), Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..600 {
            assert!(!timers.is_unread(at(second), true, second * PROGRESS_MIN / 30, max));
        }
        assert!(!timers.is_unread(at(700), false, 0, max));
        assert!(!timers.is_unread(at(800), true, 0, max));
    }
}
