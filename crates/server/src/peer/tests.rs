//! Calls to scripted hosts, each on an address of its own of loopback, and to Debian's daemons.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod lock_manager;
#[allow(dead_code, reason = "it is used from wire's tests too")]
#[path = "../../../wire/tests/nlm/network.rs"]
pub(crate) mod network;
mod rpcbind;
#[allow(dead_code, reason = "the tests of the whole server use it too")]
#[path = "../../tests/support/scripted.rs"]
pub(crate) mod scripted;
mod status_monitor;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use store::Lease;
use store::lease::boottime;
use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::{LockManager, Peers, Settings};
use crate::tenure::Tenure;
use crate::transport::udp::Datagrams;
use scripted::{Host, Rpcbind};

/// We ourselves: all calls leave from this address.
pub(crate) const OURS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// As in production, but with less patience.
pub(crate) fn quick() -> Settings {
    Settings {
        alone: Duration::from_millis(800),
        repeat: Duration::from_millis(500),
        ..Settings::default()
    }
}

/// An address of loopback that no other test uses.
pub(crate) fn address() -> IpAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let own = 64 + (std::process::id() % 128) as u8;
    Ipv4Addr::new(127, own, high, low).into()
}

/// A host on an address that no other test uses.
pub(crate) async fn a_host() -> Host {
    Host::at(address(), 0, Rpcbind::Usual).await
}

pub(crate) const TERM: Duration = Duration::from_secs(60);

pub(crate) fn lease() -> Lease {
    Lease::new(TERM, boottime())
}

pub(crate) fn lose(lease: &Lease) {
    lease.renew(boottime().saturating_sub(TERM), true);
}

/// Those who call hosts with an rpcbind at that port.
fn peers(rpcbind_port: u16) -> Peers {
    Peers::new(Settings { rpcbind_port, ..quick() }, &[])
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(2_500)
}

/// A listening socket, and where it listens.
async fn listening() -> (SocketAddr, Arc<Datagrams>) {
    let socket = UdpSocket::bind((OURS, 0)).await.unwrap();
    let at = socket.local_addr().unwrap();
    (at, Arc::new(Datagrams::new(socket, Tenure::default()).unwrap()))
}
