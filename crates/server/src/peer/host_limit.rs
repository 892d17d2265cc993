//! A limit on concurrent callbacks per host, so that a silent host cannot starve the others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Only hosts with callbacks in flight or waiting have an entry.
pub(super) struct HostLimits {
    max: usize,
    hosts: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

/// One callback to a host. Dropping it admits the next.
pub(crate) struct HostPermit<'a> {
    limits: &'a HostLimits,
    host: IpAddr,
    semaphore: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl HostLimits {
    pub(super) fn new(max: usize) -> Self {
        Self { max, hosts: Mutex::default() }
    }

    /// Waits for a free slot, in order of arrival.
    pub(super) async fn permit(&self, host: IpAddr) -> HostPermit<'_> {
        let semaphore = {
            let mut hosts = self.lock();
            hosts.entry(host).or_insert_with(|| Arc::new(Semaphore::new(self.max))).clone()
        };
        // Built before the wait: dropping it removes an unused entry even if the wait is cancelled.
        let mut permit = HostPermit { limits: self, host, semaphore, permit: None };
        // The semaphore is never closed.
        permit.permit = permit.semaphore.clone().acquire_owned().await.ok();
        permit
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Semaphore>>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HostPermit<'_> {
    fn drop(&mut self) {
        self.permit = None;
        let mut hosts = self.limits.lock();
        // The table's reference and this one: no other permit exists, and the lock keeps it so.
        if Arc::strong_count(&self.semaphore) == 2 {
            hosts.remove(&self.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn one_host_can_fill_only_its_own_slots() {
        let limits = HostLimits::new(2);
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let first = limits.permit(one).await;
        let _second = limits.permit(one).await;
        let short = Duration::from_millis(20);
        assert!(timeout(short, limits.permit(one)).await.is_err());
        assert!(timeout(short, limits.permit(other)).await.is_ok());
        drop(first);
        assert!(timeout(short, limits.permit(one)).await.is_ok());
    }

    #[tokio::test]
    async fn a_host_that_is_not_called_leaves_nothing_behind() {
        let limits = HostLimits::new(1);
        let host = "10.0.0.1".parse().unwrap();
        let first = limits.permit(host).await;
        assert!(timeout(Duration::from_millis(5), limits.permit(host)).await.is_err());
        assert_eq!(limits.lock().len(), 1);
        drop(first);
        assert!(limits.lock().is_empty());
    }
}
