//! Where what must be durable becomes durable. A store is a bag of changes: it applies batches,
//! gives the sum back at the next start, and never decides anything about locks.

#![forbid(unsafe_code)]

pub mod conformance;
pub mod durability;
pub mod embedded;
pub mod error;
pub mod lease;
pub mod memory;
pub mod record;
pub mod store;

pub use durability::Durability;
pub use embedded::{Embedded, Settings};
pub use error::StoreError;
pub use lease::Lease;
pub use memory::Memory;
pub use store::{Committed, Store, Token};
