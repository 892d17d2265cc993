//! A lock in the table: what it is, its place among those of its file and those of its owner, and
//! what it knows about the locks below it in its file's tree.

use super::{FileId, Held, OwnerId};
use crate::request::Mode;
use crate::tree::{Links, Order, Sum};

#[derive(Debug)]
pub struct Node {
    pub held: Held,
    in_file: Links,
    in_owner: Links,
    pub any: Extent,
    pub exclusive: Extent,
}

impl Node {
    pub fn new(held: Held) -> Self {
        let (in_file, in_owner) = (Links::NONE, Links::NONE);
        Self { held, in_file, in_owner, any: Extent::NONE, exclusive: Extent::NONE }
    }
}

/// Whose some locks are, and how far they reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The largest `last`.
    reach: u64,
    whose: OwnerId,
}

/// Whose no locks are, and whose those of several owners are. No owner has these numbers.
const NOBODY: OwnerId = OwnerId(u32::MAX);
const SEVERAL: OwnerId = OwnerId(u32::MAX - 1);

impl Extent {
    const NONE: Extent = Extent { reach: 0, whose: NOBODY };

    fn of(held: &Held) -> Extent {
        Extent { reach: held.range.last(), whose: held.owner }
    }

    /// Whether one of these locks may be in the way of `owner` at `first` or above.
    pub fn may_hinder(self, owner: OwnerId, first: u64) -> bool {
        self.reach >= first && self.whose != owner && self.whose != NOBODY
    }
}

impl Sum for Extent {
    fn and(self, other: Extent) -> Extent {
        let whose = match (self.whose, other.whose) {
            (NOBODY, whose) | (whose, NOBODY) => whose,
            (one, another) if one == another => one,
            _ => SEVERAL,
        };
        Extent { reach: self.reach.max(other.reach), whose }
    }
}

/// What a node knows about its subtree of the file: all locks, and the exclusive ones.
impl Sum for (Extent, Extent) {
    fn and(self, other: Self) -> Self {
        (self.0.and(other.0), self.1.and(other.1))
    }
}

/// A file's locks: by where they begin, then by owner.
pub struct InFile;

impl Order for InFile {
    type Node = Node;
    type Sum = (Extent, Extent);

    fn links(node: &Node) -> &Links {
        &node.in_file
    }

    fn links_mut(node: &mut Node) -> &mut Links {
        &mut node.in_file
    }

    fn key(node: &Node) -> u128 {
        u128::from(node.held.range.first()) << 32 | u128::from(node.held.owner.0)
    }

    fn own(node: &Node) -> (Extent, Extent) {
        let own = Extent::of(&node.held);
        match node.held.terms.mode {
            Mode::Exclusive => (own, own),
            Mode::Shared => (own, Extent::NONE),
        }
    }

    fn sum(node: &Node) -> (Extent, Extent) {
        (node.any, node.exclusive)
    }

    fn set_sum(node: &mut Node, sum: (Extent, Extent)) {
        (node.any, node.exclusive) = sum;
    }
}

/// An owner's locks: by file, then by where they begin.
pub struct InOwner;

impl InOwner {
    pub fn at(file: FileId, offset: u64) -> u128 {
        u128::from(file.0) << 64 | u128::from(offset)
    }
}

impl Order for InOwner {
    type Node = Node;
    type Sum = ();

    fn links(node: &Node) -> &Links {
        &node.in_owner
    }

    fn links_mut(node: &mut Node) -> &mut Links {
        &mut node.in_owner
    }

    fn key(node: &Node) -> u128 {
        InOwner::at(node.held.file, node.held.range.first())
    }

    fn own(_: &Node) {}

    fn sum(_: &Node) {}

    fn set_sum(_: &mut Node, (): ()) {}
}
