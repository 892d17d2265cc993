//! A server and its clients, each in a network of their own with a cable between them.

use client::{Connection, Locker, Options};

use super::house::{ip, server};
use super::network::Network;
use super::scripted::{Heard, Host};
use super::until;

/// The address of the client that a test is about; others are next to it.
pub const CLIENT: &str = "10.99.0.2";
pub const OTHER: &str = "10.99.0.3";
pub const THIRD: &str = "10.99.0.4";
pub const FOURTH: &str = "10.99.0.5";

/// The server's network and that of all clients.
pub fn networks() -> (Network, Network) {
    let (ours, theirs) = Network::pair();
    for address in [OTHER, THIRD, FOURTH] {
        theirs.ip(&["addr", "add", &format!("{address}/24"), "dev", "cable"]);
    }
    (ours, theirs)
}

/// In the name of root, from that address.
pub fn options(from: &str, reserved_port: bool) -> Options {
    let source = Some(ip(from));
    Options { source, reserved_port, ..Options::default().user(0, 0, &[]) }
}

pub async fn connect(from: &str) -> Connection {
    Connection::connect(server(), &options(from, true)).await.unwrap()
}

/// A process of a machine of that name at that address.
pub async fn locker(from: &str, machine: &str, svid: i32) -> Locker {
    Locker::new(connect(from).await, machine, svid)
}

/// Waits until a host has heard so many calls, and gives the last one.
pub async fn heard(host: &Host, count: usize) -> Heard {
    until(&format!("it heard {count} calls"), || host.calls().len() >= count).await;
    host.calls()[count - 1].clone()
}
