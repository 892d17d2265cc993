//! Who holds what: the locks of all files, each found by its file, by its owner and by its id.
//! POSIX semantics: an owner has one lock on a byte, a new one replaces the old (R3.1).
//!
//! A file's locks are in order of where they begin, and each subtree knows how far it reaches and
//! whether it is all one owner's; both for all locks and for the exclusive ones alone. Locks of
//! one owner do not overlap, so a search for a conflict meets at most one lock in vain on its way
//! down, however many locks the asker or readers have there.

#[cfg(test)]
mod model;
mod node;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::ops::ControlFlow;

use crate::identity::{Incarnation, LockId};
use crate::range::Range;
use crate::request::Mode;
use crate::tree::{Arena, NIL};

use node::{InFile, InOwner, Node};

/// A file that is locked: a small number, used again after its last lock is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// An owner of locks: a small number, used again after its last lock is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub u32);

/// What two locks of one owner must have in common to be one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub mode: Mode,
    pub incarnation: Incarnation,
    pub monitored: bool,
    pub confirmed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub id: LockId,
    pub file: FileId,
    pub owner: OwnerId,
    pub range: Range,
    pub terms: Terms,
    pub since_ms: u64,
}

/// What operations did to the table. They add to it; who looks at it clears it.
#[derive(Default, Debug)]
pub struct Edit {
    pub gone: Vec<Held>,
    pub new: Vec<Held>,
}

#[cfg(test)]
impl Edit {
    fn clear(&mut self) {
        self.gone.clear();
        self.new.clear();
    }

    fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.new.is_empty()
    }
}

#[derive(Debug)]
pub struct Table {
    arena: Arena<Node>,
    files: Vec<Tree>,
    owners: Vec<Tree>,
    ids: BTreeMap<LockId, u32>,
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

/// A lock that somebody wants.
#[derive(Clone, Copy)]
struct Wish {
    owner: OwnerId,
    range: Range,
    mode: Mode,
}

impl Table {
    /// `seed` makes the shape of the table unknown to peers.
    pub fn new(seed: u64) -> Self {
        let arena = Arena::new(seed);
        Self { arena, files: Vec::new(), owners: Vec::new(), ids: BTreeMap::new() }
    }

    /// The lock that begins first of those of other owners that exclude this one.
    pub fn conflict(&self, file: FileId, owner: OwnerId, range: Range, mode: Mode) -> Option<Held> {
        let mut found = None;
        self.conflicts(file, owner, range, mode, &mut |held| {
            found = Some(*held);
            ControlFlow::Break(())
        });
        found
    }

    /// The locks of other owners that exclude this one, in the order in which they begin.
    pub fn conflicts(
        &self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        mode: Mode,
        visit: &mut dyn FnMut(&Held) -> ControlFlow<()>,
    ) {
        let wish = Wish { owner, range, mode };
        let _all_or_enough = self.search(self.file(file).root, wish, visit);
    }

    /// What this owner has in a range of a file, in order.
    pub fn owned(
        &self,
        owner: OwnerId,
        file: FileId,
        range: Range,
    ) -> impl Iterator<Item = Held> + '_ {
        let from = self.first_owned(owner, file, range.first());
        self.arena
            .walk::<InOwner>(self.owner(owner).root, from)
            .map(|node| node.held)
            .take_while(move |held| held.file == file && held.range.first() <= range.last())
    }

    /// Gives the owner this lock, which must conflict with nobody's. What the owner had there is
    /// replaced; what touches it on equal terms becomes one lock with it, as old as the oldest.
    /// Nothing happens if one lock on these terms covers the range already.
    #[allow(clippy::too_many_arguments)]
    pub fn grant(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        terms: Terms,
        since_ms: u64,
        next_id: &mut dyn FnMut() -> LockId,
        edit: &mut Edit,
    ) {
        let mut new = Held { id: LockId(0), file, owner, range, terms, since_ms };
        let Some(mut slot) = self.first_to_join(&new) else { return };
        let (mut below, mut above) = (None, None);
        while slot != NIL {
            let held = self.arena.node(slot).held;
            if held.file != file || held.range.first() > new.range.last().saturating_add(1) {
                break;
            }
            let next = self.arena.next::<InOwner>(self.owner(owner).root, slot);
            if held.terms == terms {
                new.range = new.range.hull(held.range);
                new.since_ms = new.since_ms.min(held.since_ms);
                self.take(slot, edit);
            } else if held.range.overlaps(range) {
                let (left, right) = held.range.without(range);
                below = below.or(left.map(|range| Held { range, ..held }));
                above = right.map(|range| Held { range, ..held });
                self.take(slot, edit);
            }
            slot = next;
        }
        for held in [below, Some(new), above].into_iter().flatten() {
            self.put(Held { id: next_id(), ..held }, edit);
        }
    }

    /// Takes from the owner what it has in this range.
    pub fn release(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        next_id: &mut dyn FnMut() -> LockId,
        edit: &mut Edit,
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
                self.put(Held { id: next_id(), range, ..held }, edit);
            }
            slot = next;
        }
    }

    /// Puts a lock in as it is. Refused if its id is taken or the owner has something there.
    pub fn insert(&mut self, held: Held) -> bool {
        if self.owned(held.owner, held.file, held.range).next().is_some() {
            return false;
        }
        if self.ids.contains_key(&held.id) {
            return false;
        }
        self.place(held);
        true
    }

    pub fn remove(&mut self, id: LockId) -> Option<Held> {
        let slot = self.ids.remove(&id)?;
        let held = self.arena.node(slot).held;
        let owner = tree_mut(&mut self.owners, held.owner.0);
        owner.root = self.arena.remove::<InOwner>(owner.root, slot);
        owner.len -= 1;
        self.remove_from_file(slot);
        Some(held)
    }

    /// The owner has asked for this recovered lock again.
    pub fn confirm(&mut self, id: LockId) {
        if let Some(&slot) = self.ids.get(&id) {
            self.arena.node_mut(slot).held.terms.confirmed = true;
        }
    }

    pub fn get(&self, id: LockId) -> Option<Held> {
        self.ids.get(&id).map(|&slot| self.arena.node(slot).held)
    }

    /// The locks after this id, in the order of their ids.
    pub fn after(&self, id: LockId) -> impl Iterator<Item = Held> + '_ {
        let ids = self.ids.range((Bound::Excluded(id), Bound::Unbounded));
        ids.map(|(_, &slot)| self.arena.node(slot).held)
    }

    /// The locks on this file, in the order in which they begin.
    pub fn of_file(&self, file: FileId) -> impl Iterator<Item = Held> + '_ {
        self.arena.walk_all::<InFile>(self.file(file).root).map(|node| node.held)
    }

    /// The locks of this owner, file by file in the order in which they begin.
    pub fn of_owner(&self, owner: OwnerId) -> impl Iterator<Item = Held> + '_ {
        self.arena.walk_all::<InOwner>(self.owner(owner).root).map(|node| node.held)
    }

    /// Takes from the owner all locks for which `gone` says so, in order.
    pub fn remove_owned(
        &mut self,
        owner: OwnerId,
        gone: &mut dyn FnMut(&Held) -> bool,
        out: &mut Vec<Held>,
    ) {
        let from = out.len();
        let tree = tree_mut(&mut self.owners, owner.0);
        tree.root = self.arena.retain::<InOwner>(tree.root, &mut |node| {
            let goes = gone(&node.held);
            if goes {
                out.push(node.held);
            }
            !goes
        });
        tree.len -= (out.len() - from) as u32;
        for held in &out[from..] {
            if let Some(slot) = self.ids.remove(&held.id) {
                self.remove_from_file(slot);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn file_len(&self, file: FileId) -> usize {
        self.file(file).len as usize
    }

    pub fn owner_len(&self, owner: OwnerId) -> usize {
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
        wish: Wish,
        visit: &mut dyn FnMut(&Held) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut slot = root;
        while slot != NIL {
            let node = self.arena.node(slot);
            let sum = match wish.mode {
                Mode::Exclusive => node.any,
                Mode::Shared => node.exclusive,
            };
            if !sum.may_hinder(wish.owner, wish.range.first()) {
                break;
            }
            self.search(self.arena.left::<InFile>(slot), wish, visit)?;
            let held = &node.held;
            if held.range.first() > wish.range.last() {
                break;
            }
            if held.owner != wish.owner
                && held.range.overlaps(wish.range)
                && held.terms.mode.conflicts(wish.mode)
            {
                visit(held)?;
            }
            slot = self.arena.right::<InFile>(slot);
        }
        ControlFlow::Continue(())
    }

    /// The first of an owner's locks on a file that ends at `offset` or after it; if there is none,
    /// the first on a later file.
    fn first_owned(&self, owner: OwnerId, file: FileId, offset: u64) -> u32 {
        // An owner's locks do not overlap: in order of their beginnings, they end in order, too.
        let is_before = |node: &Node| (node.held.file, node.held.range.last()) < (file, offset);
        self.arena.find::<InOwner>(self.owner(owner).root, is_before).after
    }

    /// The first of the owner's locks that `new` may touch, also by way of others on equal terms
    /// that touch each other, as restored or confirmed ones may; or `None` if one lock on equal
    /// terms covers `new` as it is.
    fn first_to_join(&self, new: &Held) -> Option<u32> {
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
        if there.is_some_and(|held| held.range.covers(new.range) && held.terms == new.terms) {
            return None;
        }
        while held.terms == new.terms {
            let before = self.arena.previous::<InOwner>(root, slot);
            match held_at(before) {
                Some(previous)
                    if previous.terms == held.terms && previous.range.touches(held.range) =>
                {
                    (slot, held) = (before, previous);
                }
                _ => break,
            }
        }
        Some(slot)
    }

    fn put(&mut self, held: Held, edit: &mut Edit) {
        self.place(held);
        edit.new.push(held);
    }

    fn place(&mut self, held: Held) {
        let slot = self.arena.add(Node::new(held));
        self.ids.insert(held.id, slot);
        let file = tree_mut(&mut self.files, held.file.0);
        file.root = self.arena.insert::<InFile>(file.root, slot);
        file.len += 1;
        let owner = tree_mut(&mut self.owners, held.owner.0);
        owner.root = self.arena.insert::<InOwner>(owner.root, slot);
        owner.len += 1;
    }

    fn take(&mut self, slot: u32, edit: &mut Edit) {
        edit.gone.extend(self.remove(self.arena.node(slot).held.id));
    }

    /// The last of what removes a lock: its slot is free afterwards.
    fn remove_from_file(&mut self, slot: u32) {
        let file = tree_mut(&mut self.files, self.arena.node(slot).held.file.0);
        file.root = self.arena.remove::<InFile>(file.root, slot);
        file.len -= 1;
        self.arena.drop(slot);
    }
}

fn tree_mut(trees: &mut Vec<Tree>, number: u32) -> &mut Tree {
    let index = number as usize;
    if index >= trees.len() {
        trees.resize(index + 1, Tree::EMPTY);
    }
    &mut trees[index]
}

#[cfg(test)]
impl Table {
    /// Panics if the trees are not what they should be.
    pub fn check(&self) {
        let (mut in_files, mut in_owners) = (0, 0);
        for (number, tree) in self.files.iter().enumerate() {
            let file = FileId(number as u32);
            let slots = self.arena.check::<InFile>(tree.root);
            assert!(slots.iter().all(|&slot| self.arena.node(slot).held.file == file));
            assert_eq!(slots.len(), self.file_len(file));
            in_files += slots.len();
        }
        for (number, tree) in self.owners.iter().enumerate() {
            let owner = OwnerId(number as u32);
            let slots = self.arena.check::<InOwner>(tree.root);
            assert!(slots.iter().all(|&slot| self.arena.node(slot).held.owner == owner));
            assert_eq!(slots.len(), self.owner_len(owner));
            in_owners += slots.len();
        }
        assert_eq!((in_files, in_owners), (self.len(), self.len()));
        assert_eq!(self.arena.len(), self.len());
        for (&id, &slot) in &self.ids {
            assert_eq!(self.arena.node(slot).held.id, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(0);
    const ALICE: OwnerId = OwnerId(0);
    const BOB: OwnerId = OwnerId(1);
    const CAROL: OwnerId = OwnerId(2);

    struct Bench {
        table: Table,
        last_id: u64,
        edit: Edit,
    }

    impl Bench {
        fn new() -> Self {
            Self { table: Table::new(1), last_id: 0, edit: Edit::default() }
        }

        fn lock(&mut self, owner: OwnerId, first: u64, last: u64, mode: Mode) {
            self.lock_on(owner, first, last, terms(mode));
        }

        fn lock_on(&mut self, owner: OwnerId, first: u64, last: u64, terms: Terms) {
            let id = &mut self.last_id;
            let mut next_id = || {
                *id += 1;
                LockId(*id)
            };
            let (range, edit) = (range(first, last), &mut self.edit);
            edit.clear();
            self.table.grant(FILE, owner, range, terms, 100 - first, &mut next_id, edit);
            self.table.check();
        }

        fn unlock(&mut self, owner: OwnerId, first: u64, last: u64) {
            let id = &mut self.last_id;
            let mut next_id = || {
                *id += 1;
                LockId(*id)
            };
            self.edit.clear();
            self.table.release(FILE, owner, range(first, last), &mut next_id, &mut self.edit);
            self.table.check();
        }

        /// As (id, first, last), `x` being exclusive.
        fn locks(&self) -> Vec<(u64, u64, u64, char)> {
            self.table.of_file(FILE).map(brief).collect()
        }
    }

    fn brief(held: Held) -> (u64, u64, u64, char) {
        let mode = if held.terms.mode == Mode::Exclusive { 'x' } else { 's' };
        (held.id.0, held.range.first(), held.range.last(), mode)
    }

    fn range(first: u64, last: u64) -> Range {
        Range::between(first, last).unwrap()
    }

    fn terms(mode: Mode) -> Terms {
        Terms { mode, incarnation: Incarnation(3), monitored: true, confirmed: true }
    }

    use Mode::{Exclusive, Shared};

    #[test]
    fn touching_locks_of_one_owner_become_one_as_old_as_the_oldest() {
        let mut bench = Bench::new();
        bench.lock(ALICE, 10, 19, Exclusive);
        bench.lock(ALICE, 0, 9, Exclusive);
        assert_eq!(bench.locks(), [(2, 0, 19, 'x')]);
        assert_eq!(bench.edit.gone.len(), 1);
        assert_eq!(bench.table.get(LockId(2)).unwrap().since_ms, 90);
        bench.lock(ALICE, 40, 49, Exclusive);
        bench.lock(ALICE, 15, 44, Exclusive);
        assert_eq!(bench.locks(), [(4, 0, 49, 'x')]);
    }

    #[test]
    fn a_lock_that_is_held_already_changes_nothing() {
        let mut bench = Bench::new();
        bench.lock(ALICE, 0, 9, Exclusive);
        bench.lock(ALICE, 3, 5, Exclusive);
        assert!(bench.edit.is_empty());
        assert_eq!(bench.locks(), [(1, 0, 9, 'x')]);
    }

    #[test]
    fn another_mode_cuts_what_was_there() {
        let mut bench = Bench::new();
        bench.lock(ALICE, 0, 9, Exclusive);
        bench.lock(ALICE, 3, 5, Shared);
        assert_eq!(bench.locks(), [(2, 0, 2, 'x'), (3, 3, 5, 's'), (4, 6, 9, 'x')]);
        assert!(bench.table.of_file(FILE).all(|held| held.since_ms == 97 || held.since_ms == 100));
        bench.lock(ALICE, 0, u64::MAX, Shared);
        assert_eq!(bench.locks(), [(5, 0, u64::MAX, 's')]);
        assert_eq!(bench.edit.gone.len(), 3);
    }

    #[test]
    fn locks_on_other_terms_stay_apart() {
        let mut bench = Bench::new();
        bench.lock(ALICE, 0, 4, Exclusive);
        bench.lock_on(ALICE, 5, 9, Terms { confirmed: false, ..terms(Exclusive) });
        bench.lock_on(ALICE, 10, 14, Terms { monitored: false, ..terms(Exclusive) });
        bench.lock_on(ALICE, 15, 19, Terms { incarnation: Incarnation(5), ..terms(Exclusive) });
        assert_eq!(bench.table.len(), 4);
        assert!(bench.edit.gone.is_empty());
    }

    #[test]
    fn locks_that_became_equal_are_joined_by_a_lock_that_touches_one_of_them() {
        let mut bench = Bench::new();
        let unconfirmed = Terms { confirmed: false, ..terms(Exclusive) };
        bench.lock_on(ALICE, 0, 4, unconfirmed);
        bench.lock(ALICE, 5, 9, Exclusive);
        bench.table.confirm(LockId(1));
        bench.lock(ALICE, 5, 9, Exclusive);
        assert!(bench.edit.is_empty());
        bench.lock(ALICE, 10, 11, Exclusive);
        assert_eq!(bench.locks(), [(3, 0, 11, 'x')]);
    }

    #[test]
    fn an_unlock_in_the_middle_leaves_both_sides() {
        let mut bench = Bench::new();
        bench.lock(ALICE, 0, u64::MAX, Shared);
        bench.unlock(ALICE, 5, 9);
        assert_eq!(bench.locks(), [(2, 0, 4, 's'), (3, 10, u64::MAX, 's')]);
        bench.unlock(BOB, 0, u64::MAX);
        assert!(bench.edit.is_empty());
        bench.unlock(ALICE, 3, u64::MAX);
        assert_eq!(bench.locks(), [(4, 0, 2, 's')]);
    }

    #[test]
    fn the_first_lock_in_the_way_is_found() {
        let mut bench = Bench::new();
        bench.lock(ALICE, 0, 9, Shared);
        bench.lock(BOB, 5, 14, Shared);
        bench.lock(CAROL, 20, 29, Exclusive);
        let conflict = |owner, first, last, mode| {
            bench.table.conflict(FILE, owner, range(first, last), mode).map(brief)
        };
        assert_eq!(conflict(CAROL, 7, 7, Shared), None);
        assert_eq!(conflict(CAROL, 7, 7, Exclusive), Some((1, 0, 9, 's')));
        assert_eq!(conflict(ALICE, 7, 7, Exclusive), Some((2, 5, 14, 's')));
        assert_eq!(conflict(ALICE, 0, 30, Shared), Some((3, 20, 29, 'x')));
        assert_eq!(conflict(CAROL, 15, 30, Exclusive), None);
        assert_eq!(conflict(BOB, 15, 19, Exclusive), None);
    }

    #[test]
    fn a_restored_lock_is_refused_where_its_owner_has_one() {
        let mut bench = Bench::new();
        bench.lock(ALICE, 0, 9, Exclusive);
        let held = bench.table.get(LockId(1)).unwrap();
        assert!(!bench.table.insert(Held { id: LockId(7), ..held }));
        assert!(!bench.table.insert(Held { range: range(10, 11), ..held }));
        assert!(bench.table.insert(Held { id: LockId(7), range: range(10, 11), ..held }));
        assert_eq!(bench.locks(), [(1, 0, 9, 'x'), (7, 10, 11, 'x')]);
        bench.table.check();
    }
}
