//! The contract between the engine, which commits the keeper's changes, and a store.

use keeper::change::{Change, Snapshot};

use crate::error::StoreError;
use crate::health::StoreHealth;

/// Names one batch. The engine counts tokens up and uses each for one batch only; a new run
/// continues after [`Store::last_token`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// How a commit ended.
#[derive(Debug)]
#[must_use = "no reply may leave before the outcome is known (I2)"]
pub enum CommitOutcome {
    /// The whole batch is as durable as the store's [`Durability`](crate::Durability) promises.
    Done,
    /// No part of the batch is stored, or ever will be. The same batch may be committed again.
    NotWritten(StoreError),
    /// The batch may be stored or not; its requests get no reply (I11). [`Store::last_token`]
    /// settles it: the batch is stored if that returns its token, and may be committed again if not.
    Unknown(StoreError),
}

/// Durable storage of the lock table.
///
/// **Threads.** One thread at a time calls a store, not always the same one: a network thread
/// commits a batch for which [`is_quick`](Store::is_quick) is true, the committer thread any other,
/// and the starting thread loads. So a store needs no locks for its own state, and must be usable
/// from a thread of any async runtime. All methods may block, except `is_quick`.
///
/// **One writer.** While one process has a store open for writing, no other process may change it
/// (I12): it is refused with [`StoreError::InUse`], or replaces the first, whose writes then fail
/// with [`StoreError::Replaced`].
///
/// **Errors.** After an error for which [`StoreError::is_fatal`] is true the process ends without
/// another reply. After any other error the call may be repeated.
pub trait Store: Send {
    /// Everything that is stored, with the store's own judgement of whether locks may be missing
    /// ([`Snapshot::exactness`]). Returns the same until the next successful `commit` or `clear`.
    /// Settles an unknown commit, as `last_token` does.
    ///
    /// What cannot be read completely is an error, never a smaller or an empty snapshot.
    fn load(&mut self) -> Result<Snapshot, StoreError>;

    /// Applies all of `changes` in order, or none of them, and records `token` with them; an empty
    /// batch records its token only.
    ///
    /// Each change sets or removes one row or one value, so a batch that is applied twice has the
    /// effect of one. While an earlier commit is [`CommitOutcome::Unknown`] and not settled, every
    /// commit is refused as `NotWritten`.
    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome;

    /// Replaces everything that is stored by `saved`, and records `token`: all or nothing, as
    /// [`Store::commit`] does, and with its outcomes. To be called only after a call that returned
    /// [`StoreError::Behind`]. The default is for stores that never return it.
    fn rewrite(&mut self, _saved: &Snapshot, _token: Token) -> CommitOutcome {
        CommitOutcome::NotWritten(StoreError::LostCommits {
            location: "the store".into(),
            what: "it cannot be written back".into(),
        })
    }

    /// Whether committing `changes` now waits for neither disk nor network, so that a network thread
    /// may do it. Never blocks.
    fn is_quick(&self, _changes: &[Change]) -> bool {
        false
    }

    /// Warnings about a store that works. The same handle for the life of the store; it may be read
    /// by any thread at any time.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }

    /// Lets a standby take over without waiting for the lease. Called at most once, after a batch
    /// with [`Change::Stopped`] is `Done`; the store is only dropped afterwards. Best effort: without
    /// it the standby waits.
    fn release(&mut self) {}

    /// The token of the last batch that is stored, `Token(0)` if there is none. After an unknown
    /// commit it is read again from the medium, and no late effect of that commit may change the
    /// answer.
    fn last_token(&mut self) -> Result<Token, StoreError>;

    /// Removes all locks, shares and registrations, durably; see [`cleared`] for what remains. The
    /// last token stays. Refused with [`StoreError::LocksHeld`] while there are locks or shares,
    /// unless forced (B5.7).
    fn clear(&mut self, force: bool) -> Result<(), StoreError>;
}

/// The state after [`Store::clear`]: the epoch and `ids_below` stay, so that no NSM state and no id
/// is used twice (B5.7).
pub fn cleared(saved: &Snapshot) -> Snapshot {
    Snapshot { epoch: saved.epoch, ids_below: saved.ids_below, ..Snapshot::default() }
}

/// The check that [`Store::clear`] makes first.
pub fn may_clear(saved: &Snapshot, force: bool) -> Result<(), StoreError> {
    let held = (saved.locks.len() + saved.shares.len()) as u64;
    if held > 0 && !force { Err(StoreError::LocksHeld(held)) } else { Ok(()) }
}
