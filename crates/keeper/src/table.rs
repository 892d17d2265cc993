//! The lock table: the locks of all files, each found by file, by owner and by id. POSIX semantics:
//! an owner has at most one lock on a byte, and a new one replaces it (B2.5).
//!
//! A file's locks are ordered by first byte. Each subtree records how far it reaches and whether it
//! belongs to one owner, for all locks and for the exclusive ones alone. Locks of one owner do not
//! overlap, so a search for a conflict visits at most one lock in vain per level, however many
//! locks the requesting owner or readers have.

#[cfg(test)]
mod model;
mod node;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::ops::ControlFlow;

use crate::identity::{Incarnation, LockId};
use crate::interned::{FileId, OwnerId};
use crate::range::Range;
use crate::request::Mode;
use crate::tree::{Arena, NIL, Order as _};

use node::{InFile, InOwner, Node};

/// What two adjacent locks of one owner must have in common to be one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockKind {
    pub mode: Mode,
    pub incarnation: Incarnation,
    pub monitored: bool,
    pub confirmed: bool,
    /// The reboot reports of its host that had arrived before it was taken. Splits keep it, and
    /// locks taken before and after a report never merge.
    pub reports: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldLock {
    pub id: LockId,
    pub file: FileId,
    pub owner: OwnerId,
    pub range: Range,
    pub kind: LockKind,
    pub since_ms: u64,
}

/// The locks that operations removed and added. They append; the caller clears it.
#[derive(Default, Debug)]
pub(crate) struct TableDelta {
    pub gone: Vec<HeldLock>,
    pub new: Vec<HeldLock>,
}

#[cfg(test)]
impl TableDelta {
    fn clear(&mut self) {
        self.gone.clear();
        self.new.clear();
    }

    fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.new.is_empty()
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    arena: Arena<Node>,
    files: Vec<Tree>,
    owners: Vec<Tree>,
    ids: BTreeMap<LockId, u32>,
    /// Locks visited by searches for conflicts, and by readers that page.
    #[cfg(test)]
    pub(crate) looked_at: std::cell::Cell<usize>,
}

/// The locks of one file or of one owner.
#[derive(Clone, Copy, Debug)]
struct Tree {
    root: u32,
    len: u32,
}

impl Tree {
    const EMPTY: Tree = Tree { root: NIL, len: 0 };
}

/// A search for the locks that exclude this one.
#[derive(Clone, Copy)]
struct ConflictQuery {
    owner: OwnerId,
    range: Range,
    mode: Mode,
}

impl Table {
    /// `seed` keeps peers from choosing the shape of the trees.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            arena: Arena::new(seed),
            files: Vec::new(),
            owners: Vec::new(),
            ids: BTreeMap::new(),
            #[cfg(test)]
            looked_at: Default::default(),
        }
    }

    /// The first lock of another owner that excludes this one.
    pub(crate) fn conflict(
        &self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        mode: Mode,
    ) -> Option<HeldLock> {
        let mut found = None;
        self.conflicts(file, owner, range, mode, &mut |held| {
            found = Some(*held);
            ControlFlow::Break(())
        });
        found
    }

    /// Visits the locks of other owners that exclude this one, in order of first byte.
    pub(crate) fn conflicts(
        &self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        mode: Mode,
        visit: &mut dyn FnMut(&HeldLock) -> ControlFlow<()>,
    ) {
        let query = ConflictQuery { owner, range, mode };
        let _all_or_enough = self.search(self.file(file).root, query, visit);
    }

    /// The owner's locks that overlap a range of a file, in order.
    pub(crate) fn owned(
        &self,
        owner: OwnerId,
        file: FileId,
        range: Range,
    ) -> impl Iterator<Item = HeldLock> + '_ {
        let from = self.first_owned(owner, file, range.first());
        self.arena
            .walk::<InOwner>(self.owner(owner).root, from)
            .map(|node| node.held)
            .take_while(move |held| held.file == file && held.range.first() <= range.last())
    }

    /// Gives the owner a lock, which must conflict with no other owner's. It replaces the owner's
    /// locks in the range; adjacent locks of the same kind merge with it and keep the earliest
    /// `since_ms`. Does nothing if one lock of this kind covers the range already.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn grant(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        kind: LockKind,
        since_ms: u64,
        next_id: &mut dyn FnMut() -> LockId,
        edit: &mut TableDelta,
    ) {
        let mut new = HeldLock { id: LockId(0), file, owner, range, kind, since_ms };
        let Some(mut slot) = self.first_to_join(&new) else { return };
        let (mut below, mut above) = (None, None);
        while slot != NIL {
            let held = self.arena.node(slot).held;
            if held.file != file || held.range.first() > new.range.last().saturating_add(1) {
                break;
            }
            let next = self.arena.next::<InOwner>(self.owner(owner).root, slot);
            if held.kind == kind {
                new.range = new.range.hull(held.range);
                new.since_ms = new.since_ms.min(held.since_ms);
                self.take(slot, edit);
            } else if held.range.overlaps(range) {
                let (left, right) = held.range.without(range);
                below = below.or(left.map(|range| HeldLock { range, ..held }));
                above = right.map(|range| HeldLock { range, ..held });
                self.take(slot, edit);
            }
            slot = next;
        }
        for held in [below, Some(new), above].into_iter().flatten() {
            self.put(HeldLock { id: next_id(), ..held }, edit);
        }
    }

    /// Removes what the owner holds in a range.
    pub(crate) fn release(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        next_id: &mut dyn FnMut() -> LockId,
        edit: &mut TableDelta,
    ) {
        let mut slot = self.first_owned(owner, file, range.first());
        while slot != NIL {
            let held = self.arena.node(slot).held;
            if held.file != file || held.range.first() > range.last() {
                break;
            }
            let next = match held.range.last() < range.last() {
                true => self.arena.next::<InOwner>(self.owner(owner).root, slot),
                false => NIL,
            };
            let (below, above) = held.range.without(range);
            self.take(slot, edit);
            for range in [below, above].into_iter().flatten() {
                self.put(HeldLock { id: next_id(), range, ..held }, edit);
            }
            slot = next;
        }
    }

    /// Inserts a lock as it is. False if its id is taken or the owner already has a lock in the
    /// range.
    pub(crate) fn insert(&mut self, held: HeldLock) -> bool {
        if self.owned(held.owner, held.file, held.range).next().is_some() {
            return false;
        }
        if self.ids.contains_key(&held.id) {
            return false;
        }
        self.link(held);
        true
    }

    pub(crate) fn remove(&mut self, id: LockId) -> Option<HeldLock> {
        let slot = self.ids.remove(&id)?;
        let held = self.arena.node(slot).held;
        let owner = tree_mut(&mut self.owners, held.owner.0);
        owner.root = self.arena.remove::<InOwner>(owner.root, slot);
        owner.len -= 1;
        let file = tree_mut(&mut self.files, held.file.0);
        file.root = self.arena.remove::<InFile>(file.root, slot);
        file.len -= 1;
        self.arena.drop(slot);
        Some(held)
    }

    /// Marks a recovered lock as reclaimed.
    pub(crate) fn confirm(&mut self, id: LockId) {
        if let Some(&slot) = self.ids.get(&id) {
            self.arena.node_mut(slot).held.kind.confirmed = true;
        }
    }

    /// Records the state of the kernel that took a lock.
    pub(crate) fn set_incarnation(&mut self, id: LockId, incarnation: Incarnation) {
        if let Some(&slot) = self.ids.get(&id) {
            self.arena.node_mut(slot).held.kind.incarnation = incarnation;
        }
    }

    pub(crate) fn get(&self, id: LockId) -> Option<HeldLock> {
        self.ids.get(&id).map(|&slot| self.arena.node(slot).held)
    }

    /// Locks with a greater id, in order of id.
    pub(crate) fn after(&self, id: LockId) -> impl Iterator<Item = HeldLock> + '_ {
        let ids = self.ids.range((Bound::Excluded(id), Bound::Unbounded));
        ids.map(|(_, &slot)| self.arena.node(slot).held)
    }

    /// The locks on a file, in order of first byte.
    pub(crate) fn of_file(&self, file: FileId) -> impl Iterator<Item = HeldLock> + '_ {
        self.arena.walk_all::<InFile>(self.file(file).root).map(|node| node.held)
    }

    /// The locks on a file after the one of this first byte and owner, in that order.
    pub(crate) fn of_file_after(
        &self,
        file: FileId,
        after: Option<(u64, OwnerId)>,
    ) -> impl Iterator<Item = HeldLock> + '_ {
        let root = self.file(file).root;
        let given = |node: &Node| after.is_some_and(|after| InFile::key(node) <= InFile::at(after));
        let from = self.arena.find::<InFile>(root, given).after;
        self.arena.walk::<InFile>(root, from).map(|node| {
            #[cfg(test)]
            self.looked_at.set(self.looked_at.get() + 1);
            node.held
        })
    }

    /// The owner's locks after the one at `offset` of this file, by file and first byte; all without
    /// an offset.
    pub(crate) fn of_owner_after(
        &self,
        owner: OwnerId,
        file: FileId,
        offset: Option<u64>,
    ) -> impl Iterator<Item = HeldLock> + '_ {
        let root = self.owner(owner).root;
        let given = |node: &Node| {
            offset.is_some_and(|offset| InOwner::key(node) <= InOwner::at(file, offset))
        };
        let from = self.arena.find::<InOwner>(root, given).after;
        self.arena.walk::<InOwner>(root, from).map(|node| {
            #[cfg(test)]
            self.looked_at.set(self.looked_at.get() + 1);
            node.held
        })
    }

    /// The owner's locks, by file and first byte.
    pub(crate) fn of_owner(&self, owner: OwnerId) -> impl Iterator<Item = HeldLock> + '_ {
        self.arena.walk_all::<InOwner>(self.owner(owner).root).map(|node| node.held)
    }

    /// Removes the locks of these owners that `gone` selects, and appends them to `out` by file and
    /// first byte. Much faster than owner by owner when there are many.
    pub(crate) fn remove_all_owned(
        &mut self,
        owners: &[OwnerId],
        gone: &mut dyn FnMut(&HeldLock) -> bool,
        out: &mut Vec<HeldLock>,
    ) {
        let start = out.len();
        for owner in owners {
            let Some(tree) = self.owners.get_mut(owner.0 as usize) else { continue };
            let before = out.len();
            tree.root = self.arena.retain::<InOwner>(tree.root, &mut |node| {
                let goes = gone(&node.held);
                if goes {
                    out.push(node.held);
                }
                !goes
            });
            tree.len -= (out.len() - before) as u32;
        }
        let lost = &mut out[start..];
        if owners.len() > 1 {
            lost.sort_unstable_by_key(|held| (held.file, held.range.first(), held.owner));
        }
        for lost in lost.chunk_by(|one, next| one.file == next.file) {
            self.remove_from_file(lost);
        }
        // In order of id, which is many times faster on the id map.
        let mut ids: Vec<LockId> = lost.iter().map(|held| held.id).collect();
        ids.sort_unstable();
        for slot in ids.iter().filter_map(|id| self.ids.remove(id)) {
            self.arena.drop(slot);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn file_len(&self, file: FileId) -> usize {
        self.file(file).len as usize
    }

    pub(crate) fn owner_len(&self, owner: OwnerId) -> usize {
        self.owner(owner).len as usize
    }

    fn file(&self, file: FileId) -> Tree {
        self.files.get(file.0 as usize).copied().unwrap_or(Tree::EMPTY)
    }

    fn owner(&self, owner: OwnerId) -> Tree {
        self.owners.get(owner.0 as usize).copied().unwrap_or(Tree::EMPTY)
    }

    fn search(
        &self,
        root: u32,
        query: ConflictQuery,
        visit: &mut dyn FnMut(&HeldLock) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut slot = root;
        while slot != NIL {
            #[cfg(test)]
            self.looked_at.set(self.looked_at.get() + 1);
            let node = self.arena.node(slot);
            let sum = match query.mode {
                Mode::Exclusive => node.any,
                Mode::Shared => node.exclusive,
            };
            if !sum.may_conflict(query.owner, query.range.first()) {
                break;
            }
            self.search(self.arena.left::<InFile>(slot), query, visit)?;
            let held = &node.held;
            if held.range.first() > query.range.last() {
                break;
            }
            if held.owner != query.owner
                && held.range.overlaps(query.range)
                && held.kind.mode.conflicts(query.mode)
            {
                visit(held)?;
            }
            slot = self.arena.right::<InFile>(slot);
        }
        ControlFlow::Continue(())
    }

    /// The first of an owner's locks on a file that ends at or after `offset`; if there is none,
    /// the first on a later file.
    fn first_owned(&self, owner: OwnerId, file: FileId, offset: u64) -> u32 {
        // An owner's locks do not overlap, so they are in order of their ends, too.
        let ends_before = |node: &Node| {
            InOwner::at(node.held.file, node.held.range.last()) < InOwner::at(file, offset)
        };
        self.arena.find::<InOwner>(self.owner(owner).root, ends_before).after
    }

    /// The first of the owner's locks that `new` merges with or replaces, including a chain of
    /// adjacent locks of the same kind, as recovery leaves them; `None` if one lock of the same
    /// kind covers `new`.
    fn first_to_join(&self, new: &HeldLock) -> Option<u32> {
        let root = self.owner(new.owner).root;
        let held_at = |slot: u32| {
            let held = (slot != NIL).then(|| &self.arena.node(slot).held)?;
            (held.file == new.file).then_some(held)
        };
        let offset = new.range.first().saturating_sub(1);
        let mut slot = self.first_owned(new.owner, new.file, offset);
        let Some(mut held) = held_at(slot).filter(|held| held.range.touches(new.range)) else {
            return Some(NIL);
        };
        let there = held_at(self.first_owned(new.owner, new.file, new.range.first()));
        if there.is_some_and(|held| held.range.covers(new.range) && held.kind == new.kind) {
            return None;
        }
        while held.kind == new.kind {
            let before = self.arena.previous::<InOwner>(root, slot);
            match held_at(before) {
                Some(previous)
                    if previous.kind == held.kind && previous.range.touches(held.range) =>
                {
                    (slot, held) = (before, previous);
                }
                _ => break,
            }
        }
        Some(slot)
    }

    fn put(&mut self, held: HeldLock, edit: &mut TableDelta) {
        self.link(held);
        edit.new.push(held);
    }

    fn link(&mut self, held: HeldLock) {
        let slot = self.arena.add(Node::new(held));
        self.ids.insert(held.id, slot);
        let file = tree_mut(&mut self.files, held.file.0);
        file.root = self.arena.insert::<InFile>(file.root, slot);
        file.len += 1;
        let owner = tree_mut(&mut self.owners, held.owner.0);
        owner.root = self.arena.insert::<InOwner>(owner.root, slot);
        owner.len += 1;
    }

    fn take(&mut self, slot: u32, edit: &mut TableDelta) {
        edit.gone.extend(self.remove(self.arena.node(slot).held.id));
    }

    /// Removes locks of one file, given in its order, from its tree.
    fn remove_from_file(&mut self, lost: &[HeldLock]) {
        let Some(file) = lost.first().map(|held| held.file) else { return };
        let tree = tree_mut(&mut self.files, file.0);
        if lost.len() * 8 < tree.len as usize {
            for slot in lost.iter().filter_map(|held| self.ids.get(&held.id)) {
                tree.root = self.arena.remove::<InFile>(tree.root, *slot);
            }
        } else {
            let mut lost = lost.iter().peekable();
            tree.root = self.arena.retain::<InFile>(tree.root, &mut |node| {
                lost.next_if(|held| held.id == node.held.id).is_none()
            });
        }
        tree.len -= lost.len() as u32;
    }
}

fn tree_mut(trees: &mut Vec<Tree>, number: u32) -> &mut Tree {
    let index = number as usize;
    if index >= trees.len() {
        trees.resize(index + 1, Tree::EMPTY);
    }
    &mut trees[index]
}
