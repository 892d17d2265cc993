//! The caller's file-system uid, gid and groups, assumed by a thread for one operation.
//!
//! glibc's `setgroups` affects all threads, so the raw system call is used. A file-system uid other
//! than 0 drops `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH` and similar capabilities, so steps that
//! need the server's privileges come before the switch. `setfsuid` and `setfsgid` do not report
//! failure, so the result is read back.

use std::{
    cell::{Cell, RefCell},
    marker::PhantomData,
};

use rustix::{
    fs::Gid,
    thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities,
        capabilities_secure_bits, set_capabilities, set_thread_groups,
    },
};

use super::sys;
use crate::{Caller, Error, Result};

/// Passed to `setfsuid` and `setfsgid`: changes nothing, returns the current id.
const READ: u32 = u32::MAX;

thread_local! {
    /// The groups of this thread. Not reset after an operation: the next one is usually for the
    /// same caller, and the server's own privileges do not depend on groups.
    static GROUPS: RefCell<Option<Vec<Gid>>> = const { RefCell::new(None) };
    static PREPARED: Cell<bool> = const { Cell::new(false) };
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// The identity under which operations run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    /// The caller's; `own_uid` and `own_gid` between operations.
    Caller { own_uid: u32, own_gid: u32 },
    /// The server's, because it is not permitted to change it.
    Server,
}

impl Identity {
    /// The identity that this process is able to use.
    pub(super) fn of_process() -> Self {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        let capable = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
        // A user namespace may forbid setgroups in spite of the capability.
        let groups = rustix::process::getgroups().unwrap_or_default();
        let (own_uid, own_gid) = (sys::set_fs_uid(READ), sys::set_fs_gid(READ));
        // The kernel drops the capabilities over files only on the transition from uid 0.
        if capable && own_uid == 0 && set_thread_groups(&groups).is_ok() {
            Self::Caller { own_uid, own_gid }
        } else {
            Self::Server
        }
    }

    /// Whether callers would get capabilities of the server: it cannot change identity, is not
    /// root, but can override file permissions.
    pub(super) fn exposes_capabilities(self) -> bool {
        const OVERRIDES: CapabilitySet = CapabilitySet::DAC_OVERRIDE
            .union(CapabilitySet::DAC_READ_SEARCH)
            .union(CapabilitySet::FOWNER);
        let not_root = self == Self::Server && sys::set_fs_uid(READ) != 0;
        not_root && capabilities(None).is_ok_and(|sets| sets.effective.intersects(OVERRIDES))
    }

    /// Whether callers would keep the capabilities of the server because the kernel does not take them
    /// from a thread whose uid changes (B1.87).
    pub(super) fn keeps_capabilities(self) -> bool {
        let is_set =
            |bits: CapabilitiesSecureBits| bits.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP);
        self != Self::Server && capabilities_secure_bits().is_ok_and(is_set)
    }

    /// Assumes the identity of `caller` until the guard is dropped. No thread may be spawned
    /// meanwhile: it would inherit the identity for good.
    pub(super) fn assume(self, caller: &Caller) -> Result<AssumedIdentity> {
        let mut assumed = AssumedIdentity { uid: None, gid: None, not_send: PhantomData };
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
        set_groups(&caller.groups)?;
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

fn set_groups(groups: &[u32]) -> Result<()> {
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
        // Unknown if the call fails.
        *current = None;
        set_thread_groups(&wanted).map_err(|_| Error::Io)?;
        *current = Some(wanted);
        Ok(())
    })
}

/// While this guard lives, the thread has the identity of the caller.
#[must_use]
pub(super) struct AssumedIdentity {
    uid: Option<u32>,
    gid: Option<u32>,
    /// The identity belongs to this thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for AssumedIdentity {
    fn drop(&mut self) {
        // The uid first: it restores the capability needed to set the gid. A thread that cannot
        // return to its own identity would serve files of one user to another.
        if let Some(uid) = self.uid {
            sys::set_fs_uid(uid);
            if sys::set_fs_uid(READ) != uid {
                tracing::error!(uid, "cannot return to the server's own uid; aborting");
                std::process::abort();
            }
        }
        if let Some(gid) = self.gid {
            sys::set_fs_gid(gid);
            if sys::set_fs_gid(READ) != gid {
                tracing::error!(gid, "cannot return to the server's own gid; aborting");
                std::process::abort();
            }
        }
    }
}

/// Prepares the current thread for operations of [`LocalFs`](super::LocalFs). Call it once on each
/// worker thread, before its first operation; the server does.
///
/// Gives the thread a umask of its own, 0, so that files are created with exactly the requested
/// mode, and drops `CAP_SYS_RESOURCE`, with which callers could use blocks reserved for root. On
/// other threads the mode is corrected after the creation, at the cost of one system call.
pub fn prepare_worker_thread() {
    mark_thread_as_blocking();
    prepare(sys::unshare_fs);
}

/// Each step is taken whether or not the other succeeds: a container may forbid `unshare`.
fn prepare(unshare_fs: impl FnOnce() -> rustix::io::Result<()>) {
    let dropped =
        capabilities(None).and_then(|sets| set_capabilities(None, without_reserved_blocks(sets)));
    if let Err(error) = dropped {
        tracing::warn!(%error, "worker thread keeps CAP_SYS_RESOURCE: callers may use blocks reserved for root");
    }
    match unshare_fs() {
        Ok(()) => {
            rustix::process::umask(rustix::fs::Mode::empty());
            PREPARED.set(true);
        }
        Err(error) => tracing::warn!(%error, "worker thread keeps the umask of the process"),
    }
}

fn without_reserved_blocks(mut sets: CapabilitySets) -> CapabilitySets {
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    sets
}

/// To be called by threads that may wait for a disk.
pub(super) fn mark_thread_as_blocking() {
    MAY_BLOCK.set(true);
}

/// Whether this thread may wait for a disk; a thread that is not known to may not.
pub(super) fn thread_may_block() -> bool {
    MAY_BLOCK.try_with(Cell::get).unwrap_or(false)
}

/// Whether this thread creates files with exactly the requested mode.
pub(super) fn modes_are_exact() -> bool {
    PREPARED.get()
}

#[cfg(test)]
mod tests {
    use rustix::{io::Errno, thread::set_capabilities_secure_bits};

    use super::super::{LocalFs, Options};
    use super::*;

    /// B1.87. With this bit the kernel leaves a thread its capabilities when its uid changes.
    #[test]
    fn an_export_is_refused_where_a_change_of_the_uid_keeps_capabilities() {
        testbed::namespace::need_root();
        let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = root.path().join("secret");
        std::fs::write(&secret, "of root").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&secret, mode).unwrap();
        // The bits belong to the thread.
        let opened = std::thread::spawn(move || {
            let bits = capabilities_secure_bits().unwrap();
            let bits = bits | CapabilitiesSecureBits::NO_SETUID_FIXUP;
            set_capabilities_secure_bits(bits).unwrap();
            let opened = LocalFs::open(Options::new(root.path(), state.path()));
            let identity = Identity::Caller { own_uid: 0, own_gid: 0 };
            let caller = Caller::new(1000, 1000, &[]);
            let _assumed = identity.assume(&caller).unwrap();
            println!("user 1000 reads {:?}", std::fs::read_to_string(&secret));
            opened.err().map(|error| error.to_string())
        });
        let refused = opened.join().unwrap();
        println!("{refused:?}");
        assert!(refused.is_some_and(|why| why.contains("SECBIT_NO_SETUID_FIXUP")));
    }

    /// B1.87
    #[test]
    fn blocks_reserved_for_root_are_given_up_even_where_unshare_is_forbidden() {
        testbed::namespace::need_root();
        let left = std::thread::spawn(|| {
            prepare(|| Err(Errno::PERM));
            let sets = capabilities(None).unwrap();
            (sets.effective.contains(CapabilitySet::SYS_RESOURCE), modes_are_exact())
        });
        assert_eq!(left.join().unwrap(), (false, false));
        // A container may not have it to begin with.
        let all = CapabilitySet::all();
        let sets = CapabilitySets { effective: all, permitted: all, inheritable: all };
        let left = without_reserved_blocks(sets).effective;
        assert_eq!(left, all - CapabilitySet::SYS_RESOURCE);
    }
}
