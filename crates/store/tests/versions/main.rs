//! Stores that released versions wrote (`tests/fixtures`) open with all that is in them, whatever
//! has become of the formats since. What is expected was said by the version that wrote the store.

#![allow(clippy::unwrap_used, clippy::panic)]

mod embedded;
mod flips;
mod listing;
#[cfg(feature = "postgres")]
mod postgres;
