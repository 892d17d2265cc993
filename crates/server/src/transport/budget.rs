//! The memory that all connections of a server together may make it hold (I10, B7.90, B7.91): bytes of
//! records that are not complete yet, requests in progress with their expected replies, and replies
//! that are not written yet.
//!
//! A connection holds up to [`ALLOWANCE`] of each kind uncounted or in spite of a budget that is used up: the number of
//! connections bounds that. So every GETATTR and every lock request is served, whatever others do. All beyond
//! that is charged before it is allocated. If the budget is used up, the connection stops reading until there is room
//! again. While more than half of the budget is used, a connection has one request in progress at a time.
//!
//! No connections wait for each other in a circle. One that waits for room for a record holds nothing but
//! its allowance, because a record is charged as a whole; one that has a complete record which was charged hands it
//! to its service without further room; one that waits to begin a request whose reply is large holds its
//! allowance. What remains is held by requests in progress, which end (those of a file system that hangs get
//! half of the budget, B7.83), and by peers that send or read slowly. While a connection waits, those
//! of the latter that would need the longest to release what they hold are closed
//! (`transport/slow_peers.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What a connection may receive, or have as the reply of its only request, without regard to the budget.
pub(crate) const ALLOWANCE: usize = 16 << 10;

/// See the [module](self).
pub(crate) struct Budget {
    held: AtomicUsize,
    /// Those among them that are charged for incomplete records: at most half, so that who sends
    /// slowly does not keep others from reading.
    receiving: AtomicUsize,
    /// The most that was held since [`Budget::take_peak`]; as seen by what is charged in advance.
    peak: AtomicUsize,
    bytes_max: usize,
    /// A connection waits for room.
    wanted: Notify,
}

impl Budget {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let [held, receiving, peak] = [const { AtomicUsize::new(0) }; 3];
        Self { held, receiving, peak, bytes_max, wanted: Notify::new() }
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether a request may begin only if it fits into its connection's allowance.
    pub(crate) fn is_used_up(&self) -> bool {
        self.held() >= self.bytes_max
    }

    /// Whether a connection may begin a request while it has others in progress. The second half of the
    /// budget is for those that have none, so that a few do not take what all need.
    pub(crate) fn has_plenty(&self) -> bool {
        self.held() < self.bytes_max / 2
    }

    /// Bytes that must be released until it has plenty, for those who send too.
    pub(crate) fn excess(&self) -> usize {
        let receiving = self.receiving.load(Ordering::Relaxed);
        let excess = self.held().saturating_sub(self.bytes_max / 2);
        excess.max(receiving.saturating_sub(self.bytes_max / 4))
    }

    /// For what is held already.
    pub(crate) fn add(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        // A load in nearly all cases; exact enough to know that there was a peak.
        if before > self.peak.load(Ordering::Relaxed) {
            self.peak.store(before, Ordering::Relaxed);
        }
    }

    /// For what is going to be received; false, and nothing is charged, if there is no room.
    fn try_receive(&self, bytes: usize) -> bool {
        let receiving = self.receiving.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = held <= self.bytes_max && receiving <= self.bytes_max / 2;
        if !fits {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            self.receiving.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    fn received(&self, bytes: usize) {
        self.receiving.fetch_sub(bytes, Ordering::Relaxed);
        self.subtract(bytes);
    }

    /// The most that was held since the last call.
    pub(crate) fn take_peak(&self) -> usize {
        self.peak.swap(self.held(), Ordering::Relaxed)
    }

    /// A connection has begun to wait for room.
    pub(crate) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Resolves when a connection waits for room.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

/// Bytes charged for one connection's incomplete record; released when this is dropped.
pub(crate) struct Charge {
    budget: Arc<Budget>,
    /// Read by whoever looks for slow peers.
    bytes: Arc<AtomicUsize>,
}

impl Charge {
    pub(crate) fn new(budget: Arc<Budget>, bytes: Arc<AtomicUsize>) -> Self {
        Self { budget, bytes }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Changes the charge to what a buffer of this size costs beyond the allowance. False, and nothing
    /// changes, if there is no room for more.
    pub(crate) fn cover(&self, buffer: usize) -> bool {
        let (wanted, charged) = (buffer.saturating_sub(ALLOWANCE), self.bytes());
        if wanted > charged && !self.budget.try_receive(wanted - charged) {
            return false;
        }
        if wanted < charged {
            self.budget.received(charged - wanted);
        }
        if wanted != charged {
            self.bytes.store(wanted, Ordering::Relaxed);
        }
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.received(self.bytes.swap(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_not_charged() {
        let budget = Arc::new(Budget::new(200_000));
        let charge = || Charge::new(budget.clone(), Arc::default());
        let (one, other) = (charge(), charge());
        assert!(one.cover(ALLOWANCE) && budget.held() == 0, "the allowance costs nothing");
        assert!(one.cover(ALLOWANCE + 60_000));
        assert!(!other.cover(ALLOWANCE + 60_000) && budget.held() == 60_000);
        assert!(other.cover(ALLOWANCE + 40_000), "half of the budget is for records");
        assert!(!budget.has_plenty() && !budget.is_used_up() && budget.excess() == 50_000);
        assert!(one.cover(ALLOWANCE + 10_000) && budget.held() == 50_000);
        assert!(!one.cover(ALLOWANCE + 70_000) && one.bytes() == 10_000);
        drop((one, other));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn the_peak_is_that_since_it_was_last_asked_for() {
        let budget = Budget::new(100);
        budget.add(80);
        budget.subtract(70);
        assert_eq!((budget.take_peak(), budget.take_peak()), (80, 10));
    }
}
