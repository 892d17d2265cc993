//! Who asks, after the export's rules have been applied to what the client said.

use std::sync::Arc;

/// The identity that an operation is done with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, sorted and without repeats.
    pub groups: Arc<[u32]>,
}

impl Caller {
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        Self { uid, gid, groups: groups.into() }
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.binary_search(&gid).is_ok()
    }
}
