//! What an inexact store remembers of locks: shown while grace lasts, in nobody's way, and gone
//! with the end of grace (R4.5).

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::bytes::FileKey;
use crate::change::{Lock, Share};
use crate::identity::{ClientId, LockId, Owner, ShareId};
use crate::range::Range;

#[derive(Default)]
pub struct Remembered {
    pub locks: BTreeMap<LockId, Lock>,
    pub shares: BTreeMap<ShareId, Share>,
    by_file: BTreeMap<FileKey, Vec<LockId>>,
}

impl Remembered {
    pub fn insert(&mut self, lock: Lock) {
        self.by_file.entry(lock.file.clone()).or_default().push(lock.id);
        self.locks.insert(lock.id, lock);
    }

    pub fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.shares.is_empty()
    }

    pub fn after(&self, id: LockId) -> impl Iterator<Item = &Lock> {
        self.locks.range((Bound::Excluded(id), Bound::Unbounded)).map(|(_, lock)| lock)
    }

    pub fn on(&self, file: &FileKey) -> impl Iterator<Item = &Lock> {
        let ids = self.by_file.get(file).into_iter().flatten();
        ids.filter_map(|id| self.locks.get(id))
    }

    /// Takes out the records of an owner that lie within a range which it gave up or took anew.
    pub fn take_covered(&mut self, owner: &Owner, file: &FileKey, range: Range) -> Vec<LockId> {
        let Some(on_file) = self.by_file.get_mut(file) else { return Vec::new() };
        let locks = &mut self.locks;
        let mut taken = Vec::new();
        on_file.retain(|id| {
            let covered =
                locks.get(id).is_some_and(|lock| *lock.owner == *owner && range.covers(lock.range));
            if covered {
                locks.remove(id);
                taken.push(*id);
            }
            !covered
        });
        taken
    }

    pub fn take_share(&mut self, owner: &Owner, file: &FileKey) -> Option<ShareId> {
        let found =
            self.shares.values().find(|share| *share.owner == *owner && share.file == *file);
        let id = found?.id;
        self.shares.remove(&id);
        Some(id)
    }

    /// Takes out everything of a host.
    pub fn take_host(&mut self, host: ClientId) -> (Vec<LockId>, Vec<ShareId>) {
        let of_host = |lock: &&Lock| lock.owner.host == host;
        let locks: Vec<LockId> = self.locks.values().filter(of_host).map(|lock| lock.id).collect();
        for id in &locks {
            self.locks.remove(id);
        }
        let shares = self.shares.values().filter(|share| share.owner.host == host);
        let shares: Vec<ShareId> = shares.map(|share| share.id).collect();
        for id in &shares {
            self.shares.remove(id);
        }
        (locks, shares)
    }
}
