//! The addresses of this machine, cached for a few seconds.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;

#[derive(Default)]
pub(super) struct OwnAddresses {
    known: Mutex<Option<(Instant, Vec<IpAddr>)>>,
}

/// Maximum age of the cache.
const AGE_MAX: Duration = Duration::from_secs(5);

impl OwnAddresses {
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(since, _)| since.elapsed() > AGE_MAX) {
            *known = Some((Instant::now(), own_addresses()));
        }
        known.as_ref().is_some_and(|(_, own)| own.contains(&ip))
    }
}

fn own_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .collect()
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
