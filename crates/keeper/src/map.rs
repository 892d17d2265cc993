//! Hash maps keyed with the configured seed. The standard ones draw their key from the system:
//! that is randomness, and a run must depend on nothing but its input.

use std::collections::HashMap;
use std::hash::BuildHasher;

use siphasher::sip::SipHasher13;

pub type Map<K, V> = HashMap<K, V, Seed>;

#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

impl BuildHasher for Seed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, !self.0)
    }
}
