//! CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK.
//!
//! Every one runs under the caller's identity on the directory's own descriptor, so that the
//! kernel decides, and holds the directory's order, so that before and after are honest.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, linkat, makedev, mkdirat, mknodat, openat, renameat,
        symlinkat, unlinkat,
    },
    io::Errno,
    path::DecInt,
};

use super::{
    identity::modes_are_exact,
    node::Node,
    tree::{Objects, PATH_ONLY, Tree, check_name},
};
use crate::{
    Attributes, Change, Context, CreateMode, Error, FileKind, Looked, Made, NewAttributes,
    NodeKind, ObjectId, Patience, Removed, Renamed, Result, SetTime, filesystem::verifier_as_times,
};

/// Of a file whose creator names no mode.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

impl Tree {
    pub(super) fn create(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        mode: &CreateMode,
    ) -> Result<Made> {
        check_new_name(name)?;
        let dir = self.directory(context, dir)?;
        let (looked, change) = self.changing(&dir, || match mode {
            CreateMode::Guarded(new) => self.create_file(context, &dir, name, new),
            CreateMode::Unchecked(new) => match self.create_file(context, &dir, name, new) {
                Err(Error::Exists) => self.take_file(context, &dir, name, new.size),
                other => other,
            },
            CreateMode::Exclusive(verifier) => {
                let (accessed, modified) = verifier_as_times(*verifier);
                let new = NewAttributes { accessed, modified, ..NewAttributes::default() };
                match self.create_file(context, &dir, name, &new) {
                    Err(Error::Exists) => self.made_before(&dir, name, &new),
                    other => other,
                }
            }
        })?;
        self.made(&dir, looked, change)
    }

    pub(super) fn make_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<Made> {
        check_new_name(name)?;
        let dir = self.directory(context, dir)?;
        let mode = new.mode.unwrap_or(DIRECTORY_MODE);
        let (looked, change) = self.changing(&dir, || {
            self.as_caller(context, || mkdirat(&dir.path, name, permissions(mode)))?;
            self.furnish(context, &dir, name, None, &NewAttributes { mode: Some(mode), ..*new })
        })?;
        self.made(&dir, looked, change)
    }

    pub(super) fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        text: &[u8],
        new: &NewAttributes,
    ) -> Result<Made> {
        check_new_name(name)?;
        if text.is_empty() || text.contains(&0) {
            return Err(Error::Invalid);
        }
        let dir = self.directory(context, dir)?;
        let (looked, change) = self.changing(&dir, || {
            self.as_caller(context, || symlinkat(text, &dir.path, name))?;
            self.furnish(context, &dir, name, None, &NewAttributes { size: None, ..*new })
        })?;
        self.made(&dir, looked, change)
    }

    pub(super) fn make_node(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        kind: NodeKind,
        new: &NewAttributes,
    ) -> Result<Made> {
        check_new_name(name)?;
        let dir = self.directory(context, dir)?;
        let mode = new.mode.unwrap_or(FILE_MODE);
        let (file_type, device) = match kind {
            NodeKind::Character(d) => (FileType::CharacterDevice, makedev(d.major, d.minor)),
            NodeKind::Block(d) => (FileType::BlockDevice, makedev(d.major, d.minor)),
            NodeKind::Socket => (FileType::Socket, 0),
            NodeKind::Fifo => (FileType::Fifo, 0),
        };
        let (looked, change) = self.changing(&dir, || {
            let make = || mknodat(&dir.path, name, file_type, permissions(mode), device);
            self.as_caller(context, make)?;
            let new = NewAttributes { mode: Some(mode), size: None, ..*new };
            self.furnish(context, &dir, name, None, &new)
        })?;
        self.made(&dir, looked, change)
    }

    pub(super) fn remove(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<Removed> {
        check_name(name)?;
        let dir = self.directory(context, dir)?;
        self.unlink(context, &dir, name, AtFlags::empty())
    }

    pub(super) fn remove_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<Removed> {
        if name == b".." {
            // RFC 1813, 3.3.13.
            return Err(Error::Exists);
        }
        check_name(name)?;
        let dir = self.directory(context, dir)?;
        self.unlink(context, &dir, name, AtFlags::REMOVEDIR)
    }

    fn unlink(
        &self,
        context: &Context<'_>,
        dir: &Arc<Node>,
        name: &[u8],
        flags: AtFlags,
    ) -> Result<Removed> {
        let (victim, change) = self.changing(dir, || {
            let victim = self.identify_entry(dir, name);
            self.as_caller(context, || unlinkat(&dir.path, name, flags))?;
            self.forget_place(dir, name, victim.as_ref());
            Ok(victim)
        })?;
        self.unlinked(victim);
        self.sync_metadata(dir)?;
        Ok(Removed { dir: change })
    }

    pub(super) fn rename(
        &self,
        context: &Context<'_>,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<Renamed> {
        check_name(from.1)?;
        check_name(to.1)?;
        let source = self.directory(context, from.0)?;
        let target = self.directory(context, to.0)?;
        let rename = || {
            let moved = self.identify_entry(&source, from.1);
            let victim = self.identify_entry(&target, to.1);
            self.as_caller(context, || renameat(&source.path, from.1, &target.path, to.1))?;
            // Two names of one file: the kernel has done nothing.
            if moved.is_some() && moved == victim {
                return Ok(None);
            }
            self.forget_place(&target, to.1, victim.as_ref());
            if let (Objects::Map(map), Some(moved)) = (&self.objects, &moved) {
                map.moved((&source.id, from.1), (&target.id, to.1), moved);
            }
            Ok(victim)
        };
        let (victim, from, to) = if source.id == target.id {
            let (victim, change) = self.changing(&source, rename)?;
            (victim, change, change)
        } else {
            let source_first = Arc::as_ptr(&source) < Arc::as_ptr(&target);
            let (first, second) =
                if source_first { (&source, &target) } else { (&target, &source) };
            let ((victim, second), first) =
                self.changing(first, || self.changing(second, rename))?;
            if source_first { (victim, first, second) } else { (victim, second, first) }
        };
        self.unlinked(victim);
        self.sync_metadata(&source)?;
        if source.id != target.id {
            self.sync_metadata(&target)?;
        }
        Ok(Renamed { from, to })
    }

    pub(super) fn link(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<(Attributes, Change)> {
        check_new_name(name)?;
        let file = self.node(context, file)?;
        if file.kind == FileKind::Directory {
            return Err(Error::IsADirectory);
        }
        let dir = self.directory(context, dir)?;
        let (attributes, change) = self.changing(&dir, || {
            self.attributes(&file)?;
            // Through /proc, because linking an open descriptor needs a privilege that the
            // caller does not have.
            let there = DecInt::new(file.path.as_raw_fd());
            let link = || linkat(&self.proc, there, &dir.path, name, AtFlags::SYMLINK_FOLLOW);
            self.as_caller(context, link)?;
            if let Objects::Map(map) = &self.objects {
                map.linked(&dir.id, name, &file.id);
            }
            self.attributes(&file)
        })?;
        self.sync_metadata(&dir)?;
        Ok((attributes, change))
    }

    /// Does something to a directory, and says what the directory was before and after.
    fn changing<T>(&self, dir: &Node, act: impl FnOnce() -> Result<T>) -> Result<(T, Change)> {
        let _order = dir.in_order();
        let before = self.attributes(dir)?;
        let done = act()?;
        Ok((done, self.change(dir, &before)))
    }

    fn as_caller<T>(
        &self,
        context: &Context<'_>,
        act: impl FnOnce() -> rustix::io::Result<T>,
    ) -> Result<T> {
        let _caller = self.identity.assume(context.caller)?;
        act().map_err(|errno| match errno {
            // A mount point, which no amount of waiting moves.
            Errno::BUSY => Error::Denied,
            other => other.into(),
        })
    }

    fn create_file(
        &self,
        context: &Context<'_>,
        dir: &Node,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<Looked> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = new.mode.unwrap_or(FILE_MODE);
        let open = || openat(&dir.path, name, flags, permissions(mode));
        let fd = self.as_caller(context, || self.opening(open))?;
        self.furnish(context, dir, name, Some(fd), &NewAttributes { mode: Some(mode), ..*new })
    }

    /// Gives what was just made the attributes that the creation could not, or removes it again.
    fn furnish(
        &self,
        context: &Context<'_>,
        dir: &Node,
        name: &[u8],
        opened: Option<OwnedFd>,
        new: &NewAttributes,
    ) -> Result<Looked> {
        let furnished = self.furnish_entry(context, dir, name, opened, new);
        if furnished.is_err() {
            let made = self.identify_entry(dir, name);
            // As the caller: if somebody on the host has put another file there meanwhile, it is
            // not for the server to remove it.
            let _ = self.as_caller(context, || match unlinkat(&dir.path, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => unlinkat(&dir.path, name, AtFlags::REMOVEDIR),
                other => other,
            });
            self.forget_place(dir, name, made.as_ref());
            self.unlinked(made);
        }
        furnished
    }

    fn furnish_entry(
        &self,
        context: &Context<'_>,
        dir: &Node,
        name: &[u8],
        opened: Option<OwnedFd>,
        new: &NewAttributes,
    ) -> Result<Looked> {
        let path = match &opened {
            Some(fd) => self.reopen(fd, PATH_ONLY.difference(OFlags::NOFOLLOW))?,
            None => self.enter(dir, name, Patience::Wait)?,
        };
        let (object, found) = self.identify(&path, dir, name)?;
        let mut attributes = found.attributes;
        let node = self.cache.insert(object, attributes.kind, path);
        if let Some(fd) = opened {
            // The descriptor of the creation can write even what its mode forbids to write.
            node.writer(|| Ok::<_, Error>(fd))?;
        }
        let owner = NewAttributes { uid: new.uid, gid: new.gid, ..NewAttributes::default() };
        let owner_changes = owner != NewAttributes::default();
        if owner_changes {
            match self.apply(context, &node, &attributes, &owner) {
                // Some clients always send the group that they expect. It is not theirs to give,
                // and no reason to refuse the file.
                Err(Error::NotOwner) if !context.caller.is_root() => {}
                other => other?,
            }
        }
        let lost_to_umask = |mode| !modes_are_exact() && mode & !attributes.mode & 0o777 != 0;
        let mode = match new.mode {
            // The special bits are as the kernel wants them: inherited, or refused.
            Some(mode) if lost_to_umask(mode) => Some(mode & 0o777 | attributes.mode & 0o7000),
            _ => None,
        };
        // A change of owner has taken these away.
        let mode = new.mode.filter(|mode| owner_changes && mode & 0o6000 != 0).or(mode);
        let rest = NewAttributes { mode, uid: None, gid: None, ..*new };
        if rest != NewAttributes::default() {
            self.apply(context, &node, &attributes, &rest)?;
        }
        if owner_changes || rest != NewAttributes::default() {
            attributes = self.attributes(&node)?;
        }
        Ok(Looked { object, attributes })
    }

    /// An unchecked creation of a file that is there.
    fn take_file(
        &self,
        context: &Context<'_>,
        dir: &Node,
        name: &[u8],
        size: Option<u64>,
    ) -> Result<Looked> {
        let looked = self.child(dir, name, Patience::Wait)?;
        if looked.attributes.kind != FileKind::Regular {
            return Err(Error::Exists);
        }
        let Some(size) = size else { return Ok(looked) };
        let node = self.node(context, &looked.object)?;
        let _order = node.in_order();
        let current = self.attributes(&node)?;
        let new = NewAttributes { size: Some(size), ..NewAttributes::default() };
        self.apply(context, &node, &current, &new)?;
        Ok(Looked { attributes: self.attributes(&node)?, ..looked })
    }

    /// An exclusive creation of a file that is there: fine if it was this very creation, whose
    /// answer got lost.
    fn made_before(&self, dir: &Node, name: &[u8], new: &NewAttributes) -> Result<Looked> {
        let looked = self.child(dir, name, Patience::Wait)?;
        let there = &looked.attributes;
        let same = there.kind == FileKind::Regular
            && there.size == 0
            && SetTime::To(there.accessed) == new.accessed
            && SetTime::To(there.modified) == new.modified;
        if same { Ok(looked) } else { Err(Error::Exists) }
    }

    /// The last step of every creation: durable, the new file before its name.
    fn made(&self, dir: &Node, looked: Looked, change: Change) -> Result<Made> {
        if let Some(node) = self.cache.get(&looked.object)
            && matches!(node.kind, FileKind::Regular | FileKind::Directory)
        {
            self.sync_metadata(&node)?;
        }
        self.sync_metadata(dir)?;
        Ok(Made { object: looked.object, attributes: looked.attributes, dir: change })
    }

    fn forget_place(&self, dir: &Node, name: &[u8], object: Option<&ObjectId>) {
        if let (Objects::Map(map), Some(object)) = (&self.objects, object) {
            map.removed(&dir.id, name, object);
        }
    }
}

/// The names that every directory has are taken.
fn check_new_name(name: &[u8]) -> Result<()> {
    if name == b"." || name == b".." { Err(Error::Exists) } else { check_name(name) }
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}
