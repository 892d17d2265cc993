//! Clients of a [`RestartableServer`](super::restartable::RestartableServer), on several addresses of
//! one network.

use client::{Connection, Locker, Options};
use testbed::namespace::Namespace;
use testbed::peer::{Host, ReceivedCall};

use super::restartable::{ip, server_address};
use super::until;

/// The address of the client under test; the others are its neighbours.
pub const CLIENT: &str = "10.99.0.2";
pub const OTHER: &str = "10.99.0.3";
pub const THIRD: &str = "10.99.0.4";
pub const FOURTH: &str = "10.99.0.5";

/// The server's network and the clients'.
pub fn networks() -> (Namespace, Namespace) {
    let (ours, theirs) = Namespace::pair().unwrap();
    for address in [OTHER, THIRD, FOURTH] {
        theirs.ip(&format!("addr add {address}/24 dev eth0")).unwrap();
    }
    (ours, theirs)
}

/// Calls as root from that address.
pub fn options(from: &str, reserved_port: bool) -> Options {
    let source = Some(ip(from));
    Options { source, reserved_port, ..Options::default().user(0, 0, &[]) }
}

pub async fn connect(from: &str) -> Connection {
    Connection::connect(server_address(), &options(from, true)).await.unwrap()
}

/// Process `svid` of the host of that name and address.
pub async fn locker(from: &str, host_name: &str, svid: i32) -> Locker {
    Locker::new(connect(from).await, host_name, svid)
}

/// Waits for the call with that number, counted from 1.
pub async fn nth_call(host: &Host, count: usize) -> ReceivedCall {
    until(&format!("{count} calls"), || host.calls().len() >= count).await;
    host.calls()[count - 1].clone()
}
