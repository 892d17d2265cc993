//! The served directory: how objects are named, found and let go.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat},
    io::Errno,
    path::DecInt,
};

use super::{
    Metadata,
    identity::Identity,
    inodes::InodeMap,
    node::{Cache, Node},
    status::{Status, status, status_of_entry},
    sys,
    uncommitted::Uncommitted,
};
use crate::{
    Attributes, Caller, Context, Error, FileKind, FileSystemId, Looked, ObjectId, Patience, Result,
    Traits,
};

/// What a walk up to the export's root may take before it is given up.
const DEPTH_MAX: usize = 4096;

/// How often something that somebody else disturbed is done again.
const ATTEMPTS: usize = 16;

pub(super) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(super) struct Tree {
    pub(super) id: FileSystemId,
    pub(super) traits: Traits,
    pub(super) metadata: Metadata,
    pub(super) root: Arc<Node>,
    /// The root again, opened for real: the kernel wants that for handles and for `syncfs`.
    pub(super) mount: OwnedFd,
    pub(super) mount_id: i32,
    /// The root's, to notice mount points where `openat2` cannot be had.
    pub(super) device: (u32, u32),
    /// `/proc/self/fd`, through which a descriptor is opened again in another way.
    pub(super) proc: OwnedFd,
    pub(super) objects: Objects,
    pub(super) cache: Cache,
    pub(super) uncommitted: Uncommitted,
    pub(super) identity: Identity,
    pub(super) verifier: AtomicU64,
    pub(super) openat2_missing: AtomicBool,
}

/// How objects are named.
pub(super) enum Objects {
    /// By the kernel's file handles.
    Kernel,
    /// By inode number and birth, found again by the names last seen.
    Map(InodeMap),
}

impl Tree {
    /// The node of an object. May wait for the disk if it is not in the cache.
    pub(super) fn node(&self, context: &Context<'_>, id: &ObjectId) -> Result<Arc<Node>> {
        if *id == self.root.id {
            return Ok(self.root.clone());
        }
        if let Some(node) = self.cache.get(id) {
            return Ok(node);
        }
        if context.patience == Patience::Now {
            return Err(Error::WouldBlock);
        }
        let fd = self.open_object(id)?;
        let found = status(&fd)?.attributes;
        if found.links == 0 {
            return Err(Error::Stale);
        }
        Ok(self.cache.insert(*id, found.kind, fd))
    }

    pub(super) fn directory(&self, context: &Context<'_>, id: &ObjectId) -> Result<Arc<Node>> {
        let node = self.node(context, id)?;
        if node.kind == FileKind::Directory { Ok(node) } else { Err(Error::NotADirectory) }
    }

    fn open_object(&self, id: &ObjectId) -> Result<OwnedFd> {
        let map = match &self.objects {
            Objects::Kernel => return self.open_handle(id),
            Objects::Map(map) => map,
        };
        map.find(&self.root.path, id, |dir, name| self.open_entry(dir, name, ResolveFlags::empty()))
    }

    fn open_handle(&self, id: &ObjectId) -> Result<OwnedFd> {
        for _ in 0..ATTEMPTS {
            match self.opening(|| sys::open_handle(&self.mount, id, PATH_ONLY)) {
                Ok(fd) => return Ok(fd),
                // The last two: a handle that this file system never gave.
                Err(Errno::STALE | Errno::NOENT | Errno::INVAL | Errno::OVERFLOW) => {
                    return Err(Error::Stale);
                }
                // So says the kernel also of a file that is gone while its inode number is just
                // being given to another one, which is over in no time.
                Err(Errno::NOMEM) => std::thread::sleep(Duration::from_micros(100)),
                Err(other) => return Err(other.into()),
            }
        }
        Err(Error::TryLater)
    }

    /// The object that `fd` refers to, found as `name` in `dir`.
    pub(super) fn identify(
        &self,
        fd: &OwnedFd,
        dir: &Node,
        name: &[u8],
    ) -> Result<(ObjectId, Status)> {
        let found = status(fd)?;
        let id = match &self.objects {
            Objects::Kernel => sys::handle_at(fd, c"", AtFlags::EMPTY_PATH)?.0,
            Objects::Map(map) => map.record(&dir.id, name, &found),
        };
        Ok((id, found))
    }

    /// The object behind an entry, without opening it; `None` if it is no longer there, or is a
    /// mount point.
    pub(super) fn identify_entry(&self, dir: &Node, name: &[u8]) -> Option<ObjectId> {
        match &self.objects {
            Objects::Kernel => {
                let (id, mount) = sys::handle_at(&dir.path, name, AtFlags::empty()).ok()?;
                (mount == self.mount_id).then_some(id)
            }
            Objects::Map(map) => {
                let found = status_of_entry(&dir.path, name).ok()?;
                (found.device == self.device).then(|| map.identify(&found))
            }
        }
    }

    /// An entry's object and attributes, for a listing that gave `fileid` for it.
    pub(super) fn look_at_entry(&self, dir: &Node, name: &[u8], fileid: u64) -> Option<Looked> {
        // The handle first: attributes with the number that the listing gave then show that the
        // name was not given to another file in between, and is no mount point.
        let handle = match &self.objects {
            Objects::Kernel => Some(self.identify_entry(dir, name)?),
            Objects::Map(_) => None,
        };
        let found = status_of_entry(&dir.path, name).ok()?;
        if found.attributes.fileid != fileid || found.device != self.device {
            return None;
        }
        let object = match &self.objects {
            Objects::Kernel => handle?,
            Objects::Map(map) => map.record(&dir.id, name, &found),
        };
        Some(Looked { object, attributes: found.attributes })
    }

    /// The file's attributes, or `Stale` if it has no name left; then it is also let go.
    pub(super) fn attributes(&self, node: &Node) -> Result<Attributes> {
        let found = status(&node.path)?.attributes;
        if found.links == 0 {
            self.let_go(&node.id);
            return Err(Error::Stale);
        }
        Ok(found)
    }

    /// After an entry was removed or replaced: lets the file go if that was its last name.
    pub(super) fn unlinked(&self, id: Option<ObjectId>) {
        let Some(node) = id.and_then(|id| self.cache.get(&id)) else { return };
        if status(&node.path).is_ok_and(|found| found.attributes.links == 0) {
            self.let_go(&node.id);
        }
    }

    fn let_go(&self, id: &ObjectId) {
        self.uncommitted.forget(id);
        self.cache.forget(id);
    }

    pub(super) fn lookup(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<Looked> {
        let dir = self.directory(context, dir)?;
        let attributes = self.attributes(&dir)?;
        self.may_search(context, &dir, &attributes)?;
        match name {
            b"." => Ok(Looked { object: dir.id, attributes }),
            b".." if dir.id == self.root.id => Ok(Looked { object: dir.id, attributes }),
            b".." => self.parent(&dir),
            _ => self.child(&dir, name, context.patience),
        }
    }

    pub(super) fn child(&self, dir: &Node, name: &[u8], patience: Patience) -> Result<Looked> {
        check_name(name)?;
        let fd = self.enter(dir, name, patience)?;
        let (object, found) = self.identify(&fd, dir, name)?;
        self.cache.insert(object, found.attributes.kind, fd);
        Ok(Looked { object, attributes: found.attributes })
    }

    /// The directory above `dir`, if that is still below the root: `dir` may have been moved out.
    fn parent(&self, dir: &Node) -> Result<Looked> {
        let root = status(&self.root.path)?;
        let is_root = |found: &Status| {
            found.attributes.fileid == root.attributes.fileid && found.device == root.device
        };
        let parent = self.open_entry(&dir.path, b"..", ResolveFlags::empty())?;
        let found = status(&parent)?;
        if is_root(&found) {
            return Ok(Looked { object: self.root.id, attributes: found.attributes });
        }
        let (mut below, mut fileid) = (None, found.attributes.fileid);
        for _ in 0..DEPTH_MAX {
            let above =
                self.open_entry(below.as_ref().unwrap_or(&parent), b"..", ResolveFlags::empty());
            // The root of the mount, and ours was not on the way.
            let above = above.map_err(|_| Error::Denied)?;
            let seen = status(&above)?;
            if is_root(&seen) {
                let object = match &self.objects {
                    Objects::Kernel => sys::handle_at(&parent, c"", AtFlags::EMPTY_PATH)?.0,
                    Objects::Map(map) => map.identify(&found),
                };
                self.cache.insert(object, FileKind::Directory, parent);
                return Ok(Looked { object, attributes: found.attributes });
            }
            if seen.attributes.fileid == fileid {
                return Err(Error::Denied);
            }
            (below, fileid) = (Some(above), seen.attributes.fileid);
        }
        Err(Error::Denied)
    }

    /// Opens an entry, without following a link and without crossing into another mount.
    pub(super) fn enter(&self, dir: &Node, name: &[u8], patience: Patience) -> Result<OwnedFd> {
        let cached = match patience {
            Patience::Now => ResolveFlags::CACHED,
            Patience::Wait => ResolveFlags::empty(),
        };
        self.open_entry(&dir.path, name, cached)
    }

    fn open_entry(&self, dir: &OwnedFd, name: &[u8], more: ResolveFlags) -> Result<OwnedFd> {
        let now = more.contains(ResolveFlags::CACHED);
        if self.openat2_missing.load(Relaxed) {
            return if now { Err(Error::WouldBlock) } else { self.open_entry_plainly(dir, name) };
        }
        let resolve =
            ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | more;
        for _ in 0..ATTEMPTS {
            let open = || openat2(dir, name, PATH_ONLY, Mode::empty(), resolve);
            return match self.opening(open) {
                // The second: a kernel before 5.12 does not know `CACHED`.
                Err(Errno::AGAIN | Errno::INVAL) if now => Err(Error::WouldBlock),
                Err(Errno::AGAIN) => continue,
                Err(Errno::XDEV) => Err(Error::Denied),
                // A container's filter may not know the call.
                Err(Errno::NOSYS | Errno::PERM) => {
                    self.openat2_missing.store(true, Relaxed);
                    self.open_entry(dir, name, more)
                }
                other => Ok(other?),
            };
        }
        Err(Error::TryLater)
    }

    /// One component, never followed, so that only mounts are left to be noticed.
    fn open_entry_plainly(&self, dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
        let fd = self.opening(|| openat(dir, name, PATH_ONLY, Mode::empty()))?;
        if status(&fd)?.device == self.device { Ok(fd) } else { Err(Error::Denied) }
    }

    /// The path of an object below the root, as the kernel knows it. It knows none for a file that
    /// was not looked up since the machine started.
    pub(super) fn path(&self, id: &ObjectId) -> Option<Vec<u8>> {
        let caller = Caller::new(0, 0, &[]);
        let context = Context { caller: &caller, patience: Patience::Wait };
        let node = self.node(&context, id).ok()?;
        let (root, path) = (self.path_of(&self.root.path)?, self.path_of(&node.path)?);
        let below = path.strip_prefix(&root[..])?;
        let below = if root == b"/" { below } else { below.strip_prefix(b"/")? };
        // What is not there by that name, or is another file, is not its path.
        let there = openat(&self.mount, below, PATH_ONLY, Mode::empty()).ok()?;
        let (found, sought) = (status(&there).ok()?, status(&node.path).ok()?);
        let same =
            found.device == sought.device && found.attributes.fileid == sought.attributes.fileid;
        same.then(|| below.to_vec())
    }

    fn path_of(&self, fd: &OwnedFd) -> Option<Vec<u8>> {
        let name = DecInt::new(fd.as_raw_fd());
        Some(readlinkat(&self.proc, name.as_c_str(), Vec::new()).ok()?.into_bytes())
    }

    /// Opens what a descriptor refers to once more, in another way.
    pub(super) fn reopen(&self, fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
        let name = DecInt::new(fd.as_fd().as_raw_fd());
        let flags = flags | OFlags::CLOEXEC;
        Ok(self.opening(|| openat(&self.proc, name.as_c_str(), flags, Mode::empty()))?)
    }

    /// Opens something, again if there was no descriptor left for it.
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

    /// For reading data, listing and `fsync`, with the server's authority.
    pub(super) fn reader<'a>(&self, node: &'a Node) -> Result<&'a OwnedFd> {
        let flags = match node.kind {
            FileKind::Regular => OFlags::RDONLY,
            FileKind::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            // Opening a device or a pipe does something.
            _ => return Err(Error::Invalid),
        };
        let reader = node.reader(|| self.reopen(&node.path, flags));
        self.cache.keep_bound();
        reader
    }

    pub(super) fn writer<'a>(&self, node: &'a Node) -> Result<&'a OwnedFd> {
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsADirectory),
            _ => return Err(Error::Invalid),
        }
        let writer = node.writer(|| self.reopen(&node.path, OFlags::RDWR));
        self.cache.keep_bound();
        writer
    }
}

/// Names are checked by the server; a mistake there must not become a way out of the export.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::Invalid),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}
