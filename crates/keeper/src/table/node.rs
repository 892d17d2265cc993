//! A lock as a node of two trees: those of its file and of its owner. It also carries a summary of
//! its subtree in the file's tree.

use super::{FileId, HeldLock, OwnerId};
use crate::request::Mode;
use crate::tree::{Links, Order, Sum};

#[derive(Debug)]
pub(super) struct Node {
    pub held: HeldLock,
    in_file: Links,
    in_owner: Links,
    pub any: Extent,
    pub exclusive: Extent,
}

impl Node {
    pub(super) fn new(held: HeldLock) -> Self {
        let (in_file, in_owner) = (Links::NONE, Links::NONE);
        Self { held, in_file, in_owner, any: Extent::NONE, exclusive: Extent::NONE }
    }
}

/// The furthest byte of some locks, and their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The largest `last`.
    reach: u64,
    owner: OwnerId,
}

/// Owner of no locks, and of locks of several owners; no real owner has these ids.
const NO_OWNER: OwnerId = OwnerId(u32::MAX);
const MANY_OWNERS: OwnerId = OwnerId(u32::MAX - 1);

impl Extent {
    const NONE: Extent = Extent { reach: 0, owner: NO_OWNER };

    fn of(held: &HeldLock) -> Extent {
        Extent { reach: held.range.last(), owner: held.owner }
    }

    /// Whether one of these locks may conflict with `owner` at `first` or above.
    pub(crate) fn may_conflict(self, owner: OwnerId, first: u64) -> bool {
        self.reach >= first && self.owner != owner && self.owner != NO_OWNER
    }
}

impl Sum for Extent {
    fn and(self, other: Extent) -> Extent {
        let owner = match (self.owner, other.owner) {
            (NO_OWNER, owner) | (owner, NO_OWNER) => owner,
            (one, another) if one == another => one,
            _ => MANY_OWNERS,
        };
        Extent { reach: self.reach.max(other.reach), owner }
    }
}

/// The summaries of a subtree: all locks, and the exclusive ones.
impl Sum for (Extent, Extent) {
    fn and(self, other: Self) -> Self {
        (self.0.and(other.0), self.1.and(other.1))
    }
}

/// A file's locks, by first byte and owner.
pub(super) struct InFile;

impl InFile {
    pub(super) fn at((first, owner): (u64, OwnerId)) -> u128 {
        u128::from(first) << 32 | u128::from(owner.0)
    }
}

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
        InFile::at((node.held.range.first(), node.held.owner))
    }

    fn own(node: &Node) -> (Extent, Extent) {
        let own = Extent::of(&node.held);
        match node.held.kind.mode {
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

/// An owner's locks, by file and first byte.
pub(super) struct InOwner;

impl InOwner {
    pub(super) fn at(file: FileId, offset: u64) -> u128 {
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
