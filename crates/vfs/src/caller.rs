//! The identity of a caller, after the export's squash rules.

use std::sync::Arc;

use crate::FileKind;

/// The identity that an operation runs as.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups, sorted and without duplicates.
    pub groups: Arc<[u32]>,
}

impl Caller {
    /// Sorts and deduplicates `groups`.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        Self { uid, gid, groups: groups.into() }
    }

    /// Whether this is uid 0, which passes every permission check except that for execution.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether `gid` is the primary or a supplementary group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.binary_search(&gid).is_ok()
    }

    /// The permission bits (4 read, 2 write, 1 execute) that a file's mode grants this caller.
    pub(crate) fn granted(&self, kind: FileKind, mode: u32, uid: u32, gid: u32) -> u32 {
        if self.is_root() {
            let executable = mode & 0o111 != 0 || kind == FileKind::Directory;
            return 0o6 | u32::from(executable);
        }
        let bits = if self.uid == uid {
            mode >> 6
        } else if self.in_group(gid) {
            mode >> 3
        } else {
            mode
        };
        bits & 0o7
    }
}
