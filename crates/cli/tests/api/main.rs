//! The API of a live server, asked by curl: what it says, who may do what, and what is on record.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod authorisation;
mod events;
mod locks;
mod notification;
mod probes;
mod recovery;
mod sockets;
mod stall;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
