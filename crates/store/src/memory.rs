//! The store for trials and tests: conforms like the others while the process lives, and ends with it.

use keeper::change::{Change, Snapshot};

use crate::error::StoreError;
use crate::store::{CommitOutcome, Store, Token, cleared, may_clear};

/// A store in memory. It keeps nothing across a restart; every commit succeeds.
#[derive(Debug, Default)]
pub struct Memory {
    saved: Snapshot,
    token: Token,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Store for Memory {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        Ok(self.saved.clone())
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        for change in changes {
            self.saved.apply(change.clone());
        }
        self.token = token;
        CommitOutcome::Done
    }

    fn is_quick(&self, _: &[Change]) -> bool {
        true
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        Ok(self.token)
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        may_clear(&self.saved, force)?;
        self.saved = cleared(&self.saved);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, KILL, NOT_WRITTEN, ONE_WRITER, POWER_LOSS, TestBed, UNKNOWN};

    struct MemoryBed;

    impl TestBed for MemoryBed {
        type Store = Memory;
        const OUTLIVES_PROCESS: bool = false;

        fn fresh(&mut self) -> Memory {
            Memory::new()
        }

        fn reopen_after_kill(&mut self, store: Memory) -> Memory {
            store
        }
    }

    #[test]
    fn the_memory_store_conforms() {
        let unchecked = conformance::check(&mut MemoryBed).unwrap();
        assert_eq!(unchecked.0, [NOT_WRITTEN, UNKNOWN, KILL, POWER_LOSS, ONE_WRITER]);
    }
}
