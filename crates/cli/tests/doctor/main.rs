//! `lockkeeper doctor`: everything that it should find is made to happen, and a healthy place is
//! called healthy. Needs root for networks and mounts, and Debian's rpcbind, nfs-common, nftables
//! and faketime.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod client;
mod host;
mod network;
mod patient;
mod store;
mod translation;
