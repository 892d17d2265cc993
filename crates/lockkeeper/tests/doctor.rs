//! `lockkeeper doctor`: everything that it should find is made to happen, and a healthy place is
//! called healthy. Needs root for networks and mounts, and Debian's rpcbind, nfs-common, nftables
//! and faketime.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

#[path = "support/doctor.rs"]
mod support;

#[path = "doctor/client.rs"]
mod client;
#[path = "doctor/host.rs"]
mod host;
#[path = "doctor/network.rs"]
mod network;
#[path = "doctor/store.rs"]
mod store;
