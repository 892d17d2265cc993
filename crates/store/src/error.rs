//! What can go wrong with a store. Each message ends with what an operator can do about it (B5.5).

use thiserror::Error;

/// An error of a store. [`StoreError::is_fatal`] says which of them end the process.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The medium cannot be read, for a reason that is not damage.
    #[error(
        "the store cannot be read: {0}. The server does not start without its locks; restore the \
         store from a backup, or clear it if no client holds a lock"
    )]
    Unreadable(String),
    /// What was read cannot have been written by this program.
    #[error(
        "the store is damaged: {location}: {what}. The server does not start with incomplete \
         locks. Restore the store from a backup; or move its directory away or rename its schema, \
         and start the server once with --store-lost: clients then reclaim their locks"
    )]
    Damaged {
        /// The file or the table.
        location: String,
        /// What is wrong with it.
        what: String,
    },
    /// The format is newer than this program.
    #[error(
        "{location} was written by a newer version of this program (format {found}, this one knows \
         {known}). Start the newer version again; or move the directory of the store away or rename \
         its schema, and start the server once with --store-lost: clients then reclaim their locks"
    )]
    Newer {
        /// The file or the schema.
        location: String,
        /// The format that was found.
        found: u64,
        /// The newest format that this program reads.
        known: u64,
    },
    /// Nothing can be written at the moment.
    #[error(
        "the store cannot be written: {0}. Nothing is acknowledged until it can be; look for a \
         full disk, a lost mount or a database that is down"
    )]
    Unwritable(String),
    /// A sync failed: what the disk has is unknown from here on, and the process must end (I11).
    #[error(
        "the disk failed to keep what was written: {0}. What it has now is unknown, so the server \
         ends; check the kernel log and the disk's health before starting it again"
    )]
    SyncFailed(String),
    /// Another process has the embedded store open.
    #[error(
        "another server has opened this store. Two servers on one store would grant one lock \
         twice; stop the other one first"
    )]
    InUse,
    /// [`transfer::copy`](crate::transfer::copy) into this store did not finish.
    #[error(
        "a copy into this store was begun and not finished, so some locks are missing. Clear it and \
         copy again: lockkeeper store clear URL --force, lockkeeper store copy FROM URL"
    )]
    Unfinished,
    /// A store with this many locks and shares is not cleared without force.
    #[error(
        "{0} locks and shares are held. Clearing the store takes them from programs that rely on \
         them; stop the clients first, or force it"
    )]
    LocksHeld(u64),
    /// [`PostgresSettings`](crate::PostgresSettings) that cannot work.
    #[error("the settings of the PostgreSQL store are wrong: {0}")]
    BadSettings(String),
    /// The database does not answer, or the connection broke.
    #[error(
        "{location} cannot be used: {why}. Nothing is acknowledged until it can be; check that it \
         runs, and that this server may connect to it"
    )]
    Unreachable {
        /// The database, without its password.
        location: String,
        /// What happened on the connection.
        why: String,
    },
    /// TLS with the database fails, which lasts until a certificate or a setting is changed.
    #[error("{location} cannot be used: {why}")]
    Tls {
        /// The database, without its password.
        location: String,
        /// What is wrong, and how to fix it.
        why: String,
    },
    /// The database role lacks a privilege.
    #[error(
        "{location} denies role {role:?} what a server needs ({message}). As its administrator: \
         {fix}"
    )]
    NotAllowed {
        /// The database.
        location: String,
        /// The role that the server uses.
        role: String,
        /// The database's own message.
        message: String,
        /// SQL that grants what is missing.
        fix: String,
    },
    /// The database guarantees less than `durability = "power"` promises.
    #[error(
        "{location} runs with {setting} = off: what it acknowledges may not survive a power loss, \
         which durability = \"power\" promises. As its administrator: {fix}; or choose \
         durability = \"process\""
    )]
    WeakDurability {
        /// The database.
        location: String,
        /// The PostgreSQL setting.
        setting: String,
        /// SQL that changes it.
        fix: String,
    },
    /// Only the leader writes.
    #[error(
        "this server is not the leader of this store, so it may only read; it must take the \
         leadership first"
    )]
    NotLeader,
    /// Acknowledged batches are gone from the database: the process must end (I2).
    #[error(
        "{location} has lost what it had acknowledged ({what}): it was restored from a backup, or \
         failed over to a replica that lagged behind, and another server may have led meanwhile. \
         This server ends; started again it treats hosts and locks as incomplete, and lets clients \
         reclaim in a whole grace period"
    )]
    LostCommits {
        /// The database.
        location: String,
        /// What was expected and what was found.
        what: String,
    },
    /// Acknowledged batches are gone from the database, and this server has them all in memory:
    /// [`Store::rewrite`](crate::Store::rewrite) brings them back (B6.62).
    #[error(
        "{location} has lost what it had acknowledged ({what}): it failed over to a replica that \
         lagged behind. Locks wait until this server has written its own state back; to lose \
         nothing, make the replica synchronous (synchronous_standby_names)"
    )]
    Behind {
        /// The database.
        location: String,
        /// What was expected and what was found.
        what: String,
    },
    /// A pooler gives each transaction another connection.
    #[error(
        "{location} is behind a pooler in transaction mode, such as PgBouncer: prepared statements \
         and the settings of a session vanish between two transactions. Connect to PostgreSQL \
         itself, or set pool_mode = session for this database"
    )]
    Pooled {
        /// The database.
        location: String,
    },
    /// This process's view of the locks is outdated: it must end (I12).
    #[error("another server took over: {by} since {since}; this one ends")]
    Replaced {
        /// The node that leads now.
        by: String,
        /// Since when, by the database's clock.
        since: String,
    },
}

impl StoreError {
    /// Whether a retry could only do harm. The process ends without another reply.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            StoreError::SyncFailed(_)
                | StoreError::Damaged { .. }
                | StoreError::LostCommits { .. }
                | StoreError::Replaced { .. }
        )
    }

    /// Whether [`Store::rewrite`](crate::Store::rewrite) is what the store needs.
    pub fn is_behind(&self) -> bool {
        matches!(self, StoreError::Behind { .. })
    }

    /// Whether it may go away by itself, so that waiting makes sense.
    pub fn is_transient(&self) -> bool {
        matches!(self, StoreError::Unreachable { .. } | StoreError::Unwritable(_))
    }
}
