//! The gate: the one check before anything is sent to a peer. Every function of `peer/` that sends
//! passes it just before it does; nothing outside `peer/` sends to a peer by itself.

use std::net::IpAddr;

use tracing::debug;

use super::Failure;
use super::own_addresses::OwnAddresses;
use super::permission::refusal;
use crate::tenure::Tenure;

pub struct Gate {
    tenure: Tenure,
    own: OwnAddresses,
}

impl Gate {
    pub fn new(tenure: Tenure) -> Self {
        Self { tenure, own: OwnAddresses::default() }
    }

    /// Whether `host` may be sent something from `ours` now: the rule permits it, and the lease on
    /// the store is held. [`Failure::Unsent`] if not.
    pub fn pass(&self, host: IpAddr, ours: IpAddr) -> Result<(), Failure> {
        if !self.may_call(host, ours) {
            return Err(Failure::Unsent);
        }
        if !self.tenure.holds() {
            debug!("nothing is sent to {host}: the lease on the store is not held");
            return Err(Failure::Unsent);
        }
        Ok(())
    }

    /// The rule alone.
    pub fn may_call(&self, host: IpAddr, ours: IpAddr) -> bool {
        let refused = refusal(host, ours, &|ip| self.is_own(ip));
        if let Some(reason) = refused {
            debug!("{host} is not called from {ours}: {reason}");
        }
        refused.is_none()
    }

    pub fn is_own(&self, ip: IpAddr) -> bool {
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
        let gate = Gate::new(Tenure::new(Some(lease.clone())));
        let [host, ours] = ["198.51.100.7", "198.51.100.1"].map(|ip| ip.parse().unwrap());
        assert_eq!(gate.pass(host, ours), Ok(()));
        lease.renew(boottime().saturating_sub(TERM), true);
        assert_eq!(gate.pass(host, ours), Err(Failure::Unsent));
        assert!(gate.may_call(host, ours));
        lease.renew(boottime(), true);
        assert_eq!(gate.pass(host, ours), Ok(()));
    }

    #[test]
    fn nobody_passes_who_may_not_be_called() {
        let gate = Gate::new(Tenure::default());
        let [host, ours] = ["127.0.0.1", "198.51.100.1"].map(|ip| ip.parse().unwrap());
        assert_eq!(gate.pass(host, ours), Err(Failure::Unsent));
        assert!(!gate.may_call(host, ours));
    }
}
