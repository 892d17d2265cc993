//! Owners by small numbers, so that a lock need not carry its owner's name.

use std::sync::Arc;

use crate::identity::{ClientId, Owner};
use crate::map::{Map, Seed};
use crate::table::OwnerId;

pub struct Owners {
    numbers: Map<Arc<Owner>, OwnerId>,
    rows: Vec<Option<Row>>,
    free: Vec<OwnerId>,
}

struct Row {
    owner: Arc<Owner>,
    /// Waiters and shares that need this number; locks are counted by the table.
    uses: u32,
}

impl Owners {
    pub fn new(seed: Seed) -> Self {
        Self { numbers: seed.map(), rows: Vec::new(), free: Vec::new() }
    }

    pub fn find(&self, owner: &Owner) -> Option<OwnerId> {
        self.numbers.get(owner).copied()
    }

    pub fn intern(&mut self, owner: &Owner) -> OwnerId {
        if let Some(id) = self.find(owner) {
            return id;
        }
        let owner = Arc::new(owner.clone());
        let row = Some(Row { owner: owner.clone(), uses: 0 });
        let id = match self.free.pop() {
            Some(id) => {
                self.rows[id.0 as usize] = row;
                id
            }
            None => {
                self.rows.push(row);
                OwnerId(self.rows.len() as u32 - 1)
            }
        };
        self.numbers.insert(owner, id);
        id
    }

    fn row(&self, id: OwnerId) -> &Row {
        match self.rows.get(id.0 as usize) {
            Some(Some(row)) => row,
            _ => unreachable!("an owner in use has a row"),
        }
    }

    pub fn owner(&self, id: OwnerId) -> &Arc<Owner> {
        &self.row(id).owner
    }

    pub fn host(&self, id: OwnerId) -> ClientId {
        self.row(id).owner.host
    }

    /// The host of a number that may be out of use by now.
    pub fn find_host(&self, id: OwnerId) -> Option<ClientId> {
        let row = self.rows.get(id.0 as usize)?.as_ref()?;
        Some(row.owner.host)
    }

    pub fn add_use(&mut self, id: OwnerId) {
        if let Some(Some(row)) = self.rows.get_mut(id.0 as usize) {
            row.uses += 1;
        }
    }

    pub fn end_use(&mut self, id: OwnerId) {
        if let Some(Some(row)) = self.rows.get_mut(id.0 as usize) {
            row.uses -= 1;
        }
    }

    /// Forgets an owner without locks that nothing else needs; says whether it did.
    pub fn forget_unused(&mut self, id: OwnerId) -> bool {
        match self.rows.get_mut(id.0 as usize) {
            Some(slot @ Some(Row { uses: 0, .. })) => {
                if let Some(row) = slot.take() {
                    self.numbers.remove(&row.owner);
                    self.free.push(id);
                }
                true
            }
            _ => false,
        }
    }
}
