//! The contract between the keeper's steps and whatever keeps them. Every call blocks and is made
//! from one committer thread, so a store needs no locks of its own.

use keeper::change::{Change, Snapshot};

use crate::error::StoreError;

/// Names one batch. The driver counts them up and never uses one twice in a run; a new run goes on
/// after `Store::last_token`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// How a commit ended.
#[derive(Debug)]
#[must_use = "nothing may be told before the outcome is known (I2)"]
pub enum Committed {
    /// The whole batch is durable, as far as the store's durability promises.
    Done,
    /// Nothing of it is, nor will ever be: the same batch may be committed again.
    NotWritten(StoreError),
    /// It may be there or not. Settled by opening the store again and reading `last_token`; until
    /// then nobody gets a reply (I11).
    Unknown(StoreError),
}

pub trait Store: Send {
    /// All that is durable, with the store's own verdict on how far it can be trusted. A store that
    /// cannot be read is an error, never an empty one.
    fn load(&mut self) -> Result<Snapshot, StoreError>;

    /// Applies all of `changes` in order, or none of them.
    fn commit(&mut self, changes: &[Change], token: Token) -> Committed;

    /// Whether committing this waits for no disk, so that the caller may do it in passing.
    fn is_quick(&self, _changes: &[Change]) -> bool {
        false
    }

    /// After a clean stop was committed: whoever waits for the store may have it at once.
    fn leave(&mut self) {}

    /// The token of the last batch that is in the store, read anew from where it is kept.
    fn last_token(&mut self) -> Result<Token, StoreError>;

    /// Forgets locks, shares and registrations together. The epoch and `ids_below` stay, so that
    /// neither a state nor an id is ever used again. Refused while locks or shares are held,
    /// unless forced (R5.3).
    fn clear(&mut self, force: bool) -> Result<(), StoreError>;
}

/// What clearing leaves: every store gives this back (R5.3).
pub fn cleared(saved: &Snapshot) -> Snapshot {
    Snapshot { epoch: saved.epoch, ids_below: saved.ids_below, ..Snapshot::default() }
}

/// Refuses to clear what somebody relies on.
pub fn may_clear(saved: &Snapshot, force: bool) -> Result<(), StoreError> {
    let held = (saved.locks.len() + saved.shares.len()) as u64;
    if held > 0 && !force { Err(StoreError::LocksHeld(held)) } else { Ok(()) }
}
