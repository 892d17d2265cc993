//! A directory of the host, served as it is.
//!
//! The kernel decides what a caller may do: an operation runs with the caller's uid, gid and
//! groups where the server may take them on, else as the server. Three things differ, as NFS
//! needs it: the owner of a file may always read, write and resize it, whoever may execute it may
//! read it, and ACCESS tells the plain truth nevertheless.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
};

use bytes::Bytes;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, fstatvfs, openat, readlinkat};

use crate::{
    Attributes, Change, Context, CreateMode, DirEntry, Error, FileKind, FileSystem, FileSystemId,
    Listed, Looked, Made, NewAttributes, NodeKind, ObjectId, Patience, Permissions, ReadOut,
    Removed, Renamed, Result, Space, Stability, Time, Traits, WriteVerifier, Written,
};

mod change;
mod directory;
mod fsid;
mod housekeeping;
mod identity;
mod inodes;
mod io;
mod listing;
mod node;
mod permission;
mod state;
mod status;
mod sys;
mod tree;
mod uncommitted;

pub use identity::prepare_worker_thread;

use housekeeping::Housekeeping;
use identity::Identity;
use inodes::InodeMap;
use node::Cache;
use status::status;
use tree::{Objects, PATH_ONLY, Tree};
use uncommitted::Uncommitted;

/// A link's text up to this length is in the inode of the common file systems.
const SHORT_LINK: u64 = 59;

#[derive(Debug, Clone)]
pub struct Options {
    /// The directory to serve.
    pub root: PathBuf,
    /// Where the server keeps what must survive it. Only the server may be able to write there.
    pub state: PathBuf,
    /// `None`: found out and remembered.
    pub id: Option<FileSystemId>,
    pub metadata: Metadata,
    /// How many descriptors may be open for long.
    pub descriptors_max: usize,
    pub handles: Handles,
}

impl Options {
    pub fn new(root: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            state: state.into(),
            id: None,
            metadata: Metadata::Sync,
            descriptors_max: 4096,
            handles: Handles::Auto,
        }
    }
}

/// When creations, removals, renames and changes of attributes are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metadata {
    /// When they are durable, as RFC 1813 wants it.
    Sync,
    /// When they are done. A crash of the host may undo the last seconds.
    Async,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handles {
    /// The kernel's where they can be had, else the inode map.
    Auto,
    /// The inode map in any case.
    InodeMap,
}

/// What clients can count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleKind {
    /// Handles survive restarts and renames.
    Kernel,
    /// Handles survive restarts and renames by clients; a file that is renamed on the server
    /// itself is stale for clients that know its old name.
    InodeMap,
}

/// Why a directory cannot be served, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open {path}: {source}. Does the directory exist, and may the server read it?")]
    Root { path: PathBuf, source: std::io::Error },
    #[error(
        "cannot use the state directory {path}: {source}. Create it, owned by the server's user, with mode 0700"
    )]
    State { path: PathBuf, source: std::io::Error },
    #[error("cannot open /proc/self/fd: {0}. Mount /proc, as in `mount -t proc proc /proc`")]
    Proc(std::io::Error),
    #[error(
        "the kernel does not answer faccessat2: {0}. Lockkeeper needs Linux 5.10; in a container, use a newer runtime or allow the call in its seccomp profile"
    )]
    Access(std::io::Error),
    #[error(
        "the server is not root but has CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH or CAP_FOWNER, with which every client could reach every file of {path}. Run it as root, which acts as each caller, or without these"
    )]
    Power { path: PathBuf },
    #[error("{descriptors_max} descriptors are too few to serve a directory: allow at least 64")]
    Descriptors { descriptors_max: usize },
    #[error("cannot start serving {path}: {source}")]
    Start { path: PathBuf, source: std::io::Error },
}

/// A directory of the host as a [`FileSystem`]. Mount points below it are shown but not entered.
pub struct LocalFs {
    tree: Arc<Tree>,
    _housekeeping: Housekeeping,
}

impl LocalFs {
    pub fn open(options: Options) -> std::result::Result<Self, OpenError> {
        let Options { root: path, state, descriptors_max, .. } = options;
        if descriptors_max < 64 {
            return Err(OpenError::Descriptors { descriptors_max });
        }
        let identity = Identity::of_process();
        if identity.gives_power_away() {
            return Err(OpenError::Power { path });
        }
        let root_error = |source: rustix::io::Errno| OpenError::Root {
            path: path.clone(),
            source: source.into(),
        };
        let state_error = |source| OpenError::State { path: state.clone(), source };

        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = openat(CWD, &path, flags, Mode::empty()).map_err(root_error)?;
        let proc = openat(CWD, "/proc/self/fd", flags, Mode::empty())
            .map_err(|error| OpenError::Proc(error.into()))?;
        sys::access(&mount, Access::EXISTS).map_err(|error| OpenError::Access(error.into()))?;
        // One that follows: the directory may have been given as a link.
        let root = openat(&mount, c".", PATH_ONLY, Mode::empty()).map_err(root_error)?;
        let found = status(&root).map_err(root_error)?;
        let id = match options.id {
            Some(id) => id,
            None => fsid::identify(&state, &mount, &found).map_err(state_error)?,
        };

        let handle = sys::handle_at(&mount, c"", AtFlags::EMPTY_PATH)
            .ok()
            .filter(|_| options.handles == Handles::Auto)
            .filter(|(handle, _)| sys::open_handle(&mount, handle, PATH_ONLY).is_ok());
        let (objects, object, mount_id) = match handle {
            Some((handle, mount_id)) => (Objects::Kernel, handle, mount_id),
            None => {
                let inode = found.attributes.fileid;
                let map = InodeMap::open(&state, id.0, inode).map_err(state_error)?;
                // The root needs no name to be found by, so no birth either.
                (Objects::Map(map), inodes::compose(inode, found.born.unwrap_or(0)), 0)
            }
        };

        let traits = Traits {
            name_max: fstatvfs(&mount).map_or(255, |space| space.f_namemax as u32),
            links_max: sys::links_max(&mount).unwrap_or(32_000),
            ..Traits::default()
        };
        let start_error = |source: std::io::Error| OpenError::Start { path: path.clone(), source };
        let verifier = sys::random().map_err(|error| start_error(error.into()))?;
        let cache = Cache::new(descriptors_max);
        let root = Arc::new(cache.node(object, FileKind::Directory, root));
        let tree = Arc::new(Tree {
            id,
            traits,
            metadata: options.metadata,
            root,
            mount,
            mount_id,
            device: found.device,
            proc,
            objects,
            cache,
            uncommitted: Uncommitted::new(descriptors_max / 8),
            identity,
            verifier: AtomicU64::new(verifier),
            openat2_missing: AtomicBool::new(false),
        });
        let housekeeping = Housekeeping::start(tree.clone()).map_err(start_error)?;
        Ok(Self { tree, _housekeeping: housekeeping })
    }

    pub fn promises(&self) -> HandleKind {
        match self.tree.objects {
            Objects::Kernel => HandleKind::Kernel,
            Objects::Map(_) => HandleKind::InodeMap,
        }
    }

    /// Whether operations run with the caller's identity, or all with the server's.
    pub fn acts_as_caller(&self) -> bool {
        self.tree.identity != Identity::Server
    }
}

/// Changes wait for the disk, and only worker threads may take on a caller's identity.
fn patient(context: &Context<'_>) -> Result<()> {
    match context.patience {
        Patience::Wait => Ok(()),
        Patience::Now => Err(Error::WouldBlock),
    }
}

impl FileSystem for LocalFs {
    fn id(&self) -> FileSystemId {
        self.tree.id
    }

    fn root(&self) -> ObjectId {
        self.tree.root.id
    }

    fn path(&self, object: &ObjectId) -> Option<Vec<u8>> {
        self.tree.path(object)
    }

    fn traits(&self) -> Traits {
        self.tree.traits
    }

    fn prompt(&self) -> bool {
        true
    }

    fn attributes(&self, context: &Context<'_>, object: &ObjectId) -> Result<Attributes> {
        let node = self.tree.node(context, object)?;
        self.tree.attributes(&node)
    }

    fn set_attributes(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
        new: &NewAttributes,
        guard: Option<Time>,
    ) -> Result<Change> {
        patient(context)?;
        self.tree.set_attributes(context, object, new, guard)
    }

    fn lookup(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<Looked> {
        self.tree.lookup(context, dir, name)
    }

    fn access(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
    ) -> Result<(Permissions, Attributes)> {
        let node = self.tree.node(context, object)?;
        let attributes = self.tree.attributes(&node)?;
        Ok((self.tree.permissions(context, &node, &attributes)?, attributes))
    }

    fn read_link(&self, context: &Context<'_>, link: &ObjectId) -> Result<(Bytes, Attributes)> {
        let node = self.tree.node(context, link)?;
        if node.kind != FileKind::Symlink {
            return Err(Error::Invalid);
        }
        let attributes = self.tree.attributes(&node)?;
        if attributes.size > SHORT_LINK {
            patient(context)?;
        }
        let text = readlinkat(&node.path, c"", Vec::with_capacity(256))?;
        Ok((Bytes::from(text.into_bytes()), attributes))
    }

    fn read(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<ReadOut> {
        self.tree.read(context, file, offset, count)
    }

    fn write(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<Written> {
        patient(context)?;
        self.tree.write(context, file, offset, data, stability)
    }

    /// The whole file, whatever part was asked for: the kernel has no smaller `fsync`.
    fn commit(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        _offset: u64,
        _count: u32,
    ) -> Result<Change> {
        patient(context)?;
        self.tree.commit(context, file)
    }

    fn write_verifier(&self) -> WriteVerifier {
        self.tree.write_verifier()
    }

    fn create(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        mode: &CreateMode,
    ) -> Result<Made> {
        patient(context)?;
        self.tree.create(context, dir, name, mode)
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<Made> {
        patient(context)?;
        self.tree.make_dir(context, dir, name, new)
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        text: &[u8],
        new: &NewAttributes,
    ) -> Result<Made> {
        patient(context)?;
        self.tree.make_symlink(context, dir, name, text, new)
    }

    fn make_node(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        kind: NodeKind,
        new: &NewAttributes,
    ) -> Result<Made> {
        patient(context)?;
        self.tree.make_node(context, dir, name, kind, new)
    }

    fn remove(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<Removed> {
        patient(context)?;
        self.tree.remove(context, dir, name)
    }

    fn remove_dir(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<Removed> {
        patient(context)?;
        self.tree.remove_dir(context, dir, name)
    }

    fn rename(
        &self,
        context: &Context<'_>,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<Renamed> {
        patient(context)?;
        self.tree.rename(context, from, to)
    }

    fn link(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<(Attributes, Change)> {
        patient(context)?;
        self.tree.link(context, file, dir, name)
    }

    fn read_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        cookie: u64,
        _verifier: [u8; 8],
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<Listed> {
        patient(context)?;
        self.tree.read_dir(context, dir, cookie, plus, sink)
    }

    fn space(&self, context: &Context<'_>, object: &ObjectId) -> Result<Space> {
        let node = self.tree.node(context, object)?;
        let found = fstatvfs(&node.path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Space {
            bytes_total: bytes(found.f_blocks),
            bytes_free: bytes(found.f_bfree),
            bytes_available: bytes(found.f_bavail),
            files_total: found.f_files,
            files_free: found.f_ffree,
            files_available: found.f_favail,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::Caller;

    #[test]
    fn without_openat2_lookup_works_and_leads_into_no_mount() {
        let state = tempfile::tempdir().unwrap();
        let fs = LocalFs::open(Options::new("/", state.path())).unwrap();
        fs.tree.openat2_missing.store(true, Relaxed);
        let caller = Caller::new(0, 0, &[]);
        let context = Context { caller: &caller, patience: Patience::Wait };
        let found = fs.lookup(&context, &fs.root(), b"usr").unwrap();
        assert_eq!(fs.lookup(&context, &found.object, b"..").unwrap().object, fs.root());
        assert_eq!(fs.lookup(&context, &fs.root(), b"proc").unwrap_err(), Error::Denied);
        let now = Context { patience: Patience::Now, ..context };
        assert_eq!(fs.lookup(&now, &fs.root(), b"usr").unwrap_err(), Error::WouldBlock);
    }
}
