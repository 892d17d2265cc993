//! Whom we may call (R6.3): the address that asked, and nobody inside this machine on behalf of
//! somebody outside it.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;

/// The addresses of this machine, asked for again every now and then.
#[derive(Default)]
pub struct OwnAddresses {
    known: Mutex<Option<(Instant, Vec<IpAddr>)>>,
}

const FRESH: Duration = Duration::from_secs(5);

impl OwnAddresses {
    pub fn contains(&self, ip: IpAddr) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(since, _)| since.elapsed() > FRESH) {
            *known = Some((Instant::now(), own_addresses()));
        }
        known.as_ref().is_some_and(|(_, own)| own.contains(&ip))
    }
}

/// Why `to` may not be called from `ours`, which is unspecified if the system chooses it.
pub fn refusal(to: IpAddr, ours: IpAddr, own: &OwnAddresses) -> Option<&'static str> {
    if ours.is_ipv4() != to.is_ipv4() {
        return Some("our address is of another family");
    }
    if let Some(reason) = never(to) {
        return Some(reason);
    }
    // A datagram with a forged source can claim to come from anywhere. A packet of this machine
    // itself comes to the address that it is from, or over loopback.
    let from_here = ours == to || ours.is_unspecified();
    match to.is_loopback() {
        true if !ours.is_loopback() && !ours.is_unspecified() => Some("it is loopback"),
        false if !from_here && own.contains(to) => Some("it is an address of this machine"),
        _ => None,
    }
}

fn never(to: IpAddr) -> Option<&'static str> {
    let link_local = match to {
        IpAddr::V4(to) => to.is_link_local(),
        IpAddr::V6(to) => to.is_unicast_link_local(),
    };
    let broadcast = matches!(to, IpAddr::V4(to) if to.is_broadcast());
    if to.is_unspecified() || to.is_multicast() || broadcast {
        return Some("it is not the address of a host");
    }
    link_local.then_some("it is link-local")
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
    fn nobody_inside_is_called_for_somebody_outside() {
        let own = OwnAddresses {
            known: Mutex::new(Some((Instant::now(), vec!["10.0.0.1".parse().unwrap()]))),
        };
        let refused = |to: &str, ours: &str| {
            refusal(to.parse().unwrap(), ours.parse().unwrap(), &own).is_some()
        };
        for to in ["127.0.0.1", "127.9.9.9", "169.254.1.1", "224.0.0.1", "255.255.255.255"] {
            assert!(refused(to, "10.0.0.2"), "{to}");
        }
        for to in ["::1", "fe80::1", "ff02::1", "::"] {
            assert!(refused(to, "fd00::1"), "{to}");
        }
        assert!(refused("0.0.0.0", "127.0.0.1"));
        assert!(refused("169.254.1.1", "169.254.1.2"));
        assert!(refused("10.0.0.1", "10.0.0.2"), "our own other address");
        assert!(refused("10.0.0.7", "fd00::1"), "another family");
        assert!(!refused("10.0.0.7", "10.0.0.1"));
        assert!(!refused("10.0.0.1", "10.0.0.1"), "a client on this machine");
        assert!(!refused("127.0.0.2", "127.0.0.1"), "a client that locked over loopback");
        assert!(!refused("::1", "::1"));
        assert!(!refused("127.0.0.1", "0.0.0.0"), "a registrant on this machine");
        assert!(!refused("10.0.0.7", "0.0.0.0"));
    }

    #[test]
    fn the_system_names_its_addresses() {
        assert!(OwnAddresses::default().contains("127.0.0.1".parse().unwrap()));
        assert!(!OwnAddresses::default().contains("198.51.100.1".parse().unwrap()));
    }
}
