//! The addresses of this machine: cached for a few seconds where callbacks ask for them, and reported to
//! the engine whenever they change (B2.80).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use tokio::time::{MissedTickBehavior, interval};

use crate::engine::Engine;
use crate::engine::inbox::Input;

#[derive(Default)]
pub(super) struct OwnAddresses {
    known: Mutex<Option<(Instant, BTreeSet<IpAddr>)>>,
}

/// Maximum age of the cache.
const AGE_MAX: Duration = Duration::from_secs(5);

impl OwnAddresses {
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(since, _)| since.elapsed() > AGE_MAX) {
            *known = Some((Instant::now(), own_addresses().unwrap_or_default()));
        }
        known.as_ref().is_some_and(|(_, own)| own.contains(&ip))
    }
}

/// `None` if the system does not name them.
pub(crate) fn own_addresses() -> Option<BTreeSet<IpAddr>> {
    let interfaces = getifaddrs().ok()?;
    let addresses = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .collect();
    Some(addresses)
}

/// Tells the engine when an address comes or goes. Ends with the engine.
pub(crate) async fn report_addresses(engine: Engine) {
    let mut every = interval(AGE_MAX);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = None;
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = engine.ended() => return,
        }
        let addresses = own_addresses();
        if reported.as_ref() != Some(&addresses) {
            engine.report(Input::Addresses(addresses.clone()));
            reported = Some(addresses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_names_its_addresses() {
        assert!(OwnAddresses::default().contains("127.0.0.1".parse().unwrap()));
        assert!(!OwnAddresses::default().contains("198.51.100.1".parse().unwrap()));
    }
}
