//! The whole server against peers as they are: each kind of client says what it says in the field,
//! hears what it must hear, and an independent dissector understands every packet. Each test is in
//! networks of its own, which need root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod debian;
mod freebsd;
mod macos;
mod old;
mod registrant;
#[path = "../support/mod.rs"]
mod support;
mod windows;

use client::{Connection, Options};
use support::capture::Capture;
use support::house::{House, server};
use support::network::Network;
use support::scene::{CLIENT, FOURTH, OTHER, THIRD, connect, heard, locker, networks};

/// The server's house, the clients' network, and what goes over the cable between them.
fn scene() -> (House, Network, Capture) {
    let (ours, theirs) = networks();
    let capture = Capture::start(&ours);
    (House::open(ours), theirs, capture)
}
