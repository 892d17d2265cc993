//! Numbers that are never given twice, not even after a crash: a block of them is marked as used,
//! durably, before the first of it is given.

use crate::planted::{self, Bug};

const BLOCK: u64 = 1 << 20;

pub struct Ids {
    next: u64,
    below: u64,
    told: u64,
}

impl Ids {
    /// `below` is what the store says: none below it will be given again.
    pub fn from(below: u64) -> Self {
        Self { next: below.max(1), below, told: below }
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
        let grown = self.below > self.told && !planted::has(Bug::IdsReused);
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
        let mut ids = Ids::from(0);
        assert_eq!((ids.take(), ids.take()), (1, 2));
        let below = ids.grown().unwrap();
        assert_eq!(ids.grown(), None);
        let mut after = Ids::from(below);
        assert!(after.take() > 2);
        assert!(after.grown().unwrap() > below);
    }
}
