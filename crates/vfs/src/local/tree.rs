//! The served directory: object ids, open nodes, and lookups that cannot leave the export.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::{
    fs::{Access, AtFlags, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat},
    io::Errno,
    path::DecInt,
};

use super::{
    MetadataMode,
    access_time::AccessTimes,
    identity::Identity,
    inodes::InodeMap,
    kind::Kind,
    listing::SortedListings,
    node::{Node, NodeCache, Opened},
    status::{Status, mount_of, status, status_of_entry},
    sys,
    uncommitted::UncommittedFiles,
};
use crate::{
    Attributes, BlockingMode, Caller, Context, Error, FileKind, FileSystemId, FileSystemInfo,
    LookupReply, ObjectId, Result,
};

/// The bound of a walk up to the root of the export.
const DEPTH_MAX: usize = 4096;

/// How often an operation is retried after a race with the host.
const ATTEMPTS: usize = 16;

pub(super) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(super) struct Tree {
    pub(super) id: FileSystemId,
    pub(super) info: FileSystemInfo,
    pub(super) metadata: MetadataMode,
    pub(super) kind: Kind,
    pub(super) access_times: AccessTimes,
    /// Only this server changes the file system.
    pub(super) is_exclusive: bool,
    pub(super) root: Arc<Node>,
    /// The root, not opened with `O_PATH`: required by `open_by_handle_at` and `syncfs`.
    pub(super) mount: OwnedFd,
    pub(super) mount_id: i32,
    /// Of the root.
    pub(super) device: (u32, u32),
    /// `/proc/self/fd`, to reopen descriptors with other flags.
    pub(super) proc: OwnedFd,
    pub(super) scheme: ObjectScheme,
    pub(super) cache: NodeCache,
    pub(super) listings: SortedListings,
    pub(super) uncommitted: UncommittedFiles,
    pub(super) identity: Identity,
    pub(super) verifier: AtomicU64,
    pub(super) openat2_missing: AtomicBool,
    /// Files of another device were refused and reported.
    pub(super) has_reported_devices: AtomicBool,
}

/// How object ids are formed.
pub(super) enum ObjectScheme {
    /// From kernel file handles.
    Kernel,
    /// From inode number and birth time; opened by recorded names.
    Map(Arc<InodeMap>),
}

impl Tree {
    /// The node of an object; `WouldBlock` if it is not cached and the context forbids blocking.
    pub(super) fn node(&self, context: &Context<'_>, id: &ObjectId) -> Result<Arc<Node>> {
        if *id == self.root.id {
            return Ok(self.root.clone());
        }
        if let Some(node) = self.cache.get(id) {
            return Ok(node);
        }
        if context.blocking == BlockingMode::Nonblocking {
            return Err(Error::WouldBlock);
        }
        let fd = self.open_object(id)?;
        let found = status(&fd).map_err(|errno| self.error(errno))?.attributes;
        if found.links == 0 {
            return Err(Error::Stale);
        }
        Ok(self.cache.insert(*id, found.kind, fd))
    }

    fn is_gone(&self, node: &Node) -> Result<Attributes> {
        self.drop_node(&node.id);
        Err(Error::Stale)
    }

    pub(super) fn directory(&self, context: &Context<'_>, id: &ObjectId) -> Result<Arc<Node>> {
        let node = self.node(context, id)?;
        if node.kind == FileKind::Directory { Ok(node) } else { Err(Error::NotADirectory) }
    }

    fn open_object(&self, id: &ObjectId) -> Result<OwnedFd> {
        let map = match &self.scheme {
            ObjectScheme::Kernel => return self.open_handle(id),
            ObjectScheme::Map(map) => map,
        };
        map.find((self.root.path(), &self.root.id), id, |dir, name| {
            self.open_entry(dir, name, ResolveFlags::empty())
        })
    }

    fn open_handle(&self, id: &ObjectId) -> Result<OwnedFd> {
        for _ in 0..ATTEMPTS {
            match self.opening(|| sys::open_handle(&self.mount, id, PATH_ONLY)) {
                Ok(fd) => return Ok(fd),
                // INVAL and OVERFLOW: not a handle of this file system.
                Err(Errno::STALE | Errno::NOENT | Errno::INVAL | Errno::OVERFLOW) => {
                    return Err(Error::Stale);
                }
                // Also returned, briefly, while the inode number of a removed file is reused.
                Err(Errno::NOMEM) => std::thread::sleep(Duration::from_micros(100)),
                Err(other) => return Err(other.into()),
            }
        }
        Err(Error::TryLater)
    }

    /// Id and status of the object of `fd`, the entry `name` of `dir`.
    pub(super) fn identify(
        &self,
        fd: &OwnedFd,
        dir: &Node,
        name: &[u8],
    ) -> Result<(ObjectId, Status)> {
        let found = status(fd)?;
        let id = match &self.scheme {
            ObjectScheme::Kernel => sys::handle_at(fd, c"", AtFlags::EMPTY_PATH)?.0,
            ObjectScheme::Map(map) => {
                self.check_device(&found)?;
                map.record(&dir.id, name, &found, |id| self.cache.contains(id))
            }
        };
        Ok((id, found))
    }

    /// Inode numbers identify the files of one device only.
    fn check_device(&self, found: &Status) -> Result<()> {
        if found.device == self.device {
            return Ok(());
        }
        if !self.has_reported_devices.swap(true, Relaxed) {
            let path = self.path_of(self.root.path()).unwrap_or_default();
            let path = String::from_utf8_lossy(&path);
            tracing::error!(
                "{path}: files of another device are refused, because only kernel file handles tell \
                 them apart. Mount an overlayfs with layers on different file systems with -o xino=on; \
                 export a subvolume separately"
            );
        }
        Err(Error::NotSupported)
    }

    /// The object of an entry, without opening it, and whether the entry is known to be its only one;
    /// `None` if it is gone or is a mount point.
    pub(super) fn identify_entry(&self, dir: &Node, name: &[u8]) -> Option<(ObjectId, bool)> {
        match &self.scheme {
            ObjectScheme::Kernel => {
                let (id, mount) = sys::handle_at(dir.path(), name, AtFlags::empty()).ok()?;
                (mount == self.mount_id).then_some((id, false))
            }
            ObjectScheme::Map(map) => {
                let found = status_of_entry(dir.path(), name).ok()?;
                let id = map.identify(&dir.id, name, &found, |id| self.cache.contains(id));
                let attributes = &found.attributes;
                let is_last = attributes.links == 1 || attributes.kind == FileKind::Directory;
                (found.device == self.device).then_some((id, is_last))
            }
        }
    }

    /// The object and attributes of an entry that a listing reported with `fileid`.
    pub(super) fn lookup_entry(&self, dir: &Node, name: &[u8], fileid: u64) -> Option<LookupReply> {
        // The handle first: if the attributes then have the inode number of the listing, the name
        // has not been reused in between and is not a mount point.
        let handle = match &self.scheme {
            ObjectScheme::Kernel => Some(self.identify_entry(dir, name)?.0),
            ObjectScheme::Map(_) => None,
        };
        let found = status_of_entry(dir.path(), name).ok()?;
        if found.attributes.fileid != fileid || found.device != self.device {
            return None;
        }
        let object = match &self.scheme {
            ObjectScheme::Kernel => handle?,
            ObjectScheme::Map(map) => {
                map.record(&dir.id, name, &found, |id| self.cache.contains(id))
            }
        };
        Some(LookupReply { object, attributes: found.attributes })
    }

    /// The attributes of a file. If it has no name left, drops the node and returns `Stale`.
    pub(super) fn attributes(&self, node: &Node) -> Result<Attributes> {
        let found = match status(node.path()) {
            // Of a descriptor of our own: a daemon of FUSE has lost the object.
            Err(Errno::NOENT) => return self.is_gone(node),
            other => other.map_err(|errno| self.error(errno))?,
        };
        if found.attributes.links == 0 {
            return self.is_gone(node);
        }
        self.note_birth(&node.id, &found);
        Ok(found.attributes)
    }

    /// Records the birth time of an object that is known to be the same as before: overlayfs changes
    /// it with the first change of a file.
    pub(super) fn note_birth(&self, id: &ObjectId, found: &Status) {
        if let ObjectScheme::Map(map) = &self.scheme
            && !self.kind.has_lasting_births
        {
            map.reborn(id, found);
        }
    }

    /// After an entry was removed or replaced: drops the node if that was its last name.
    pub(super) fn unlinked(&self, id: Option<ObjectId>) {
        self.root.device().count_change();
        let Some(node) = id.and_then(|id| self.cache.get(&id)) else { return };
        if status(node.path()).is_ok_and(|found| found.attributes.links == 0) {
            self.drop_node(&node.id);
        }
    }

    fn drop_node(&self, id: &ObjectId) {
        self.uncommitted.forget(id);
        self.cache.forget(id);
    }

    pub(super) fn lookup(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<LookupReply> {
        let dir = self.directory(context, dir)?;
        let attributes = self.attributes(&dir)?;
        self.may_search(context, &dir, &attributes)?;
        match name {
            b"." => Ok(LookupReply { object: dir.id, attributes }),
            b".." if dir.id == self.root.id => Ok(LookupReply { object: dir.id, attributes }),
            b".." => self.parent(&dir),
            _ => self.child(&dir, name, context.blocking),
        }
    }

    pub(super) fn child(
        &self,
        dir: &Node,
        name: &[u8],
        blocking: BlockingMode,
    ) -> Result<LookupReply> {
        check_name(name)?;
        let fd = self.enter(dir, name, blocking)?;
        let (object, found) = self.identify(&fd, dir, name)?;
        self.cache.insert(object, found.attributes.kind, fd);
        Ok(LookupReply { object, attributes: found.attributes })
    }

    /// The parent of `dir`, if it is still below the root: the host may have moved `dir` out of the
    /// export.
    fn parent(&self, dir: &Node) -> Result<LookupReply> {
        let root = status(self.root.path())?;
        let is_root = |found: &Status| {
            found.attributes.fileid == root.attributes.fileid && found.device == root.device
        };
        let parent = self.open_entry(dir.path(), b"..", ResolveFlags::empty())?;
        let found = status(&parent)?;
        if is_root(&found) {
            return Ok(LookupReply { object: self.root.id, attributes: found.attributes });
        }
        let (mut below, mut fileid) = (None, found.attributes.fileid);
        for _ in 0..DEPTH_MAX {
            let from = below.as_ref().unwrap_or(&parent).as_fd();
            let above = self.open_entry(from, b"..", ResolveFlags::empty());
            // The root of the mount was reached before that of the export.
            let above = above.map_err(|_| Error::Denied)?;
            let seen = status(&above)?;
            if is_root(&seen) {
                let object = match &self.scheme {
                    ObjectScheme::Kernel => sys::handle_at(&parent, c"", AtFlags::EMPTY_PATH)?.0,
                    ObjectScheme::Map(map) => map.identify_directory(&found),
                };
                self.cache.insert(object, FileKind::Directory, parent);
                return Ok(LookupReply { object, attributes: found.attributes });
            }
            if seen.attributes.fileid == fileid {
                return Err(Error::Denied);
            }
            (below, fileid) = (Some(above), seen.attributes.fileid);
        }
        Err(Error::Denied)
    }

    /// Opens an entry without following a symbolic link or crossing a mount point.
    pub(super) fn enter(&self, dir: &Node, name: &[u8], blocking: BlockingMode) -> Result<OwnedFd> {
        let cached = match blocking {
            BlockingMode::Nonblocking if self.cache.is_behind_with_closing() => {
                return Err(Error::WouldBlock);
            }
            BlockingMode::Nonblocking => ResolveFlags::CACHED,
            BlockingMode::MayBlock => ResolveFlags::empty(),
        };
        self.open_entry(dir.path(), name, cached)
    }

    fn open_entry(&self, dir: BorrowedFd<'_>, name: &[u8], more: ResolveFlags) -> Result<OwnedFd> {
        let cached_only = more.contains(ResolveFlags::CACHED);
        if self.openat2_missing.load(Relaxed) {
            return if cached_only {
                Err(Error::WouldBlock)
            } else {
                self.open_entry_by_openat(dir, name)
            };
        }
        let resolve =
            ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | more;
        for _ in 0..ATTEMPTS {
            let open = || openat2(dir, name, PATH_ONLY, Mode::empty(), resolve);
            return match self.opening(open) {
                // INVAL: kernels before 5.12 do not know `CACHED`. MFILE, NFILE: the descriptors of the
                // cache are closed by another thread.
                Err(Errno::AGAIN | Errno::INVAL | Errno::MFILE | Errno::NFILE) if cached_only => {
                    Err(Error::WouldBlock)
                }
                Err(Errno::AGAIN) => continue,
                Err(Errno::XDEV) => Err(Error::Denied),
                // A seccomp filter may reject the call.
                Err(Errno::NOSYS | Errno::PERM) => {
                    self.openat2_missing.store(true, Relaxed);
                    self.open_entry(dir, name, more)
                }
                other => other.map_err(|errno| self.error(errno)),
            };
        }
        Err(Error::TryLater)
    }

    pub(super) fn error(&self, errno: Errno) -> Error {
        match errno {
            // The daemon has ended, and with it all objects.
            Errno::NOTCONN | Errno::CONNABORTED if self.kind.has_daemon => Error::Stale,
            other => other.into(),
        }
    }

    /// For kernels without `openat2`. A single component is not followed, so only mount points
    /// need a check: by mount, as a directory that is bound has the same device (B1.86).
    fn open_entry_by_openat(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
        let fd = self.opening(|| openat(dir, name, PATH_ONLY, Mode::empty()))?;
        let is_inside = mount_of(&self.proc, &fd)? == mount_of(&self.proc, self.root.path())?;
        if is_inside { Ok(fd) } else { Err(Error::Denied) }
    }

    /// The path of an object below the root, from the kernel's dentry cache; `None` if the file was
    /// not looked up since boot.
    pub(super) fn path(&self, id: &ObjectId) -> Option<Vec<u8>> {
        let caller = Caller::new(0, 0, &[]);
        let context = Context { caller: &caller, blocking: BlockingMode::MayBlock };
        let node = self.node(&context, id).ok()?;
        let (root, path) = (self.path_of(self.root.path())?, self.path_of(node.path())?);
        let below = path.strip_prefix(&root[..])?;
        let below = if root == b"/" { below } else { below.strip_prefix(b"/")? };
        // The kernel also reports paths of removed and replaced files.
        let there = openat(&self.mount, below, PATH_ONLY, Mode::empty()).ok()?;
        let (found, sought) = (status(&there).ok()?, status(node.path()).ok()?);
        let same =
            found.device == sought.device && found.attributes.fileid == sought.attributes.fileid;
        same.then(|| below.to_vec())
    }

    fn path_of(&self, fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
        let name = DecInt::new(fd.as_raw_fd());
        Some(readlinkat(&self.proc, name.as_c_str(), Vec::new()).ok()?.into_bytes())
    }

    /// Opens the file of a descriptor again, with other flags.
    pub(super) fn reopen(&self, fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
        let name = DecInt::new(fd.as_fd().as_raw_fd());
        let flags = flags | OFlags::CLOEXEC;
        self.opening(|| openat(&self.proc, name.as_c_str(), flags, Mode::empty()))
            .map_err(|errno| self.error(errno))
    }

    /// Runs `open`; if the process has no descriptor left, empties the cache and retries.
    pub(super) fn opening<T>(
        &self,
        open: impl Fn() -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.cache.clear();
                open()
            }
            other => other,
        }
    }

    /// The descriptor for reading, listing and `fsync`. Opened with the server's privileges, so not
    /// to be called while the identity of a caller is assumed.
    pub(super) fn reader<'a>(&self, node: &'a Node) -> Result<Opened<'a>> {
        let flags = match node.kind {
            FileKind::Regular => OFlags::RDONLY,
            FileKind::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            // Opening a device or a pipe has side effects.
            _ => return Err(Error::Invalid),
        };
        let reader = node.reader(|| self.reopen(node.path(), flags));
        self.cache.keep_bound();
        reader
    }

    /// Like [`reader`](Tree::reader), for writing.
    pub(super) fn writer(&self, node: &Node) -> Result<Arc<OwnedFd>> {
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsADirectory),
            _ => return Err(Error::Invalid),
        }
        let writer = node.writer(|| self.reopen(node.path(), OFlags::RDWR));
        self.cache.keep_bound();
        writer
    }

    /// Whether the writer of a file must stay open although no write has used it lately: it has
    /// unstable writes, or the server could not open it again because it was created with a mode
    /// that denies writing to its owner.
    pub(super) fn must_keep_writer(&self, node: &Node) -> bool {
        self.uncommitted.contains(&node.id)
            || (self.identity == Identity::Server
                && sys::access(node.path(), Access::READ_OK | Access::WRITE_OK).is_err())
    }
}

/// The server checks names as well; this check is what confines a request to the export.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::Invalid),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}
