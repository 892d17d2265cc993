//! Transaction ids, by which a reply is matched to its call (RFC 5531, section 9).
//!
//! A counter under a keyed permutation. A host that sees the ids of some calls cannot predict those
//! of others, so it cannot forge replies of another host; and no id repeats within 2^32 calls, so
//! neither a table of pending calls nor a server's duplicate request cache confuses two calls. All
//! connections of the process share the counter, because such a cache may identify clients by
//! address only.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

static IDS: LazyLock<Ids> =
    LazyLock::new(|| Ids { counter: AtomicU32::new(0), key: RandomState::new() });

/// An id that none of the last 2^32 - 1 calls of this process had.
pub fn next() -> u32 {
    IDS.next()
}

struct Ids {
    counter: AtomicU32,
    /// SipHash with a key from the system's random source.
    key: RandomState,
}

/// A Feistel network of four rounds of a pseudorandom function is a pseudorandom permutation (Luby
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
