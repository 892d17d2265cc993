//! Who is who: the ids we give, and the names by which peers are known (R3.2).

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
    /// A host or a registrant in the client tracker. Durable, never used again for another.
    ClientId
    /// A held lock. Durable, never used again; each fragment of a split has a new one.
    LockId
    /// A held share reservation. Durable, never used again.
    ShareId
    /// A callback that tells a waiter of its lock; never used again, so that a late answer from
    /// before a restart cannot be taken for an answer to another.
    GrantId
    /// Something that we owe somebody (`SM_NOTIFY`, or a registrant's own callback).
    NoticeId
    /// The caller's own number for a request; replies carry it back.
    RequestId
}

/// A host's NSM state; 0 is "unknown".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u32);

impl Incarnation {
    pub const UNKNOWN: Incarnation = Incarnation(0);

    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }

    /// Counters wrap, so "before" is the shorter way round.
    pub fn is_before(self, other: Incarnation) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// Ours: one per start of the server, only growing (R1.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after all that are known: the stored one, the copy in the state directory, and
    /// the minutes since 2020, so that a restored backup never repeats one.
    pub fn after(stored: Epoch, copy: Option<Epoch>, minutes_since_2020: u64) -> Epoch {
        let after_copy = copy.map_or(0, |copy| copy.0.saturating_add(1));
        Epoch(stored.0.saturating_add(1).max(after_copy).max(minutes_since_2020))
    }

    /// As NSM shows it: odd while we are up (I3).
    pub fn nsm_state(self) -> u32 {
        (self.0 as u32).wrapping_mul(2) | 1
    }
}

/// What tells one host from another: where it calls from, and what it calls itself. One machine
/// behind two addresses is two hosts; two containers behind one address are two hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostKey {
    address: IpAddr,
    name: Name,
}

/// One look-up for each request: many small writes would cost more than all the rest of it.
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

    pub fn address(&self) -> IpAddr {
        self.address
    }

    pub fn name(&self) -> &Name {
        &self.name
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    Tcp,
    Udp,
}

/// By which way a host reaches us. A Linux client numbers its lock owners from 0 for each of
/// these, so they are part of who an owner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    ours: IpAddr,
    transport: Transport,
    version: u8,
}

impl Lane {
    /// Our address as the client knows it, and the lock protocol's version.
    pub fn new(ours: IpAddr, transport: Transport, version: u8) -> Self {
        Self { ours: ours.to_canonical(), transport, version }
    }

    pub fn ours(&self) -> IpAddr {
        self.ours
    }

    pub fn transport(&self) -> Transport {
        self.transport
    }

    pub fn version(&self) -> u8 {
        self.version
    }
}

/// Who asks: a host, and the way it came.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub host: HostKey,
    pub lane: Lane,
}

impl Caller {
    /// Whether the call came from this machine itself.
    pub fn is_local(&self) -> bool {
        let address = self.host.address();
        address.is_loopback() || address == self.lane.ours()
    }
}

/// Who holds: somebody on a host. Two requests belong to one owner if all of this is equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub host: ClientId,
    pub lane: Lane,
    /// The client's number for a lock owner (`svid`); 0 for shares, which have none.
    pub number: u32,
    pub tag: OwnerTag,
}

/// Without the lane: few owners differ in nothing else.
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
