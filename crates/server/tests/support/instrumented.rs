//! A file system in memory whose operations are counted and can be blocked.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use vfs::memory::MemoryFs;
use vfs::{
    AttributeChange, Attributes, Context, CreateMode, CreateReply, DirEntry, FileSystem,
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
}

impl InstrumentedFs {
    /// Every operation runs on a worker thread.
    pub fn new() -> Arc<Self> {
        Self::with(false)
    }

    pub fn with(nonblocking: bool) -> Arc<Self> {
        let inner = MemoryFs::new(FileSystemId(1));
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

    fn during<T>(&self, operation: &'static str, work: impl FnOnce(&MemoryFs) -> T) -> T {
        let mut calls = self.calls();
        *calls.started.entry(operation).or_default() += 1;
        while calls.held.contains(operation) {
            calls = self.changed.wait(calls).unwrap();
        }
        let panics = calls.panics.contains(operation);
        drop(calls);
        assert!(!panics, "on purpose");
        let outcome = work(&self.inner);
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
        self.during("path", |inner| inner.path(object))
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
