//! A file or directory that is in use, and the bounded cache of them.
//!
//! A node holds descriptors, so it keeps a file alive: one that was unlinked is let go at once
//! ([`Cache::forget`]), one that nobody asks for is let go after a few seconds
//! ([`Cache::sweep`]).

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use super::permission::Verdicts;
use crate::{FileKind, ObjectId};

const SHARDS: usize = 16;

/// A lock that goes on after a panic elsewhere: what it guards is whole after every statement.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Node {
    pub(super) id: ObjectId,
    pub(super) kind: FileKind,
    /// Opened with `O_PATH`: good for attributes, names below it and permissions, not for data.
    pub(super) path: OwnedFd,
    pub(super) verdicts: Verdicts,
    reader: OnceLock<OwnedFd>,
    writer: OnceLock<OwnedFd>,
    order: Mutex<()>,
    syncing: Mutex<()>,
    /// Unstable writes so far. Only moved under the lock of `Uncommitted`.
    pub(super) writes: AtomicU64,
    used: AtomicU64,
    descriptors: Arc<AtomicUsize>,
}

impl Node {
    /// Held around a change and the two looks at the file before and after it, so that no other
    /// client's change falls in between. Of two directories, the one at the lower address first;
    /// of a directory and a file in it, the directory first.
    pub(super) fn in_order(&self) -> MutexGuard<'_, ()> {
        lock(&self.order)
    }

    /// Held around a `fsync` and what follows from its outcome.
    pub(super) fn syncing(&self) -> MutexGuard<'_, ()> {
        lock(&self.syncing)
    }

    /// For reading data, listing and `fsync`; `open` is asked the first time.
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

    /// The descriptor through which unstable writes went, if any.
    pub(super) fn open_writer(&self) -> Option<&OwnedFd> {
        self.writer.get()
    }

    fn keep<'a, E>(&self, place: &'a OnceLock<OwnedFd>, fd: OwnedFd) -> Result<&'a OwnedFd, E> {
        let kept = place.get_or_init(|| {
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

/// The nodes in use, by object; never more than a given number of descriptors for long.
pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    descriptors: Arc<AtomicUsize>,
    descriptors_max: usize,
    turn: AtomicUsize,
    /// Seconds since the start, moved by [`Cache::sweep`].
    now: AtomicU64,
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<ObjectId, Arc<Node>>,
    /// In the order of arrival; ids of nodes that have left may still be in it.
    arrivals: VecDeque<ObjectId>,
}

impl Cache {
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

    /// A node that the cache does not keep.
    pub(super) fn node(&self, id: ObjectId, kind: FileKind, path: OwnedFd) -> Node {
        self.descriptors.fetch_add(1, Relaxed);
        Node {
            id,
            kind,
            path,
            verdicts: Verdicts::default(),
            reader: OnceLock::new(),
            writer: OnceLock::new(),
            order: Mutex::default(),
            syncing: Mutex::default(),
            writes: AtomicU64::new(0),
            used: AtomicU64::new(self.now.load(Relaxed)),
            descriptors: self.descriptors.clone(),
        }
    }

    /// Keeps a node, unless there is one of this object already, and gives the one that is kept.
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

    /// Lets nodes go if there are too many descriptors. Called whenever one was opened.
    pub(super) fn keep_bound(&self) {
        if self.descriptors.load(Relaxed) > self.descriptors_max {
            self.shrink();
        }
    }

    /// Lets a node go: its file was unlinked.
    pub(super) fn forget(&self, id: &ObjectId) {
        let gone = lock(self.shard(id)).nodes.remove(id);
        // Here the last name's data may be freed, which takes time, so not under the lock.
        drop(gone);
    }

    /// Lets nodes go that were not asked for during `idle_s_max` seconds. Called once a second.
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

    /// Lets every node go that is not in use: the process has no descriptor left.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let gone: Vec<_> = {
                let mut shard = lock(shard);
                shard.nodes.extract_if(|_, node| Arc::strong_count(node) == 1).collect()
            };
            drop(gone);
        }
    }

    /// Lets old nodes go until the bound holds again. One that is in use, or has unstable writes
    /// (which hold on to it), stays.
    fn shrink(&self) {
        // Each time another shard is the first to give.
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
    /// Looks at the oldest arrival. It gets a second chance if it was asked for in this second,
    /// as long as there are others to look at.
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
