//! CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK.
//!
//! Each runs under the caller's identity on the descriptor of the directory, so that the kernel
//! checks permissions, and holds the order lock of the directory.

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
    status::status_of_entry,
    tree::{ObjectScheme, PATH_ONLY, Tree, check_name},
};
use crate::{
    AttributeChange, Attributes, BlockingMode, Context, CreateMode, CreateReply, Error, FileKind,
    LookupReply, NewAttributes, NodeKind, ObjectId, RemoveReply, RenameReply, Result, SetTime,
    verifier_as_times,
};

/// The mode of a file if the client gives none.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

impl Tree {
    pub(super) fn create(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        mode: &CreateMode,
    ) -> Result<CreateReply> {
        check_new_name(name)?;
        let dir = self.directory(context, dir)?;
        let (found, change) = self.with_change(&dir, || match mode {
            CreateMode::Guarded(new) => self.create_file(context, &dir, name, new),
            CreateMode::Unchecked(new) => match self.create_file(context, &dir, name, new) {
                Err(Error::Exists) => self.reuse_existing(context, &dir, name, new.size),
                other => other,
            },
            CreateMode::Exclusive(verifier) => {
                let (accessed, modified) = verifier_as_times(*verifier);
                let new = NewAttributes { accessed, modified, ..NewAttributes::default() };
                match self.create_file(context, &dir, name, &new) {
                    Err(Error::Exists) => self.find_retried_create(&dir, name, &new),
                    other => other,
                }
            }
        })?;
        self.finish_create(&dir, found, change)
    }

    pub(super) fn make_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        check_new_name(name)?;
        let dir = self.directory(context, dir)?;
        let mode = new.mode.unwrap_or(DIRECTORY_MODE);
        let (found, change) = self.with_change(&dir, || {
            self.as_caller(context, || mkdirat(dir.path(), name, permissions(mode)))?;
            self.set_initial_attributes(
                context,
                &dir,
                name,
                None,
                &NewAttributes { mode: Some(mode), ..*new },
            )
        })?;
        self.finish_create(&dir, found, change)
    }

    pub(super) fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        text: &[u8],
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        check_new_name(name)?;
        if text.is_empty() || text.contains(&0) {
            return Err(Error::Invalid);
        }
        let dir = self.directory(context, dir)?;
        let (found, change) = self.with_change(&dir, || {
            self.as_caller(context, || symlinkat(text, dir.path(), name))?;
            self.set_initial_attributes(
                context,
                &dir,
                name,
                None,
                &NewAttributes { size: None, ..*new },
            )
        })?;
        self.finish_create(&dir, found, change)
    }

    pub(super) fn make_node(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        kind: NodeKind,
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        check_new_name(name)?;
        let dir = self.directory(context, dir)?;
        let mode = new.mode.unwrap_or(FILE_MODE);
        let (file_type, device) = match kind {
            NodeKind::Character(d) => (FileType::CharacterDevice, makedev(d.major, d.minor)),
            NodeKind::Block(d) => (FileType::BlockDevice, makedev(d.major, d.minor)),
            NodeKind::Socket => (FileType::Socket, 0),
            NodeKind::Fifo => (FileType::Fifo, 0),
        };
        let (found, change) = self.with_change(&dir, || {
            let make = || mknodat(dir.path(), name, file_type, permissions(mode), device);
            self.as_caller(context, make)?;
            let new = NewAttributes { mode: Some(mode), size: None, ..*new };
            self.set_initial_attributes(context, &dir, name, None, &new)
        })?;
        self.finish_create(&dir, found, change)
    }

    pub(super) fn remove(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<RemoveReply> {
        check_name(name)?;
        let dir = self.directory(context, dir)?;
        self.unlink(context, &dir, name, AtFlags::empty())
    }

    pub(super) fn remove_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<RemoveReply> {
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
    ) -> Result<RemoveReply> {
        let (victim, change) = self.with_change(dir, || {
            let victim = self.identify_entry(dir, name);
            self.as_caller(context, || unlinkat(dir.path(), name, flags))?;
            self.forget_name(dir, name, victim);
            Ok(victim)
        })?;
        self.unlinked(victim.map(|(id, _)| id));
        self.sync_metadata(dir)?;
        Ok(RemoveReply { dir: change })
    }

    pub(super) fn rename(
        &self,
        context: &Context<'_>,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<RenameReply> {
        check_name(from.1)?;
        check_name(to.1)?;
        let source = self.directory(context, from.0)?;
        let target = self.directory(context, to.0)?;
        let rename = || {
            let moved = self.identify_entry(&source, from.1);
            let victim = self.identify_entry(&target, to.1);
            self.as_caller(context, || renameat(source.path(), from.1, target.path(), to.1))?;
            // Two names of one file: POSIX rename does nothing.
            if moved.is_some() && moved == victim {
                return Ok(None);
            }
            self.forget_name(&target, to.1, victim);
            if let (ObjectScheme::Map(map), Some((moved, _))) = (&self.scheme, &moved) {
                map.moved((&source.id, from.1), (&target.id, to.1), moved);
                if let Ok(found) = status_of_entry(target.path(), to.1) {
                    self.note_birth(moved, &found);
                }
            }
            Ok(victim.map(|(id, _)| id))
        };
        let is_same = Arc::ptr_eq(source.order(), target.order());
        let (victim, from, to) = if is_same {
            let (victim, change) = self.with_change(&source, rename)?;
            (victim, change, change)
        } else {
            let source_first = Arc::as_ptr(source.order()) < Arc::as_ptr(target.order());
            let (first, second) =
                if source_first { (&source, &target) } else { (&target, &source) };
            let ((victim, second), first) =
                self.with_change(first, || self.with_change(second, rename))?;
            if source_first { (victim, first, second) } else { (victim, second, first) }
        };
        self.unlinked(victim);
        self.sync_metadata(&source)?;
        if source.id != target.id {
            self.sync_metadata(&target)?;
        }
        Ok(RenameReply { from, to })
    }

    pub(super) fn link(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<(Attributes, AttributeChange)> {
        check_new_name(name)?;
        let file = self.node(context, file)?;
        if file.kind == FileKind::Directory {
            return Err(Error::IsADirectory);
        }
        let dir = self.directory(context, dir)?;
        let (attributes, change) = self.with_change(&dir, || {
            self.attributes(&file)?;
            // Through /proc: AT_EMPTY_PATH needs a capability that the caller does not have.
            let there = DecInt::new(file.path().as_raw_fd());
            let link = || linkat(&self.proc, there, dir.path(), name, AtFlags::SYMLINK_FOLLOW);
            self.as_caller(context, link)?;
            if let ObjectScheme::Map(map) = &self.scheme {
                map.linked(&dir.id, name, &file.id);
            }
            self.attributes(&file)
        })?;
        self.sync_metadata(&dir)?;
        Ok((attributes, change))
    }

    /// Runs `act` and returns the change of the directory's attributes with its result.
    fn with_change<T>(
        &self,
        dir: &Node,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<(T, AttributeChange)> {
        let _order = dir.lock_for_change();
        let before = self.attributes(dir)?;
        let done = act()?;
        Ok((done, self.change(dir, Some(&before))))
    }

    fn as_caller<T>(
        &self,
        context: &Context<'_>,
        act: impl FnOnce() -> rustix::io::Result<T>,
    ) -> Result<T> {
        let _caller = self.identity.assume(context.caller)?;
        act().map_err(|errno| match errno {
            // A mount point; `TryLater` would make the client retry without end.
            Errno::BUSY => Error::Denied,
            other => self.error(other),
        })
    }

    fn create_file(
        &self,
        context: &Context<'_>,
        dir: &Node,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<LookupReply> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = new.mode.unwrap_or(FILE_MODE);
        let open = || openat(dir.path(), name, flags, permissions(mode));
        let fd = self.as_caller(context, || self.opening(open))?;
        self.set_initial_attributes(
            context,
            dir,
            name,
            Some(fd),
            &NewAttributes { mode: Some(mode), ..*new },
        )
    }

    /// Sets the attributes of a new object that could not be given at its creation; removes the
    /// object if that fails.
    fn set_initial_attributes(
        &self,
        context: &Context<'_>,
        dir: &Node,
        name: &[u8],
        opened: Option<OwnedFd>,
        new: &NewAttributes,
    ) -> Result<LookupReply> {
        let furnished = self.set_initial_attributes_of(context, dir, name, opened, new);
        if furnished.is_err() {
            let made = self.identify_entry(dir, name);
            // As the caller: the host may have replaced the file, and the caller may not be
            // allowed to remove the new one.
            let _ =
                self.as_caller(context, || match unlinkat(dir.path(), name, AtFlags::empty()) {
                    Err(Errno::ISDIR) => unlinkat(dir.path(), name, AtFlags::REMOVEDIR),
                    other => other,
                });
            self.forget_name(dir, name, made);
            self.unlinked(made.map(|(id, _)| id));
        }
        furnished
    }

    fn set_initial_attributes_of(
        &self,
        context: &Context<'_>,
        dir: &Node,
        name: &[u8],
        opened: Option<OwnedFd>,
        new: &NewAttributes,
    ) -> Result<LookupReply> {
        let path = match &opened {
            Some(fd) => self.reopen(fd, PATH_ONLY.difference(OFlags::NOFOLLOW))?,
            None => self.enter(dir, name, BlockingMode::MayBlock)?,
        };
        let (object, status) = self.identify(&path, dir, name)?;
        let mut attributes = status.attributes;
        let node = self.cache.insert(object, attributes.kind, path);
        if let Some(fd) = opened {
            // This descriptor can write whatever the mode of the file is.
            node.writer(|| Ok::<_, Error>(fd))?;
        }
        let owner = NewAttributes { uid: new.uid, gid: new.gid, ..NewAttributes::default() };
        let owner_changes = owner != NewAttributes::default();
        if owner_changes {
            match self.apply(context, &node, &attributes, &owner) {
                // Some clients always send the group that they expect; lacking the right to set it
                // is no reason to fail.
                Err(Error::NotOwner) if !context.caller.is_root() => {}
                other => other?,
            }
        }
        let lost_to_umask = |mode| !modes_are_exact() && mode & !attributes.mode & 0o777 != 0;
        let mode = match new.mode {
            // The special bits stay as the kernel set them: inherited, or refused.
            Some(mode) if lost_to_umask(mode) => Some(mode & 0o777 | attributes.mode & 0o7000),
            _ => None,
        };
        // A change of owner clears set-user-id and set-group-id.
        let mode = new.mode.filter(|mode| owner_changes && mode & 0o6000 != 0).or(mode);
        let rest = NewAttributes { mode, uid: None, gid: None, ..*new };
        if rest != NewAttributes::default() {
            self.apply(context, &node, &attributes, &rest)?;
        }
        if owner_changes || rest != NewAttributes::default() {
            attributes = self.attributes(&node)?;
        }
        Ok(LookupReply { object, attributes })
    }

    /// An unchecked creation of an existing file.
    fn reuse_existing(
        &self,
        context: &Context<'_>,
        dir: &Node,
        name: &[u8],
        size: Option<u64>,
    ) -> Result<LookupReply> {
        let found = self.child(dir, name, BlockingMode::MayBlock)?;
        if found.attributes.kind != FileKind::Regular {
            return Err(Error::Exists);
        }
        let Some(size) = size else { return Ok(found) };
        let node = self.node(context, &found.object)?;
        let _order = node.lock_for_change();
        let current = self.attributes(&node)?;
        let new = NewAttributes { size: Some(size), ..NewAttributes::default() };
        self.apply(context, &node, &current, &new)?;
        Ok(LookupReply { attributes: self.attributes(&node)?, ..found })
    }

    /// An exclusive creation of an existing file: succeeds if the file has this verifier, so that
    /// the request is a retransmission.
    fn find_retried_create(
        &self,
        dir: &Node,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<LookupReply> {
        let found = self.child(dir, name, BlockingMode::MayBlock)?;
        let there = &found.attributes;
        let same = there.kind == FileKind::Regular
            && there.size == 0
            && SetTime::To(there.accessed) == new.accessed
            && SetTime::To(there.modified) == new.modified;
        if same { Ok(found) } else { Err(Error::Exists) }
    }

    /// The last step of every creation: makes the object durable, then its name.
    fn finish_create(
        &self,
        dir: &Node,
        found: LookupReply,
        change: AttributeChange,
    ) -> Result<CreateReply> {
        if let Some(node) = self.cache.get(&found.object)
            && matches!(node.kind, FileKind::Regular | FileKind::Directory)
        {
            self.sync_metadata(&node)?;
        }
        self.sync_metadata(dir)?;
        Ok(CreateReply { object: found.object, attributes: found.attributes, dir: change })
    }

    /// `victim` as from [`identify_entry`](Tree::identify_entry), before the name was removed.
    fn forget_name(&self, dir: &Node, name: &[u8], victim: Option<(ObjectId, bool)>) {
        if let (ObjectScheme::Map(map), Some((object, is_last))) = (&self.scheme, victim) {
            map.removed(&dir.id, name, &object);
            if is_last {
                map.died(&object);
            }
        }
    }
}

/// `.` and `..` always exist.
fn check_new_name(name: &[u8]) -> Result<()> {
    if name == b"." || name == b".." { Err(Error::Exists) } else { check_name(name) }
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}
