//! The files with unstable writes that no COMMIT has asked for yet.
//!
//! Their descriptors stay open, because the kernel reports a failed write-back only to
//! descriptors that were open when it failed. The list is bounded: from the oldest on, the server
//! commits files itself.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::node::{Node, lock};
use crate::ObjectId;

pub(super) struct Uncommitted {
    files: Mutex<Files>,
    files_max: usize,
}

#[derive(Default)]
struct Files {
    by_object: HashMap<ObjectId, File>,
    by_age: BTreeMap<u64, ObjectId>,
    next: u64,
}

struct File {
    node: Arc<Node>,
    number: u64,
    since: Instant,
}

impl Uncommitted {
    pub(super) fn new(files_max: usize) -> Self {
        Self { files: Mutex::default(), files_max }
    }

    /// Counts an unstable write that was done.
    pub(super) fn wrote(&self, node: &Arc<Node>) {
        let mut files = lock(&self.files);
        node.writes.fetch_add(1, Relaxed);
        if !files.by_object.contains_key(&node.id) {
            let number = files.number(node.id);
            let file = File { node: node.clone(), number, since: Instant::now() };
            files.by_object.insert(node.id, file);
        }
    }

    /// A file that must be committed now to keep within the bound, the oldest first. It counts as
    /// the youngest from now on, so that another thread that asks gets another one.
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

    /// How many unstable writes a following `fsync` is sure to cover.
    pub(super) fn writes(node: &Node) -> u64 {
        node.writes.load(Relaxed)
    }

    /// The first `writes` unstable writes are durable. A file that was written since stays.
    pub(super) fn committed(&self, node: &Node, writes: u64) {
        let mut files = lock(&self.files);
        if node.writes.load(Relaxed) == writes {
            files.remove(&node.id);
        } else if let Some(file) = files.by_object.get_mut(&node.id) {
            file.since = Instant::now();
        }
    }

    /// The file is gone, or its writes are lost and said to be.
    pub(super) fn forget(&self, id: &ObjectId) {
        let gone = lock(&self.files).remove(id);
        drop(gone);
    }

    /// The files whose client has not come back for longer than `age`.
    pub(super) fn older_than(&self, age: Duration) -> Vec<Arc<Node>> {
        let files = lock(&self.files);
        let old = files.by_object.values().filter(|file| file.since.elapsed() > age);
        old.map(|file| file.node.clone()).collect()
    }
}

impl Files {
    /// Files an object as the youngest.
    fn number(&mut self, id: ObjectId) -> u64 {
        let number = self.next;
        self.next += 1;
        self.by_age.insert(number, id);
        number
    }

    fn remove(&mut self, id: &ObjectId) -> Option<File> {
        let file = self.by_object.remove(id)?;
        self.by_age.remove(&file.number);
        Some(file)
    }
}
