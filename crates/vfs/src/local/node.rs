//! Open files and directories, and the bounded cache of them.
//!
//! The descriptors of a node keep its file alive on disk, so the node of an unlinked file is dropped
//! at once ([`NodeCache::forget`]) and an idle one after a few seconds ([`NodeCache::sweep`]).

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use super::permission::PermissionCache;
use crate::{FileKind, ObjectId};

const SHARDS: usize = 16;

/// Locks a mutex, ignoring poison: the guarded values are consistent after every statement.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Node {
    pub(super) id: ObjectId,
    pub(super) kind: FileKind,
    /// Opened with `O_PATH`: for attributes, permissions and entries, not for data.
    pub(super) path: OwnedFd,
    pub(super) permissions: PermissionCache,
    reader: OnceLock<OwnedFd>,
    writer: OnceLock<OwnedFd>,
    change: Mutex<()>,
    sync: Mutex<()>,
    /// Unstable writes so far. Changed only under the lock of `UncommittedFiles`.
    pub(super) writes: AtomicU64,
    /// The second of the last use, by the clock of the cache.
    used: AtomicU64,
    descriptors: Arc<AtomicUsize>,
}

impl Node {
    /// Held from reading the attributes before a change to reading those after it, so that no
    /// other client's change falls between. Lock order: of two directories, the one at the lower
    /// address first; of a directory and a file in it, the directory first.
    pub(super) fn lock_for_change(&self) -> MutexGuard<'_, ()> {
        lock(&self.change)
    }

    /// Held from an `fsync` until its outcome has been recorded.
    pub(super) fn sync_lock(&self) -> MutexGuard<'_, ()> {
        lock(&self.sync)
    }

    /// The descriptor for reading data, listing and `fsync`; opened by `open` on first use.
    pub(super) fn reader<E>(
        &self,
        open: impl FnOnce() -> Result<OwnedFd, E>,
    ) -> Result<&OwnedFd, E> {
        // A descriptor that can write can read too.
        match self.reader.get().or_else(|| self.writer.get()) {
            Some(fd) => Ok(fd),
            None => self.keep(&self.reader, open()?),
        }
    }

    pub(super) fn writer<E>(
        &self,
        open: impl FnOnce() -> Result<OwnedFd, E>,
    ) -> Result<&OwnedFd, E> {
        match self.writer.get() {
            Some(fd) => Ok(fd),
            None => self.keep(&self.writer, open()?),
        }
    }

    /// The descriptor that unstable writes used, if there is one.
    pub(super) fn open_writer(&self) -> Option<&OwnedFd> {
        self.writer.get()
    }

    fn keep<'a, E>(&self, slot: &'a OnceLock<OwnedFd>, fd: OwnedFd) -> Result<&'a OwnedFd, E> {
        let kept = slot.get_or_init(|| {
            self.descriptors.fetch_add(1, Relaxed);
            fd
        });
        Ok(kept)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let open =
            1 + usize::from(self.reader.get().is_some()) + usize::from(self.writer.get().is_some());
        self.descriptors.fetch_sub(open, Relaxed);
    }
}

/// Nodes by object, with a bound on their descriptors that is exceeded only briefly.
pub(super) struct NodeCache {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    descriptors: Arc<AtomicUsize>,
    descriptors_max: usize,
    turn: AtomicUsize,
    /// Seconds since the start, advanced by [`NodeCache::sweep`].
    now: AtomicU64,
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<ObjectId, Arc<Node>>,
    /// In the order of insertion; may contain ids of nodes that are no longer cached.
    arrivals: VecDeque<ObjectId>,
}

impl NodeCache {
    pub(super) fn new(descriptors_max: usize) -> Self {
        Self {
            shards: Default::default(),
            hasher: RandomState::new(),
            descriptors: Arc::default(),
            descriptors_max,
            turn: AtomicUsize::new(0),
            now: AtomicU64::new(0),
        }
    }

    pub(super) fn get(&self, id: &ObjectId) -> Option<Arc<Node>> {
        let node = lock(self.shard(id)).nodes.get(id).cloned()?;
        node.used.store(self.now.load(Relaxed), Relaxed);
        Some(node)
    }

    /// A node that is counted but not cached.
    pub(super) fn node(&self, id: ObjectId, kind: FileKind, path: OwnedFd) -> Node {
        self.descriptors.fetch_add(1, Relaxed);
        Node {
            id,
            kind,
            path,
            permissions: PermissionCache::default(),
            reader: OnceLock::new(),
            writer: OnceLock::new(),
            change: Mutex::default(),
            sync: Mutex::default(),
            writes: AtomicU64::new(0),
            used: AtomicU64::new(self.now.load(Relaxed)),
            descriptors: self.descriptors.clone(),
        }
    }

    /// Caches a node unless the object has one already, and returns the cached one.
    pub(super) fn insert(&self, id: ObjectId, kind: FileKind, path: OwnedFd) -> Arc<Node> {
        let node = {
            let mut shard = lock(self.shard(&id));
            if let Some(there) = shard.nodes.get(&id) {
                return there.clone();
            }
            let node = Arc::new(self.node(id, kind, path));
            shard.nodes.insert(id, node.clone());
            shard.arrivals.push_back(id);
            node
        };
        self.keep_bound();
        node
    }

    /// Evicts nodes if there are too many descriptors. Called after each open.
    pub(super) fn keep_bound(&self) {
        if self.descriptors.load(Relaxed) > self.descriptors_max {
            self.shrink();
        }
    }

    /// Drops the node of an unlinked file.
    pub(super) fn forget(&self, id: &ObjectId) {
        let gone = lock(self.shard(id)).nodes.remove(id);
        // Outside the lock: closing the last descriptor may free the file's data, which is slow.
        drop(gone);
    }

    /// Drops nodes that were unused for more than `idle_s_max` seconds. Called once a second.
    pub(super) fn sweep(&self, idle_s_max: u64) {
        let now = self.now.fetch_add(1, Relaxed) + 1;
        for shard in &self.shards {
            let mut shard = lock(shard);
            let Shard { nodes, arrivals } = &mut *shard;
            let idle = |node: &Arc<Node>| now.saturating_sub(node.used.load(Relaxed)) > idle_s_max;
            let gone: Vec<_> =
                nodes.extract_if(|_, node| idle(node) && Arc::strong_count(node) == 1).collect();
            if arrivals.len() > 2 * nodes.len() + 64 {
                *arrivals = nodes.keys().copied().collect();
            }
            drop(shard);
            drop(gone);
        }
        self.keep_bound();
    }

    /// Drops every node not in use: the process has run out of descriptors.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let gone: Vec<_> = {
                let mut shard = lock(shard);
                shard.nodes.extract_if(|_, node| Arc::strong_count(node) == 1).collect()
            };
            drop(gone);
        }
    }

    /// Evicts the oldest nodes until the bound holds. Nodes in use, or with unstable writes (which
    /// hold a reference), stay.
    fn shrink(&self) {
        // Starts with another shard each time.
        let first = self.turn.fetch_add(1, Relaxed);
        for shard in (0..SHARDS).map(|step| &self.shards[(first + step) % SHARDS]) {
            let mut looks = lock(shard).arrivals.len();
            while looks > 0 && self.descriptors.load(Relaxed) > self.descriptors_max {
                looks -= 1;
                let gone = lock(shard).evict_one(self.now.load(Relaxed), looks);
                drop(gone);
            }
        }
    }

    fn shard(&self, id: &ObjectId) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(id) as usize % SHARDS]
    }
}

impl Shard {
    /// Evicts the oldest node, unless it is in use. A node used since the last sweep gets a second
    /// chance while the `others` still to examine are more than half of the shard.
    fn evict_one(&mut self, now: u64, others: usize) -> Option<Arc<Node>> {
        let id = self.arrivals.pop_front()?;
        let node = self.nodes.get(&id)?;
        let young = node.used.load(Relaxed) >= now && others > self.arrivals.len() / 2;
        if young || Arc::strong_count(node) > 1 {
            self.arrivals.push_back(id);
            return None;
        }
        self.nodes.remove(&id)
    }
}
