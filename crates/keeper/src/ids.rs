//! Ids that are never reused, not even after a crash: a block of ids is durably reserved before the
//! first of them is used.

use crate::change::{Exactness, Snapshot};
use crate::identity::Epoch;

const ID_BLOCK: u64 = 1 << 20;
/// An open store may have lost reservations: ids of such a start begin with its epoch, which no other
/// start has, as far as it fits above this many bits.
const EPOCH_SHIFT: u32 = 32;
const EPOCH_BITS: u32 = 30;

pub(crate) struct IdAllocator {
    next: u64,
    below: u64,
    told: u64,
}

impl IdAllocator {
    /// Continues at the reserved bound, or above the largest id in the snapshot if that is greater.
    pub(crate) fn after(saved: &Snapshot, epoch: Epoch) -> Self {
        let known = [
            saved.clients.last_key_value().map(|(id, _)| id.0),
            saved.locks.last_key_value().map(|(id, _)| id.0),
            saved.shares.last_key_value().map(|(id, _)| id.0),
        ];
        let largest = known.into_iter().flatten().max().unwrap_or(0);
        let below = saved.ids_below;
        let next = below.max(largest.saturating_add(1));
        let next = match saved.exactness {
            Exactness::Open => next.max((epoch.0 % (1 << EPOCH_BITS)) << EPOCH_SHIFT),
            Exactness::Exact | Exactness::Roster => next,
        };
        Self { next, below, told: below }
    }

    pub(crate) fn take(&mut self) -> u64 {
        if self.next >= self.below {
            self.below = self.next + ID_BLOCK;
        }
        self.next += 1;
        self.next - 1
    }

    /// The next id; every id so far is below it.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The new bound, if it grew since the last call.
    pub(crate) fn grown(&mut self) -> Option<u64> {
        let grown = self.below > self.told;
        if grown {
            self.told = self.below;
        }
        grown.then_some(self.below)
    }

    /// The bound last returned by `grown`: what the store has once every step is committed.
    pub(crate) fn told_below(&self) -> u64 {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_not_given_again_after_a_restart() {
        let mut ids = IdAllocator::after(&Snapshot::default(), Epoch(1));
        assert_eq!((ids.take(), ids.take()), (1, 2));
        let below = ids.grown().unwrap();
        assert_eq!(ids.grown(), None);
        let mut after =
            IdAllocator::after(&Snapshot { ids_below: below, ..Snapshot::default() }, Epoch(2));
        assert!(after.take() > 2);
        assert!(after.grown().unwrap() > below);
    }
}
