//! Bounded waits: a test that waits in vain fails, and the message says for what.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// More than anything on one machine takes under load; less than a test runner's own limit.
pub const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// Polls `condition` until it holds.
///
/// # Panics
/// If it does not hold within [`LIMIT`].
#[track_caller]
pub fn until_blocking(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// Like [`until_blocking`], for callers that hold more than a condition: `attempt` returns the value
/// once there is one, or an error that ends the wait.
pub fn try_until<T>(what: &str, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt()? {
            return Ok(value);
        }
        ensure!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// Polls `condition` until it holds.
///
/// # Panics
/// If it does not hold within [`LIMIT`].
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Awaits `future`.
///
/// # Panics
/// If it is not ready within [`LIMIT`].
#[allow(clippy::panic, reason = "tests fail by panicking")]
pub async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {LIMIT:?}: {what}"),
    }
}
