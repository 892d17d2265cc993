//! The whole server against peers as they are: each kind of client says what it says in the field,
//! hears what it must hear, and an independent dissector understands every packet. Each test is in
//! networks of its own, which need root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod debian;
mod freebsd;
mod macos;
mod nsm_client;
mod old;
mod registrant;
mod renumbered;
#[path = "../support/mod.rs"]
mod support;
mod windows;

use client::{Connection, Options};
use support::capture::Capture;
use support::clients::{CLIENT, FOURTH, OTHER, THIRD, connect, locker, networks, nth_call};
use support::restartable::RestartableServer;
use testbed::namespace::Namespace;

/// A server, the network of its clients, and a capture of the traffic between them.
fn start() -> (RestartableServer, Namespace, Capture) {
    let (ours, theirs) = networks();
    let capture = Capture::start(&ours);
    (RestartableServer::start(ours), theirs, capture)
}
