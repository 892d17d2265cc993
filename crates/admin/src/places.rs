//! Places that are bounded, shared out so that nobody can take them all: what an ordinary user or
//! the network cannot have stays free for root.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whose place it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Who {
    /// Root, and the user whom the server runs as: up to all places.
    Trusted,
    User(u32),
    /// Everybody who comes over TCP; there nobody knows who is who.
    Network,
}

#[derive(Debug)]
pub struct Places {
    max: usize,
    taken: Mutex<HashMap<Who, usize>>,
}

/// Taken until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    who: Who,
}

impl Places {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default() })
    }

    /// `None`: there is none for this one now. One user has a quarter at most, the network half, and
    /// all but the trusted together three quarters.
    pub fn take(self: &Arc<Self>, who: Who) -> Option<Place> {
        let mut taken = self.taken();
        let all: usize = taken.values().sum();
        let trusted = taken.get(&Who::Trusted).copied().unwrap_or(0);
        let own = taken.entry(who).or_default();
        let has_room = match who {
            Who::Trusted => true,
            Who::User(_) => *own < self.max / 4,
            Who::Network => *own < self.max / 2,
        };
        let others_have = who == Who::Trusted || all - trusted < self.max - self.max / 4;
        if all >= self.max || !has_room || !others_have {
            return None;
        }
        *own += 1;
        Some(Place { places: self.clone(), who })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Who, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(own) = taken.get_mut(&self.who) {
            *own = own.saturating_sub(1);
        }
        taken.retain(|_, own| *own > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(places: &Arc<Places>, who: Who) -> Vec<Place> {
        std::iter::from_fn(|| places.take(who)).collect()
    }

    #[test]
    fn nobody_but_root_can_have_them_all() {
        let places = Places::new(64);
        let one = take_all(&places, Who::User(1));
        assert_eq!(one.len(), 16);
        let network = take_all(&places, Who::Network);
        assert_eq!(network.len(), 32);
        assert_eq!(take_all(&places, Who::User(2)).len(), 0);
        let root = take_all(&places, Who::Trusted);
        assert_eq!(root.len(), 16);
        drop((one, network));
        assert_eq!(take_all(&places, Who::Trusted).len(), 48);
        drop(root);
        assert_eq!(take_all(&places, Who::Trusted).len(), 64);
        assert!(places.taken().is_empty());
    }

    #[test]
    fn a_place_that_was_left_can_be_taken_again() {
        let places = Places::new(64);
        let mut one = take_all(&places, Who::User(1));
        assert!(places.take(Who::User(1)).is_none());
        one.pop();
        assert!(places.take(Who::User(1)).is_some());
    }
}
