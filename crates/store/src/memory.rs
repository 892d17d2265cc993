//! The store for trials and tests: as correct as the others while the process lives, and gone with
//! it.

use keeper::change::{Change, Snapshot};

use crate::error::StoreError;
use crate::store::{Committed, Store, Token, cleared, may_clear};

#[derive(Debug, Default)]
pub struct Memory {
    saved: Snapshot,
    token: Token,
}

impl Memory {
    pub fn new() -> Self {
        Self::default()
    }
}

impl Store for Memory {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        Ok(self.saved.clone())
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> Committed {
        for change in changes {
            self.saved.apply(change.clone());
        }
        self.token = token;
        Committed::Done
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
    use crate::conformance;

    #[test]
    fn the_memory_store_conforms() {
        conformance::check(Memory::new, |store| store).unwrap();
    }
}
