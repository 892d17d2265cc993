//! Whether this server may still speak. One whose store is its own always may; one that shares it
//! with a standby may for as long as its lease on the store is held.
//!
//! Asked when a request comes, before it is worked on by a worker, and again just before a reply or a
//! callback leaves. What remains is the time between that look and the system call after it.

use std::future::pending;
use std::time::Duration;

use store::Lease;
use tokio::time::sleep;
use tracing::{error, info, warn};

/// How soon it is noticed, and said, that the lease is lost or found again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Default)]
pub struct Tenure(Option<Lease>);

impl Tenure {
    pub fn new(lease: Option<Lease>) -> Self {
        Self(lease)
    }

    pub fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(Lease::is_held)
    }

    /// Whether locks may be decided about: not by a server that another may have replaced.
    pub fn may_decide(&self) -> bool {
        self.0.as_ref().is_none_or(Lease::is_fresh)
    }

    /// Since when locks may not be decided about, if they may not.
    pub fn waits_for(&self) -> Option<Duration> {
        self.0.as_ref().filter(|lease| !lease.is_fresh()).map(Lease::renewed_ago)
    }

    /// Resolves when another server has taken over, or the store has failed for good; says meanwhile
    /// when service stops and goes on.
    pub async fn lost(self) -> String {
        let Some(lease) = self.0 else { return pending().await };
        let (mut held, mut fresh) = (true, true);
        loop {
            if let Some(why) = lease.why_lost() {
                return why;
            }
            if lease.is_held() != held {
                held = !held;
                match held {
                    true => info!("the lease on the store is renewed; service goes on"),
                    false => error!(
                        "all service stops: the lease on the store was not renewed for {:.1} s \
                         ({}), and a standby may take over",
                        lease.renewed_ago().as_secs_f64(),
                        lease.trouble().unwrap_or_else(|| "this server was stopped".into())
                    ),
                }
            }
            if lease.is_fresh() != fresh {
                fresh = !fresh;
                match fresh {
                    true => info!("the lease on the store is renewed; locks go on"),
                    false => warn!("locks wait: {}", lease.trouble().unwrap_or_default()),
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }
}
