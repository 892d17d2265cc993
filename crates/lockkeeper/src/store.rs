//! Where locks are kept: [`Memory`], which ends with the process, [`Embedded`], a directory, with the
//! feature `postgres` a database, or a [`Store`] of your own.
//!
//! A store gets [`Change`]s and returns their sum, a [`Snapshot`], at the next start; it decides nothing
//! about locks. `Store` states its contract, and with the feature `conformance`, which is for your
//! dev-dependencies, `conformance::check` tests it.

#[cfg(feature = "postgres")]
pub use ::store::BootId;
#[cfg(feature = "conformance")]
pub use ::store::conformance;
#[cfg(feature = "postgres")]
pub use ::store::postgres::{
    Failover, Fencing, Leader, LeaderWatch, Leadership, Postgres, PostgresSettings,
    ProcessIdentity, QueryTimes, Standby, TakeoverDecision,
};
pub use ::store::store::{cleared, may_clear};
pub use ::store::{
    CommitOutcome, Durability, Embedded, EmbeddedSettings, Lease, Memory, Store, StoreError,
    StoreHealth, Token,
};
pub use keeper::bytes::{FileKey, Name, OwnerTag};
pub use keeper::change::{
    Change, Client, Exactness, Lock, Protocol, Reboot, Registrant, Share, Snapshot,
};
pub use keeper::identity::{
    ClientId, Epoch, HostKey, Incarnation, LockId, Owner, OwnerNamespace, ShareId, Transport,
};
pub use keeper::range::Range;
pub use keeper::request::{Access, Callback, Mode};
