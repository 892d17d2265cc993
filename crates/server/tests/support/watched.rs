//! A file system in memory whose operations are counted and can be held.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use vfs::memory::MemoryFs;
use vfs::{
    Attributes, Change, Context, CreateMode, DirEntry, FileSystem, FileSystemId, Listed, Looked,
    Made, NewAttributes, NodeKind, ObjectId, Permissions, ReadOut, Removed, Renamed, Result, Space,
    Stability, Time, WriteVerifier, Written,
};

pub struct Watched {
    inner: MemoryFs,
    prompt: bool,
    book: Mutex<Book>,
    changed: Condvar,
}

#[derive(Default)]
struct Book {
    begun: HashMap<&'static str, usize>,
    ended: HashMap<&'static str, usize>,
    held: HashSet<&'static str>,
    panics: HashSet<&'static str>,
}

impl Watched {
    /// One that wants all its work done on worker threads.
    pub fn new() -> Arc<Self> {
        Self::with(false)
    }

    pub fn with(prompt: bool) -> Arc<Self> {
        let inner = MemoryFs::new(FileSystemId(1));
        Arc::new(Self { inner, prompt, book: Mutex::default(), changed: Condvar::new() })
    }

    /// Calls of this operation wait until [`release`](Self::release).
    pub fn hold(&self, operation: &'static str) {
        self.book().held.insert(operation);
    }

    pub fn release(&self, operation: &'static str) {
        self.book().held.remove(operation);
        self.changed.notify_all();
    }

    pub fn let_panic(&self, operation: &'static str, yes: bool) {
        let mut book = self.book();
        if yes {
            book.panics.insert(operation)
        } else {
            book.panics.remove(operation)
        };
    }

    /// How often the operation was begun.
    pub fn begun(&self, operation: &'static str) -> usize {
        self.book().begun.get(operation).copied().unwrap_or(0)
    }

    /// How many calls of the operation are under way.
    pub fn running(&self, operation: &'static str) -> usize {
        let book = self.book();
        let count = |of: &HashMap<_, _>| of.get(operation).copied().unwrap_or(0);
        count(&book.begun) - count(&book.ended)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn during<T>(&self, operation: &'static str, work: impl FnOnce(&MemoryFs) -> T) -> T {
        let mut book = self.book();
        *book.begun.entry(operation).or_default() += 1;
        while book.held.contains(operation) {
            book = self.changed.wait(book).unwrap();
        }
        let panics = book.panics.contains(operation);
        drop(book);
        assert!(!panics, "on purpose");
        let outcome = work(&self.inner);
        *self.book().ended.entry(operation).or_default() += 1;
        outcome
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.book().held.clear();
        self.changed.notify_all();
    }
}

/// Methods that only pass on what they are given.
macro_rules! pass_on {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, context: &Context<'_>, $($arg: $kind),*) -> Result<$result> {
            self.during(stringify!($name), |inner| inner.$name(context, $($arg),*))
        }
    )*};
}

impl FileSystem for Watched {
    fn id(&self) -> FileSystemId {
        self.inner.id()
    }

    fn root(&self) -> ObjectId {
        self.inner.root()
    }

    fn prompt(&self) -> bool {
        self.prompt
    }

    fn write_verifier(&self) -> WriteVerifier {
        self.inner.write_verifier()
    }

    pass_on! {
        attributes(object: &ObjectId) -> Attributes;
        set_attributes(object: &ObjectId, new: &NewAttributes, guard: Option<Time>) -> Change;
        lookup(dir: &ObjectId, name: &[u8]) -> Looked;
        access(object: &ObjectId) -> (Permissions, Attributes);
        read_link(link: &ObjectId) -> (Bytes, Attributes);
        read(file: &ObjectId, offset: u64, count: u32) -> ReadOut;
        write(file: &ObjectId, offset: u64, data: &Bytes, stability: Stability) -> Written;
        commit(file: &ObjectId, offset: u64, count: u32) -> Change;
        create(dir: &ObjectId, name: &[u8], mode: &CreateMode) -> Made;
        make_dir(dir: &ObjectId, name: &[u8], new: &NewAttributes) -> Made;
        make_symlink(dir: &ObjectId, name: &[u8], text: &[u8], new: &NewAttributes) -> Made;
        make_node(dir: &ObjectId, name: &[u8], kind: NodeKind, new: &NewAttributes) -> Made;
        remove(dir: &ObjectId, name: &[u8]) -> Removed;
        remove_dir(dir: &ObjectId, name: &[u8]) -> Removed;
        rename(from: (&ObjectId, &[u8]), to: (&ObjectId, &[u8])) -> Renamed;
        link(file: &ObjectId, dir: &ObjectId, name: &[u8]) -> (Attributes, Change);
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
    ) -> Result<Listed> {
        self.during("read_dir", |inner| inner.read_dir(context, dir, cookie, verifier, plus, sink))
    }
}
