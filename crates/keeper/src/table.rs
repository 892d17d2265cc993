//! Who holds what: the locks of all files, each found by its file, by its owner and by its id.
//! POSIX semantics: an owner has one lock on a byte, a new one replaces the old (R3.2).
//!
//! A file's locks are in order of where they begin, and each subtree knows how far it reaches and
//! whether it is all one owner's; both for all locks and for the exclusive ones alone. Locks of
//! one owner do not overlap, so a search for a conflict meets at most one lock in vain on its way
//! down, however many locks the asker or readers have there.

#[cfg(test)]
mod model;
mod node;
#[cfg(test)]
mod tests;

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
    /// Locks that a search for conflicts has looked at.
    #[cfg(test)]
    looked_at: std::cell::Cell<usize>,
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
        Self {
            arena: Arena::new(seed),
            files: Vec::new(),
            owners: Vec::new(),
            ids: BTreeMap::new(),
            #[cfg(test)]
            looked_at: Default::default(),
        }
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
        let file = tree_mut(&mut self.files, held.file.0);
        file.root = self.arena.remove::<InFile>(file.root, slot);
        file.len -= 1;
        self.arena.drop(slot);
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

    /// Takes from all these owners the locks for which `gone` says so; they come out file by file
    /// in the order in which they begin. Much faster than owner by owner when they have many.
    pub fn remove_all_owned(
        &mut self,
        owners: &[OwnerId],
        gone: &mut dyn FnMut(&Held) -> bool,
        out: &mut Vec<Held>,
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
        // In the order in which they are kept, which is many times faster.
        let mut ids: Vec<LockId> = lost.iter().map(|held| held.id).collect();
        ids.sort_unstable();
        for slot in ids.iter().filter_map(|id| self.ids.remove(id)) {
            self.arena.drop(slot);
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
            #[cfg(test)]
            self.looked_at.set(self.looked_at.get() + 1);
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
        let ends_before = |node: &Node| {
            InOwner::at(node.held.file, node.held.range.last()) < InOwner::at(file, offset)
        };
        self.arena.find::<InOwner>(self.owner(owner).root, ends_before).after
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

    /// Takes locks of one file, given in its order, out of its tree.
    fn remove_from_file(&mut self, lost: &[Held]) {
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
