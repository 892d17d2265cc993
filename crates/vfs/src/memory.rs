//! [`MemoryFs`]: a file system in memory, for trials and tests and as the reference for the
//! semantics that other implementations must have.
//!
//! One mutex guards everything: clarity before speed. The content ends with the process, so object
//! ids contain a random number of the instance, and handles of an earlier instance are stale.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use crate::{
    AttributeChange, Attributes, Context, CreateMode, CreateReply, DirEntry, Error, FileKind,
    FileSystem, FileSystemId, LookupReply, NewAttributes, NodeKind, ObjectId, Permissions,
    ReadDirReply, ReadReply, RemoveReply, RenameReply, Result, SetTime, Space, Stability, Time,
    WccAttributes, WriteReply, WriteVerifier, verifier_as_times,
};

mod data;
mod file;
mod state;

use data::Data;
use file::{Body, Directory, EXECUTE, File, PARENT_COOKIE, READ, SELF_COOKIE, WRITE};
use state::{LINKS_MAX, ROOT, State, check_name, check_new_name};

const TEXT_MAX: usize = 4095;

/// How to set up a [`MemoryFs`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Options {
    /// Its permanent id.
    pub id: FileSystemId,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Mode of the root directory.
    pub mode: u32,
    /// The bound on the content of all files.
    pub bytes_max: u64,
    /// The bound on the number of files and directories.
    pub files_max: u64,
}

impl Options {
    /// A root directory in which every user may create files, 1 GiB, a million files.
    pub fn new(id: FileSystemId) -> Self {
        Self { id, uid: 0, gid: 0, mode: 0o1777, bytes_max: 1 << 30, files_max: 1_000_000 }
    }

    /// Owner, group and mode of the root directory.
    #[must_use]
    pub fn with_root(self, uid: u32, gid: u32, mode: u32) -> Self {
        Self { uid, gid, mode, ..self }
    }

    /// The bound on the content of all files.
    #[must_use]
    pub fn with_bytes_max(self, bytes_max: u64) -> Self {
        Self { bytes_max, ..self }
    }

    /// The bound on the number of files and directories.
    #[must_use]
    pub fn with_files_max(self, files_max: u64) -> Self {
        Self { files_max, ..self }
    }
}

/// A [`FileSystem`] in memory. Never blocks.
pub struct MemoryFs {
    options: Options,
    instance: u64,
    state: Mutex<State>,
}

impl MemoryFs {
    /// An empty file system with the default [`Options`].
    pub fn new(id: FileSystemId) -> Self {
        Self::with(Options::new(id))
    }

    /// An empty file system.
    pub fn with(options: Options) -> Self {
        let Options { uid, gid, mode, bytes_max, files_max, .. } = options;
        let mut state = State {
            files: HashMap::new(),
            last: ROOT,
            bytes_used: 0,
            bytes_max,
            files_max,
            now: Time::default(),
        };
        let now = state.tick();
        let root = File {
            mode: mode & 0o7777,
            links: 2,
            uid,
            gid,
            accessed: now,
            modified: now,
            changed: now,
            body: Body::Directory(Directory::new(ROOT)),
        };
        state.files.insert(ROOT, root);
        // Each `RandomState` has random keys.
        let instance = RandomState::new().hash_one((now.seconds, now.nanoseconds));
        Self { options, instance, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn object(&self, number: u64) -> ObjectId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.instance.to_be_bytes());
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        // 16 bytes always fit.
        ObjectId::new(&bytes).unwrap_or_else(|| ObjectId::from(number))
    }

    fn number(&self, object: &ObjectId) -> Result<u64> {
        let parts = object.as_bytes().split_first_chunk();
        let (instance, number) = parts.ok_or(Error::Stale)?;
        let number = number.try_into().map_err(|_| Error::Stale)?;
        let ours = u64::from_be_bytes(*instance) == self.instance;
        if ours { Ok(u64::from_be_bytes(number)) } else { Err(Error::Stale) }
    }

    fn lookup_reply(&self, state: &State, number: u64) -> Result<LookupReply> {
        let attributes = state.file(number)?.attributes(number);
        Ok(LookupReply { object: self.object(number), attributes })
    }

    /// Creates an object; if an attribute may not be set, none is created.
    fn make(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        body: Body,
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        let mut state = self.state();
        let dir = self.number(dir)?;
        let before = WccAttributes::from(&state.file(dir)?.attributes(dir));
        let number = state.add(context.caller, dir, name, body, new)?;
        self.create_reply(&state, dir, before, number)
    }

    fn create_reply(
        &self,
        state: &State,
        dir: u64,
        before: WccAttributes,
        number: u64,
    ) -> Result<CreateReply> {
        let LookupReply { object, attributes } = self.lookup_reply(state, number)?;
        Ok(CreateReply { object, attributes, dir: state.change(dir, before)? })
    }

    /// REMOVE and RMDIR.
    fn remove_entry(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        is_dir: bool,
    ) -> Result<RemoveReply> {
        check_name(name)?;
        let mut state = self.state();
        let dir = self.number(dir)?;
        let before = WccAttributes::from(&state.file(dir)?.attributes(dir));
        let victim = state.find(context.caller, dir, name)?;
        state.may_replace(context.caller, dir, victim, is_dir)?;
        if is_dir && !state.file(victim)?.directory()?.is_empty() {
            return Err(Error::NotEmpty);
        }
        let now = state.tick();
        state.unlink(dir, name, now)?;
        Ok(RemoveReply { dir: state.change(dir, before)? })
    }
}

impl FileSystem for MemoryFs {
    fn id(&self) -> FileSystemId {
        self.options.id
    }

    fn root(&self) -> ObjectId {
        self.object(ROOT)
    }

    fn kind(&self) -> &'static str {
        "memory"
    }

    fn supports_nonblocking(&self) -> bool {
        true
    }

    fn attributes(&self, _: &Context<'_>, object: &ObjectId) -> Result<Attributes> {
        Ok(self.lookup_reply(&self.state(), self.number(object)?)?.attributes)
    }

    fn set_attributes(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
        new: &NewAttributes,
        guard: Option<Time>,
    ) -> Result<AttributeChange> {
        let mut state = self.state();
        let number = self.number(object)?;
        let before = state.file(number)?.attributes(number);
        if guard.is_some_and(|changed| changed != before.changed) {
            return Err(Error::NotSynchronised);
        }
        state.set(context.caller, number, new)?;
        state.change(number, WccAttributes::from(&before))
    }

    fn lookup(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<LookupReply> {
        let state = self.state();
        if name != b"." && name != b".." {
            check_name(name)?;
        }
        let number = state.find(context.caller, self.number(dir)?, name)?;
        self.lookup_reply(&state, number)
    }

    fn access(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
    ) -> Result<(Permissions, Attributes)> {
        let state = self.state();
        let number = self.number(object)?;
        let file = state.file(number)?;
        let grants = |wanted| file.grants(context.caller, wanted);
        let (read, write, execute) = (grants(READ), grants(WRITE), grants(EXECUTE));
        Ok((Permissions { read, write, execute }, file.attributes(number)))
    }

    fn read_link(&self, _: &Context<'_>, link: &ObjectId) -> Result<(Bytes, Attributes)> {
        let state = self.state();
        let number = self.number(link)?;
        let file = state.file(number)?;
        match &file.body {
            Body::Symlink(text) => Ok((text.clone(), file.attributes(number))),
            _ => Err(Error::Invalid),
        }
    }

    fn read(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<ReadReply> {
        let mut state = self.state();
        let number = self.number(file)?;
        let now = state.tick();
        let file = state.file_mut(number)?;
        file.data()?;
        file.allow_read(context.caller)?;
        file.accessed = now;
        let data = file.data()?.read(offset, count.into());
        let eof = offset.saturating_add(data.len() as u64) >= file.data()?.size();
        let attributes = Some(file.attributes(number));
        Ok(ReadReply { data: Bytes::from(data), eof, attributes })
    }

    fn write(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        data: &Bytes,
        _: Stability,
    ) -> Result<WriteReply> {
        let mut state = self.state();
        let number = self.number(file)?;
        let (now, room) = (state.tick(), state.room());
        let file = state.file_mut(number)?;
        file.data()?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::TooLarge);
        }
        file.allow_write(context.caller)?;
        let before = file.attributes(number);
        let count = file.data_mut()?.write(offset, data, room);
        if count == 0 && !data.is_empty() {
            return Err(Error::NoSpace);
        }
        if count > 0 {
            file.mark_written(context.caller, now);
        }
        let taken = file.data()?.used() - before.used;
        state.bytes_used += taken;
        let file = state.change(number, WccAttributes::from(&before))?;
        // Nothing outlives the process, but nothing is lost while the write verifier is the same.
        Ok(WriteReply { count: count as u32, stability: Stability::File, file })
    }

    fn commit(&self, _: &Context<'_>, file: &ObjectId, _: u64, _: u32) -> Result<AttributeChange> {
        let state = self.state();
        let number = self.number(file)?;
        let file = state.file(number)?;
        file.data()?;
        state.change(number, WccAttributes::from(&file.attributes(number)))
    }

    fn write_verifier(&self) -> WriteVerifier {
        self.instance.to_be_bytes()
    }

    fn create(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        mode: &CreateMode,
    ) -> Result<CreateReply> {
        let mut state = self.state();
        let dir = self.number(dir)?;
        let before = WccAttributes::from(&state.file(dir)?.attributes(dir));
        let new = match mode {
            CreateMode::Unchecked(new) | CreateMode::Guarded(new) => *new,
            CreateMode::Exclusive(verifier) => {
                let (accessed, modified) = verifier_as_times(*verifier);
                NewAttributes { accessed, modified, ..NewAttributes::default() }
            }
        };
        let body = Body::Regular(Data::default());
        let number = match state.add(context.caller, dir, name, body, &new) {
            Err(Error::Exists) if name != b"." && name != b".." => {
                let number = state.find(context.caller, dir, name)?;
                let there = state.file(number)?.attributes(number);
                match mode {
                    CreateMode::Guarded(_) => return Err(Error::Exists),
                    CreateMode::Unchecked(new) => {
                        state.reuse_existing(context.caller, number, new.size)?
                    }
                    CreateMode::Exclusive(_) => {
                        let same = there.kind == FileKind::Regular
                            && there.size == 0
                            && SetTime::To(there.accessed) == new.accessed
                            && SetTime::To(there.modified) == new.modified;
                        if !same {
                            return Err(Error::Exists);
                        }
                    }
                }
                number
            }
            other => other?,
        };
        self.create_reply(&state, dir, before, number)
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        let body = Body::Directory(Directory::new(self.number(dir)?));
        self.make(context, dir, name, body, new)
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        text: &[u8],
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        if text.is_empty() || text.contains(&0) {
            return Err(Error::Invalid);
        }
        if text.len() > TEXT_MAX {
            return Err(Error::NameTooLong);
        }
        self.make(context, dir, name, Body::Symlink(Bytes::copy_from_slice(text)), new)
    }

    fn make_node(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        kind: NodeKind,
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        let body = match kind {
            NodeKind::Block(device) => Body::Block(device),
            NodeKind::Character(device) => Body::Character(device),
            NodeKind::Socket => Body::Socket,
            NodeKind::Fifo => Body::Fifo,
        };
        self.make(context, dir, name, body, new)
    }

    fn remove(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<RemoveReply> {
        self.remove_entry(context, dir, name, false)
    }

    fn remove_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<RemoveReply> {
        // RFC 1813, 3.3.13.
        if name == b".." {
            return Err(Error::Exists);
        }
        self.remove_entry(context, dir, name, true)
    }

    fn rename(
        &self,
        context: &Context<'_>,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<RenameReply> {
        check_name(from.1)?;
        check_name(to.1)?;
        let mut state = self.state();
        let (source, target) = (self.number(from.0)?, self.number(to.0)?);
        state.file(source)?.directory()?;
        state.file(target)?.directory()?;
        let source_before = WccAttributes::from(&state.file(source)?.attributes(source));
        let target_before = WccAttributes::from(&state.file(target)?.attributes(target));
        state.rename(context.caller, (source, from.1), (target, to.1))?;
        Ok(RenameReply {
            from: state.change(source, source_before)?,
            to: state.change(target, target_before)?,
        })
    }

    fn link(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<(Attributes, AttributeChange)> {
        check_new_name(name)?;
        let mut state = self.state();
        let (number, dir) = (self.number(file)?, self.number(dir)?);
        let file = state.file(number)?;
        if file.kind() == FileKind::Directory {
            return Err(Error::IsADirectory);
        }
        if file.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let before = WccAttributes::from(&state.file(dir)?.attributes(dir));
        match state.find(context.caller, dir, name) {
            Ok(_) => return Err(Error::Exists),
            Err(Error::NotFound) => {}
            Err(other) => return Err(other),
        }
        state.file(dir)?.allow(context.caller, WRITE | EXECUTE)?;
        let now = state.tick();
        state.add_entry(dir, name, number, now)?;
        let file = state.file_mut(number)?;
        file.links += 1;
        file.changed = now;
        let attributes = file.attributes(number);
        Ok((attributes, state.change(dir, before)?))
    }

    fn read_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        cookie: u64,
        _: [u8; 8],
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<ReadDirReply> {
        let state = self.state();
        let number = self.number(dir)?;
        let file = state.file(number)?;
        let directory = file.directory()?;
        file.allow(context.caller, READ)?;
        let plus = plus && file.grants(context.caller, EXECUTE);
        let mut emit = |name: &[u8], cookie, fileid| {
            let lookup = if plus { self.lookup_reply(&state, fileid).ok() } else { None };
            sink(DirEntry { name, fileid, cookie, lookup })
        };
        let eof = (cookie >= SELF_COOKIE || emit(b".", SELF_COOKIE, number))
            && (cookie >= PARENT_COOKIE || emit(b"..", PARENT_COOKIE, directory.parent))
            && directory.after(cookie).all(|(at, entry)| emit(&entry.name, at, entry.file));
        let attributes = Some(file.attributes(number));
        Ok(ReadDirReply { verifier: [0; 8], eof, attributes })
    }

    fn space(&self, _: &Context<'_>, object: &ObjectId) -> Result<Space> {
        let state = self.state();
        state.file(self.number(object)?)?;
        let (bytes_free, files) = (state.room(), state.files.len() as u64);
        let files_free = state.files_max.saturating_sub(files);
        Ok(Space {
            bytes_total: state.bytes_max,
            bytes_free,
            bytes_available: bytes_free,
            files_total: state.files_max,
            files_free,
            files_available: files_free,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockingMode, Caller};

    #[test]
    fn bytes_and_files_are_bounded_and_come_back() {
        let options = Options { bytes_max: 10_000, files_max: 3, ..Options::new(FileSystemId(1)) };
        let fs = MemoryFs::with(options);
        let caller = Caller::new(1, 1, &[]);
        let context = Context { caller: &caller, blocking: BlockingMode::Nonblocking };
        let create = |name: &[u8]| {
            let mode = CreateMode::Guarded(NewAttributes::default());
            fs.create(&context, &fs.root(), name, &mode).map(|made| made.object)
        };
        let file = create(b"a").unwrap();
        create(b"b").unwrap();
        assert_eq!(create(b"c"), Err(Error::NoSpace));
        let data = Bytes::from(vec![1; 9_000]);
        let write = || {
            fs.write(&context, &file, 0, &data, Stability::Unstable).map(|written| written.count)
        };
        assert_eq!(write(), Ok(8192));
        let more = Bytes::from_static(b"x");
        let beyond = fs.write(&context, &file, 100_000, &more, Stability::Unstable);
        assert_eq!(beyond.unwrap_err(), Error::NoSpace);
        let free = || fs.space(&context, &file).unwrap().bytes_free;
        assert_eq!(free(), 10_000 - 8192);
        let cut = NewAttributes { size: Some(1), ..NewAttributes::default() };
        fs.set_attributes(&context, &file, &cut, None).unwrap();
        assert_eq!(free(), 10_000 - 4096);
        fs.remove(&context, &fs.root(), b"a").unwrap();
        let space = fs.space(&context, &fs.root()).unwrap();
        assert_eq!((space.bytes_free, space.files_free), (10_000, 1));
    }

    #[test]
    fn objects_of_another_instance_are_stale() {
        let (one, other) = (MemoryFs::new(FileSystemId(1)), MemoryFs::new(FileSystemId(1)));
        let caller = Caller::new(0, 0, &[]);
        let context = Context { caller: &caller, blocking: BlockingMode::Nonblocking };
        assert_eq!(other.attributes(&context, &one.root()), Err(Error::Stale));
        assert_eq!(other.attributes(&context, &ObjectId::from(1)), Err(Error::Stale));
    }
}
