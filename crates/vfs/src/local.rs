//! [`LocalFs`]: a directory of the host.
//!
//! The kernel checks permissions: operations run with the caller's uid, gid and groups if the
//! server can assume them, else as the server. As NFS requires, the owner of a file may always
//! read, write and resize it, and callers that may execute it may read it; ACCESS reports the mode
//! without these exceptions.

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
    AttributeChange, Attributes, BlockingMode, Context, CreateMode, CreateReply, DirEntry, Error,
    FileKind, FileSystem, FileSystemId, FileSystemInfo, LookupReply, NewAttributes, NodeKind,
    ObjectId, Permissions, ReadDirReply, ReadReply, RemoveReply, RenameReply, Result, Space,
    Stability, Time, WriteReply, WriteVerifier,
};

mod access_time;
mod background;
mod change;
mod device;
mod directory;
mod fsid;
mod housekeeping;
mod identity;
mod inodes;
mod io;
mod kind;
mod listing;
mod node;
mod options;
mod permission;
mod state;
mod status;
mod sys;
mod tree;
mod uncommitted;

pub use identity::prepare_worker_thread;
#[cfg(any(test, feature = "fuzz"))]
pub use inodes::fuzz;
pub use options::{HandleChoice, MetadataMode, Options};

use access_time::AccessTimes;
use background::{Background, Wake};
use device::Device;
use fsid::Lifetime;
use identity::Identity;
use inodes::{InodeMap, SharedMap};
use kind::Kind;
use listing::SortedListings;
use node::NodeCache;
use status::status;
use tree::{ObjectScheme, PATH_ONLY, Tree};
use uncommitted::UncommittedFiles;

/// Where links are in the inode, the text of a link of up to this length is, so reading it does not
/// block.
const SHORT_LINK: u64 = 59;

/// How objects are identified, and so how long client handles stay valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleKind {
    /// Handles survive restarts and all renames.
    Kernel,
    /// Handles survive restarts and renames by clients; a file renamed on the host itself becomes
    /// stale until a client looks it up again.
    InodeMap,
    /// As [`HandleKind::InodeMap`], until the file system is unmounted: it may number its files anew
    /// then.
    Mount,
    /// As [`HandleKind::InodeMap`], until the server ends: the kernel (before Linux 6.8) does not
    /// tell one mount of the file system from the next.
    Process,
}

/// Why a directory cannot be served. The text says how to fix it.
#[allow(missing_docs, reason = "the fields appear in the error texts")]
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory itself.
    #[error("cannot open {path}: {source}. Does the directory exist, and may the server read it?")]
    Root { path: PathBuf, source: std::io::Error },
    /// The state directory.
    #[error(
        "cannot use the state directory {path}: {source}. Create it, owned by the server's user, with mode 0700"
    )]
    State { path: PathBuf, source: std::io::Error },
    /// `/proc` is not mounted.
    #[error("cannot open /proc/self/fd: {0}. Mount /proc, as in `mount -t proc proc /proc`")]
    Proc(std::io::Error),
    /// `faccessat2` is missing, without which callers' permissions cannot be checked.
    #[error(
        "the kernel does not answer faccessat2: {0}. Lockkeeper needs Linux 5.10; in a container, use a newer runtime or allow the call in its seccomp profile"
    )]
    Access(std::io::Error),
    /// The server would give callers its own privileges.
    #[error(
        "the server is not root but has CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH or CAP_FOWNER, with which every client could reach every file of {path}. Run it as root, which acts as each caller, or without these"
    )]
    Capabilities { path: PathBuf },
    /// Callers would keep the privileges of the server.
    #[error(
        "the server was started with SECBIT_NO_SETUID_FIXUP, with which callers of {path} would keep the capabilities of root. Start it without: under systemd, without `SecureBits=no-setuid-fixup`"
    )]
    SecureBits { path: PathBuf },
    /// [`Options::descriptors_max`] is too small.
    #[error("{descriptors_max} descriptors are too few to serve a directory: allow at least 64")]
    Descriptors { descriptors_max: usize },
    /// The background thread or the random source.
    #[error("cannot start serving {path}: {source}")]
    Start { path: PathBuf, source: std::io::Error },
}

/// A directory of the host as a [`FileSystem`]. Mount points below it are listed but not entered.
///
/// Supports nonblocking calls if its file system answers from memory. Worker threads should have
/// called [`prepare_worker_thread`].
pub struct LocalFs {
    tree: Arc<Tree>,
    id_is_portable: bool,
    lifetime: Lifetime,
    _housekeeping: Background,
    /// Written by a thread of its own, which ends with the last export that uses it.
    _map: Option<Arc<SharedMap>>,
}

impl LocalFs {
    /// Opens the directory and starts the background thread, which ends when this value is
    /// dropped.
    pub fn open(options: Options) -> std::result::Result<Self, OpenError> {
        let Options { root: path, state, descriptors_max, .. } = options;
        if descriptors_max < 64 {
            return Err(OpenError::Descriptors { descriptors_max });
        }
        let identity = Identity::of_process();
        if identity.exposes_capabilities() {
            return Err(OpenError::Capabilities { path });
        }
        if identity.keeps_capabilities() {
            return Err(OpenError::SecureBits { path });
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
        // Through the open directory: `options.root` may be a symbolic link.
        let root = openat(&mount, c".", PATH_ONLY, Mode::empty()).map_err(root_error)?;
        let found = status(&root).map_err(root_error)?;
        let kind = Kind::of(&mount, found.device).map_err(root_error)?;
        let device = Device::of(found.device);
        let lifetime = Lifetime::of(&mount, &found, kind, &device);
        let fsid::AssignedId { id, is_portable } = match options.id {
            Some(id) => fsid::AssignedId { id, is_portable: true },
            None => {
                fsid::identify(&state, &mount, &found, &lifetime, &device).map_err(state_error)?
            }
        };
        device.warn_of_second_id(id, &path);

        let handle = sys::handle_at(&mount, c"", AtFlags::EMPTY_PATH)
            .ok()
            .filter(|_| options.handles == HandleChoice::Auto && kind.has_lasting_handles)
            .filter(|(handle, _)| sys::open_handle(&mount, handle, PATH_ONLY).is_ok());
        let mut map = None;
        let (scheme, object, mount_id) = match handle {
            Some((handle, mount_id)) => (ObjectScheme::Kernel, handle, mount_id),
            None => {
                let name = fsid::map_name(&state, id, &lifetime).map_err(state_error)?;
                let is_kept = lifetime != Lifetime::Process;
                let shared = InodeMap::open(&state, &name, is_kept).map_err(state_error)?;
                let scheme = ObjectScheme::Map(shared.map.clone());
                let map_id = shared.map.identify_directory(&found);
                map = Some(shared);
                (scheme, map_id, 0)
            }
        };

        let info = FileSystemInfo {
            name_max: fstatvfs(&mount).map_or(255, |space| space.f_namemax as u32),
            links_max: sys::links_max(&mount).unwrap_or(32_000),
            ..FileSystemInfo::default()
        };
        let start_error = |source: std::io::Error| OpenError::Start { path: path.clone(), source };
        let verifier = sys::random().map_err(|error| start_error(error.into()))?;
        let wake = Wake::default();
        let cache = NodeCache::new(descriptors_max, device, wake.clone());
        let root = Arc::new(cache.node(object, FileKind::Directory, root));
        let tree = Arc::new(Tree {
            id,
            info,
            metadata: options.metadata,
            kind,
            access_times: AccessTimes::of(&mount, kind),
            is_exclusive: options.exclusive,
            root,
            mount,
            mount_id,
            device: found.device,
            proc,
            scheme,
            cache,
            listings: SortedListings::default(),
            uncommitted: UncommittedFiles::new(descriptors_max / 8),
            identity,
            verifier: AtomicU64::new(verifier),
            openat2_missing: AtomicBool::new(false),
            has_reported_devices: AtomicBool::new(false),
        });
        let housekeeping = housekeeping::start(tree.clone(), wake).map_err(start_error)?;
        let (id_is_portable, _housekeeping) = (is_portable, housekeeping);
        Ok(Self { tree, id_is_portable, lifetime, _housekeeping, _map: map })
    }

    /// How objects are identified.
    pub fn handle_kind(&self) -> HandleKind {
        match (&self.tree.scheme, &self.lifetime) {
            (ObjectScheme::Kernel, _) => HandleKind::Kernel,
            (ObjectScheme::Map(_), Lifetime::Lasting) => HandleKind::InodeMap,
            (ObjectScheme::Map(_), Lifetime::Mount(_)) => HandleKind::Mount,
            (ObjectScheme::Map(_), Lifetime::Process) => HandleKind::Process,
        }
    }

    /// Whether another server assigns the same id to this file system: it is configured, or derived
    /// from the UUID. Otherwise the handles of two servers differ.
    pub fn id_is_portable(&self) -> bool {
        self.id_is_portable
    }

    /// The result of an operation on `object`. If a daemon of FUSE ended, what cannot be done now never
    /// can be (B1.68); attributes are no proof, as the kernel keeps them for a while.
    fn unless_ended<T>(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
        result: Result<T>,
    ) -> Result<T> {
        if self.tree.kind.has_daemon && matches!(result, Err(Error::TryLater)) {
            self.space(context, object)?;
        }
        result
    }

    /// Whether operations run with the identity of the caller, or all with that of the server.
    pub fn acts_as_caller(&self) -> bool {
        self.tree.identity != Identity::Server
    }
}

/// Operations that write block on the disk, and only worker threads may assume an identity.
fn require_blocking(context: &Context<'_>) -> Result<()> {
    match context.blocking {
        BlockingMode::MayBlock => Ok(()),
        BlockingMode::Nonblocking => Err(Error::WouldBlock),
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

    fn info(&self) -> FileSystemInfo {
        self.tree.info
    }

    fn kind(&self) -> &'static str {
        self.tree.kind.name
    }

    fn supports_nonblocking(&self) -> bool {
        self.tree.kind.answers_from_memory
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
    ) -> Result<AttributeChange> {
        require_blocking(context)?;
        self.tree.set_attributes(context, object, new, guard)
    }

    fn lookup(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<LookupReply> {
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

    fn lock_access(&self, context: &Context<'_>, object: &ObjectId) -> Result<(Permissions, u32)> {
        self.tree.lock_access(context, object)
    }

    fn read_link(&self, context: &Context<'_>, link: &ObjectId) -> Result<(Bytes, Attributes)> {
        let node = self.tree.node(context, link)?;
        if node.kind != FileKind::Symlink {
            return Err(Error::Invalid);
        }
        let attributes = self.tree.attributes(&node)?;
        let is_in_inode = attributes.size <= SHORT_LINK && self.tree.kind.has_links_in_inode;
        if !is_in_inode || self.tree.access_times.are_written(&attributes) {
            require_blocking(context)?;
        }
        let text = readlinkat(node.path(), c"", Vec::with_capacity(256))?;
        Ok((Bytes::from(text.into_bytes()), attributes))
    }

    fn read(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<ReadReply> {
        let read = self.tree.read(context, file, offset, count);
        self.unless_ended(context, file, read)
    }

    fn write(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<WriteReply> {
        require_blocking(context)?;
        let written = self.tree.write(context, file, offset, data, stability);
        self.unless_ended(context, file, written)
    }

    /// Commits the whole file; `fsync` takes no range.
    fn commit(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        _offset: u64,
        _count: u32,
    ) -> Result<AttributeChange> {
        require_blocking(context)?;
        let committed = self.tree.commit(context, file);
        self.unless_ended(context, file, committed)
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
    ) -> Result<CreateReply> {
        require_blocking(context)?;
        self.tree.create(context, dir, name, mode)
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        require_blocking(context)?;
        self.tree.make_dir(context, dir, name, new)
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        text: &[u8],
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        require_blocking(context)?;
        self.tree.make_symlink(context, dir, name, text, new)
    }

    fn make_node(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        kind: NodeKind,
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        require_blocking(context)?;
        self.tree.make_node(context, dir, name, kind, new)
    }

    fn remove(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<RemoveReply> {
        require_blocking(context)?;
        self.tree.remove(context, dir, name)
    }

    fn remove_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<RemoveReply> {
        require_blocking(context)?;
        self.tree.remove_dir(context, dir, name)
    }

    fn rename(
        &self,
        context: &Context<'_>,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<RenameReply> {
        require_blocking(context)?;
        self.tree.rename(context, from, to)
    }

    fn link(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<(Attributes, AttributeChange)> {
        require_blocking(context)?;
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
    ) -> Result<ReadDirReply> {
        require_blocking(context)?;
        self.tree.read_dir(context, dir, cookie, plus, sink)
    }

    fn space(&self, context: &Context<'_>, object: &ObjectId) -> Result<Space> {
        let node = self.tree.node(context, object)?;
        let found = fstatvfs(node.path()).map_err(|errno| self.tree.error(errno))?;
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
    fn without_openat2_lookup_works_and_enters_no_mount() {
        let state = tempfile::tempdir().unwrap();
        let fs = LocalFs::open(Options::new("/", state.path())).unwrap();
        fs.tree.openat2_missing.store(true, Relaxed);
        let caller = Caller::new(0, 0, &[]);
        let context = Context { caller: &caller, blocking: BlockingMode::MayBlock };
        let found = fs.lookup(&context, &fs.root(), b"usr").unwrap();
        assert_eq!(fs.lookup(&context, &found.object, b"..").unwrap().object, fs.root());
        assert_eq!(fs.lookup(&context, &fs.root(), b"proc").unwrap_err(), Error::Denied);
        let nonblocking = Context { blocking: BlockingMode::Nonblocking, ..context };
        assert_eq!(fs.lookup(&nonblocking, &fs.root(), b"usr").unwrap_err(), Error::WouldBlock);
    }

    /// B1.86. In a mount namespace of its own.
    #[test]
    fn without_openat2_a_mount_of_the_same_device_is_not_entered() {
        const NAME: &str =
            "local::tests::without_openat2_a_mount_of_the_same_device_is_not_entered";
        testbed::namespace::need_root();
        if std::env::var_os("OWN_MOUNT_SPACE").is_none() {
            let output = std::process::Command::new("unshare")
                .args(["--mount", "--propagation", "private"])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", NAME, "--nocapture"])
                .env("OWN_MOUNT_SPACE", "1")
                .output()
                .unwrap();
            let [said, errors] = [output.stdout, output.stderr]
                .map(|text| String::from_utf8_lossy(&text).into_owned());
            assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
            return;
        }
        let (state, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [export, outside] = ["export", "outside"].map(|name| host.path().join(name));
        let bound = export.join("bound");
        for directory in [&export, &outside, &bound, &outside.join("private")] {
            std::fs::create_dir(directory).unwrap();
        }
        let mut bind = std::process::Command::new("mount");
        assert!(bind.arg("--bind").args([&outside, &bound]).status().unwrap().success());
        let caller = Caller::new(0, 0, &[]);
        let context = Context { caller: &caller, blocking: BlockingMode::MayBlock };
        for handles in [HandleChoice::Auto, HandleChoice::InodeMap] {
            let options = Options { handles, ..Options::new(&export, state.path()) };
            let fs = LocalFs::open(options).unwrap();
            fs.tree.openat2_missing.store(true, Relaxed);
            assert_eq!(fs.lookup(&context, &fs.root(), b"bound").unwrap_err(), Error::Denied);
            std::fs::create_dir_all(export.join("plain")).unwrap();
            let plain = fs.lookup(&context, &fs.root(), b"plain").unwrap();
            assert_eq!(fs.lookup(&context, &plain.object, b"..").unwrap().object, fs.root());
        }
        // Also where the kernel does not tell the mount by statx.
        let fd = |path: &std::path::Path| openat(CWD, path, PATH_ONLY, Mode::empty()).unwrap();
        let [inside, mounted] = [fd(&export), fd(&bound)];
        let proc = fd("/proc/self/fd".as_ref());
        for fd in [&inside, &mounted] {
            let by_statx = status(fd).unwrap().mount;
            assert_eq!(status::mount_by_proc(&proc, fd).ok(), by_statx);
        }
        assert_ne!(status(&inside).unwrap().mount, status(&mounted).unwrap().mount);
    }
}
