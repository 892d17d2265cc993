//! The tree of a memory file system, and the operations that change names and files together.

use std::{
    collections::HashMap,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    data::Data,
    file::{Body, EXECUTE, File, WRITE},
};
use crate::{AttributeChange, Caller, Error, FileKind, NewAttributes, Result, Time, WccAttributes};

pub(super) const ROOT: u64 = 1;
pub(super) const LINKS_MAX: u32 = 32_000;
const NAME_MAX: usize = 255;

pub(super) struct State {
    pub(super) files: HashMap<u64, File>,
    /// The highest inode number in use so far.
    pub(super) last: u64,
    pub(super) bytes_used: u64,
    pub(super) bytes_max: u64,
    pub(super) files_max: u64,
    pub(super) now: Time,
}

impl State {
    pub(super) fn file(&self, number: u64) -> Result<&File> {
        self.files.get(&number).ok_or(Error::Stale)
    }

    pub(super) fn file_mut(&mut self, number: u64) -> Result<&mut File> {
        self.files.get_mut(&number).ok_or(Error::Stale)
    }

    /// The current time, strictly increasing: clients tell versions of a file apart by it.
    pub(super) fn tick(&mut self) -> Time {
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

    pub(super) fn change(&self, number: u64, before: WccAttributes) -> Result<AttributeChange> {
        let after = self.file(number)?.attributes(number);
        Ok(AttributeChange { before: Some(before), after: Some(after) })
    }

    pub(super) fn room(&self) -> u64 {
        self.bytes_max.saturating_sub(self.bytes_used)
    }

    /// Looks up an entry; checks search permission.
    pub(super) fn find(&self, caller: &Caller, dir: u64, name: &[u8]) -> Result<u64> {
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

    pub(super) fn add(
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
        if matches!(body, Body::Block(_) | Body::Character(_)) && !caller.is_root() {
            return Err(Error::NotOwner);
        }
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
        file.set_initial_attributes(caller, new, now)?;
        self.last += 1;
        let number = self.last;
        self.files.insert(number, file);
        self.add_entry(dir, name, number, now)?;
        Ok(number)
    }

    /// Adds an entry, without changing the link count of the file.
    pub(super) fn add_entry(
        &mut self,
        dir: u64,
        name: &[u8],
        number: u64,
        now: Time,
    ) -> Result<()> {
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

    /// Removes an entry, without changing its file.
    pub(super) fn remove_entry(
        &mut self,
        dir: u64,
        name: &[u8],
        is_dir: bool,
        now: Time,
    ) -> Result<()> {
        let parent = self.file_mut(dir)?;
        parent.directory_mut()?.remove(name);
        parent.links -= u32::from(is_dir);
        (parent.modified, parent.changed) = (now, now);
        Ok(())
    }

    /// Removes an entry, and its file if that was the last name.
    pub(super) fn unlink(&mut self, dir: u64, name: &[u8], now: Time) -> Result<()> {
        let number = self.file(dir)?.directory()?.find(name).ok_or(Error::NotFound)?;
        let victim = self.file_mut(number)?;
        let is_dir = victim.kind() == FileKind::Directory;
        victim.links = if is_dir { 0 } else { victim.links - 1 };
        victim.changed = now;
        if victim.links == 0 {
            self.bytes_used -= victim.data().map_or(0, Data::used);
            self.files.remove(&number);
        }
        self.remove_entry(dir, name, is_dir, now)
    }

    /// Whether `caller` may remove the entry of `victim` from `dir`, and `victim` is a directory if
    /// and only if `is_dir`.
    pub(super) fn may_replace(
        &self,
        caller: &Caller,
        dir: u64,
        victim: u64,
        is_dir: bool,
    ) -> Result<()> {
        let file = self.file(victim)?;
        self.file(dir)?.allow_removal(caller, file)?;
        match (is_dir, file.kind() == FileKind::Directory) {
            (true, false) => Err(Error::NotADirectory),
            (false, true) => Err(Error::IsADirectory),
            _ => Ok(()),
        }
    }

    pub(super) fn is_below(&self, mut dir: u64, ancestor: u64) -> Result<bool> {
        while dir != ROOT {
            if dir == ancestor {
                return Ok(true);
            }
            dir = self.file(dir)?.directory()?.parent;
        }
        Ok(ancestor == ROOT)
    }

    /// An unchecked creation of an existing file.
    pub(super) fn reuse_existing(
        &mut self,
        caller: &Caller,
        number: u64,
        size: Option<u64>,
    ) -> Result<()> {
        if self.file(number)?.kind() != FileKind::Regular {
            return Err(Error::Exists);
        }
        match size {
            None => Ok(()),
            Some(_) => self.set(caller, number, &NewAttributes { size, ..Default::default() }),
        }
    }

    pub(super) fn set(&mut self, caller: &Caller, number: u64, new: &NewAttributes) -> Result<()> {
        let now = self.tick();
        let file = self.file_mut(number)?;
        let used = |file: &File| file.data().map_or(0, Data::used);
        let before = used(file);
        let changed = file.change(caller, new, now);
        // A change of size can only free memory: growing leaves a hole.
        let freed = before - used(file);
        self.bytes_used -= freed;
        changed
    }

    pub(super) fn rename(
        &mut self,
        caller: &Caller,
        (source, from): (u64, &[u8]),
        (target, to): (u64, &[u8]),
    ) -> Result<()> {
        // Both directories before either name, as the kernel does.
        self.file(source)?.allow(caller, EXECUTE)?;
        self.file(target)?.allow(caller, EXECUTE)?;
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
            // Its `..` entry changes.
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
        self.remove_entry(source, from, is_dir, now)?;
        self.add_entry(target, to, moved, now)?;
        self.file_mut(moved)?.changed = now;
        Ok(())
    }
}

impl File {
    /// Sets the requested attributes of a new file, except the mode.
    fn set_initial_attributes(
        &mut self,
        caller: &Caller,
        new: &NewAttributes,
        now: Time,
    ) -> Result<()> {
        let mode = self.mode;
        let owner = NewAttributes { uid: new.uid, gid: new.gid, ..Default::default() };
        match self.change(caller, &owner, now) {
            // Some clients always send the group that they expect; lacking the right to set it is
            // no reason to fail.
            Err(Error::NotOwner) if !caller.is_root() => {}
            other => other?,
        }
        self.mode = mode;
        let size = new.size.filter(|_| self.kind() == FileKind::Regular);
        self.change(caller, &NewAttributes { mode: None, uid: None, gid: None, size, ..*new }, now)
    }
}

/// `.` and `..` cannot be removed or renamed.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::Invalid),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}

pub(super) fn check_new_name(name: &[u8]) -> Result<()> {
    if name == b"." || name == b".." { Err(Error::Exists) } else { check_name(name) }
}
