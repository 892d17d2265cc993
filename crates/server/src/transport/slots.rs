//! Who gets a connection when there are few left (B7.6, B7.96): the counts, the slots reserved for known clients,
//! and which open connections are closed for a new one. No I/O and no clock.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Of `connections`, one in this many is left to known clients.
const RESERVED_SHARE: usize = 8;
/// A client calls as soon as it is connected; a connection without any call after this time has none to
/// lose.
const CALL_DUE: Duration = Duration::from_secs(10);
/// Networks that have made calls; the oldest is forgotten.
const KNOWN_MAX: usize = 10_000;

/// What counts as one address: an IPv4 address, or the /64 of an IPv6 address, all of which one machine
/// may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(IpAddr);

impl Network {
    pub fn of(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            v4 => v4,
        })
    }
}

/// Why there is no connection for a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SlotRefusal {
    #[error("{0} are open, the most allowed; allow more with `connections` in [limits]")]
    Total(usize),
    #[error(
        "{0} are open, and the rest of `connections` in [limits] is left to clients that have \
         used this server before"
    )]
    Reserved(usize),
    #[error(
        "{0} are open from this address, the most allowed; allow more with \
         `connections_per_address` in [limits]"
    )]
    PerAddress(usize),
}

/// The bounds of one port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotLimits {
    pub(crate) total: usize,
    pub(crate) per_address: usize,
}

/// Open connections, counted; and who has used this server before.
#[derive(Default)]
pub(crate) struct Slots {
    total: usize,
    by_network: HashMap<Network, usize>,
    known: HashSet<Network>,
    known_in_order: VecDeque<Network>,
}

impl Slots {
    /// Whether a connection from there may be opened. `is_known`: a local caller, or the host has locks.
    /// [`SlotRefusal::Total`] and [`SlotRefusal::Reserved`] may be avoided by closing others.
    pub(crate) fn check(
        &self,
        network: Network,
        is_known: bool,
        limits: SlotLimits,
    ) -> Result<(), SlotRefusal> {
        let there = self.by_network.get(&network).copied().unwrap_or(0);
        if there >= limits.per_address {
            return Err(SlotRefusal::PerAddress(there));
        }
        if self.total >= limits.total {
            return Err(SlotRefusal::Total(self.total));
        }
        let is_known = is_known || self.known.contains(&network);
        if !is_known && self.total >= limits.total - limits.total / RESERVED_SHARE {
            return Err(SlotRefusal::Reserved(self.total));
        }
        Ok(())
    }

    pub(crate) fn opened(&mut self, network: Network) {
        *self.by_network.entry(network).or_default() += 1;
        self.total += 1;
    }

    pub(crate) fn closed(&mut self, network: Network) {
        self.total -= 1;
        if let Some(there) = self.by_network.get_mut(&network) {
            *there -= 1;
            if *there == 0 {
                self.by_network.remove(&network);
            }
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// A client there has made a call.
    pub(crate) fn has_called(&mut self, network: Network) {
        if !self.known.insert(network) {
            return;
        }
        self.known_in_order.push_back(network);
        if self.known_in_order.len() > KNOWN_MAX
            && let Some(oldest) = self.known_in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// An open connection, as far as it matters who makes room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) connection: u64,
    /// No export admits its address any more, and it has no locks.
    pub(crate) is_stranger: bool,
    pub(crate) has_called: bool,
    /// All exports that admit its address demand reserved ports, and its port is none: a user of a client, who
    /// can neither read files nor lock.
    pub(crate) is_user: bool,
    /// Requests of it are in progress, or replies unsent.
    pub(crate) is_busy: bool,
    pub(crate) age: Duration,
}

/// Up to `count` connections to close for new ones: idle ones of strangers, then those that never made
/// a call, then, if the new one is of a kernel, those of users; the oldest first. Never one that is in use.
pub(crate) fn to_evict(
    candidates: impl Iterator<Item = Candidate>,
    for_kernel: bool,
    count: usize,
) -> Vec<u64> {
    let never_called = |one: &Candidate| !one.has_called && one.age >= CALL_DUE;
    let may_go = |one: &Candidate| {
        !one.is_busy && (one.is_stranger || never_called(one) || (for_kernel && one.is_user))
    };
    let mut idle: Vec<Candidate> = candidates.filter(may_go).collect();
    idle.sort_by_key(|one| (!one.is_stranger, !never_called(one), std::cmp::Reverse(one.age)));
    idle.truncate(count);
    idle.into_iter().map(|one| one.connection).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str) -> Network {
        Network::of(address.parse().unwrap())
    }

    #[test]
    fn one_address_cannot_use_up_the_connections_of_others() {
        let limits = SlotLimits { total: 3, per_address: 2 };
        let mut slots = Slots::default();
        let [one, two, three] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(network);
        for _ in 0..2 {
            slots.check(one, false, limits).unwrap();
            slots.opened(one);
        }
        assert_eq!(slots.check(one, false, limits), Err(SlotRefusal::PerAddress(2)));
        slots.opened(two);
        assert_eq!(slots.check(three, false, limits), Err(SlotRefusal::Total(3)));
        slots.closed(one);
        assert_eq!(slots.check(one, false, limits), Ok(()));
        slots.closed(one);
        assert_eq!((slots.total(), slots.by_network.len()), (1, 1));
    }

    /// B7.96
    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }

    /// B7.96
    #[test]
    fn the_last_slots_are_for_those_who_have_used_the_server() {
        let limits = SlotLimits { total: 16, per_address: 16 };
        let mut slots = Slots::default();
        let [new, old] = ["10.0.0.1", "10.0.0.2"].map(network);
        slots.has_called(old);
        (0..14).for_each(|_| slots.opened(new));
        assert_eq!(slots.check(new, false, limits), Err(SlotRefusal::Reserved(14)));
        assert_eq!(slots.check(new, true, limits), Ok(()), "it has locks");
        assert_eq!(slots.check(old, false, limits), Ok(()));
        (0..2).for_each(|_| slots.opened(old));
        assert_eq!(slots.check(old, true, limits), Err(SlotRefusal::Total(16)));
    }

    #[test]
    fn no_more_networks_are_remembered_than_allowed() {
        let mut slots = Slots::default();
        for number in 0..2 * KNOWN_MAX as u32 {
            slots.has_called(Network(IpAddr::V4(number.into())));
            slots.has_called(Network(IpAddr::V4(number.into())));
        }
        assert_eq!((slots.known.len(), slots.known_in_order.len()), (KNOWN_MAX, KNOWN_MAX));
        assert!(!slots.known.contains(&network("0.0.0.1")));
    }

    /// B7.96
    #[test]
    fn strangers_go_first_then_those_that_never_called_and_never_one_in_use() {
        let one = |connection, is_stranger, has_called, is_busy, seconds| Candidate {
            connection,
            is_stranger,
            has_called,
            is_user: false,
            is_busy,
            age: Duration::from_secs(seconds),
        };
        let open = [
            one(1, false, true, false, 1000),
            one(2, false, false, false, 11),
            one(3, false, false, false, 12),
            one(4, false, false, false, 9),
            one(5, false, false, true, 100),
            one(6, true, true, false, 1),
            one(7, true, true, true, 1),
        ];
        let evicted = |count| to_evict(open.into_iter(), true, count);
        assert_eq!(evicted(1), [6]);
        assert_eq!(evicted(2), [6, 3]);
        assert_eq!(evicted(9), [6, 3, 2]);
    }

    /// B7.141
    #[test]
    fn connections_of_users_make_room_for_those_of_kernels_only() {
        let one = |connection, is_user, is_busy, seconds| Candidate {
            connection,
            is_stranger: false,
            has_called: true,
            is_user,
            is_busy,
            age: Duration::from_secs(seconds),
        };
        let open = [
            one(1, false, false, 1000),
            one(2, true, false, 5),
            one(3, true, true, 900),
            one(4, true, false, 6),
        ];
        let evicted = |for_kernel| to_evict(open.into_iter(), for_kernel, 9);
        assert_eq!(evicted(true), [4, 2]);
        assert_eq!(evicted(false), [0; 0]);
    }
}
