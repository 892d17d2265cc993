//! On whose behalf the kernel acts: the caller's file-system uid, gid and groups, taken on by the
//! thread for the length of one operation.
//!
//! Three traps. glibc's `setgroups` changes every thread of the process, so the raw call is made.
//! A file-system uid other than 0 takes `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH` and their kin
//! away, so whatever needs the server's own authority is done before. And neither `setfsuid` nor
//! `setfsgid` reports failure, so the result is read back.

use std::{
    cell::{Cell, RefCell},
    marker::PhantomData,
};

use rustix::{
    fs::Gid,
    thread::{CapabilitySet, capabilities, set_capabilities, set_thread_groups},
};

use super::sys;
use crate::{Caller, Error, Result};

/// A value that changes nothing and so only reads.
const READ: u32 = u32::MAX;

thread_local! {
    /// The groups that this thread has now. They stay after an operation: the next one is mostly
    /// for the same caller, and the server's own authority does not come from groups.
    static GROUPS: RefCell<Option<Vec<Gid>>> = const { RefCell::new(None) };
    static PREPARED: Cell<bool> = const { Cell::new(false) };
}

/// How the server can act for its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    /// As the caller; otherwise as this user and group.
    Caller { own_uid: u32, own_gid: u32 },
    /// Always as the server itself, because it may not change identity.
    Server,
}

impl Identity {
    /// What this process may do.
    pub(super) fn of_process() -> Self {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        let capable = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
        // A user name space may forbid setgroups in spite of the capability.
        let groups = rustix::process::getgroups().unwrap_or_default();
        let (own_uid, own_gid) = (sys::set_fs_uid(READ), sys::set_fs_gid(READ));
        // Only when root becomes somebody else does the kernel take root's powers over files away.
        if capable && own_uid == 0 && set_thread_groups(&groups).is_ok() {
            Self::Caller { own_uid, own_gid }
        } else {
            Self::Server
        }
    }

    /// Whether every caller would have the server's power over all files: a server that is not
    /// root but was given some of root's powers.
    pub(super) fn gives_power_away(self) -> bool {
        const POWERS: CapabilitySet = CapabilitySet::DAC_OVERRIDE
            .union(CapabilitySet::DAC_READ_SEARCH)
            .union(CapabilitySet::FOWNER);
        let not_root = self == Self::Server && sys::set_fs_uid(READ) != 0;
        not_root && capabilities(None).is_ok_and(|sets| sets.effective.intersects(POWERS))
    }

    /// Acts as `caller` until the guard is dropped. Nothing may be spawned meanwhile: a new
    /// thread would keep the identity.
    pub(super) fn assume(self, caller: &Caller) -> Result<Assumed> {
        let mut assumed = Assumed { uid: None, gid: None, not_send: PhantomData };
        let Self::Caller { own_uid, own_gid } = self else { return Ok(assumed) };
        if caller.uid == READ || caller.gid == READ {
            return Err(Error::Invalid);
        }
        if caller.gid != own_gid {
            assumed.gid = Some(own_gid);
            sys::set_fs_gid(caller.gid);
            if sys::set_fs_gid(READ) != caller.gid {
                return Err(Error::Io);
            }
        }
        take_groups(&caller.groups)?;
        if caller.uid != own_uid {
            assumed.uid = Some(own_uid);
            sys::set_fs_uid(caller.uid);
            if sys::set_fs_uid(READ) != caller.uid {
                return Err(Error::Io);
            }
        }
        Ok(assumed)
    }
}

fn take_groups(groups: &[u32]) -> Result<()> {
    GROUPS.with_borrow_mut(|current| {
        if current.is_none() {
            *current = Some(rustix::process::getgroups()?);
        }
        let same = current.as_ref().is_some_and(|current| {
            current.iter().map(|gid| gid.as_raw()).eq(groups.iter().copied())
        });
        if same {
            return Ok(());
        }
        if groups.contains(&READ) {
            return Err(Error::Invalid);
        }
        let wanted: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        // Unknown while it is uncertain.
        *current = None;
        set_thread_groups(&wanted).map_err(|_| Error::Io)?;
        *current = Some(wanted);
        Ok(())
    })
}

/// While this lives, the thread acts as the caller.
#[must_use]
pub(super) struct Assumed {
    uid: Option<u32>,
    gid: Option<u32>,
    /// The identity belongs to this thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for Assumed {
    fn drop(&mut self) {
        // The uid first: it brings the capability to set the gid back in a process that has lost
        // it. To go on as somebody else would serve one user's files to another.
        if let Some(uid) = self.uid {
            sys::set_fs_uid(uid);
            if sys::set_fs_uid(READ) != uid {
                tracing::error!(uid, "cannot take the server's own user back, stopping");
                std::process::abort();
            }
        }
        if let Some(gid) = self.gid {
            sys::set_fs_gid(gid);
            if sys::set_fs_gid(READ) != gid {
                tracing::error!(gid, "cannot take the server's own group back, stopping");
                std::process::abort();
            }
        }
    }
}

/// Makes the current thread fit to change files for callers. Call it once on each worker thread,
/// before its first operation.
///
/// The thread gets a umask of its own, 0, so that files have exactly the mode that was asked for,
/// and gives up `CAP_SYS_RESOURCE`, with which users would eat the blocks and quota reserved for
/// root. On a thread where this was not called, modes are put right after the creation, with one
/// more system call.
pub fn prepare_worker_thread() {
    if let Err(error) = sys::unshare_fs() {
        tracing::warn!(%error, "worker thread keeps the process's umask");
        return;
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    PREPARED.set(true);
    let dropped = capabilities(None).and_then(|mut sets| {
        sets.effective.remove(CapabilitySet::SYS_RESOURCE);
        set_capabilities(None, sets)
    });
    if let Err(error) = dropped {
        tracing::warn!(%error, "worker thread keeps the right to reserved blocks");
    }
}

/// Whether files made by this thread have exactly the mode that was asked for.
pub(super) fn modes_are_exact() -> bool {
    PREPARED.get()
}
