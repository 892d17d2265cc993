//! Files with unstable writes that no COMMIT has covered yet.
//!
//! Their descriptors stay open, because the kernel reports a failed write-back only to descriptors
//! that were open at the time. The set is bounded: beyond the bound, writers commit the oldest
//! files themselves.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::node::{Node, lock};
use crate::ObjectId;

pub(super) struct UncommittedFiles {
    files: Mutex<FileSet>,
    files_max: usize,
}

#[derive(Default)]
struct FileSet {
    by_object: HashMap<ObjectId, UncommittedFile>,
    by_age: BTreeMap<u64, ObjectId>,
    next: u64,
}

struct UncommittedFile {
    node: Arc<Node>,
    /// The key in `by_age`.
    number: u64,
    since: Instant,
}

impl UncommittedFiles {
    pub(super) fn new(files_max: usize) -> Self {
        Self { files: Mutex::default(), files_max }
    }

    /// Records an unstable write.
    pub(super) fn add(&self, node: &Arc<Node>) {
        let mut files = lock(&self.files);
        node.writes.fetch_add(1, Relaxed);
        if !files.by_object.contains_key(&node.id) {
            let number = files.number(node.id);
            let file = UncommittedFile { node: node.clone(), number, since: Instant::now() };
            files.by_object.insert(node.id, file);
        }
    }

    /// The oldest file if the set exceeds its bound; the calling thread must commit it. It becomes
    /// the youngest, so that other threads get other files.
    pub(super) fn excess(&self) -> Option<Arc<Node>> {
        let mut files = lock(&self.files);
        if files.by_object.len() <= self.files_max {
            return None;
        }
        let (_, oldest) = files.by_age.pop_first()?;
        let number = files.number(oldest);
        let file = files.by_object.get_mut(&oldest)?;
        file.number = number;
        Some(file.node.clone())
    }

    /// The number of unstable writes that an `fsync` begun after this call covers.
    pub(super) fn writes(node: &Node) -> u64 {
        node.writes.load(Relaxed)
    }

    /// The first `writes` unstable writes are durable. A file written since then stays in the set.
    pub(super) fn committed(&self, node: &Node, writes: u64) {
        let mut files = lock(&self.files);
        if node.writes.load(Relaxed) == writes {
            files.remove(&node.id);
        } else if let Some(file) = files.by_object.get_mut(&node.id) {
            file.since = Instant::now();
        }
    }

    pub(super) fn contains(&self, id: &ObjectId) -> bool {
        lock(&self.files).by_object.contains_key(id)
    }

    /// Drops a file that was removed, or whose writes were reported as lost.
    pub(super) fn forget(&self, id: &ObjectId) {
        let gone = lock(&self.files).remove(id);
        drop(gone);
    }

    /// The files that have been uncommitted for longer than `age`.
    pub(super) fn older_than(&self, age: Duration) -> Vec<Arc<Node>> {
        let files = lock(&self.files);
        let old = files.by_object.values().filter(|file| file.since.elapsed() > age);
        old.map(|file| file.node.clone()).collect()
    }
}

impl FileSet {
    /// Enters an object as the youngest.
    fn number(&mut self, id: ObjectId) -> u64 {
        let number = self.next;
        self.next += 1;
        self.by_age.insert(number, id);
        number
    }

    fn remove(&mut self, id: &ObjectId) -> Option<UncommittedFile> {
        let file = self.by_object.remove(id)?;
        self.by_age.remove(&file.number);
        Some(file)
    }
}
