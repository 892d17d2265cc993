//! Balanced search trees (treaps) whose nodes live in one arena and may belong to several trees,
//! each with its own order. One allocation grows for all files and owners together, so a lock costs
//! none of its own; and a node can carry a sum over its subtree, which no standard map allows.

use std::iter;

/// No node.
pub(crate) const NIL: u32 = u32::MAX;

/// A node's children in one tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    left: u32,
    right: u32,
}

impl Links {
    pub(crate) const NONE: Links = Links { left: NIL, right: NIL };

    fn towards(self, left: bool) -> u32 {
        if left { self.left } else { self.right }
    }
}

/// A value combined over all nodes of a subtree.
pub(crate) trait Sum: Copy + PartialEq {
    fn and(self, other: Self) -> Self;
}

impl Sum for () {
    fn and(self, (): ()) {}
}

/// An order in which nodes are kept, with the sum kept over it.
pub(crate) trait Order {
    type Node;
    type Sum: Sum;

    fn links(node: &Self::Node) -> &Links;
    fn links_mut(node: &mut Self::Node) -> &mut Links;
    /// The sort key; unique within a tree.
    fn key(node: &Self::Node) -> u128;

    /// The sum of this node alone.
    fn own(node: &Self::Node) -> Self::Sum;
    /// The sum of the subtree, as last set.
    fn sum(node: &Self::Node) -> Self::Sum;
    fn set_sum(node: &mut Self::Node, sum: Self::Sum);
}

/// All nodes of all trees. A tree is the slot of its root, or `NIL`.
#[derive(Debug)]
pub(crate) struct Arena<N> {
    nodes: Vec<N>,
    free: Vec<u32>,
    seed: u64,
    /// The path from the root to a node being removed; otherwise empty.
    path: Vec<u32>,
}

/// The nodes on both sides of a point in the order, or `NIL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbors {
    pub before: u32,
    pub after: u32,
}

impl<N> Arena<N> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), seed, path: Vec::new() }
    }

    /// Adds a node, as yet in no tree.
    pub(crate) fn add(&mut self, node: N) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.nodes[slot as usize] = node;
            return slot;
        }
        if self.nodes.len() == self.nodes.capacity() {
            // Grow by an eighth rather than double, to bound the memory per lock.
            self.nodes.reserve_exact(self.nodes.len() / 8 + 64);
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Frees the slot of a node that is in no tree.
    pub(crate) fn drop(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(crate) fn node(&self, slot: u32) -> &N {
        &self.nodes[slot as usize]
    }

    pub(crate) fn node_mut(&mut self, slot: u32) -> &mut N {
        &mut self.nodes[slot as usize]
    }

    pub(crate) fn left<O: Order<Node = N>>(&self, slot: u32) -> u32 {
        O::links(self.node(slot)).left
    }

    pub(crate) fn right<O: Order<Node = N>>(&self, slot: u32) -> u32 {
        O::links(self.node(slot)).right
    }

    /// Inserts a node into a tree; returns the new root.
    pub(crate) fn insert<O: Order<Node = N>>(&mut self, root: u32, slot: u32) -> u32 {
        let node = self.node(slot);
        let (own, key, height) = (O::own(node), O::key(node), self.height(slot));
        let (mut parent, mut is_left, mut below) = (NIL, false, root);
        while below != NIL && self.height(below) > height {
            parent = below;
            let node = self.node_mut(below);
            O::set_sum(node, O::sum(node).and(own));
            is_left = key < O::key(node);
            below = O::links(node).towards(is_left);
        }
        let (left, right) = self.split::<O>(below, key);
        *O::links_mut(self.node_mut(slot)) = Links { left, right };
        self.sum_up::<O>(slot);
        self.hang::<O>(parent, is_left, slot, root)
    }

    /// Removes a node from the tree it is in; returns the new root.
    pub(crate) fn remove<O: Order<Node = N>>(&mut self, root: u32, slot: u32) -> u32 {
        let key = O::key(self.node(slot));
        let (mut is_left, mut below) = (false, root);
        while below != NIL && below != slot {
            self.path.push(below);
            let node = self.node(below);
            is_left = key < O::key(node);
            below = O::links(node).towards(is_left);
        }
        let Links { left, right } = *O::links(self.node(slot));
        let joined = self.join::<O>(left, right);
        let parent = self.path.last().copied().unwrap_or(NIL);
        let root = self.hang::<O>(parent, is_left, joined, root);
        while let Some(above) = self.path.pop()
            && self.sum_up::<O>(above)
        {}
        self.path.clear();
        root
    }

    /// Removes every node that `keep` rejects, asking in order; returns the new root. Visits each
    /// node once, so it beats many single removals.
    pub(crate) fn retain<O: Order<Node = N>>(
        &mut self,
        root: u32,
        keep: &mut dyn FnMut(&N) -> bool,
    ) -> u32 {
        if root == NIL {
            return NIL;
        }
        let left = self.retain::<O>(self.left::<O>(root), keep);
        let kept = keep(self.node(root));
        let right = self.retain::<O>(self.right::<O>(root), keep);
        if !kept {
            return self.join::<O>(left, right);
        }
        *O::links_mut(self.node_mut(root)) = Links { left, right };
        self.sum_up::<O>(root);
        root
    }

    /// Finds the point between the nodes for which `is_before` is true and those for which it is
    /// false. `is_before` must be monotonic in the order.
    pub(crate) fn find<O: Order<Node = N>>(
        &self,
        root: u32,
        is_before: impl Fn(&N) -> bool,
    ) -> Neighbors {
        let mut neighbors = Neighbors { before: NIL, after: NIL };
        let mut slot = root;
        while slot != NIL {
            let node = self.node(slot);
            if is_before(node) {
                neighbors.before = slot;
                slot = O::links(node).right;
            } else {
                neighbors.after = slot;
                slot = O::links(node).left;
            }
        }
        neighbors
    }

    /// The preceding node.
    pub(crate) fn previous<O: Order<Node = N>>(&self, root: u32, slot: u32) -> u32 {
        self.find::<O>(root, |node| O::key(node) < O::key(self.node(slot))).before
    }

    /// The following node.
    pub(crate) fn next<O: Order<Node = N>>(&self, root: u32, slot: u32) -> u32 {
        self.find::<O>(root, |node| O::key(node) <= O::key(self.node(slot))).after
    }

    /// Iterates in order from a node. Searches for each step, so it needs no memory.
    pub(crate) fn walk<O: Order<Node = N>>(
        &self,
        root: u32,
        from: u32,
    ) -> impl Iterator<Item = &N> {
        let is_node = |&slot: &u32| slot != NIL;
        let from = Some(from).filter(is_node);
        iter::successors(from, move |&slot| Some(self.next::<O>(root, slot)).filter(is_node))
            .map(|slot| self.node(slot))
    }

    /// Iterates over the whole tree in order.
    pub(crate) fn walk_all<O: Order<Node = N>>(&self, root: u32) -> impl Iterator<Item = &N> {
        self.walk::<O>(root, self.find::<O>(root, |_| false).after)
    }

    /// Makes a node its parent's child, or the new root; returns the root.
    fn hang<O: Order<Node = N>>(
        &mut self,
        parent: u32,
        is_left: bool,
        child: u32,
        root: u32,
    ) -> u32 {
        if parent == NIL {
            return child;
        }
        let links = O::links_mut(self.node_mut(parent));
        *(if is_left { &mut links.left } else { &mut links.right }) = child;
        root
    }

    /// Splits a tree at `key`, which no node has.
    fn split<O: Order<Node = N>>(&mut self, root: u32, key: u128) -> (u32, u32) {
        if root == NIL {
            return (NIL, NIL);
        }
        let is_left = O::key(self.node(root)) < key;
        let middle = O::links(self.node(root)).towards(!is_left);
        let (left, right) = self.split::<O>(middle, key);
        let links = O::links_mut(self.node_mut(root));
        if is_left {
            links.right = left;
        } else {
            links.left = right;
        }
        self.sum_up::<O>(root);
        if is_left { (root, right) } else { (left, root) }
    }

    /// Joins two trees; all of `left` must precede all of `right`.
    fn join<O: Order<Node = N>>(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL {
            return right;
        }
        if right == NIL {
            return left;
        }
        if self.height(left) > self.height(right) {
            let joined = self.join::<O>(self.right::<O>(left), right);
            O::links_mut(self.node_mut(left)).right = joined;
            self.sum_up::<O>(left);
            left
        } else {
            let joined = self.join::<O>(left, self.left::<O>(right));
            O::links_mut(self.node_mut(right)).left = joined;
            self.sum_up::<O>(right);
            right
        }
    }

    /// Recomputes a node's sum from its children; true if it changed.
    fn sum_up<O: Order<Node = N>>(&mut self, slot: u32) -> bool {
        let node = self.node(slot);
        let mut sum = O::own(node);
        let Links { left, right } = *O::links(node);
        if left != NIL {
            sum = O::sum(self.node(left)).and(sum);
        }
        if right != NIL {
            sum = sum.and(O::sum(self.node(right)));
        }
        let node = self.node_mut(slot);
        let changed = O::sum(node) != sum;
        O::set_sum(node, sum);
        changed
    }

    /// A node's priority: of two nodes, the higher one is nearer to the root. It is pseudorandom,
    /// which balances trees whatever the order of insertion, and peers cannot know it. The finisher
    /// of SplitMix64 is a bijection, so priorities are unique.
    fn height(&self, slot: u32) -> u64 {
        let mut mixed = u64::from(slot) ^ self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
impl<N> Arena<N> {
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// The tree's slots in order; panics if the order, the heap property or a sum is violated.
    pub(crate) fn check<O: Order<Node = N>>(&self, root: u32) -> Vec<u32> {
        if root == NIL {
            return Vec::new();
        }
        let Links { left, right } = *O::links(self.node(root));
        let mut sum = O::own(self.node(root));
        for child in [left, right].into_iter().filter(|&child| child != NIL) {
            assert!(self.height(root) > self.height(child), "{child} is above {root}");
            sum = sum.and(O::sum(self.node(child)));
        }
        assert!(O::sum(self.node(root)) == sum, "the sum of {root} is wrong");
        let mut slots = self.check::<O>(left);
        slots.push(root);
        slots.extend(self.check::<O>(right));
        let in_order = |pair: &[u32]| O::key(self.node(pair[0])) < O::key(self.node(pair[1]));
        assert!(slots.windows(2).all(in_order), "not in order below {root}");
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node whose sum is the sum of values.
    #[derive(Clone, Copy)]
    struct Number {
        value: u32,
        sum: u64,
        links: Links,
    }

    struct ByValue;

    impl Sum for u64 {
        fn and(self, other: u64) -> u64 {
            self + other
        }
    }

    impl Order for ByValue {
        type Node = Number;
        type Sum = u64;

        fn links(node: &Number) -> &Links {
            &node.links
        }

        fn links_mut(node: &mut Number) -> &mut Links {
            &mut node.links
        }

        fn key(node: &Number) -> u128 {
            u128::from(node.value)
        }

        fn own(node: &Number) -> u64 {
            u64::from(node.value)
        }

        fn sum(node: &Number) -> u64 {
            node.sum
        }

        fn set_sum(node: &mut Number, sum: u64) {
            node.sum = sum;
        }
    }

    fn tree_of(values: impl Iterator<Item = u32>) -> (Arena<Number>, u32, Vec<u32>) {
        let mut arena = Arena::new(7);
        let (mut root, mut slots) = (NIL, Vec::new());
        for value in values {
            let slot = arena.add(Number { value, sum: 0, links: Links::NONE });
            root = arena.insert::<ByValue>(root, slot);
            slots.push(slot);
        }
        (arena, root, slots)
    }

    fn values(arena: &Arena<Number>, root: u32) -> Vec<u32> {
        arena.walk_all::<ByValue>(root).map(|node| node.value).collect()
    }

    fn depth(arena: &Arena<Number>, root: u32) -> usize {
        if root == NIL {
            return 0;
        }
        let deepest = depth(arena, arena.left::<ByValue>(root));
        1 + deepest.max(depth(arena, arena.right::<ByValue>(root)))
    }

    /// The first two outputs of SplitMix64 with seed 0, as published.
    #[test]
    fn heights_are_those_of_splitmix64() {
        let height = |state| Arena::<()>::new(state).height(0);
        assert_eq!(height(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
        assert_eq!(height(0x3c6e_f372_fe94_f82a), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn nodes_come_out_in_order_whatever_order_they_went_in() {
        let (arena, root, _) = tree_of((0..1000).map(|i| i * 7 % 1000));
        arena.check::<ByValue>(root);
        assert_eq!(values(&arena, root), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_tree_stays_shallow_when_nodes_arrive_in_order() {
        let (arena, root, _) = tree_of(0..100_000);
        assert!(depth(&arena, root) < 60);
    }

    #[test]
    fn what_is_removed_is_gone_and_its_slot_is_used_again() {
        let (mut arena, mut root, slots) = tree_of(0..100);
        for &slot in slots.iter().step_by(2) {
            root = arena.remove::<ByValue>(root, slot);
            arena.drop(slot);
            arena.check::<ByValue>(root);
        }
        assert_eq!(values(&arena, root), (1..100).step_by(2).collect::<Vec<_>>());
        arena.add(Number { value: 0, sum: 0, links: Links::NONE });
        assert_eq!(arena.nodes.len(), 100);
    }

    #[test]
    fn retain_asks_in_order_and_keeps_what_is_wanted() {
        let (mut arena, root, _) = tree_of((0..100).rev());
        let mut asked = Vec::new();
        let root = arena.retain::<ByValue>(root, &mut |node| {
            asked.push(node.value);
            node.value % 3 == 0
        });
        arena.check::<ByValue>(root);
        assert_eq!(asked, (0..100).collect::<Vec<_>>());
        assert_eq!(values(&arena, root), (0..100).step_by(3).collect::<Vec<_>>());
    }

    #[test]
    fn a_place_is_between_two_nodes() {
        let (arena, root, slots) = tree_of((0..10).map(|i| i * 10));
        let neighbors = arena.find::<ByValue>(root, |node| node.value < 45);
        assert_eq!(neighbors, Neighbors { before: slots[4], after: slots[5] });
        assert_eq!(arena.previous::<ByValue>(root, slots[5]), slots[4]);
        assert_eq!(arena.next::<ByValue>(root, slots[9]), NIL);
    }
}
