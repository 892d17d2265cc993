//! Stores that released versions wrote (`tests/fixtures`) open completely, whatever the format is
//! today. The expectations come from the version that wrote the store.

#![allow(clippy::unwrap_used, clippy::panic)]

mod embedded;
mod flips;
mod listing;
#[cfg(feature = "postgres")]
mod postgres;
