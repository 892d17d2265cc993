//! The lease: whether this server may still speak. Asked before every reply, so it is a few atomic
//! loads and one reading of the clock.
//!
//! The clock is `CLOCK_BOOTTIME`, which also counts while the machine is suspended; and a renewal is
//! dated by the moment before it was sent. So a process that was stopped for longer than its term
//! knows it the moment it goes on, before it has heard anything.
//!
//! What remains: a holder that cannot reach the database, and has not heard that a standby came in
//! the meantime, goes on with files. Locks stop: nothing is decided by a lease that is not fresh.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[derive(Clone, Debug)]
pub struct Lease(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    term: Duration,
    /// When the last renewal that succeeded was sent.
    renewed: AtomicU64,
    /// When the heartbeat's thread last ran, whether or not the database answered it.
    ticked: AtomicU64,
    standby: AtomicBool,
    over: AtomicBool,
    replaced_by: OnceLock<String>,
    lost: OnceLock<String>,
    trouble: Mutex<Option<String>>,
}

impl Lease {
    /// From a seat taken by a statement that was sent at `sent`. A standby is assumed until the
    /// first heartbeat has looked.
    pub fn new(term: Duration, sent: Duration) -> Self {
        Self(Arc::new(Shared {
            term,
            renewed: AtomicU64::new(nanos(sent)),
            ticked: AtomicU64::new(nanos(boottime())),
            standby: AtomicBool::new(true),
            over: AtomicBool::new(false),
            replaced_by: OnceLock::new(),
            lost: OnceLock::new(),
            trouble: Mutex::new(None),
        }))
    }

    /// Renewed within half its term; or, while no standby was there at the last renewal, this
    /// process was never stopped for so long that one could have come and taken the seat.
    pub fn is_held(&self) -> bool {
        let shared = &*self.0;
        if shared.over.load(Ordering::Acquire) {
            return false;
        }
        // Read in this order: a renewal after the first load only makes the answer stricter.
        let standby = shared.standby.load(Ordering::Acquire);
        let since = if standby { &shared.renewed } else { &shared.ticked };
        ago(since) < shared.term / 2
    }

    /// Renewed within half its term, whoever waits: what is decided about locks now is decided by the
    /// one who has the store.
    pub fn is_fresh(&self) -> bool {
        !self.0.over.load(Ordering::Acquire) && self.renewed_ago() < self.0.term / 2
    }

    /// Set once a heartbeat or a commit found another writer.
    pub fn replaced_by(&self) -> Option<String> {
        self.0.replaced_by.get().cloned()
    }

    pub fn renewed_ago(&self) -> Duration {
        ago(&self.0.renewed)
    }

    /// A standby whose counter moved within the last lease, as the heartbeat saw it.
    pub fn has_standby(&self) -> bool {
        self.0.standby.load(Ordering::Acquire)
    }

    /// Why the last heartbeat failed, until one succeeds.
    pub fn trouble(&self) -> Option<String> {
        self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn term(&self) -> Duration {
        self.0.term
    }

    pub fn renew(&self, sent: Duration, standby: bool) {
        // A standby is believed before the renewal that found it, never after.
        if standby {
            self.0.standby.store(true, Ordering::Release);
        }
        self.0.renewed.store(nanos(sent), Ordering::Release);
        self.0.ticked.store(nanos(sent), Ordering::Release);
        self.0.standby.store(standby, Ordering::Release);
        self.fail(None);
    }

    /// The heartbeat's thread runs. After a pause in which somebody could have taken the seat only a
    /// renewal counts: the thread must not vouch for others who go on at the same moment.
    pub fn tick(&self) {
        if ago(&self.0.ticked) < self.0.term / 2 {
            self.0.ticked.store(nanos(boottime()), Ordering::Release);
        }
    }

    pub fn fail(&self, why: Option<String>) {
        *self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    pub fn replaced(&self, by: &str) {
        let _ = self.0.replaced_by.set(by.to_owned());
        self.end();
    }

    /// Why the store can never be had again by this process, once that is so.
    pub fn why_lost(&self) -> Option<String> {
        let replaced = self.0.replaced_by.get();
        let replaced = replaced.map(|by| format!("{by} has taken over; this server ends"));
        replaced.or_else(|| self.0.lost.get().cloned())
    }

    /// The store has failed for good.
    pub fn lost(&self, why: String) {
        let _ = self.0.lost.set(why);
        self.end();
    }

    /// Given up: from here on it is not held, whatever a late heartbeat says.
    pub fn end(&self) {
        self.0.over.store(true, Ordering::Release);
    }
}

/// The time since this machine started, also that in which it slept.
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn ago(since: &AtomicU64) -> Duration {
    // Loaded before the clock is read: a store in between would make it negative, which is now.
    let since = since.load(Ordering::Acquire);
    Duration::from_nanos(nanos(boottime()).saturating_sub(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(10);

    /// A lease renewed and ticked so long ago.
    fn aged(renewed: Duration, ticked: Duration, standby: bool) -> Lease {
        let lease = Lease::new(TERM, boottime());
        lease.renew(boottime().saturating_sub(renewed), standby);
        lease.0.ticked.store(nanos(boottime().saturating_sub(ticked)), Ordering::Release);
        lease
    }

    #[test]
    fn with_a_standby_half_the_term_is_the_limit() {
        assert!(aged(TERM * 4 / 10, Duration::ZERO, true).is_held());
        assert!(!aged(TERM * 6 / 10, Duration::ZERO, true).is_held());
    }

    #[test]
    fn without_a_standby_an_outage_ends_nothing() {
        assert!(aged(TERM * 100, Duration::ZERO, false).is_held());
        assert!(!aged(TERM * 100, Duration::ZERO, false).is_fresh());
    }

    #[test]
    fn without_a_standby_a_process_that_was_stopped_asks_first() {
        assert!(!aged(TERM * 2, TERM * 2, false).is_held());
    }

    #[test]
    fn a_thread_that_was_stopped_itself_vouches_for_nobody() {
        let lease = aged(TERM * 2, TERM * 2, false);
        lease.tick();
        assert!(!lease.is_held());
        lease.renew(boottime(), false);
        assert!(lease.is_held());
    }

    #[test]
    fn who_was_replaced_or_left_holds_nothing() {
        let lease = aged(Duration::ZERO, Duration::ZERO, false);
        lease.replaced("b");
        assert_eq!((lease.is_held(), lease.replaced_by().as_deref()), (false, Some("b")));
        let lease = aged(Duration::ZERO, Duration::ZERO, false);
        lease.end();
        lease.renew(boottime(), false);
        assert_eq!((lease.is_held(), lease.replaced_by()), (false, None));
    }
}
