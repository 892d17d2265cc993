//! NFS procedures on directory entries: LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME,
//! LINK, READDIR and READDIRPLUS.

use bytes::Bytes;

use vfs::{CreateMode, CreateReply, DirEntry, Error, NodeKind, ReadDirReply, RemoveReply};
use wire::nfs3::{
    Attributes, CreateArgs, CreateHow, CreateOk, Device, DirOpArgs, Entries, EntriesPlus, Entry,
    EntryPlus, LinkArgs, LinkWcc, LookupOk, MkDirArgs, MkNodArgs, NewAttributes, Node, ReadDirArgs,
    ReadDirPlusArgs, RenameArgs, RenameWcc, SymLinkArgs, Wcc,
};

use super::translate::{attributes, new_attributes, wcc};
use super::{Refusal, Request, Target, check_name, refuse};

impl Request<'_> {
    pub(super) fn lookup(&self, args: DirOpArgs) -> Result<LookupOk, Refusal<Option<Attributes>>> {
        let dir = self.open(&args.dir).map_err(refuse(|| None))?;
        // Before the look-up: newer attributes with an older answer would let the client keep an entry,
        // or its absence, that is wrong (B1.82).
        let before = match dir.export.filesystem.attributes(&dir.context(), &dir.object) {
            Ok(found) => Some(attributes(&found, dir.export)),
            Err(Error::WouldBlock) => return Err(None),
            Err(_) => None,
        };
        let found = check_name(&args.name)
            .and_then(|()| dir.export.filesystem.lookup(&dir.context(), &dir.object, &args.name))
            .map_err(refuse(|| before))?;
        self.files.record_name(dir.export, &found.object, &dir.object, &args.name);
        Ok(LookupOk {
            object: self.files.sign(dir.export, &found.object),
            attributes: Some(attributes(&found.attributes, dir.export)),
            dir: before,
        })
    }

    pub(super) fn create(&self, args: CreateArgs) -> Result<CreateOk, Refusal<Wcc>> {
        self.make(&args.at, |dir, name| {
            let mode = match &args.how {
                CreateHow::Unchecked(new) => CreateMode::Unchecked(new_attributes(new)?),
                CreateHow::Guarded(new) => CreateMode::Guarded(new_attributes(new)?),
                CreateHow::Exclusive(verifier) => CreateMode::Exclusive(*verifier),
            };
            dir.export.filesystem.create(&dir.context(), &dir.object, name, &mode)
        })
    }

    pub(super) fn mk_dir(&self, args: MkDirArgs) -> Result<CreateOk, Refusal<Wcc>> {
        self.make(&args.at, |dir, name| {
            let new = new_attributes(&args.new)?;
            dir.export.filesystem.make_dir(&dir.context(), &dir.object, name, &new)
        })
    }

    pub(super) fn sym_link(&self, args: SymLinkArgs) -> Result<CreateOk, Refusal<Wcc>> {
        self.make(&args.at, |dir, name| {
            let new = new_attributes(&args.new)?;
            if args.text.is_empty() || args.text.contains(&0) {
                return Err(Error::Invalid);
            }
            let filesystem = &dir.export.filesystem;
            filesystem.make_symlink(&dir.context(), &dir.object, name, &args.text, &new)
        })
    }

    pub(super) fn mk_nod(&self, args: MkNodArgs) -> Result<CreateOk, Refusal<Wcc>> {
        self.make(&args.at, |dir, name| {
            let device = |device: &Device| vfs::Device { major: device.major, minor: device.minor };
            let (kind, new): (NodeKind, &NewAttributes) = match &args.what {
                Node::Character(new, id) => (NodeKind::Character(device(id)), new),
                Node::Block(new, id) => (NodeKind::Block(device(id)), new),
                Node::Socket(new) => (NodeKind::Socket, new),
                Node::Fifo(new) => (NodeKind::Fifo, new),
                Node::Other(_) => return Err(Error::BadType),
            };
            let new = new_attributes(new)?;
            dir.export.filesystem.make_node(&dir.context(), &dir.object, name, kind, &new)
        })
    }

    /// The common part of CREATE, MKDIR, SYMLINK and MKNOD.
    fn make(
        &self,
        at: &DirOpArgs,
        make: impl FnOnce(&Target<'_>, &[u8]) -> vfs::Result<CreateReply>,
    ) -> Result<CreateOk, Refusal<Wcc>> {
        let dir = self.open_to_change(&at.dir).map_err(refuse(Wcc::default))?;
        let made = check_name(&at.name)
            .and_then(|()| make(&dir, &at.name))
            .map_err(refuse(|| dir.unchanged()))?;
        self.files.record_name(dir.export, &made.object, &dir.object, &at.name);
        Ok(CreateOk {
            object: Some(self.files.sign(dir.export, &made.object)),
            attributes: Some(attributes(&made.attributes, dir.export)),
            dir: wcc(&made.dir, dir.export),
        })
    }

    pub(super) fn remove(&self, args: DirOpArgs) -> Result<Wcc, Refusal<Wcc>> {
        self.unlink(&args, |dir, name| {
            dir.export.filesystem.remove(&dir.context(), &dir.object, name)
        })
    }

    pub(super) fn rm_dir(&self, args: DirOpArgs) -> Result<Wcc, Refusal<Wcc>> {
        self.unlink(&args, |dir, name| {
            dir.export.filesystem.remove_dir(&dir.context(), &dir.object, name)
        })
    }

    /// The common part of REMOVE and RMDIR.
    fn unlink(
        &self,
        at: &DirOpArgs,
        unlink: impl FnOnce(&Target<'_>, &[u8]) -> vfs::Result<RemoveReply>,
    ) -> Result<Wcc, Refusal<Wcc>> {
        let dir = self.open_to_change(&at.dir).map_err(refuse(Wcc::default))?;
        let removed = check_name(&at.name)
            .and_then(|()| unlink(&dir, &at.name))
            .map_err(refuse(|| dir.unchanged()))?;
        Ok(wcc(&removed.dir, dir.export))
    }

    pub(super) fn rename(&self, args: RenameArgs) -> Result<RenameWcc, Refusal<RenameWcc>> {
        let no_attributes = || RenameWcc { from: Wcc::default(), to: Wcc::default() };
        let from = self.open_to_change(&args.from.dir).map_err(refuse(no_attributes))?;
        let to = self.open_to_change(&args.to.dir).map_err(refuse(no_attributes))?;
        // Before any attributes: those of another file system could block this one's workers.
        check_same_export(&from, &to).map_err(refuse(no_attributes))?;
        let rename = || {
            check_name(&args.from.name)?;
            check_name(&args.to.name)?;
            from.export.filesystem.rename(
                &from.context(),
                (&from.object, &args.from.name),
                (&to.object, &args.to.name),
            )
        };
        let current = || RenameWcc { from: from.unchanged(), to: to.unchanged() };
        let renamed = rename().map_err(refuse(current))?;
        if let Ok(moved) = to.export.filesystem.lookup(&to.context(), &to.object, &args.to.name) {
            self.files.record_name(to.export, &moved.object, &to.object, &args.to.name);
        }
        Ok(RenameWcc { from: wcc(&renamed.from, from.export), to: wcc(&renamed.to, to.export) })
    }

    pub(super) fn link(&self, args: LinkArgs) -> Result<LinkWcc, Refusal<LinkWcc>> {
        let no_attributes = || LinkWcc { attributes: None, dir: Wcc::default() };
        let file = self.open_to_change(&args.file).map_err(refuse(no_attributes))?;
        let dir = self.open_to_change(&args.to.dir).map_err(refuse(no_attributes))?;
        check_same_export(&file, &dir).map_err(refuse(no_attributes))?;
        let link = || {
            check_name(&args.to.name)?;
            let filesystem = &file.export.filesystem;
            filesystem.link(&file.context(), &file.object, &dir.object, &args.to.name)
        };
        let current = || LinkWcc { attributes: file.post_op_attributes(), dir: dir.unchanged() };
        let (found, change) = link().map_err(refuse(current))?;
        Ok(LinkWcc {
            attributes: Some(attributes(&found, file.export)),
            dir: wcc(&change, dir.export),
        })
    }

    pub(super) fn read_dir(
        &self,
        args: ReadDirArgs,
    ) -> Result<Entries, Refusal<Option<Attributes>>> {
        let dir = self.open(&args.dir).map_err(refuse(|| None))?;
        let mut budget = Budget::new(args.count.min(self.io_bytes_max()), u32::MAX);
        let mut entries = Vec::new();
        let listed = self
            .list(&dir, args.cookie, args.verifier, false, &mut budget, |entry| {
                entries.push(Entry {
                    fileid: entry.fileid,
                    name: Bytes::copy_from_slice(entry.name).into(),
                    cookie: entry.cookie,
                });
            })
            .map_err(refuse(|| dir.post_op_attributes()))?;
        let attributes = listed.attributes.map(|a| attributes(&a, dir.export));
        Ok(Entries { attributes, verifier: listed.verifier, entries, eof: listed.eof })
    }

    pub(super) fn read_dir_plus(
        &self,
        args: ReadDirPlusArgs,
    ) -> Result<EntriesPlus, Refusal<Option<Attributes>>> {
        let dir = self.open(&args.dir).map_err(refuse(|| None))?;
        let mut budget = Budget::new(args.max_count.min(self.io_bytes_max()), args.dir_count);
        let mut entries = Vec::new();
        let listed = self
            .list(&dir, args.cookie, args.verifier, true, &mut budget, |entry| {
                // The parent of an export's root is not exported.
                let above = entry.name == b".." && dir.object == dir.export.filesystem.root();
                let found = entry.lookup.filter(|_| !above);
                if let Some(found) = &found {
                    self.files.record_name(dir.export, &found.object, &dir.object, entry.name);
                }
                entries.push(EntryPlus {
                    fileid: entry.fileid,
                    name: Bytes::copy_from_slice(entry.name).into(),
                    cookie: entry.cookie,
                    attributes: found.map(|found| attributes(&found.attributes, dir.export)),
                    handle: found.map(|found| self.files.sign(dir.export, &found.object)),
                });
            })
            .map_err(refuse(|| dir.post_op_attributes()))?;
        let attributes = listed.attributes.map(|a| attributes(&a, dir.export));
        Ok(EntriesPlus { attributes, verifier: listed.verifier, entries, eof: listed.eof })
    }

    fn list(
        &self,
        dir: &Target<'_>,
        cookie: u64,
        verifier: [u8; 8],
        plus: bool,
        budget: &mut Budget,
        mut take: impl FnMut(DirEntry<'_>),
    ) -> vfs::Result<ReadDirReply> {
        let mut taken = 0;
        let filesystem = &dir.export.filesystem;
        let listed = filesystem.read_dir(
            &dir.context(),
            &dir.object,
            cookie,
            verifier,
            plus,
            &mut |entry| {
                let fits = budget.take(entry.name.len(), plus);
                if fits {
                    taken += 1;
                    take(entry);
                }
                fits
            },
        )?;
        if taken == 0 && !listed.eof {
            return Err(Error::TooSmall);
        }
        Ok(listed)
    }
}

/// RENAME and LINK do not cross exports, even of one file system: their rules may differ.
fn check_same_export(a: &Target<'_>, b: &Target<'_>) -> vfs::Result<()> {
    if a.export.id == b.export.id { Ok(()) } else { Err(Error::CrossesFileSystems) }
}

/// The space left in a listing's reply.
struct Budget {
    bytes: u32,
    /// The `dircount` of READDIRPLUS: names and cookies, without attributes and handles.
    names: u32,
}

impl Budget {
    /// Status, directory attributes, verifier, end of list.
    const ENVELOPE: u32 = 4 + 4 + 84 + 8 + 4 + 4;
    /// Presence flag, file id, length of the name, cookie.
    const ENTRY: u32 = 4 + 8 + 4 + 8;
    /// Attributes and handle, each with a presence flag.
    const PLUS: u32 = 4 + 84 + 4 + 4 + 64;

    fn new(bytes: u32, names: u32) -> Self {
        Self { bytes: bytes.saturating_sub(Self::ENVELOPE), names: names.max(512) }
    }

    fn take(&mut self, name: usize, plus: bool) -> bool {
        let entry = Self::ENTRY + (name as u32).next_multiple_of(4);
        let whole = if plus { entry + Self::PLUS } else { entry };
        match (self.bytes.checked_sub(whole), self.names.checked_sub(entry)) {
            (Some(bytes), Some(names)) => {
                (self.bytes, self.names) = (bytes, names);
                true
            }
            _ => false,
        }
    }
}
