//! Calls that concern the same thing are served in the order of their receipt (R3.8, I14).
//!
//! A LOCK may have to wait for a worker thread, to find out whether its caller may lock the file. An
//! UNLOCK or CANCEL of the same owner that arrives meanwhile needs no worker, and must not overtake
//! it: it would find nothing, and the lock would be granted to a process that is gone. No I/O, so
//! that the simulator runs exactly this.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Calls with the same key keep their order: a hash of what they concern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OrderKey(pub u64);

/// What waits for a call of the same key. `T` is a call.
pub struct Order<K, T> {
    /// Keys of calls that wait for a worker, each with the calls that arrived after them.
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

    /// Gives the call back if it is the first of its key: it is to be served and then
    /// [finished](Self::finish). Otherwise it waits for those before it.
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

    /// The call that was served is done: the next one of its key, which is to be served and then
    /// finished as well.
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
