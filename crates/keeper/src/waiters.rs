//! Waiters. A request that is repeated keeps its one entry and its place in the file's queue.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use crate::bytes::Handle;
use crate::identity::Incarnation;
use crate::interned::{FileId, OwnerId};
use crate::range::Range;
use crate::request::{Form, Mode};

/// From the same counter as lock ids, so that ids tell the order of locks and waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(pub u64);

#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub file: FileId,
    pub owner: OwnerId,
    pub range: Range,
    pub mode: Mode,
    pub incarnation: Incarnation,
    pub monitored: bool,
    /// As in `LockKind`, when it last asked.
    pub reports: u32,
    pub handle: Handle,
    pub form: Form,
    pub since_ms: u64,
    /// The same on the monotonic clock (I13).
    pub since: Duration,
    /// It keeps its place, but its turn goes to the waiters after it.
    pub passed_over: bool,
}

/// A lock that an owner wants, and its waiter if it is queued already.
#[derive(Clone, Copy)]
pub(crate) struct WantedLock {
    pub owner: OwnerId,
    pub file: FileId,
    pub range: Range,
    pub mode: Mode,
    pub waiter: Option<WaiterId>,
}

impl Waiter {
    pub(crate) fn wanted(&self, id: WaiterId) -> WantedLock {
        let Waiter { owner, file, range, mode, .. } = *self;
        WantedLock { owner, file, range, mode, waiter: Some(id) }
    }
}

#[derive(Default)]
pub(crate) struct Waiters {
    rows: BTreeMap<WaiterId, Waiter>,
    by_owner: BTreeSet<(OwnerId, FileId, WaiterId)>,
}

impl Waiters {
    pub(crate) fn insert(&mut self, id: WaiterId, waiter: Waiter) {
        self.by_owner.insert((waiter.owner, waiter.file, id));
        self.rows.insert(id, waiter);
    }

    pub(crate) fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.rows.remove(&id)?;
        self.by_owner.remove(&(waiter.owner, waiter.file, id));
        Some(waiter)
    }

    pub(crate) fn get(&self, id: WaiterId) -> Option<&Waiter> {
        self.rows.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: WaiterId) -> Option<&mut Waiter> {
        self.rows.get_mut(&id)
    }

    pub(crate) fn wanted_by(&self, id: WaiterId) -> Option<WantedLock> {
        self.get(id).map(|waiter| waiter.wanted(id))
    }

    pub(crate) fn of_owner(&self, owner: OwnerId) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        self.between((owner, FileId(0)), (owner, FileId(u32::MAX)))
    }

    /// The owner's waiters after this one, by file and arrival; all without one.
    pub(crate) fn of_owner_after(
        &self,
        owner: OwnerId,
        after: Option<(FileId, WaiterId)>,
    ) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let first = match after {
            Some((file, id)) => Bound::Excluded((owner, file, id)),
            None => Bound::Included((owner, FileId(0), WaiterId(0))),
        };
        let last = Bound::Included((owner, FileId(u32::MAX), WaiterId(u64::MAX)));
        let ids = self.by_owner.range((first, last));
        ids.filter_map(|&(_, _, id)| Some((id, self.rows.get(&id)?)))
    }

    pub(crate) fn of_owner_on(
        &self,
        owner: OwnerId,
        file: FileId,
    ) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        self.between((owner, file), (owner, file))
    }

    fn between(
        &self,
        first: (OwnerId, FileId),
        last: (OwnerId, FileId),
    ) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let first = (first.0, first.1, WaiterId(0));
        let last = (last.0, last.1, WaiterId(u64::MAX));
        self.by_owner.range(first..=last).filter_map(|&(_, _, id)| Some((id, self.rows.get(&id)?)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        self.rows.iter().map(|(id, waiter)| (*id, waiter))
    }

    pub(crate) fn after(&self, id: WaiterId) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let after = self.rows.range((Bound::Excluded(id), Bound::Unbounded));
        after.map(|(id, waiter)| (*id, waiter))
    }

    /// The one that has waited longest.
    pub(crate) fn oldest(&self) -> Option<&Waiter> {
        self.rows.first_key_value().map(|(_, waiter)| waiter)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}
