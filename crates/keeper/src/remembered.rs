//! The locks and shares of an inexact store: shown during grace, in conflict with nothing, and
//! dropped when grace ends (B4.14).

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::bytes::FileKey;
use crate::change::{Change, Lock, Share};
use crate::identity::{ClientId, LockId, Owner, OwnerNamespace, ShareId};
use crate::range::Range;

#[derive(Default)]
pub(crate) struct RosterRecords {
    pub locks: BTreeMap<LockId, Lock>,
    pub shares: BTreeMap<ShareId, Share>,
    by_file: BTreeMap<FileKey, Vec<LockId>>,
}

impl RosterRecords {
    pub(crate) fn insert(&mut self, lock: Lock) {
        self.by_file.entry(lock.file.clone()).or_default().push(lock.id);
        self.locks.insert(lock.id, lock);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.shares.is_empty()
    }

    pub(crate) fn after(&self, id: LockId) -> impl Iterator<Item = &Lock> {
        self.locks.range((Bound::Excluded(id), Bound::Unbounded)).map(|(_, lock)| lock)
    }

    pub(crate) fn on(&self, file: &FileKey) -> impl Iterator<Item = &Lock> {
        let ids = self.by_file.get(file).into_iter().flatten();
        ids.filter_map(|id| self.locks.get(id))
    }

    /// Those on a file with ids above `after`.
    pub(crate) fn on_after<'a>(
        &'a self,
        file: &FileKey,
        after: LockId,
    ) -> impl Iterator<Item = &'a Lock> + use<'a> {
        // In order of id, as a store is loaded.
        let ids = self.by_file.get(file).map_or(&[][..], Vec::as_slice);
        let ids = &ids[ids.partition_point(|id| *id <= after)..];
        ids.iter().filter_map(|id| self.locks.get(id))
    }

    /// Removes an owner's records inside a range that it unlocked or locked anew.
    pub(crate) fn take_covered(
        &mut self,
        owner: &Owner,
        file: &FileKey,
        range: Range,
    ) -> Vec<LockId> {
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

    pub(crate) fn take_share(&mut self, owner: &Owner, file: &FileKey) -> Option<ShareId> {
        let found =
            self.shares.values().find(|share| *share.owner == *owner && share.file == *file);
        let id = found?.id;
        self.shares.remove(&id);
        Some(id)
    }

    pub(crate) fn owners(&self) -> impl Iterator<Item = &Owner> {
        let locks = self.locks.values().map(|lock| &*lock.owner);
        locks.chain(self.shares.values().map(|share| &*share.owner))
    }

    /// Moves the records of a host to another namespace; returns the changes.
    pub(crate) fn move_namespace(
        &mut self,
        host: ClientId,
        from: OwnerNamespace,
        to: OwnerNamespace,
    ) -> Vec<Change> {
        let concerned = |owner: &Owner| owner.host == host && owner.namespace == from;
        let locks = self.locks.values_mut().filter(|lock| concerned(&lock.owner));
        let locks = locks.map(|lock| {
            lock.owner = lock.owner.within(to).into();
            Change::Lock(lock.clone())
        });
        let shares = self.shares.values_mut().filter(|share| concerned(&share.owner));
        let shares = shares.map(|share| {
            share.owner = share.owner.within(to).into();
            Change::Share(share.clone())
        });
        locks.chain(shares).collect()
    }

    /// Removes all records of a host.
    pub(crate) fn take_host(&mut self, host: ClientId) -> (Vec<LockId>, Vec<ShareId>) {
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
