//! Whether this server may serve. A server with a store of its own always may; one that shares the
//! store with a standby may while it holds the lease on the store.
//!
//! Checked when a request arrives, before a worker runs it, and again just before a reply or a
//! callback is sent. Between that check and its system call the lease can still expire.
//!
//! One of a pair also checks before it changes a file that the lease is fresh (B6.80): a leader that
//! lost the database does not know of a standby that registered later, so that its lease stays held.

use std::future::pending;
use std::time::Duration;

use store::Lease;
use tokio::time::sleep;
use tracing::{error, info, warn};

/// How soon a lost or renewed lease is noticed and logged.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// When files may be changed while the lease on a shared store is not fresh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// While the lease is held: also when the database is out of reach and no standby was known.
    #[default]
    Available,
    /// Never: only a fresh lease excludes that a standby has taken over.
    Strict,
}

/// The lease on a shared store; none if the store is not shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceLease {
    lease: Option<Lease>,
    writes: WritePolicy,
}

impl ServiceLease {
    pub(crate) fn new(lease: Option<Lease>) -> Self {
        Self { lease, writes: WritePolicy::default() }
    }

    pub(crate) fn with_writes(self, writes: WritePolicy) -> Self {
        Self { writes, ..self }
    }

    /// Whether a call may begin to change a file. A change that has begun is not stopped.
    pub(crate) fn may_change_files(&self) -> bool {
        self.writes == WritePolicy::Available || self.may_decide()
    }

    /// Whether anything may be sent.
    pub(crate) fn is_held(&self) -> bool {
        self.lease.as_ref().is_none_or(Lease::is_held)
    }

    /// Whether the keeper may decide: only a fresh lease excludes that a standby has taken over.
    pub(crate) fn may_decide(&self) -> bool {
        self.lease.as_ref().is_none_or(Lease::is_fresh)
    }

    /// Whether another server was ready to take over when the lease was last renewed.
    pub(crate) fn has_standby(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::has_standby)
    }

    /// Whether the store must be compared before the lease is renewed again.
    pub(crate) fn is_suspended(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_suspended)
    }

    /// The time since the last renewal, if the lease is not fresh.
    pub(crate) fn stale_for(&self) -> Option<Duration> {
        self.lease.as_ref().filter(|lease| !lease.is_fresh()).map(Lease::renewed_ago)
    }

    /// Why the lease is not fresh; `None` if it is.
    pub(crate) fn stale_reason(&self) -> Option<String> {
        let lease = self.lease.as_ref().filter(|lease| !lease.is_fresh())?;
        Some(not_renewed(lease))
    }

    /// Resolves when another server has taken over or the store has failed for good. Until then it
    /// logs when service and locks stop and resume.
    pub(crate) async fn wait_until_lost(self) -> String {
        let Some(lease) = self.lease else { return pending().await };
        let files = match self.writes {
            WritePolicy::Available => "",
            WritePolicy::Strict => " and files are not changed",
        };
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
                        "service stops: {}, and a standby may take over",
                        not_renewed(&lease)
                    ),
                }
            }
            if lease.is_fresh() != fresh {
                fresh = !fresh;
                match fresh {
                    true => info!("the lease on the store was renewed; locks go on"),
                    false => warn!("locks wait{files}: {}", not_renewed(&lease)),
                }
            }
            sleep(CHECK_EVERY).await;
        }
    }
}

/// The lease is checked more often than its heartbeat fails, so the reason may not be known yet.
fn not_renewed(lease: &Lease) -> String {
    let why = lease.last_error().unwrap_or_else(|| {
        "the database has not answered yet, or this process was suspended".into()
    });
    let ago = lease.renewed_ago().as_secs_f64();
    format!("the lease on the store was not renewed for {ago:.1} s ({why})")
}

#[cfg(test)]
mod tests {
    use store::lease::boottime;

    use super::*;

    /// B6.80, B6.84
    #[test]
    fn a_stale_lease_stops_the_file_changes_of_one_of_a_pair_and_has_a_reason() {
        let term = Duration::from_secs(1);
        let lease = Lease::new(term, boottime());
        lease.renew(boottime() + term, false);
        let of = |writes| ServiceLease::new(Some(lease.clone())).with_writes(writes);
        assert!(of(WritePolicy::Strict).may_change_files());
        assert_eq!(of(WritePolicy::Strict).stale_reason(), None);
        // The heartbeat runs, but the database does not answer.
        lease.renew(boottime(), false);
        while lease.is_fresh() {
            lease.tick();
            std::thread::sleep(Duration::from_millis(10));
        }
        lease.tick();
        assert!(of(WritePolicy::Strict).is_held());
        assert!(!of(WritePolicy::Strict).may_change_files());
        assert!(of(WritePolicy::Available).may_change_files());
        assert!(ServiceLease::new(None).with_writes(WritePolicy::Strict).may_change_files());
        let reason = of(WritePolicy::Strict).stale_reason().unwrap();
        assert!(reason.contains("s (the database has not"), "{reason}");
        lease.set_last_error(Some("connection refused".into()));
        let reason = of(WritePolicy::Strict).stale_reason().unwrap();
        assert!(reason.contains("(connection refused)"), "{reason}");
    }
}
