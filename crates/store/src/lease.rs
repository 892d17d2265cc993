//! The lease: whether this server may still reply. Checked before every reply, so a check is a few
//! atomic loads and one reading of the clock.
//!
//! The clock is `CLOCK_BOOTTIME`, which also counts while the machine is suspended, and a renewal
//! counts from before it was sent. So a process that was paused for longer than its term finds the
//! lease expired as soon as it continues, before it hears from the database.
//!
//! Known limit: a leader that cannot reach the database, and cannot know that a standby has
//! appeared meanwhile, continues to serve files. Locks stop, and so do file changes of one of a pair:
//! they begin under a fresh lease only (B6.80).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The leader's lease; clones share its state. Renewed by the heartbeat, read by every thread that
/// replies.
#[derive(Clone, Debug)]
pub struct Lease(Arc<LeaseState>);

#[derive(Debug)]
struct LeaseState {
    term: Duration,
    /// When the last successful renewal was sent.
    renewed_at: AtomicU64,
    /// When the heartbeat thread last ran, whether or not the database answered.
    ticked_at: AtomicU64,
    standby: AtomicBool,
    ended: AtomicBool,
    replaced_by: OnceLock<String>,
    loss: OnceLock<String>,
    last_error: Mutex<Option<String>>,
    /// What the database has is not what was vouched for: the committer must compare first.
    suspended: AtomicBool,
    warning: Mutex<Option<String>>,
}

impl Lease {
    /// The lease of a leadership taken by a statement that was sent at `sent`, on the clock of
    /// [`boottime`]. A standby is assumed until the first heartbeat has answered.
    pub fn new(term: Duration, sent: Duration) -> Self {
        Self(Arc::new(LeaseState {
            term,
            renewed_at: AtomicU64::new(nanos(sent)),
            ticked_at: AtomicU64::new(nanos(boottime())),
            standby: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            replaced_by: OnceLock::new(),
            loss: OnceLock::new(),
            last_error: Mutex::new(None),
            suspended: AtomicBool::new(false),
            warning: Mutex::new(None),
        }))
    }

    /// Whether replies may leave: the lease was renewed within half its term; or no standby existed
    /// at the last renewal, and this process was not paused for long enough since for one to appear
    /// and take over.
    pub fn is_held(&self) -> bool {
        let state = &*self.0;
        if state.ended.load(Ordering::Acquire) {
            return false;
        }
        // Read in this order: a renewal after the first load only makes the answer stricter.
        let standby = state.standby.load(Ordering::Acquire);
        let since = if standby { &state.renewed_at } else { &state.ticked_at };
        elapsed(since) < state.term / 2
    }

    /// Whether locks may be decided: the lease was renewed within half its term, with or without a
    /// standby, and is not suspended.
    pub fn is_fresh(&self) -> bool {
        !self.0.ended.load(Ordering::Acquire)
            && !self.is_suspended()
            && self.renewed_ago() < self.0.term / 2
    }

    /// Whether the heartbeat has found a database that is not the one that this server vouched for:
    /// it failed over, or lacks batches. The lease is not renewed until the store was asked for its
    /// last token (B6.61).
    pub fn is_suspended(&self) -> bool {
        self.0.suspended.load(Ordering::Acquire)
    }

    /// Suspends the lease, or ends its suspension.
    pub fn set_suspended(&self, suspended: bool) {
        self.0.suspended.store(suspended, Ordering::Release);
    }

    /// What slows the store down, as far as the heartbeat has noticed.
    pub fn warning(&self) -> Option<String> {
        self.0.warning.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records what slows the store down.
    pub fn set_warning(&self, warning: Option<String>) {
        *self.0.warning.lock().unwrap_or_else(PoisonError::into_inner) = warning;
    }

    /// The node that leads now, once a heartbeat or a commit has found out.
    pub fn replaced_by(&self) -> Option<String> {
        self.0.replaced_by.get().cloned()
    }

    /// The time since the last successful renewal was sent.
    pub fn renewed_ago(&self) -> Duration {
        elapsed(&self.0.renewed_at)
    }

    /// Whether the last heartbeat found a standby whose counter had moved within the last term.
    pub fn has_standby(&self) -> bool {
        self.0.standby.load(Ordering::Acquire)
    }

    /// Why the last heartbeat failed; `None` once one has succeeded.
    pub fn last_error(&self) -> Option<String> {
        self.0.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How long the lease lasts without a renewal.
    pub fn term(&self) -> Duration {
        self.0.term
    }

    /// Records a heartbeat that was sent at `sent` and succeeded.
    pub fn renew(&self, sent: Duration, standby: bool) {
        // A new standby counts before the renewal that found it.
        if standby {
            self.0.standby.store(true, Ordering::Release);
        }
        self.0.renewed_at.store(nanos(sent), Ordering::Release);
        self.0.ticked_at.store(nanos(sent), Ordering::Release);
        self.0.standby.store(standby, Ordering::Release);
        self.set_last_error(None);
    }

    /// Records that the heartbeat thread runs. After a pause in which a standby could have taken
    /// over, only a renewal counts: other threads of the process continue at the same moment.
    pub fn tick(&self) {
        if elapsed(&self.0.ticked_at) < self.0.term / 2 {
            self.0.ticked_at.store(nanos(boottime()), Ordering::Release);
        }
    }

    /// Records why a heartbeat failed.
    pub fn set_last_error(&self, error: Option<String>) {
        *self.0.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Ends the lease because `by` leads now.
    pub fn set_replaced_by(&self, by: &str) {
        let _ = self.0.replaced_by.set(by.to_owned());
        self.end();
    }

    /// Why this process can never use the store again, once that is certain.
    pub fn loss_reason(&self) -> Option<String> {
        let replaced = self.0.replaced_by.get();
        let replaced = replaced.map(|by| format!("{by} has taken over; this server ends"));
        replaced.or_else(|| self.0.loss.get().cloned())
    }

    /// Ends the lease because the store has failed for good.
    pub fn set_lost(&self, why: String) {
        let _ = self.0.loss.set(why);
        self.end();
    }

    /// Ends the lease: it is never held again, not even after a late renewal.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

/// The time since this machine started, including the time it was suspended.
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn elapsed(since: &AtomicU64) -> Duration {
    // Loaded before the clock is read: a renewal in between counts as zero.
    let since = since.load(Ordering::Acquire);
    Duration::from_nanos(nanos(boottime()).saturating_sub(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(10);

    /// A lease that was renewed and ticked that long ago.
    fn aged(renewed: Duration, ticked: Duration, standby: bool) -> Lease {
        let lease = Lease::new(TERM, boottime());
        lease.renew(boottime().saturating_sub(renewed), standby);
        lease.0.ticked_at.store(nanos(boottime().saturating_sub(ticked)), Ordering::Release);
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
    fn without_a_standby_a_process_that_was_paused_renews_first() {
        assert!(!aged(TERM * 2, TERM * 2, false).is_held());
    }

    #[test]
    fn a_tick_after_a_pause_does_not_extend_the_lease() {
        let lease = aged(TERM * 2, TERM * 2, false);
        lease.tick();
        assert!(!lease.is_held());
        lease.renew(boottime(), false);
        assert!(lease.is_held());
    }

    #[test]
    fn a_suspended_lease_decides_no_locks() {
        let lease = aged(Duration::ZERO, Duration::ZERO, false);
        lease.set_suspended(true);
        assert_eq!((lease.is_held(), lease.is_fresh()), (true, false));
        lease.set_suspended(false);
        assert!(lease.is_fresh());
    }

    #[test]
    fn a_replaced_or_ended_lease_is_never_held_again() {
        let lease = aged(Duration::ZERO, Duration::ZERO, false);
        lease.set_replaced_by("b");
        assert_eq!((lease.is_held(), lease.replaced_by().as_deref()), (false, Some("b")));
        let lease = aged(Duration::ZERO, Duration::ZERO, false);
        lease.end();
        lease.renew(boottime(), false);
        assert_eq!((lease.is_held(), lease.replaced_by()), (false, None));
    }
}
