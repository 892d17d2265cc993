//! The durable lock table. A store applies the keeper's batches of changes and returns their sum at
//! the next start; it never decides anything about locks.
//!
//! ```text
//! keeper --changes--> server's engine --commit(batch, token)--> Store
//!                     replies leave only after CommitOutcome::Done (I2)
//! ```
//!
//! # Writing a store
//!
//! 1. Implement [`Store`]; its documentation is the contract. [`memory`] is the smallest
//!    implementation, `sim/src/disk.rs` one that fails on demand.
//! 2. Pass `conformance::check` (feature `conformance`), with a test bed that produces the failures of
//!    its medium: kills, power losses, full disks, lost replies, a second writer. What that suite cannot
//!    reach is listed there.
//! 3. Report [`Exactness::Roster`](keeper::change::Exactness) from `load` whenever an acknowledged
//!    lock may be missing, and `Open` whenever a client may be, until a grace period has ended durably.
//!
//! # Where to find what
//!
//! | module | contents |
//! |---|---|
//! | [`store`] | the trait, batch tokens, outcomes of a commit |
//! | [`error`] | every error, with advice for the operator |
//! | [`health`] | standing warnings of a store that works |
//! | [`durability`] | `process` and `power`: which batches wait for the disk |
//! | `conformance` | the test suite for all stores, and rows for tests |
//! | [`memory`] | a store that ends with the process |
//! | [`embedded`] | a directory with a journal and snapshots |
//! | `embedded::frame` | the bytes of its files, drawn; `record`: those of one row; `embedded::mark`: the high-water mark |
//! | `embedded::{log, replay, files}` | appending and syncing; reading back, torn end or damage; creating and compacting files |
//! | `embedded::exactness` | whether the locks that were read are complete |
//! | `embedded::{reserve, reader}` | space for starts on a full disk; reading while a server writes |
//! | [`postgres`] | tables shared by a pair of servers |
//! | `postgres::{batch, load, rows, columns}` | one batch as one statement; reading everything; the columns |
//! | `postgres::{leadership, leader_watch, heartbeat}` | who serves; when a standby may take over; renewing the lease |
//! | `postgres::{session, connection, runtime}` | reconnecting with fencing; errors and time limits; the I/O thread |
//! | `postgres::{trust, vouch, mark, rewrite}` | whether it is exact after a failover; what that is judged by; writing lost batches back |
//! | `postgres::{schema, migrations, server_durability}` | creating tables; what the database guarantees |
//! | [`lease`] | whether this server may still reply |
//! | [`consistency`] | contradictions in a loaded state |
//! | [`transfer`] | copying one store into another |

#![forbid(unsafe_code)]
#![warn(unreachable_pub, missing_docs)]

pub mod boot_id;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod consistency;
pub mod durability;
pub mod embedded;
pub mod error;
pub mod health;
pub mod lease;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
mod record;
pub mod store;
pub mod transfer;

pub use boot_id::BootId;
pub use durability::Durability;
pub use embedded::{Embedded, EmbeddedReader, EmbeddedSettings};
pub use error::StoreError;
pub use health::StoreHealth;
pub use lease::Lease;
pub use memory::Memory;
#[cfg(feature = "postgres")]
pub use postgres::{Postgres, PostgresSettings};
pub use store::{CommitOutcome, Store, Token};
