//! The gate: the check that every function of `peer/` makes immediately before it sends. Nothing
//! outside `peer/` originates messages to peers.

use std::net::IpAddr;

use tracing::debug;

use super::Failure;
use super::own_addresses::OwnAddresses;
use super::permission::refusal;
use crate::service_lease::ServiceLease;

pub(super) struct Gate {
    lease: ServiceLease,
    own: OwnAddresses,
}

impl Gate {
    pub(super) fn new(lease: ServiceLease) -> Self {
        Self { lease, own: OwnAddresses::default() }
    }

    /// Ok if `host` may be called from `ours` and the lease on the store is held now; otherwise
    /// [`Failure::Unsent`].
    pub(super) fn pass(&self, host: IpAddr, ours: IpAddr) -> Result<(), Failure> {
        if !self.may_call(host, ours) {
            return Err(Failure::Unsent);
        }
        if !self.lease.is_held() {
            debug!("not calling {host}: the lease on the store is not held");
            return Err(Failure::Unsent);
        }
        Ok(())
    }

    /// The [permission](super::permission) rule alone, whatever the lease.
    pub(super) fn may_call(&self, host: IpAddr, ours: IpAddr) -> bool {
        let refused = refusal(host, ours, &|ip| self.is_own(ip));
        if let Some(reason) = refused {
            debug!("not calling {host} from {ours}: {reason}");
        }
        refused.is_none()
    }

    pub(super) fn is_own(&self, ip: IpAddr) -> bool {
        self.own.contains(ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use store::Lease;
    use store::lease::boottime;

    #[test]
    fn nothing_passes_while_the_lease_is_not_held() {
        const TERM: Duration = Duration::from_secs(60);
        let lease = Lease::new(TERM, boottime());
        let gate = Gate::new(ServiceLease::new(Some(lease.clone())));
        let [host, ours] = ["198.51.100.7", "198.51.100.1"].map(|ip| ip.parse().unwrap());
        assert_eq!(gate.pass(host, ours), Ok(()));
        lease.renew(boottime().saturating_sub(TERM), true);
        assert_eq!(gate.pass(host, ours), Err(Failure::Unsent));
        assert!(gate.may_call(host, ours));
        lease.renew(boottime(), true);
        assert_eq!(gate.pass(host, ours), Ok(()));
    }

    #[test]
    fn a_host_that_may_not_be_called_does_not_pass() {
        let gate = Gate::new(ServiceLease::default());
        let [host, ours] = ["127.0.0.1", "198.51.100.1"].map(|ip| ip.parse().unwrap());
        assert_eq!(gate.pass(host, ours), Err(Failure::Unsent));
        assert!(!gate.may_call(host, ours));
    }
}
