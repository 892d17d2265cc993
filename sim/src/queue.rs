//! The event queue: ordered by virtual time, then by insertion.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Virtual milliseconds since the world began.
pub(crate) type Ms = u64;

pub(crate) const SECOND: Ms = 1000;
pub(crate) const MINUTE: Ms = 60 * SECOND;
pub(crate) const HOUR: Ms = 60 * MINUTE;

struct Entry<E> {
    at: Ms,
    turn: u64,
    event: E,
}

impl<E> Ord for Entry<E> {
    /// Reversed, because `BinaryHeap` pops the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.turn).cmp(&(self.at, self.turn))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

pub(crate) struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    turn: u64,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), turn: 0 }
    }

    pub(crate) fn push(&mut self, at: Ms, event: E) {
        self.turn += 1;
        self.heap.push(Entry { at, turn: self.turn, event });
    }

    pub(crate) fn pop(&mut self) -> Option<(Ms, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_and_then_by_insertion() {
        let mut queue = Queue::new();
        queue.push(5, 'c');
        queue.push(1, 'a');
        queue.push(5, 'd');
        queue.push(2, 'b');
        let order: String = std::iter::from_fn(|| queue.pop().map(|(_, event)| event)).collect();
        assert_eq!(order, "abcd");
    }
}
