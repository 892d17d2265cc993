//! Who waits for what. A waiter has one entry however often it asks, and its place in its file's
//! queue from the first time on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use crate::bytes::Handle;
use crate::identity::Incarnation;
use crate::range::Range;
use crate::request::{Form, Mode};
use crate::table::{FileId, OwnerId, Table};

/// Taken from the same counter as lock ids, so it also says what came before what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

#[derive(Clone, Debug)]
pub struct Waiter {
    pub file: FileId,
    pub owner: OwnerId,
    pub range: Range,
    pub mode: Mode,
    pub incarnation: Incarnation,
    pub monitored: bool,
    pub handle: Handle,
    pub form: Form,
    pub since_ms: u64,
    /// The same by a clock that nobody can set (I13).
    pub since: Duration,
    /// When it last showed that it still wants the lock.
    pub polled: Duration,
    /// It does not answer: it keeps its place and is in nobody's way.
    pub passed_over: bool,
}

/// Somebody who wants a lock; `place` is its entry in the queue, if it has one.
#[derive(Clone, Copy)]
pub struct Wish {
    pub owner: OwnerId,
    pub file: FileId,
    pub range: Range,
    pub mode: Mode,
    pub place: Option<WaiterId>,
}

impl Waiter {
    /// Whether this earlier waiter must be served before the wish. Not one that waits for what the
    /// asker itself holds: it could not be served first, and both would wait for ever.
    pub fn is_in_the_way_of(&self, wish: Wish, table: &Table) -> bool {
        !self.passed_over
            && self.owner != wish.owner
            && self.mode.conflicts(wish.mode)
            && self.range.overlaps(wish.range)
            && !table
                .owned(wish.owner, self.file, self.range)
                .any(|held| held.terms.mode.conflicts(self.mode))
    }
}

#[derive(Default)]
pub struct Waiters {
    rows: BTreeMap<WaiterId, Waiter>,
    by_owner: BTreeSet<(OwnerId, FileId, WaiterId)>,
}

impl Waiters {
    pub fn insert(&mut self, id: WaiterId, waiter: Waiter) {
        self.by_owner.insert((waiter.owner, waiter.file, id));
        self.rows.insert(id, waiter);
    }

    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.rows.remove(&id)?;
        self.by_owner.remove(&(waiter.owner, waiter.file, id));
        Some(waiter)
    }

    pub fn get(&self, id: WaiterId) -> Option<&Waiter> {
        self.rows.get(&id)
    }

    pub fn get_mut(&mut self, id: WaiterId) -> Option<&mut Waiter> {
        self.rows.get_mut(&id)
    }

    pub fn wish(&self, id: WaiterId) -> Option<Wish> {
        let Waiter { owner, file, range, mode, .. } = *self.get(id)?;
        Some(Wish { owner, file, range, mode, place: Some(id) })
    }

    pub fn of_owner(&self, owner: OwnerId) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        self.between((owner, FileId(0)), (owner, FileId(u32::MAX)))
    }

    pub fn of_owner_on(
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

    pub fn iter(&self) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        self.rows.iter().map(|(id, waiter)| (*id, waiter))
    }

    pub fn after(&self, id: WaiterId) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let after = self.rows.range((Bound::Excluded(id), Bound::Unbounded));
        after.map(|(id, waiter)| (*id, waiter))
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}
