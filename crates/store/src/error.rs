//! What can be wrong with a store, each with what a person can do about it (R5.4).

use thiserror::Error;

#[derive(Debug, Error)]
pub enum StoreError {
    #[error(
        "the store cannot be read: {0}. The server does not start with locks it cannot trust; \
         restore the store from a backup, or clear it if nobody holds a lock"
    )]
    Unreadable(String),
    #[error(
        "the store is damaged: {place}: {what}. The server does not start with locks it cannot \
         trust. Restore the directory of the store from a backup; or, if no client holds a lock \
         any more, move it away, and the server starts with an empty one"
    )]
    Damaged { place: String, what: String },
    #[error(
        "{place} was written by a newer version of this program (format {found}, this one knows \
         {known}). Start the newer version again; or, if no client holds a lock any more, move the \
         directory of the store away, and the server starts with an empty one"
    )]
    Newer { place: String, found: u64, known: u64 },
    #[error(
        "the store cannot be written: {0}. Nothing is acknowledged until it can be; look for a \
         full disk, a lost mount or a database that is down"
    )]
    Unwritable(String),
    /// What the disk has is unknown from here on: the process must end (I11).
    #[error(
        "the disk failed to keep what was written: {0}. What it has now is unknown, so the server \
         ends; look at the kernel's log and the disk's health before starting it again"
    )]
    SyncFailed(String),
    #[error(
        "another server has opened this store. Two servers on one store would grant one lock \
         twice; stop the other one first"
    )]
    InUse,
    #[error(
        "{0} locks and shares are held. Clearing the store takes them from programs that rely on \
         them; stop the clients first, or force it"
    )]
    LocksHeld(u64),
}

impl StoreError {
    /// Whether trying again can only make it worse: the driver ends the process on it.
    pub fn is_fatal(&self) -> bool {
        matches!(self, StoreError::SyncFailed(_) | StoreError::Damaged { .. })
    }
}
