//! Numbers that are never given twice, not even after a crash: a block of them is marked as used,
//! durably, before the first of it is given.

use crate::change::Snapshot;

const BLOCK: u64 = 1 << 20;

pub struct Ids {
    next: u64,
    below: u64,
    told: u64,
}

impl Ids {
    /// None below what the store says will be given again, nor any that it still knows.
    pub fn after(saved: &Snapshot) -> Self {
        let known = [
            saved.clients.last_key_value().map(|(id, _)| id.0),
            saved.locks.last_key_value().map(|(id, _)| id.0),
            saved.shares.last_key_value().map(|(id, _)| id.0),
        ];
        let largest = known.into_iter().flatten().max().unwrap_or(0);
        let below = saved.ids_below;
        Self { next: below.max(largest.saturating_add(1)), below, told: below }
    }

    pub fn take(&mut self) -> u64 {
        if self.next >= self.below {
            self.below = self.next + BLOCK;
        }
        self.next += 1;
        self.next - 1
    }

    /// The id that would be given next: everything taken so far is below.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The new bound, if it grew since the last call.
    pub fn grown(&mut self) -> Option<u64> {
        let grown = self.below > self.told;
        if grown {
            self.told = self.below;
        }
        grown.then_some(self.below)
    }

    /// The bound as the store will know it.
    pub fn told_below(&self) -> u64 {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_not_given_again_after_a_restart() {
        let mut ids = Ids::after(&Snapshot::default());
        assert_eq!((ids.take(), ids.take()), (1, 2));
        let below = ids.grown().unwrap();
        assert_eq!(ids.grown(), None);
        let mut after = Ids::after(&Snapshot { ids_below: below, ..Snapshot::default() });
        assert!(after.take() > 2);
        assert!(after.grown().unwrap() > below);
    }
}
