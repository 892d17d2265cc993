//! Ids that the keeper assigns, and the identities of peers (B2.3, B2.4).

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use crate::bytes::{Name, OwnerTag};

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    )*};
}

ids! {
    /// A host or registrant in the client tracker. Durable, never reused.
    ClientId
    /// A held lock. Durable, never reused; each fragment of a split gets a new one.
    LockId
    /// A held share reservation. Durable, never reused.
    ShareId
    /// A GRANTED callback. Never reused, so that a late answer from before a restart cannot be
    /// taken for an answer to another callback.
    GrantId
    /// A notice: SM_NOTIFY, or a registrant's own callback.
    NoticeId
    /// The caller's id for a request; the reply carries it.
    RequestId
}

/// A host's NSM state; 0 is "unknown".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// No state is known.
    pub const UNKNOWN: Incarnation = Incarnation(0);

    /// Whether this is a state at all.
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }

    /// The counter wraps; "before" is the shorter way round.
    pub(crate) fn is_before(self, other: Incarnation) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// The server's epoch: one per start, strictly increasing (B4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after all known ones: the stored one, the copy in the state directory, and the
    /// minutes since 2020, so that a restored backup never repeats one.
    pub fn after(stored: Epoch, copy: Option<Epoch>, minutes_since_2020: u64) -> Epoch {
        let after_copy = copy.map_or(0, |copy| copy.0.saturating_add(1));
        Epoch(stored.0.saturating_add(1).max(after_copy).max(minutes_since_2020))
    }

    /// The server's NSM state; odd while the server is up (I3).
    pub fn nsm_state(self) -> u32 {
        (self.0 as u32).wrapping_mul(2) | 1
    }
}

/// The identity of a host: the address it calls from and its own name. One machine with two
/// addresses is two hosts; two containers behind one address are two hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostKey {
    address: IpAddr,
    name: Name,
}

/// Hashed once per request; few large writes are much faster than many small ones.
impl Hash for HostKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let address = match self.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        state.write_u128(address.to_bits());
        state.write(self.name.bytes());
    }
}

impl HostKey {
    /// `::ffff:10.0.0.1` is `10.0.0.1`.
    pub fn new(address: IpAddr, name: Name) -> Self {
        Self { address: address.to_canonical(), name }
    }

    /// The address it calls from, canonical.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Its own name for itself.
    pub fn name(&self) -> &Name {
        &self.name
    }
}

/// The transport of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// A connection.
    Tcp,
    /// Datagrams; their source can be forged.
    Udp,
}

/// How a host reaches the server. A Linux client numbers its lock owners from 0 for each of these,
/// so it is part of an owner's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerNamespace {
    server_address: IpAddr,
    transport: Transport,
    version: u8,
}

impl OwnerNamespace {
    /// From the server's address as the client knows it, and the version of the lock protocol.
    pub fn new(server_address: IpAddr, transport: Transport, version: u8) -> Self {
        Self { server_address: server_address.to_canonical(), transport, version }
    }

    /// The same transport and version, through another address of the server.
    pub(crate) fn at(&self, server_address: IpAddr) -> Self {
        Self::new(server_address, self.transport, self.version)
    }

    /// The server's address that the host called.
    pub fn server_address(&self) -> IpAddr {
        self.server_address
    }

    /// The transport of its calls.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The version of the lock protocol.
    pub fn version(&self) -> u8 {
        self.version
    }
}

/// The caller of a request: a host, and how it reached the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The calling host.
    pub host: HostKey,
    /// How it reached the server.
    pub namespace: OwnerNamespace,
}

impl Caller {
    /// Whether the call came from this machine.
    pub fn is_local(&self) -> bool {
        let address = self.host.address();
        address.is_loopback() || address == self.namespace.server_address()
    }
}

/// A lock owner. Two requests have the same owner if all of these are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Its host.
    pub host: ClientId,
    /// How its host reaches the server.
    pub namespace: OwnerNamespace,
    /// The client's number for a lock owner (`svid`); 0 for shares, which have none.
    pub number: u32,
    /// The owner's opaque part (`oh`).
    pub tag: OwnerTag,
}

impl Owner {
    /// The owner of the same name in another namespace.
    pub(crate) fn within(&self, namespace: OwnerNamespace) -> Owner {
        Owner { namespace, ..self.clone() }
    }
}

/// Without the namespace: few owners differ in nothing else.
impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.host.0 ^ u64::from(self.number).rotate_left(32));
        state.write(self.tag.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_is_the_address_it_maps() {
        let plain = HostKey::new("10.0.0.1".parse().unwrap(), Name::from("alice"));
        let mapped = HostKey::new("::ffff:10.0.0.1".parse().unwrap(), Name::from("alice"));
        assert_eq!(plain, mapped);
    }

    #[test]
    fn the_epoch_grows_past_backups_and_clocks_that_went_back() {
        assert_eq!(Epoch::after(Epoch(7), None, 3), Epoch(8));
        assert_eq!(Epoch::after(Epoch(7), Some(Epoch(20)), 3), Epoch(21));
        assert_eq!(Epoch::after(Epoch(7), Some(Epoch(20)), 3_000_000), Epoch(3_000_000));
        assert_eq!(Epoch(3).nsm_state(), 7);
        assert!((0..9).all(|epoch| Epoch(epoch).nsm_state() % 2 == 1));
    }

    #[test]
    fn incarnations_wrap() {
        assert!(Incarnation(3).is_before(Incarnation(5)));
        assert!(!Incarnation(5).is_before(Incarnation(5)));
        assert!(Incarnation(u32::MAX).is_before(Incarnation(1)));
    }
}
