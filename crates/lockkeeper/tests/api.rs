//! The API of a live server, asked by curl: what it says, who may do what, and what is on record.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/live.rs"]
mod live;

#[path = "api/authorisation.rs"]
mod authorisation;
#[path = "api/events.rs"]
mod events;
#[path = "api/locks.rs"]
mod locks;
#[path = "api/recovery.rs"]
mod recovery;
#[path = "api/sockets.rs"]
mod sockets;
#[path = "api/stall.rs"]
mod stall;
