//! Hash maps keyed with the configured seed. The standard ones draw their key from the system:
//! that is randomness, and a run must depend on nothing but its input.

use std::collections::HashMap;

use foldhash::fast::FixedState;

pub type Map<K, V> = HashMap<K, V, FixedState>;

#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

impl Seed {
    pub fn map<K, V>(self) -> Map<K, V> {
        Map::with_hasher(FixedState::with_seed(self.0))
    }
}
