//! Whom the server may call (R6.3): the address that asked, and nobody inside this machine on
//! behalf of somebody outside it.
//!
//! The one rule for callbacks, notices, results, witnesses, pings and look-ups. Without I/O: which
//! addresses are this machine's is an argument.

use std::fmt;
use std::net::IpAddr;

/// Why a host may not be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    OtherFamily,
    /// Unspecified, multicast or broadcast.
    NotAHost,
    LinkLocal,
    /// Loopback, for a request that did not come over loopback.
    Loopback,
    /// An address of this machine other than the one that the request came to.
    ThisMachine,
}

/// Why `to` may not be called from `ours`, the address that its request came to; `ours` is
/// unspecified where the system chooses it, as for registrants.
///
/// A datagram with a forged source can claim to come from anywhere; the kernel drops one that claims
/// to come from this machine. A request of this machine itself comes to the address that it is from,
/// or over loopback: then, and only then, an address of this machine is called.
pub fn refusal(to: IpAddr, ours: IpAddr, is_own: &dyn Fn(IpAddr) -> bool) -> Option<Refusal> {
    let (to, ours) = (to.to_canonical(), ours.to_canonical());
    if ours.is_ipv4() != to.is_ipv4() {
        return Some(Refusal::OtherFamily);
    }
    let (link_local, broadcast) = match to {
        IpAddr::V4(to) => (to.is_link_local(), to.is_broadcast()),
        IpAddr::V6(to) => (to.is_unicast_link_local(), false),
    };
    if to.is_unspecified() || to.is_multicast() || broadcast {
        return Some(Refusal::NotAHost);
    }
    if link_local {
        return Some(Refusal::LinkLocal);
    }
    if ours == to || ours.is_unspecified() {
        return None;
    }
    if to.is_loopback() {
        return (!ours.is_loopback()).then_some(Refusal::Loopback);
    }
    is_own(to).then_some(Refusal::ThisMachine)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherFamily => "our address is of another family",
            Self::NotAHost => "it is not the address of a host",
            Self::LinkLocal => "it is link-local",
            Self::Loopback => "it is loopback",
            Self::ThisMachine => "it is an address of this machine",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(to: &str, ours: &str) -> bool {
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        refusal(to.parse().unwrap(), ours.parse().unwrap(), &|ip| ip == own).is_some()
    }

    #[test]
    fn nobody_inside_is_called_for_somebody_outside() {
        for to in ["127.0.0.1", "127.9.9.9", "169.254.1.1", "224.0.0.1", "255.255.255.255"] {
            assert!(refused(to, "10.0.0.2"), "{to}");
        }
        for to in ["::1", "fe80::1", "ff02::1", "::"] {
            assert!(refused(to, "fd00::1"), "{to}");
        }
        assert!(refused("0.0.0.0", "127.0.0.1"));
        assert!(refused("169.254.1.1", "169.254.1.2"));
        assert!(refused("10.0.0.1", "10.0.0.2"), "our own other address");
        assert!(refused("10.0.0.1", "127.0.0.1"), "our own other address");
        assert!(refused("10.0.0.7", "fd00::1"), "another family");
        assert!(refused("::ffff:127.0.0.1", "10.0.0.2"), "loopback in another spelling");
        assert!(refused("::ffff:10.0.0.1", "10.0.0.2"), "our own address in another spelling");
        assert!(refused("::ffff:127.0.0.1", "::ffff:10.0.0.2"), "both in another spelling");
    }

    #[test]
    fn whoever_asked_is_called_where_it_asked_from() {
        assert!(!refused("10.0.0.7", "10.0.0.1"));
        assert!(!refused("::ffff:10.0.0.7", "10.0.0.1"), "its address in another spelling");
        assert!(!refused("fd00::2", "fd00::1"));
        assert!(!refused("10.0.0.1", "10.0.0.1"), "a client on this machine");
        assert!(!refused("127.0.0.2", "127.0.0.1"), "a client that locked over loopback");
        assert!(!refused("::1", "::1"));
        assert!(!refused("127.0.0.1", "0.0.0.0"), "a registrant on this machine");
        assert!(!refused("10.0.0.7", "0.0.0.0"));
    }
}
