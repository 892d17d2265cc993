//! Where what must be durable becomes durable. A store is a bag of changes: it applies batches,
//! gives the sum back at the next start, and never decides anything about locks.

#![forbid(unsafe_code)]

pub mod check;
pub mod conformance;
pub mod durability;
pub mod embedded;
pub mod error;
pub mod lease;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod record;
pub mod store;
pub mod transfer;

pub use durability::Durability;
pub use embedded::{Embedded, Settings};
pub use error::StoreError;
pub use lease::Lease;
pub use memory::Memory;
#[cfg(feature = "postgres")]
pub use postgres::{Postgres, PostgresSettings};
pub use store::{Committed, Store, Token};
