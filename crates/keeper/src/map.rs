//! Hash maps keyed with the configured seed. The standard maps draw their key from the system; a
//! run must depend on nothing but its input.

#[expect(clippy::disallowed_types, reason = "keyed below")]
use std::collections::HashMap;

use foldhash::fast::FixedState;

#[expect(clippy::disallowed_types, reason = "keyed with the configured seed")]
pub(crate) type Map<K, V> = HashMap<K, V, FixedState>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(pub u64);

impl Seed {
    pub(crate) fn map<K, V>(self) -> Map<K, V> {
        Map::with_hasher(FixedState::with_seed(self.0))
    }
}
