//! Whether this server may serve. A server with a store of its own always may; one that shares the
//! store with a standby may while it holds the lease on the store.
//!
//! Checked when a request arrives, before a worker runs it, and again just before a reply or a
//! callback is sent. Between that check and its system call the lease can still expire.

use std::future::pending;
use std::time::Duration;

use store::Lease;
use tokio::time::sleep;
use tracing::{error, info, warn};

/// How soon a lost or renewed lease is noticed and logged.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// The lease on a shared store; none if the store is not shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceLease(Option<Lease>);

impl ServiceLease {
    pub(crate) fn new(lease: Option<Lease>) -> Self {
        Self(lease)
    }

    /// Whether anything may be sent.
    pub(crate) fn is_held(&self) -> bool {
        self.0.as_ref().is_none_or(Lease::is_held)
    }

    /// Whether the keeper may decide: only a fresh lease excludes that a standby has taken over.
    pub(crate) fn may_decide(&self) -> bool {
        self.0.as_ref().is_none_or(Lease::is_fresh)
    }

    /// Whether the store must be compared before the lease is renewed again.
    pub(crate) fn is_suspended(&self) -> bool {
        self.0.as_ref().is_some_and(Lease::is_suspended)
    }

    /// The time since the last renewal, if the lease is not fresh.
    pub(crate) fn stale_for(&self) -> Option<Duration> {
        self.0.as_ref().filter(|lease| !lease.is_fresh()).map(Lease::renewed_ago)
    }

    /// Resolves when another server has taken over or the store has failed for good. Until then it
    /// logs when service and locks stop and resume.
    pub(crate) async fn wait_until_lost(self) -> String {
        let Some(lease) = self.0 else { return pending().await };
        let (mut held, mut fresh) = (true, true);
        let mut warned = None;
        loop {
            if let Some(why) = lease.loss_reason() {
                return why;
            }
            let warning = lease.warning();
            if warning != warned {
                match &warning {
                    Some(what) => warn!("the database is slowed down: {what}"),
                    None => info!("the database is no longer slowed down"),
                }
                warned = warning;
            }
            if lease.is_held() != held {
                held = !held;
                match held {
                    true => info!("the lease on the store was renewed; service resumes"),
                    false => error!(
                        "service stops: the lease on the store was not renewed for {:.1} s \
                         ({}), and a standby may take over",
                        lease.renewed_ago().as_secs_f64(),
                        lease.last_error().unwrap_or_else(|| "the process was suspended".into())
                    ),
                }
            }
            if lease.is_fresh() != fresh {
                fresh = !fresh;
                match fresh {
                    true => info!("the lease on the store was renewed; locks go on"),
                    false => warn!(
                        "locks wait: {}",
                        lease.last_error().unwrap_or_else(|| format!(
                            "the lease on the store was not renewed for {:.1} s; the database \
                             answers slowly, or this process was suspended",
                            lease.renewed_ago().as_secs_f64()
                        ))
                    ),
                }
            }
            sleep(CHECK_EVERY).await;
        }
    }
}
