//! Lock calls of one owner on one file take effect in the order of their receipt (B2.10, I14).
//!
//! A LOCK may wait for a worker thread, which checks whether its caller may lock the file. An UNLOCK
//! or CANCEL of the same owner that arrives meanwhile needs no worker, and must not overtake it: it
//! would find nothing to undo, and the lock would then be granted to a process that is gone. No I/O,
//! so that the simulator runs the same code.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// A hash of the owner and the file. Calls with the same key keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OrderKey(pub u64);

/// Calls that wait for an earlier call with the same key. `T` is a call.
pub struct Order<K, T> {
    /// Keys of calls that wait for a worker or run on one, each with the calls that arrived later.
    busy: HashMap<K, VecDeque<T>>,
}

impl<K, T> Default for Order<K, T> {
    fn default() -> Self {
        Self { busy: HashMap::new() }
    }
}

impl<K: Hash + Eq, T> Order<K, T> {
    pub fn is_busy(&self, key: &K) -> bool {
        self.busy.contains_key(key)
    }

    /// Returns the call if it is the first with its key: the caller serves it and then calls
    /// [`finish`](Self::finish). Otherwise the call waits.
    pub fn enter(&mut self, key: K, call: T) -> Option<T> {
        match self.busy.entry(key) {
            Entry::Occupied(mut waiting) => {
                waiting.get_mut().push_back(call);
                None
            }
            Entry::Vacant(free) => {
                free.insert(VecDeque::new());
                Some(call)
            }
        }
    }

    /// The calls that wait behind the one with this key that is served.
    pub fn waiting(&self, key: &K) -> impl Iterator<Item = &T> {
        self.busy.get(key).into_iter().flatten()
    }

    /// To be called when a call has been served. Returns the next one with its key, which the caller
    /// must serve and finish as well.
    pub fn finish(&mut self, key: &K) -> Option<T> {
        let next = self.busy.get_mut(key)?.pop_front();
        if next.is_none() {
            self.busy.remove(key);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_one_key_are_served_in_order_and_others_do_not_wait() {
        let mut order = Order::default();
        assert!(!order.is_busy(&'a'));
        assert_eq!(order.enter('a', 1), Some(1));
        assert!(order.is_busy(&'a') && !order.is_busy(&'b'));
        assert_eq!(order.enter('b', 2), Some(2));
        assert_eq!(order.enter('a', 3), None);
        assert_eq!(order.enter('a', 4), None);
        assert_eq!(order.waiting(&'a').copied().collect::<Vec<_>>(), [3, 4]);
        assert_eq!(order.waiting(&'b').count() + order.waiting(&'c').count(), 0);
        assert_eq!(order.finish(&'a'), Some(3));
        assert_eq!(order.enter('a', 5), None);
        assert_eq!(order.finish(&'a'), Some(4));
        assert_eq!(order.finish(&'a'), Some(5));
        assert!(order.is_busy(&'a'));
        assert_eq!(order.finish(&'a'), None);
        assert_eq!(order.enter('a', 6), Some(6));
        assert_eq!(order.finish(&'b'), None);
        assert!(!order.is_busy(&'b'));
    }
}
