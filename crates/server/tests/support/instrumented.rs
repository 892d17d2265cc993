//! A file system in memory whose operations are counted and can be blocked.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use bytes::Bytes;
use vfs::memory::MemoryFs;
use vfs::{
    AttributeChange, Attributes, Context, CreateMode, CreateReply, DirEntry, Error, FileSystem,
    FileSystemId, LookupReply, NewAttributes, NodeKind, ObjectId, Permissions, ReadDirReply,
    ReadReply, RemoveReply, RenameReply, Result, Space, Stability, Time, WriteReply, WriteVerifier,
};

pub struct InstrumentedFs {
    inner: MemoryFs,
    nonblocking: bool,
    calls: Mutex<Calls>,
    changed: Condvar,
}

#[derive(Default)]
struct Calls {
    started: HashMap<&'static str, usize>,
    ended: HashMap<&'static str, usize>,
    held: HashSet<&'static str>,
    panics: HashSet<&'static str>,
    errors: HashMap<&'static str, Error>,
    delays: HashMap<&'static str, Duration>,
    forbidden: Option<ThreadId>,
}

impl InstrumentedFs {
    /// Every operation runs on a worker thread.
    pub fn new() -> Arc<Self> {
        Self::with(false)
    }

    pub fn with(nonblocking: bool) -> Arc<Self> {
        Self::build(1, nonblocking)
    }

    /// As [`new`](Self::new), for tests with several.
    pub fn with_id(id: u64) -> Arc<Self> {
        Self::build(id, false)
    }

    fn build(id: u64, nonblocking: bool) -> Arc<Self> {
        let inner = MemoryFs::new(FileSystemId(id));
        Arc::new(Self { inner, nonblocking, calls: Mutex::default(), changed: Condvar::new() })
    }

    /// Calls of this operation wait until [`release`](Self::release).
    pub fn hold(&self, operation: &'static str) {
        self.calls().held.insert(operation);
    }

    pub fn release(&self, operation: &'static str) {
        self.calls().held.remove(operation);
        self.changed.notify_all();
    }

    pub fn set_panics(&self, operation: &'static str, panics: bool) {
        let mut calls = self.calls();
        if panics {
            calls.panics.insert(operation)
        } else {
            calls.panics.remove(operation)
        };
    }

    /// Calls of this operation fail at once.
    pub fn set_error(&self, operation: &'static str, error: Error) {
        self.calls().errors.insert(operation, error);
    }

    /// Calls on this thread panic.
    pub fn forbid(&self, thread: ThreadId) {
        self.calls().forbidden = Some(thread);
    }

    /// Calls of this operation take that much longer.
    pub fn delay(&self, operation: &'static str, by: Duration) {
        self.calls().delays.insert(operation, by);
    }

    /// How often the operation was started.
    pub fn started(&self, operation: &'static str) -> usize {
        self.calls().started.get(operation).copied().unwrap_or(0)
    }

    /// How many calls of the operation are under way.
    pub fn running(&self, operation: &'static str) -> usize {
        let calls = self.calls();
        let count = |of: &HashMap<_, _>| of.get(operation).copied().unwrap_or(0);
        count(&calls.started) - count(&calls.ended)
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn during<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&MemoryFs) -> Result<T>,
    ) -> Result<T> {
        let mut calls = self.calls();
        assert_ne!(calls.forbidden, Some(std::thread::current().id()), "{operation}");
        *calls.started.entry(operation).or_default() += 1;
        while calls.held.contains(operation) {
            calls = self.changed.wait(calls).unwrap();
        }
        let panics = calls.panics.contains(operation);
        let (error, delay) =
            (calls.errors.get(operation).copied(), calls.delays.get(operation).copied());
        drop(calls);
        assert!(!panics, "on purpose");
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
        let outcome = error.map_or_else(|| work(&self.inner), Err);
        *self.calls().ended.entry(operation).or_default() += 1;
        outcome
    }
}

impl Drop for InstrumentedFs {
    fn drop(&mut self) {
        self.calls().held.clear();
        self.changed.notify_all();
    }
}

macro_rules! delegate {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, context: &Context<'_>, $($arg: $kind),*) -> Result<$result> {
            self.during(stringify!($name), |inner| inner.$name(context, $($arg),*))
        }
    )*};
}

impl FileSystem for InstrumentedFs {
    fn id(&self) -> FileSystemId {
        self.inner.id()
    }

    fn root(&self) -> ObjectId {
        self.inner.root()
    }

    fn path(&self, object: &ObjectId) -> Option<Vec<u8>> {
        self.during("path", |inner| Ok(inner.path(object))).ok().flatten()
    }

    fn supports_nonblocking(&self) -> bool {
        self.nonblocking
    }

    fn write_verifier(&self) -> WriteVerifier {
        self.inner.write_verifier()
    }

    delegate! {
        attributes(object: &ObjectId) -> Attributes;
        set_attributes(object: &ObjectId, new: &NewAttributes, guard: Option<Time>) -> AttributeChange;
        lookup(dir: &ObjectId, name: &[u8]) -> LookupReply;
        access(object: &ObjectId) -> (Permissions, Attributes);
        read_link(link: &ObjectId) -> (Bytes, Attributes);
        read(file: &ObjectId, offset: u64, count: u32) -> ReadReply;
        write(file: &ObjectId, offset: u64, data: &Bytes, stability: Stability) -> WriteReply;
        commit(file: &ObjectId, offset: u64, count: u32) -> AttributeChange;
        create(dir: &ObjectId, name: &[u8], mode: &CreateMode) -> CreateReply;
        make_dir(dir: &ObjectId, name: &[u8], new: &NewAttributes) -> CreateReply;
        make_symlink(dir: &ObjectId, name: &[u8], text: &[u8], new: &NewAttributes) -> CreateReply;
        make_node(dir: &ObjectId, name: &[u8], kind: NodeKind, new: &NewAttributes) -> CreateReply;
        remove(dir: &ObjectId, name: &[u8]) -> RemoveReply;
        remove_dir(dir: &ObjectId, name: &[u8]) -> RemoveReply;
        rename(from: (&ObjectId, &[u8]), to: (&ObjectId, &[u8])) -> RenameReply;
        link(file: &ObjectId, dir: &ObjectId, name: &[u8]) -> (Attributes, AttributeChange);
        space(object: &ObjectId) -> Space;
    }

    fn read_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        cookie: u64,
        verifier: [u8; 8],
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<ReadDirReply> {
        self.during("read_dir", |inner| inner.read_dir(context, dir, cookie, verifier, plus, sink))
    }
}
