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
         trust. Restore the store from a backup; or, if no client holds a lock any more, move its \
         directory away or rename its schema, and the server starts with an empty one"
    )]
    Damaged { place: String, what: String },
    #[error(
        "{place} was written by a newer version of this program (format {found}, this one knows \
         {known}). Start the newer version again; or, if no client holds a lock any more, move the \
         directory of the store away or rename its schema, and the server starts with an empty one"
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
        "a copy into this store was begun and not finished, so some locks are missing. Clear it and \
         copy again: lockkeeper store clear URL --force, lockkeeper store copy FROM URL"
    )]
    Unfinished,
    #[error(
        "{0} locks and shares are held. Clearing the store takes them from programs that rely on \
         them; stop the clients first, or force it"
    )]
    LocksHeld(u64),
    #[error("the settings of the PostgreSQL store are wrong: {0}")]
    BadSettings(String),
    #[error(
        "{place} cannot be used: {why}. Nothing is acknowledged until it can be; look whether it \
         runs, and whether this server may connect to it"
    )]
    Unreachable { place: String, why: String },
    #[error(
        "{place} does not let role {role:?} do what a server does ({said}). As its administrator: \
         {fix}"
    )]
    NotAllowed { place: String, role: String, said: String, fix: String },
    #[error(
        "{place} runs with {setting} = off: what it acknowledges may not outlive a loss of power, \
         which durability = \"power\" promises. As its administrator: {fix}; or choose \
         durability = \"process\""
    )]
    WeakPromises { place: String, setting: String, fix: String },
    #[error("this server has not taken the seat of this store yet: it may only look")]
    NoSeat,
    /// What was told is no longer what is stored: the process must end (I2).
    #[error(
        "{place} has lost what it had acknowledged ({what}): it was restored from a backup, or \
         failed over to a replica that lagged behind. This server ends; started again it takes \
         the locks for incomplete, and lets clients reclaim theirs in a whole grace period"
    )]
    Forgot { place: String, what: String },
    /// Whatever this process believes about locks is history: it must end (I12).
    #[error("another server took over: {by} since {since}; this one ends")]
    Replaced { by: String, since: String },
}

impl StoreError {
    /// Whether trying again can only make it worse: the driver ends the process on it.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            StoreError::SyncFailed(_)
                | StoreError::Damaged { .. }
                | StoreError::Forgot { .. }
                | StoreError::Replaced { .. }
        )
    }

    /// Whether it may be gone after a while by itself.
    pub fn may_pass(&self) -> bool {
        matches!(self, StoreError::Unreachable { .. } | StoreError::Unwritable(_))
    }
}
