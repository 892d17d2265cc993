//! A file system in memory: for trials, for tests, and as a plain statement of what every other
//! one should do.
//!
//! One lock around everything; clarity before speed. What is served is gone with the process, so
//! objects carry a number of the instance, and handles of an earlier one are stale.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;

use crate::{
    Attributes, Caller, Change, Context, CreateMode, DirEntry, Error, FileKind, FileSystem,
    FileSystemId, Listed, Looked, Made, NewAttributes, NodeKind, ObjectId, Permissions, ReadOut,
    Removed, Renamed, Result, SetTime, Snapshot, Space, Stability, Time, WriteVerifier, Written,
    filesystem::verifier_as_times,
};

mod data;
mod file;

use data::Data;
use file::{Body, Directory, EXECUTE, File, PARENT_COOKIE, READ, SELF_COOKIE, WRITE};

const ROOT: u64 = 1;
const NAME_MAX: usize = 255;
const LINKS_MAX: u32 = 32_000;
const TEXT_MAX: usize = 4095;

#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub id: FileSystemId,
    /// Owner and mode of the root.
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    pub bytes_max: u64,
    pub files_max: u64,
}

impl Options {
    /// Everybody may create files in the root.
    pub fn new(id: FileSystemId) -> Self {
        Self { id, uid: 0, gid: 0, mode: 0o1777, bytes_max: 1 << 30, files_max: 1_000_000 }
    }
}

pub struct MemoryFs {
    options: Options,
    instance: u64,
    state: Mutex<State>,
}

struct State {
    files: HashMap<u64, File>,
    /// The highest number given to a file.
    last: u64,
    bytes_used: u64,
    bytes_max: u64,
    files_max: u64,
    now: Time,
}

impl MemoryFs {
    pub fn new(id: FileSystemId) -> Self {
        Self::with(Options::new(id))
    }

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
        // Each hasher of the standard library has keys of its own.
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

    fn looked(&self, state: &State, number: u64) -> Result<Looked> {
        let attributes = state.file(number)?.attributes(number);
        Ok(Looked { object: self.object(number), attributes })
    }

    /// Makes a file in `dir`; what could not be given at once is changed afterwards, and if that
    /// is refused there is no file.
    fn make(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        body: Body,
        new: &NewAttributes,
    ) -> Result<Made> {
        let mut state = self.state();
        let dir = self.number(dir)?;
        let before = Snapshot::from(&state.file(dir)?.attributes(dir));
        let number = state.add(context.caller, dir, name, body, new)?;
        self.made(&state, dir, before, number)
    }

    fn made(&self, state: &State, dir: u64, before: Snapshot, number: u64) -> Result<Made> {
        let Looked { object, attributes } = self.looked(state, number)?;
        Ok(Made { object, attributes, dir: state.change(dir, before)? })
    }

    /// Takes a name out of a directory.
    fn take_out(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        is_dir: bool,
    ) -> Result<Removed> {
        check_name(name)?;
        let mut state = self.state();
        let dir = self.number(dir)?;
        let before = Snapshot::from(&state.file(dir)?.attributes(dir));
        let victim = state.find(context.caller, dir, name)?;
        state.may_replace(context.caller, dir, victim, is_dir)?;
        if is_dir && !state.file(victim)?.directory()?.is_empty() {
            return Err(Error::NotEmpty);
        }
        let now = state.tick();
        state.unlink(dir, name, now)?;
        Ok(Removed { dir: state.change(dir, before)? })
    }
}

impl State {
    fn file(&self, number: u64) -> Result<&File> {
        self.files.get(&number).ok_or(Error::Stale)
    }

    fn file_mut(&mut self, number: u64) -> Result<&mut File> {
        self.files.get_mut(&number).ok_or(Error::Stale)
    }

    /// The time, which never stands still: clients tell versions of a file apart by it.
    fn tick(&mut self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() };
        let next = match self.now {
            Time { seconds, nanoseconds: 999_999_999.. } => {
                Time { seconds: seconds + 1, nanoseconds: 0 }
            }
            Time { seconds, nanoseconds } => Time { seconds, nanoseconds: nanoseconds + 1 },
        };
        self.now = clock.max(next);
        self.now
    }

    fn change(&self, number: u64, before: Snapshot) -> Result<Change> {
        let after = self.file(number)?.attributes(number);
        Ok(Change { before: Some(before), after: Some(after) })
    }

    fn room(&self) -> u64 {
        self.bytes_max.saturating_sub(self.bytes_used)
    }

    /// A name in a directory that `caller` may search.
    fn find(&self, caller: &Caller, dir: u64, name: &[u8]) -> Result<u64> {
        let file = self.file(dir)?;
        let directory = file.directory()?;
        file.allow(caller, EXECUTE)?;
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        match name {
            b"." => Ok(dir),
            b".." => Ok(directory.parent),
            _ => directory.find(name).ok_or(Error::NotFound),
        }
    }

    fn add(
        &mut self,
        caller: &Caller,
        dir: u64,
        name: &[u8],
        body: Body,
        new: &NewAttributes,
    ) -> Result<u64> {
        check_new_name(name)?;
        match self.find(caller, dir, name) {
            Ok(_) => return Err(Error::Exists),
            Err(Error::NotFound) => {}
            Err(other) => return Err(other),
        }
        let parent = self.file(dir)?;
        parent.allow(caller, WRITE)?;
        let is_dir = matches!(body, Body::Directory(_));
        if is_dir && parent.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        if self.files.len() as u64 >= self.files_max {
            return Err(Error::NoSpace);
        }
        let (default, is_link) = match body {
            Body::Directory(_) => (0o700, false),
            Body::Symlink(_) => (0o777, true),
            _ => (0o600, false),
        };
        let mode = if is_link { default } else { new.mode.unwrap_or(default) & 0o7777 };
        let (gid, mode) = parent.inherit(caller, mode, is_dir);
        let now = self.tick();
        let mut file = File {
            mode,
            links: if is_dir { 2 } else { 1 },
            uid: caller.uid,
            gid,
            accessed: now,
            modified: now,
            changed: now,
            body,
        };
        file.furnish(caller, new, now)?;
        self.last += 1;
        let number = self.last;
        self.files.insert(number, file);
        self.enter(dir, name, number, now)?;
        Ok(number)
    }

    /// Gives `number` a name in `dir`. The links of the file itself are the caller's business.
    fn enter(&mut self, dir: u64, name: &[u8], number: u64, now: Time) -> Result<()> {
        let is_dir = match &mut self.file_mut(number)?.body {
            Body::Directory(directory) => {
                directory.parent = dir;
                true
            }
            _ => false,
        };
        let parent = self.file_mut(dir)?;
        parent.directory_mut()?.insert(name, number);
        parent.links += u32::from(is_dir);
        (parent.modified, parent.changed) = (now, now);
        Ok(())
    }

    /// Takes a name out, without touching the file behind it.
    fn leave(&mut self, dir: u64, name: &[u8], is_dir: bool, now: Time) -> Result<()> {
        let parent = self.file_mut(dir)?;
        parent.directory_mut()?.remove(name);
        parent.links -= u32::from(is_dir);
        (parent.modified, parent.changed) = (now, now);
        Ok(())
    }

    /// Takes a name out, and the file with it if it was the last one.
    fn unlink(&mut self, dir: u64, name: &[u8], now: Time) -> Result<()> {
        let number = self.file(dir)?.directory()?.find(name).ok_or(Error::NotFound)?;
        let victim = self.file_mut(number)?;
        let is_dir = victim.kind() == FileKind::Directory;
        victim.links = if is_dir { 0 } else { victim.links - 1 };
        victim.changed = now;
        if victim.links == 0 {
            self.bytes_used -= victim.data().map_or(0, Data::used);
            self.files.remove(&number);
        }
        self.leave(dir, name, is_dir, now)
    }

    /// Whether `caller` may take away `victim`'s name in `dir` where a directory is expected, or
    /// is not.
    fn may_replace(&self, caller: &Caller, dir: u64, victim: u64, is_dir: bool) -> Result<()> {
        let file = self.file(victim)?;
        self.file(dir)?.allow_removal(caller, file)?;
        match (is_dir, file.kind() == FileKind::Directory) {
            (true, false) => Err(Error::NotADirectory),
            (false, true) => Err(Error::IsADirectory),
            _ => Ok(()),
        }
    }

    fn is_below(&self, mut dir: u64, ancestor: u64) -> Result<bool> {
        while dir != ROOT {
            if dir == ancestor {
                return Ok(true);
            }
            dir = self.file(dir)?.directory()?.parent;
        }
        Ok(ancestor == ROOT)
    }

    /// An unchecked creation of a file that is there.
    fn take(&mut self, caller: &Caller, number: u64, size: Option<u64>) -> Result<()> {
        if self.file(number)?.kind() != FileKind::Regular {
            return Err(Error::Exists);
        }
        match size {
            None => Ok(()),
            Some(_) => self.set(caller, number, &NewAttributes { size, ..Default::default() }),
        }
    }

    fn set(&mut self, caller: &Caller, number: u64, new: &NewAttributes) -> Result<()> {
        let now = self.tick();
        let file = self.file_mut(number)?;
        let used = |file: &File| file.data().map_or(0, Data::used);
        let before = used(file);
        let changed = file.change(caller, new, now);
        // Sizes only ever free memory here; the holes of a larger size take none.
        let freed = before - used(file);
        self.bytes_used -= freed;
        changed
    }

    fn rename(
        &mut self,
        caller: &Caller,
        (source, from): (u64, &[u8]),
        (target, to): (u64, &[u8]),
    ) -> Result<()> {
        let moved = self.find(caller, source, from)?;
        let victim = match self.find(caller, target, to) {
            Ok(victim) => Some(victim),
            Err(Error::NotFound) => None,
            Err(other) => return Err(other),
        };
        let is_dir = self.file(moved)?.kind() == FileKind::Directory;
        if is_dir && self.is_below(target, moved)? {
            return Err(Error::Invalid);
        }
        let victim_is_dir = match victim {
            Some(victim) => self.file(victim)?.kind() == FileKind::Directory,
            None => false,
        };
        if let Some(victim) = victim
            && victim_is_dir
            && victim != moved
            && self.is_below(source, victim)?
        {
            return Err(Error::NotEmpty);
        }
        if victim == Some(moved) {
            return Ok(());
        }
        self.may_replace(caller, source, moved, is_dir)?;
        match victim {
            Some(victim) => self.may_replace(caller, target, victim, is_dir)?,
            None => self.file(target)?.allow(caller, WRITE | EXECUTE)?,
        }
        if is_dir && source != target {
            // Its `..` changes.
            self.file(moved)?.allow(caller, WRITE)?;
        }
        if let Some(victim) = victim
            && victim_is_dir
            && !self.file(victim)?.directory()?.is_empty()
        {
            return Err(Error::NotEmpty);
        }
        let now = self.tick();
        if victim.is_some() {
            self.unlink(target, to, now)?;
        }
        self.leave(source, from, is_dir, now)?;
        self.enter(target, to, moved, now)?;
        self.file_mut(moved)?.changed = now;
        Ok(())
    }
}

impl File {
    /// The attributes that a creation asks for beyond the mode.
    fn furnish(&mut self, caller: &Caller, new: &NewAttributes, now: Time) -> Result<()> {
        let mode = self.mode;
        let owner = NewAttributes { uid: new.uid, gid: new.gid, ..Default::default() };
        match self.change(caller, &owner, now) {
            // Some clients always send the group that they expect. It is not theirs to give, and
            // no reason to refuse the file.
            Err(Error::NotOwner) if !caller.is_root() => {}
            other => other?,
        }
        self.mode = mode;
        let size = new.size.filter(|_| self.kind() == FileKind::Regular);
        self.change(caller, &NewAttributes { mode: None, uid: None, gid: None, size, ..*new }, now)
    }
}

/// The names that every directory has cannot be removed or renamed.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::Invalid),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}

fn check_new_name(name: &[u8]) -> Result<()> {
    if name == b"." || name == b".." { Err(Error::Exists) } else { check_name(name) }
}

impl FileSystem for MemoryFs {
    fn id(&self) -> FileSystemId {
        self.options.id
    }

    fn root(&self) -> ObjectId {
        self.object(ROOT)
    }

    fn prompt(&self) -> bool {
        true
    }

    fn attributes(&self, _: &Context<'_>, object: &ObjectId) -> Result<Attributes> {
        Ok(self.looked(&self.state(), self.number(object)?)?.attributes)
    }

    fn set_attributes(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
        new: &NewAttributes,
        guard: Option<Time>,
    ) -> Result<Change> {
        let mut state = self.state();
        let number = self.number(object)?;
        let before = state.file(number)?.attributes(number);
        if guard.is_some_and(|changed| changed != before.changed) {
            return Err(Error::NotSynchronised);
        }
        state.set(context.caller, number, new)?;
        state.change(number, Snapshot::from(&before))
    }

    fn lookup(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<Looked> {
        let state = self.state();
        if name != b"." && name != b".." {
            check_name(name)?;
        }
        let number = state.find(context.caller, self.number(dir)?, name)?;
        self.looked(&state, number)
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
    ) -> Result<ReadOut> {
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
        Ok(ReadOut { data: Bytes::from(data), eof, attributes })
    }

    fn write(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        data: &Bytes,
        _: Stability,
    ) -> Result<Written> {
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
            file.wrote(context.caller, now);
        }
        let taken = file.data()?.used() - before.used;
        state.bytes_used += taken;
        let file = state.change(number, Snapshot::from(&before))?;
        // Nothing here outlives the process, but nothing is lost as long as the verifier stays.
        Ok(Written { count: count as u32, stability: Stability::File, file })
    }

    fn commit(&self, _: &Context<'_>, file: &ObjectId, _: u64, _: u32) -> Result<Change> {
        let state = self.state();
        let number = self.number(file)?;
        let file = state.file(number)?;
        file.data()?;
        state.change(number, Snapshot::from(&file.attributes(number)))
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
    ) -> Result<Made> {
        let mut state = self.state();
        let dir = self.number(dir)?;
        let before = Snapshot::from(&state.file(dir)?.attributes(dir));
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
                    CreateMode::Unchecked(new) => state.take(context.caller, number, new.size)?,
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
        self.made(&state, dir, before, number)
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<Made> {
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
    ) -> Result<Made> {
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
    ) -> Result<Made> {
        let body = match kind {
            NodeKind::Block(_) | NodeKind::Character(_) if !context.caller.is_root() => {
                return Err(Error::NotOwner);
            }
            NodeKind::Block(device) => Body::Block(device),
            NodeKind::Character(device) => Body::Character(device),
            NodeKind::Socket => Body::Socket,
            NodeKind::Fifo => Body::Fifo,
        };
        self.make(context, dir, name, body, new)
    }

    fn remove(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<Removed> {
        self.take_out(context, dir, name, false)
    }

    fn remove_dir(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<Removed> {
        // RFC 1813, 3.3.13.
        if name == b".." {
            return Err(Error::Exists);
        }
        self.take_out(context, dir, name, true)
    }

    fn rename(
        &self,
        context: &Context<'_>,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<Renamed> {
        check_name(from.1)?;
        check_name(to.1)?;
        let mut state = self.state();
        let (source, target) = (self.number(from.0)?, self.number(to.0)?);
        let source_before = Snapshot::from(&state.file(source)?.attributes(source));
        let target_before = Snapshot::from(&state.file(target)?.attributes(target));
        state.rename(context.caller, (source, from.1), (target, to.1))?;
        Ok(Renamed {
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
    ) -> Result<(Attributes, Change)> {
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
        let before = Snapshot::from(&state.file(dir)?.attributes(dir));
        match state.find(context.caller, dir, name) {
            Ok(_) => return Err(Error::Exists),
            Err(Error::NotFound) => {}
            Err(other) => return Err(other),
        }
        state.file(dir)?.allow(context.caller, WRITE | EXECUTE)?;
        let now = state.tick();
        state.enter(dir, name, number, now)?;
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
    ) -> Result<Listed> {
        let state = self.state();
        let number = self.number(dir)?;
        let file = state.file(number)?;
        let directory = file.directory()?;
        file.allow(context.caller, READ)?;
        let plus = plus && file.grants(context.caller, EXECUTE);
        let mut give = |name: &[u8], cookie, fileid| {
            let found = if plus { self.looked(&state, fileid).ok() } else { None };
            sink(DirEntry { name, fileid, cookie, found })
        };
        let eof = (cookie >= SELF_COOKIE || give(b".", SELF_COOKIE, number))
            && (cookie >= PARENT_COOKIE || give(b"..", PARENT_COOKIE, directory.parent))
            && directory.after(cookie).all(|(at, entry)| give(&entry.name, at, entry.file));
        let attributes = Some(file.attributes(number));
        Ok(Listed { verifier: [0; 8], eof, attributes })
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
