//! A file in memory: attributes, permission checks, and changes of attributes.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::data::Data;
use crate::{Attributes, Caller, Device, Error, FileKind, NewAttributes, Result, SetTime, Time};

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const EXECUTE: u32 = 1;

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o010;

pub(super) struct File {
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) accessed: Time,
    pub(super) modified: Time,
    pub(super) changed: Time,
    pub(super) body: Body,
}

pub(super) enum Body {
    Regular(Data),
    Directory(Directory),
    Symlink(Bytes),
    Block(Device),
    Character(Device),
    Socket,
    Fifo,
}

/// The entries of a directory. Each gets a number that is never reused, which is its cookie: a
/// listing can continue there whatever was created or removed meanwhile.
pub(super) struct Directory {
    pub(super) parent: u64,
    names: BTreeMap<Box<[u8]>, u64>,
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

pub(super) struct Entry {
    pub(super) name: Box<[u8]>,
    pub(super) file: u64,
}

/// The cookies of `.` and `..`; other entries have higher ones.
pub(super) const SELF_COOKIE: u64 = 1;
pub(super) const PARENT_COOKIE: u64 = 2;

impl Directory {
    pub(super) fn new(parent: u64) -> Self {
        let next = PARENT_COOKIE + 1;
        Self { parent, names: BTreeMap::new(), entries: BTreeMap::new(), next }
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u64> {
        Some(self.entries.get(self.names.get(name)?)?.file)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn insert(&mut self, name: &[u8], file: u64) {
        self.remove(name);
        self.names.insert(name.into(), self.next);
        self.entries.insert(self.next, Entry { name: name.into(), file });
        self.next += 1;
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(number) = self.names.remove(name) {
            self.entries.remove(&number);
        }
    }

    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let from = cookie.saturating_add(1);
        self.entries.range(from..).map(|(number, entry)| (*number, entry))
    }
}

impl File {
    pub(super) fn kind(&self) -> FileKind {
        match self.body {
            Body::Regular(_) => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Block(_) => FileKind::Block,
            Body::Character(_) => FileKind::Character,
            Body::Socket => FileKind::Socket,
            Body::Fifo => FileKind::Fifo,
        }
    }

    pub(super) fn attributes(&self, number: u64) -> Attributes {
        let (size, used) = match &self.body {
            Body::Regular(data) => (data.size(), data.used()),
            Body::Symlink(text) => (text.len() as u64, 0),
            Body::Directory(_) => (4096, 4096),
            _ => (0, 0),
        };
        let device = match self.body {
            Body::Block(device) | Body::Character(device) => device,
            _ => Device::default(),
        };
        Attributes {
            kind: self.kind(),
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            size,
            used,
            device,
            fileid: number,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
        }
    }

    pub(super) fn directory(&self) -> Result<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(super) fn directory_mut(&mut self) -> Result<&mut Directory> {
        match &mut self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(super) fn data(&self) -> Result<&Data> {
        match &self.body {
            Body::Regular(data) => Ok(data),
            Body::Directory(_) => Err(Error::IsADirectory),
            _ => Err(Error::Invalid),
        }
    }

    pub(super) fn data_mut(&mut self) -> Result<&mut Data> {
        match &mut self.body {
            Body::Regular(data) => Ok(data),
            Body::Directory(_) => Err(Error::IsADirectory),
            _ => Err(Error::Invalid),
        }
    }

    /// Whether the mode grants all of `wanted`, a sum of [`READ`], [`WRITE`] and [`EXECUTE`].
    pub(super) fn grants(&self, caller: &Caller, wanted: u32) -> bool {
        caller.granted(self.kind(), self.mode, self.uid, self.gid) & wanted == wanted
    }

    pub(super) fn allow(&self, caller: &Caller, wanted: u32) -> Result<()> {
        if self.grants(caller, wanted) { Ok(()) } else { Err(Error::Denied) }
    }

    pub(super) fn owned_by(&self, caller: &Caller) -> bool {
        caller.is_root() || caller.uid == self.uid
    }

    pub(super) fn allow_read(&self, caller: &Caller) -> Result<()> {
        let may =
            caller.uid == self.uid || self.grants(caller, READ) || self.grants(caller, EXECUTE);
        if may { Ok(()) } else { Err(Error::Denied) }
    }

    pub(super) fn allow_write(&self, caller: &Caller) -> Result<()> {
        if caller.uid == self.uid { Ok(()) } else { self.allow(caller, WRITE) }
    }

    /// Whether `caller` may remove the entry of `victim` from this directory.
    pub(super) fn allow_removal(&self, caller: &Caller, victim: &Self) -> Result<()> {
        self.allow(caller, WRITE | EXECUTE)?;
        let mine = victim.owned_by(caller) || caller.uid == self.uid;
        if self.mode & STICKY != 0 && !mine { Err(Error::NotOwner) } else { Ok(()) }
    }

    /// Group and mode of a file that `caller` creates in this directory.
    pub(super) fn inherit(&self, caller: &Caller, mode: u32, is_dir: bool) -> (u32, u32) {
        if self.mode & SET_GROUP == 0 {
            return (caller.gid, if is_dir { mode & 0o1777 } else { mode });
        }
        if is_dir {
            return (self.gid, mode & 0o1777 | SET_GROUP);
        }
        let foreign = !caller.is_root() && !caller.in_group(self.gid);
        let strip = foreign && mode & GROUP_EXECUTE != 0;
        (self.gid, if strip { mode & !SET_GROUP } else { mode })
    }

    /// Updates times after a write, and clears set-user-id and set-group-id unless root wrote.
    pub(super) fn mark_written(&mut self, caller: &Caller, now: Time) {
        (self.modified, self.changed) = (now, now);
        if !caller.is_root() {
            self.drop_privileges();
        }
    }

    fn drop_privileges(&mut self) {
        self.mode &= !SET_USER;
        if self.mode & GROUP_EXECUTE != 0 {
            self.mode &= !SET_GROUP;
        }
    }

    /// Applies size, owner, mode and times, in this order.
    pub(super) fn change(&mut self, caller: &Caller, new: &NewAttributes, now: Time) -> Result<()> {
        check_times(new)?;
        if let Some(size) = new.size {
            if size > i64::MAX as u64 {
                return Err(Error::TooLarge);
            }
            self.data()?;
            self.allow_write(caller)?;
            self.data_mut()?.resize(size);
            self.mark_written(caller, now);
        }
        if new.uid.is_some() || new.gid.is_some() {
            self.change_owner(caller, new)?;
        }
        if let Some(mode) = new.mode
            && self.kind() != FileKind::Symlink
        {
            if !self.owned_by(caller) {
                return Err(Error::NotOwner);
            }
            self.mode = mode & 0o7777;
            if !caller.is_root() && !caller.in_group(self.gid) {
                self.mode &= !SET_GROUP;
            }
        }
        self.change_times(caller, new, now)?;
        if *new != NewAttributes::default() {
            self.changed = now;
        }
        Ok(())
    }

    fn change_owner(&mut self, caller: &Caller, new: &NewAttributes) -> Result<()> {
        let (uid, gid) = (new.uid.unwrap_or(self.uid), new.gid.unwrap_or(self.gid));
        if uid == u32::MAX || gid == u32::MAX {
            return Err(Error::Invalid);
        }
        let own =
            caller.uid == self.uid && uid == self.uid && (gid == self.gid || caller.in_group(gid));
        if !caller.is_root() && !own {
            return Err(Error::NotOwner);
        }
        (self.uid, self.gid) = (uid, gid);
        if self.kind() != FileKind::Directory {
            self.drop_privileges();
        }
        Ok(())
    }

    fn change_times(&mut self, caller: &Caller, new: &NewAttributes, now: Time) -> Result<()> {
        let allowed = match (new.accessed, new.modified) {
            (SetTime::Keep, SetTime::Keep) => return Ok(()),
            _ if self.owned_by(caller) => Ok(()),
            (SetTime::Now, SetTime::Now) => self.allow(caller, WRITE),
            (SetTime::Now, SetTime::Keep) | (SetTime::Keep, SetTime::Now) => {
                self.allow(caller, WRITE).map_err(|_| Error::NotOwner)
            }
            _ => Err(Error::NotOwner),
        };
        allowed?;
        let set = |current: &mut Time, new: SetTime| match new {
            SetTime::Keep => {}
            SetTime::Now => *current = now,
            SetTime::To(time) => *current = time,
        };
        set(&mut self.accessed, new.accessed);
        set(&mut self.modified, new.modified);
        Ok(())
    }
}

fn check_times(new: &NewAttributes) -> Result<()> {
    let bad = |time| matches!(time, SetTime::To(Time { nanoseconds: 1_000_000_000.., .. }));
    if bad(new.accessed) || bad(new.modified) { Err(Error::Invalid) } else { Ok(()) }
}
