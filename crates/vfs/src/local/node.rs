//! Open files and directories, and the bounded cache of them.
//!
//! The descriptors of a node keep its file alive on disk, so the node of an unlinked file is dropped
//! at once ([`NodeCache::forget`]) and an idle one after a few seconds ([`NodeCache::sweep`]). A
//! descriptor for writing keeps the file from being executed on the host, so it is closed soon after
//! the last write ([`Node::close_idle_writer`]).

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasher,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use foldhash::fast::RandomState;
use rustix::fs::ABS;

use super::{
    background::Wake,
    device::{Device, OrderLock},
    identity::thread_may_block,
    permission::PermissionCache,
};
use crate::{FileKind, ObjectId};

const SHARDS: usize = 16;

/// So many descriptors that wait to be closed wake the thread that closes them.
const CLOSED_TOGETHER: usize = 64;

/// Locks a mutex, ignoring poison: the guarded values are consistent after every statement.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Node {
    pub(super) id: ObjectId,
    pub(super) kind: FileKind,
    /// Opened with `O_PATH`. `None` only while the node is dropped.
    path: Option<OwnedFd>,
    pub(super) permissions: PermissionCache,
    reader: OnceLock<OwnedFd>,
    writer: Mutex<Option<Arc<OwnedFd>>>,
    /// The second in which the writer was last used, by the clock of the cache.
    written: AtomicU64,
    order: OnceLock<OrderLock>,
    sync: Mutex<()>,
    /// Unstable writes so far. Changed only under the lock of `UncommittedFiles`.
    pub(super) writes: AtomicU64,
    /// The second of the last use, by the clock of the cache.
    used: AtomicU64,
    /// A client has presented the handle since the last sweep.
    is_presented: AtomicBool,
    /// The second, by the clock of the cache, in which it was last looked whether all of the file is in
    /// memory; and in the lowest bit, whether it was.
    memory: AtomicU64,
    shared: Arc<Shared>,
}

/// What the nodes of a cache have in common.
#[derive(Default)]
struct Shared {
    descriptors: AtomicUsize,
    device: Arc<Device>,
    /// Seconds since the start, advanced by [`NodeCache::sweep`].
    now: AtomicU64,
    /// Descriptors to be closed by the background thread: closing the last one of an unlinked file
    /// waits for the disk, which network threads must not do.
    to_close: Mutex<Vec<OwnedFd>>,
    closer: Wake,
}

/// A descriptor of a node, for as long as it is used.
pub(super) enum Opened<'a> {
    Own(&'a OwnedFd),
    Shared(Arc<OwnedFd>),
}

impl AsFd for Opened<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Shared(fd) => fd.as_fd(),
        }
    }
}

impl Node {
    /// For attributes, permissions and entries, not for data.
    pub(super) fn path(&self) -> BorrowedFd<'_> {
        self.path.as_ref().map_or(ABS, AsFd::as_fd)
    }

    pub(super) fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Held during a change. See [`device`](super::device).
    pub(super) fn lock_for_change(&self) -> MutexGuard<'_, ()> {
        lock(self.order())
    }

    /// The lock of [`lock_for_change`](Node::lock_for_change), the same for all nodes of the file.
    pub(super) fn order(&self) -> &OrderLock {
        self.order.get_or_init(|| self.shared.device.order_of(super::inodes::order_key(&self.id)))
    }

    /// Held from an `fsync` until its outcome has been recorded.
    pub(super) fn sync_lock(&self) -> MutexGuard<'_, ()> {
        lock(&self.sync)
    }

    /// Whether all of the file was in memory when `look` last looked, less than a second ago.
    pub(super) fn is_in_memory(&self, look: impl FnOnce() -> bool) -> bool {
        let now = self.shared.now.load(Relaxed);
        let known = self.memory.load(Relaxed);
        if known >> 1 == now {
            return known & 1 == 1;
        }
        let is_in_memory = look();
        self.memory.store(now << 1 | u64::from(is_in_memory), Relaxed);
        is_in_memory
    }

    /// The descriptor for reading data, listing and `fsync`; opened by `open` on first use. If that
    /// fails, that for writing will do.
    pub(super) fn reader<E>(
        &self,
        open: impl FnOnce() -> Result<OwnedFd, E>,
    ) -> Result<Opened<'_>, E> {
        if let Some(fd) = self.reader.get() {
            return Ok(Opened::Own(fd));
        }
        match open() {
            Ok(fd) => Ok(Opened::Own(self.reader.get_or_init(|| {
                self.shared.descriptors.fetch_add(1, Relaxed);
                fd
            }))),
            Err(error) => self.open_writer().map(Opened::Shared).ok_or(error),
        }
    }

    /// The descriptor for writing; opened by `open` if it is not open.
    pub(super) fn writer<E>(
        &self,
        open: impl FnOnce() -> Result<OwnedFd, E>,
    ) -> Result<Arc<OwnedFd>, E> {
        self.written.store(self.shared.now.load(Relaxed), Relaxed);
        if let Some(fd) = self.open_writer() {
            return Ok(fd);
        }
        let fd = open()?;
        let mut writer = lock(&self.writer);
        let fd = writer.get_or_insert_with(|| {
            self.shared.descriptors.fetch_add(1, Relaxed);
            Arc::new(fd)
        });
        Ok(fd.clone())
    }

    /// The descriptor that writes use, if it is open.
    pub(super) fn open_writer(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.writer).clone()
    }

    /// Closes the descriptor for writing if it was last used at least a second ago, unless it is in
    /// use or `must_stay`.
    fn close_idle_writer(&self, must_stay: impl FnOnce(&Self) -> bool) {
        let mut writer = lock(&self.writer);
        let age = self.shared.now.load(Relaxed).saturating_sub(self.written.load(Relaxed));
        if age < 2 || writer.as_ref().is_none_or(|fd| Arc::strong_count(fd) > 1) || must_stay(self)
        {
            return;
        }
        let closed = writer.take();
        drop(writer);
        drop(closed);
        self.shared.descriptors.fetch_sub(1, Relaxed);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let writer = writer.and_then(Arc::into_inner);
        let open = [self.path.take(), self.reader.take(), writer].into_iter().flatten();
        let count = match thread_may_block() {
            true => open.map(drop).count(),
            false => {
                let mut to_close = lock(&self.shared.to_close);
                let before = to_close.len();
                to_close.extend(open);
                // The others wait for the next round of the thread, a second at most.
                if to_close.len() >= CLOSED_TOGETHER {
                    self.shared.closer.wake();
                }
                to_close.len() - before
            }
        };
        self.shared.descriptors.fetch_sub(count, Relaxed);
    }
}

/// Nodes by object, with a bound on their descriptors that is exceeded only briefly.
pub(super) struct NodeCache {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    shared: Arc<Shared>,
    descriptors_max: usize,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    /// By ids that come from handles with a valid signature, so a fast hash will do.
    nodes: HashMap<ObjectId, Arc<Node>, RandomState>,
    /// In the order of insertion; may contain ids of nodes that are no longer cached.
    arrivals: VecDeque<ObjectId>,
}

impl NodeCache {
    /// `closer` wakes the thread that calls [`close_dropped`](NodeCache::close_dropped).
    pub(super) fn new(descriptors_max: usize, device: Arc<Device>, closer: Wake) -> Self {
        Self {
            shards: Default::default(),
            hasher: RandomState::default(),
            shared: Arc::new(Shared { device, closer, ..Shared::default() }),
            descriptors_max,
            turn: AtomicUsize::new(0),
        }
    }

    /// The node of a handle that a client presents.
    pub(super) fn get(&self, id: &ObjectId) -> Option<Arc<Node>> {
        let node = lock(self.shard(id)).nodes.get(id).cloned()?;
        node.used.store(self.shared.now.load(Relaxed), Relaxed);
        node.is_presented.store(true, Relaxed);
        Some(node)
    }

    /// Whether the object is open, by the server's own doing or a client's.
    pub(super) fn contains(&self, id: &ObjectId) -> bool {
        lock(self.shard(id)).nodes.contains_key(id)
    }

    /// A node that is counted but not cached.
    pub(super) fn node(&self, id: ObjectId, kind: FileKind, path: OwnedFd) -> Node {
        self.shared.descriptors.fetch_add(1, Relaxed);
        Node {
            id,
            kind,
            path: Some(path),
            permissions: PermissionCache::default(),
            reader: OnceLock::new(),
            writer: Mutex::default(),
            written: AtomicU64::new(0),
            order: OnceLock::new(),
            sync: Mutex::default(),
            writes: AtomicU64::new(0),
            used: AtomicU64::new(self.shared.now.load(Relaxed)),
            is_presented: AtomicBool::new(false),
            memory: AtomicU64::new(u64::MAX - 1),
            shared: self.shared.clone(),
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
        if self.shared.descriptors.load(Relaxed) > self.descriptors_max {
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
        let now = self.shared.now.fetch_add(1, Relaxed) + 1;
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

    /// Closes descriptors for writing that were idle for a second, except of nodes that `must_stay`.
    pub(super) fn close_idle_writers(&self, must_stay: impl Fn(&Node) -> bool) {
        for shard in &self.shards {
            let nodes: Vec<_> = {
                let shard = lock(shard);
                let writable = shard.nodes.values().filter(|node| node.open_writer().is_some());
                writable.cloned().collect()
            };
            nodes.iter().for_each(|node| node.close_idle_writer(&must_stay));
        }
    }

    /// Closes the descriptors of nodes that network threads have dropped.
    pub(super) fn close_dropped(&self) {
        let dropped = std::mem::take(&mut *lock(&self.shared.to_close));
        drop(dropped);
    }

    /// Whether so many descriptors wait to be closed that network threads must open no more: the disk
    /// hangs.
    pub(super) fn is_behind_with_closing(&self) -> bool {
        lock(&self.shared.to_close).len() > self.descriptors_max
    }

    /// Passes on the handles that clients have presented since the last call.
    pub(super) fn for_each_presented(&self, mut pass: impl FnMut(&ObjectId)) {
        for shard in &self.shards {
            let shard = lock(shard);
            let nodes = shard.nodes.values();
            nodes
                .filter(|node| node.is_presented.swap(false, Relaxed))
                .for_each(|node| pass(&node.id));
        }
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
        self.shared.closer.wake();
    }

    /// Evicts the oldest nodes until the bound holds. Nodes in use, or with unstable writes (which
    /// hold a reference), stay.
    fn shrink(&self) {
        // Starts with another shard each time.
        let first = self.turn.fetch_add(1, Relaxed);
        for shard in (0..SHARDS).map(|step| &self.shards[(first + step) % SHARDS]) {
            let mut looks = lock(shard).arrivals.len();
            while looks > 0 && self.shared.descriptors.load(Relaxed) > self.descriptors_max {
                looks -= 1;
                let gone = lock(shard).evict_one(self.shared.now.load(Relaxed), looks);
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
