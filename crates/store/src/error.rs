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
        "the store cannot be written: {0}. Nothing is acknowledged until it can be; look for a \
         full disk, a lost mount or a database that is down"
    )]
    Unwritable(String),
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
