//! Procedures on names: LOOKUP, the four that make something, REMOVE, RMDIR, RENAME, LINK,
//! READDIR and READDIRPLUS.

use bytes::Bytes;

use vfs::{CreateMode, DirEntry, Error, Listed, Made, NodeKind, Removed};
use wire::nfs3::{
    Attributes, CreateArgs, CreateHow, Created, Device, DirOpArgs, Entries, EntriesPlus, Entry,
    EntryPlus, Found, LinkArgs, Linked, MkDirArgs, MkNodArgs, NewAttributes, Node, ReadDirArgs,
    ReadDirPlusArgs, RenameArgs, Renamed, SymLinkArgs, Wcc,
};

use super::translate::{attributes, new_attributes, wcc};
use super::{Refusal, Request, Target, check_name, refuse};

impl Request<'_> {
    pub(super) fn lookup(&self, args: DirOpArgs) -> Result<Found, Refusal<Option<Attributes>>> {
        let dir = self.open(&args.dir).map_err(refuse(|| None))?;
        let found = check_name(&args.name)
            .and_then(|()| dir.export.filesystem.lookup(&dir.context(), &dir.object, &args.name))
            .map_err(refuse(|| dir.seen()))?;
        self.files.saw(&dir.export, &found.object, &dir.object, &args.name);
        Ok(Found {
            object: self.files.seal(&dir.export, &found.object),
            attributes: Some(attributes(&found.attributes, &dir.export)),
            dir: dir.seen(),
        })
    }

    pub(super) fn create(&self, args: CreateArgs) -> Result<Created, Refusal<Wcc>> {
        self.make(&args.at, |dir, name| {
            let mode = match &args.how {
                CreateHow::Unchecked(new) => CreateMode::Unchecked(new_attributes(new)?),
                CreateHow::Guarded(new) => CreateMode::Guarded(new_attributes(new)?),
                CreateHow::Exclusive(verifier) => CreateMode::Exclusive(*verifier),
            };
            dir.export.filesystem.create(&dir.context(), &dir.object, name, &mode)
        })
    }

    pub(super) fn mk_dir(&self, args: MkDirArgs) -> Result<Created, Refusal<Wcc>> {
        self.make(&args.at, |dir, name| {
            let new = new_attributes(&args.new)?;
            dir.export.filesystem.make_dir(&dir.context(), &dir.object, name, &new)
        })
    }

    pub(super) fn sym_link(&self, args: SymLinkArgs) -> Result<Created, Refusal<Wcc>> {
        self.make(&args.at, |dir, name| {
            let new = new_attributes(&args.new)?;
            if args.text.is_empty() || args.text.contains(&0) {
                return Err(Error::Invalid);
            }
            let filesystem = &dir.export.filesystem;
            filesystem.make_symlink(&dir.context(), &dir.object, name, &args.text, &new)
        })
    }

    pub(super) fn mk_nod(&self, args: MkNodArgs) -> Result<Created, Refusal<Wcc>> {
        self.make(&args.at, |dir, name| {
            let device = |device: &Device| vfs::Device { major: device.major, minor: device.minor };
            let (kind, new): (NodeKind, &NewAttributes) = match &args.what {
                Node::Character(new, numbers) => (NodeKind::Character(device(numbers)), new),
                Node::Block(new, numbers) => (NodeKind::Block(device(numbers)), new),
                Node::Socket(new) => (NodeKind::Socket, new),
                Node::Fifo(new) => (NodeKind::Fifo, new),
                Node::Other(_) => return Err(Error::BadType),
            };
            let new = new_attributes(new)?;
            dir.export.filesystem.make_node(&dir.context(), &dir.object, name, kind, &new)
        })
    }

    /// What CREATE, MKDIR, SYMLINK and MKNOD have in common.
    fn make(
        &self,
        at: &DirOpArgs,
        make: impl FnOnce(&Target, &[u8]) -> vfs::Result<Made>,
    ) -> Result<Created, Refusal<Wcc>> {
        let dir = self.open_to_change(&at.dir).map_err(refuse(Wcc::default))?;
        let made = check_name(&at.name)
            .and_then(|()| make(&dir, &at.name))
            .map_err(refuse(|| dir.unchanged()))?;
        self.files.saw(&dir.export, &made.object, &dir.object, &at.name);
        Ok(Created {
            object: Some(self.files.seal(&dir.export, &made.object)),
            attributes: Some(attributes(&made.attributes, &dir.export)),
            dir: wcc(&made.dir, &dir.export),
        })
    }

    pub(super) fn remove(&self, args: DirOpArgs) -> Result<Wcc, Refusal<Wcc>> {
        self.take_away(&args, |dir, name| {
            dir.export.filesystem.remove(&dir.context(), &dir.object, name)
        })
    }

    pub(super) fn rm_dir(&self, args: DirOpArgs) -> Result<Wcc, Refusal<Wcc>> {
        self.take_away(&args, |dir, name| {
            dir.export.filesystem.remove_dir(&dir.context(), &dir.object, name)
        })
    }

    fn take_away(
        &self,
        at: &DirOpArgs,
        take_away: impl FnOnce(&Target, &[u8]) -> vfs::Result<Removed>,
    ) -> Result<Wcc, Refusal<Wcc>> {
        let dir = self.open_to_change(&at.dir).map_err(refuse(Wcc::default))?;
        let removed = check_name(&at.name)
            .and_then(|()| take_away(&dir, &at.name))
            .map_err(refuse(|| dir.unchanged()))?;
        Ok(wcc(&removed.dir, &dir.export))
    }

    pub(super) fn rename(&self, args: RenameArgs) -> Result<Renamed, Refusal<Renamed>> {
        let unknown = || Renamed { from: Wcc::default(), to: Wcc::default() };
        let from = self.open_to_change(&args.from.dir).map_err(refuse(unknown))?;
        let to = self.open_to_change(&args.to.dir).map_err(refuse(unknown))?;
        let rename = || {
            check_name(&args.from.name)?;
            check_name(&args.to.name)?;
            self.same_filesystem(&from, &to)?;
            from.export.filesystem.rename(
                &from.context(),
                (&from.object, &args.from.name),
                (&to.object, &args.to.name),
            )
        };
        let told = || Renamed { from: from.unchanged(), to: to.unchanged() };
        let renamed = rename().map_err(refuse(told))?;
        if let Ok(moved) = to.export.filesystem.lookup(&to.context(), &to.object, &args.to.name) {
            self.files.saw(&to.export, &moved.object, &to.object, &args.to.name);
        }
        Ok(Renamed { from: wcc(&renamed.from, &from.export), to: wcc(&renamed.to, &to.export) })
    }

    pub(super) fn link(&self, args: LinkArgs) -> Result<Linked, Refusal<Linked>> {
        let unknown = || Linked { attributes: None, dir: Wcc::default() };
        let file = self.open_to_change(&args.file).map_err(refuse(unknown))?;
        let dir = self.open_to_change(&args.to.dir).map_err(refuse(unknown))?;
        let link = || {
            check_name(&args.to.name)?;
            self.same_filesystem(&file, &dir)?;
            let filesystem = &file.export.filesystem;
            filesystem.link(&file.context(), &file.object, &dir.object, &args.to.name)
        };
        let told = || Linked { attributes: file.seen(), dir: dir.unchanged() };
        let (found, change) = link().map_err(refuse(told))?;
        Ok(Linked {
            attributes: Some(attributes(&found, &file.export)),
            dir: wcc(&change, &dir.export),
        })
    }

    /// Names cannot be moved between exports, even of one file system: their rules differ.
    fn same_filesystem(&self, a: &Target, b: &Target) -> vfs::Result<()> {
        if a.export.id == b.export.id { Ok(()) } else { Err(Error::CrossesFileSystems) }
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
            .map_err(refuse(|| dir.seen()))?;
        let attributes = listed.attributes.map(|a| attributes(&a, &dir.export));
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
                // What is above the root of the export is nobody's business.
                let above = entry.name == b".." && dir.object == dir.export.filesystem.root();
                let found = entry.found.filter(|_| !above);
                if let Some(found) = &found {
                    self.files.saw(&dir.export, &found.object, &dir.object, entry.name);
                }
                entries.push(EntryPlus {
                    fileid: entry.fileid,
                    name: Bytes::copy_from_slice(entry.name).into(),
                    cookie: entry.cookie,
                    attributes: found.map(|found| attributes(&found.attributes, &dir.export)),
                    handle: found.map(|found| self.files.seal(&dir.export, &found.object)),
                });
            })
            .map_err(refuse(|| dir.seen()))?;
        let attributes = listed.attributes.map(|a| attributes(&a, &dir.export));
        Ok(EntriesPlus { attributes, verifier: listed.verifier, entries, eof: listed.eof })
    }

    fn list(
        &self,
        dir: &Target,
        cookie: u64,
        verifier: [u8; 8],
        plus: bool,
        budget: &mut Budget,
        mut take: impl FnMut(DirEntry<'_>),
    ) -> vfs::Result<Listed> {
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

/// How much of a listing still fits into the reply.
struct Budget {
    bytes: u32,
    /// READDIRPLUS counts names and cookies separately from attributes.
    names: u32,
}

impl Budget {
    /// Status, the directory's attributes, verifier, the end of the list.
    const ENVELOPE: u32 = 4 + 4 + 84 + 8 + 4 + 4;
    /// "One more", file id, length of the name, cookie.
    const ENTRY: u32 = 4 + 8 + 4 + 8;
    /// Attributes and a handle, each with "here it is".
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
