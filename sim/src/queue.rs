//! Virtual time: what happens next, and in which order when two things happen at once.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Virtual milliseconds since the world began.
pub type Ms = u64;

pub const SECOND: Ms = 1000;
pub const MINUTE: Ms = 60 * SECOND;
pub const HOUR: Ms = 60 * MINUTE;

struct Entry<E> {
    at: Ms,
    turn: u64,
    event: E,
}

impl<E> Ord for Entry<E> {
    /// Reversed, because a heap gives its greatest first.
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

pub struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    turn: u64,
}

impl<E> Queue<E> {
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), turn: 0 }
    }

    pub fn push(&mut self, at: Ms, event: E) {
        self.turn += 1;
        self.heap.push(Entry { at, turn: self.turn, event });
    }

    pub fn pop(&mut self) -> Option<(Ms, E)> {
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
    fn things_happen_in_order_of_time_and_then_of_arrival() {
        let mut queue = Queue::new();
        queue.push(5, 'c');
        queue.push(1, 'a');
        queue.push(5, 'd');
        queue.push(2, 'b');
        let order: String = std::iter::from_fn(|| queue.pop().map(|(_, event)| event)).collect();
        assert_eq!(order, "abcd");
    }
}
