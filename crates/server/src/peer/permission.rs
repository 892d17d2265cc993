//! Which addresses the server may call (B7.9): that of the requester, and never an address of this
//! machine on behalf of a remote requester.
//!
//! Applies to callbacks, notices, results, witnesses, probes and port lookups alike. No I/O: the
//! addresses of this machine are an argument.

use std::fmt;
use std::net::IpAddr;

/// Why a host may not be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    OtherFamily,
    /// Unspecified, multicast or broadcast.
    NotAHost,
    LinkLocal,
    /// Loopback, for a request that did not arrive over loopback.
    Loopback,
    /// An address of this machine other than the one at which the request arrived.
    ThisMachine,
}

/// Why `to` may not be called from `ours`, the address at which its request arrived; `None` if it
/// may. `ours` is unspecified where the system chooses the source address, as for registrants.
///
/// The source of a datagram can be forged, except as an address of this machine: the kernel drops
/// those. A request from this machine arrives over loopback or at the address that it comes from;
/// only then is an address of this machine called.
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
    fn no_address_of_this_machine_is_called_for_a_remote_requester() {
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
        assert!(refused("::ffff:127.0.0.1", "10.0.0.2"), "loopback in mapped form");
        assert!(refused("::ffff:10.0.0.1", "10.0.0.2"), "our own address in mapped form");
        assert!(refused("::ffff:127.0.0.1", "::ffff:10.0.0.2"), "both in mapped form");
    }

    #[test]
    fn a_requester_is_called_at_the_address_it_asked_from() {
        assert!(!refused("10.0.0.7", "10.0.0.1"));
        assert!(!refused("::ffff:10.0.0.7", "10.0.0.1"), "its address in mapped form");
        assert!(!refused("fd00::2", "fd00::1"));
        assert!(!refused("10.0.0.1", "10.0.0.1"), "a client on this machine");
        assert!(!refused("127.0.0.2", "127.0.0.1"), "a client that locked over loopback");
        assert!(!refused("::1", "::1"));
        assert!(!refused("127.0.0.1", "0.0.0.0"), "a registrant on this machine");
        assert!(!refused("10.0.0.7", "0.0.0.0"));
    }
}
