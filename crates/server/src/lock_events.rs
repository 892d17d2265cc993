//! Locks as they come and go, for an embedding program that asks for it
//! ([`LockConfig::with_lock_hook`](crate::LockConfig::with_lock_hook)).

use std::panic::{AssertUnwindSafe, catch_unwind};

use keeper::change::Change;
use keeper::identity::{ClientId, LockId};
use keeper::range::Range;
use keeper::request::Mode;
use tracing::error;
use vfs::FileKey;

use crate::files::file_of_lock;

/// A lock was granted or released. A lock whose range or mode changes is released and granted with
/// another id, each remaining part by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEvent {
    /// A client has this lock; said again if its owner has moved to another address of the server.
    Granted(GrantedLock),
    /// It is gone, for whatever reason.
    Released(LockId),
}

/// A lock that was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrantedLock {
    /// Never used for another lock.
    pub id: LockId,
    /// The machine that has it.
    pub client: ClientId,
    /// The client's number for the owner, usually of a process.
    pub owner: u32,
    /// The file; `None` if its key in the store is not one of this server.
    pub file: Option<FileKey>,
    /// The bytes that are locked.
    pub range: Range,
    /// Shared or exclusive.
    pub mode: Mode,
}

pub(crate) type LockHook = Box<dyn Fn(LockEvent) + Send + Sync>;

/// Passes a change that concerns a lock to the hook.
pub(crate) fn pass(change: &Change, hook: &LockHook) {
    let event = match change {
        Change::Lock(lock) => LockEvent::Granted(GrantedLock {
            id: lock.id,
            client: lock.owner.host,
            owner: lock.owner.number,
            file: file_of_lock(&lock.file),
            range: lock.range,
            mode: lock.mode,
        }),
        Change::LockGone(id) => LockEvent::Released(*id),
        _ => return,
    };
    if catch_unwind(AssertUnwindSafe(|| hook(event))).is_err() {
        error!("the lock hook of the embedding program panicked; locks are served on");
    }
}
