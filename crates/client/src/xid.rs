//! Transaction ids: what tells a reply which call it answers (RFC 5531, section 9).
//!
//! A counter, put through a permutation with a random key. A host that sees the ids of some calls
//! cannot tell those of others, so it cannot answer in another host's name; and no id comes back
//! before 2^32 calls, so neither a table of calls under way nor a server's duplicate request cache
//! takes two calls for one. One counter serves all connections of the process, because such a cache
//! may know clients by address alone.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

static IDS: LazyLock<Ids> =
    LazyLock::new(|| Ids { counter: AtomicU32::new(0), key: RandomState::new() });

/// An id that no call of this process has had for a long time.
pub fn next() -> u32 {
    IDS.next()
}

struct Ids {
    counter: AtomicU32,
    /// Keys SipHash from the system's randomness.
    key: RandomState,
}

/// Four rounds make a Feistel network of pseudorandom functions a pseudorandom permutation (Luby
/// and Rackoff).
const ROUNDS: u8 = 4;

impl Ids {
    fn next(&self) -> u32 {
        self.permuted(self.counter.fetch_add(1, Ordering::Relaxed))
    }

    fn permuted(&self, number: u32) -> u32 {
        let (mut left, mut right) = ((number >> 16) as u16, number as u16);
        for round in 0..ROUNDS {
            let mixed = left ^ self.key.hash_one((round, right)) as u16;
            (left, right) = (right, mixed);
        }
        u32::from(left) << 16 | u32::from(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn ids() -> Ids {
        Ids { counter: AtomicU32::new(0), key: RandomState::new() }
    }

    #[test]
    fn no_id_comes_twice() {
        let ids = ids();
        let seen: HashSet<u32> = (0..300_000).map(|_| ids.next()).collect();
        assert_eq!(seen.len(), 300_000);
    }

    /// From a counter, or one with another start, every step would be the same.
    #[test]
    fn an_id_says_nothing_about_the_next() {
        let ids = ids();
        let drawn: Vec<u32> = (0..1_001).map(|_| ids.next()).collect();
        let steps: HashSet<u32> =
            drawn.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert!(steps.len() > 990, "{} different steps of 1000", steps.len());
    }

    #[test]
    fn each_process_has_ids_of_its_own() {
        let (one, other) = (ids(), ids());
        let same = (0..1_000).filter(|_| one.next() == other.next()).count();
        assert!(same < 3, "{same} of 1000");
    }
}
