//! SETATTR, also for the attributes of new files.

use std::os::fd::AsRawFd;

use rustix::{
    fs::{
        AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chmodat, chownat,
        ftruncate, utimensat,
    },
    path::DecInt,
};

use super::{node::Node, tree::Tree};
use crate::{
    AttributeChange, Attributes, Context, Error, FileKind, NewAttributes, ObjectId, Result,
    SetTime, Time,
};

impl Tree {
    pub(super) fn set_attributes(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
        new: &NewAttributes,
        guard: Option<Time>,
    ) -> Result<AttributeChange> {
        let node = self.node(context, object)?;
        let change = {
            let _order = node.lock_for_change();
            let before = self.attributes(&node)?;
            if guard.is_some_and(|changed| changed != before.changed) {
                return Err(Error::NotSynchronised);
            }
            self.apply(context, &node, &before, new)?;
            self.change(&node, Some(&before))
        };
        if *new != NewAttributes::default() {
            self.sync_metadata(&node)?;
        }
        Ok(change)
    }

    /// Applies size, owner, mode and times, in this order: a change of owner clears set-user-id,
    /// which the requested mode may set again, and a change of size updates the times.
    pub(super) fn apply(
        &self,
        context: &Context<'_>,
        node: &Node,
        current: &Attributes,
        new: &NewAttributes,
    ) -> Result<()> {
        let times = Timestamps {
            last_access: timespec(new.accessed)?,
            last_modification: timespec(new.modified)?,
        };
        if let Some(size) = new.size {
            self.resize(context, node, current, size)?;
        }
        // Write permission is enough to set a time to now. The kernel applies that rule only if
        // both times are set, so one alone is set with the server's privileges.
        let one_is_now = matches!(
            (new.accessed, new.modified),
            (SetTime::Now, SetTime::Keep) | (SetTime::Keep, SetTime::Now)
        );
        let as_writer = one_is_now && self.may_write(context, node, current).is_ok();

        let _caller = self.identity.assume(context.caller)?;
        if new.uid.is_some() || new.gid.is_some() {
            let (uid, gid) = (valid_id(new.uid)?, valid_id(new.gid)?);
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
            chownat(node.path(), c"", uid, gid, flags)?;
            node.device().count_change();
        }
        if let Some(mode) = new.mode {
            self.set_mode(node, mode)?;
            node.device().count_change();
        }
        if (new.accessed, new.modified) != (SetTime::Keep, SetTime::Keep) && !as_writer {
            utimensat(node.path(), c"", &times, AtFlags::EMPTY_PATH)?;
        }
        drop(_caller);
        if as_writer {
            utimensat(node.path(), c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    fn resize(
        &self,
        context: &Context<'_>,
        node: &Node,
        current: &Attributes,
        size: u64,
    ) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(Error::TooLarge);
        }
        if node.kind == FileKind::Regular {
            self.may_write(context, node, current)?;
        }
        let fd = self.writer(node)?;
        let _caller = self.identity.assume(context.caller)?;
        Ok(ftruncate(&fd, size)?)
    }

    fn set_mode(&self, node: &Node, mode: u32) -> Result<()> {
        // Links have no mode. Success, because clients that copy trees try to set it.
        if node.kind == FileKind::Symlink {
            return Ok(());
        }
        let mode = Mode::from_raw_mode(mode & 0o7777);
        Ok(chmodat(&self.proc, DecInt::new(node.path().as_raw_fd()), mode, AtFlags::empty())?)
    }
}

/// To the kernel the id -1 means "unchanged"; NFS has no such meaning.
fn valid_id(id: Option<u32>) -> Result<Option<u32>> {
    if id == Some(u32::MAX) { Err(Error::Invalid) } else { Ok(id) }
}

fn timespec(time: SetTime) -> Result<Timespec> {
    match time {
        SetTime::Keep => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
        SetTime::Now => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        SetTime::To(Time { nanoseconds: 1_000_000_000.., .. }) => Err(Error::Invalid),
        SetTime::To(Time { seconds, nanoseconds }) => {
            Ok(Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() })
        }
    }
}
