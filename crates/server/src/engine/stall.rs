//! Since when nothing is decided, and why (I11): commits fail, or the lease on the store is not fresh.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use store::StoreError;
use tracing::{info, warn};

/// See the [module](self). Times are those of the engine's clock.
#[derive(Default)]
pub(super) struct Stall {
    /// When commits began to fail, in nanoseconds; 0 if they succeed.
    since: AtomicU64,
    /// While `since` is set.
    reason: Mutex<Option<String>>,
    /// When the lease was first found not fresh, in nanoseconds; 0 if it is fresh.
    unfresh_since: AtomicU64,
}

impl Stall {
    /// A commit has failed.
    pub(super) fn begin(&self, now: Duration, error: &StoreError) {
        let _ = self.since.compare_exchange(0, now.as_nanos() as u64, Relaxed, Relaxed);
        let reason = error.to_string();
        warn!("locks wait: {reason}");
        *self.lock() = Some(reason);
    }

    /// A commit has succeeded. `now` is asked only if commits failed before.
    pub(super) fn end(&self, now: impl FnOnce() -> Duration) {
        if self.since.load(Relaxed) == 0 {
            return;
        }
        let since = self.since.swap(0, Relaxed);
        *self.lock() = None;
        let after = now().saturating_sub(Duration::from_nanos(since));
        info!("the store works again after {:.1} s; locks go on", after.as_secs_f64());
    }

    /// How long commits have failed; `None` if they succeed.
    pub(super) fn lasts(&self, now: Duration) -> Option<Duration> {
        let since = self.since.load(Relaxed);
        (since != 0).then(|| now.saturating_sub(Duration::from_nanos(since)))
    }

    pub(super) fn reason(&self) -> Option<String> {
        self.lock().clone()
    }

    /// The lease was found not fresh.
    pub(super) fn note_unfresh(&self, now: Duration) {
        let now = now.as_nanos() as u64;
        let _ = self.unfresh_since.compare_exchange(0, now, Relaxed, Relaxed);
    }

    /// How long the lease was not fresh, once it is fresh again; `None` if it was all the time.
    pub(super) fn take_unfresh(&self, now: Duration) -> Option<Duration> {
        let since = self.unfresh_since.load(Relaxed);
        if since == 0 {
            return None;
        }
        self.unfresh_since.store(0, Relaxed);
        Some(now.saturating_sub(Duration::from_nanos(since)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
