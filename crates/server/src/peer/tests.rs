//! Calls to scripted hosts, each on its own loopback address, and to Debian's daemons.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod lock_manager;
mod rpcbind;
mod status_monitor;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use store::Lease;
use store::lease::boottime;
use testbed::peer::{Host, RpcbindKind};
use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::{LockManager, Peers, Settings};
use crate::service_lease::ServiceLease;
use crate::transport::udp::Datagrams;

/// The source address of all calls.
pub(crate) const OURS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Production settings with shorter timeouts.
pub(crate) fn quick() -> Settings {
    Settings {
        fallback_after: Duration::from_millis(800),
        retransmit_after: Duration::from_millis(500),
        ..Settings::default()
    }
}

/// A loopback address that no other test uses.
pub(crate) fn address() -> IpAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let own = 64 + (std::process::id() % 128) as u8;
    Ipv4Addr::new(127, own, high, low).into()
}

/// A host on an address that no other test uses.
pub(crate) async fn a_host() -> Host {
    Host::bind(address(), 0, RpcbindKind::Full).await
}

pub(crate) const TERM: Duration = Duration::from_secs(60);

pub(crate) fn lease() -> Lease {
    Lease::new(TERM, boottime())
}

pub(crate) fn lose(lease: &Lease) {
    lease.renew(boottime().saturating_sub(TERM), true);
}

/// Callers of hosts whose rpcbind listens on that port.
fn peers(rpcbind_port: u16) -> Peers {
    Peers::new(Settings { rpcbind_port, ..quick() }, &[])
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(2_500)
}

/// A listening socket and its address.
async fn listening() -> (SocketAddr, Arc<Datagrams>) {
    let socket = UdpSocket::bind((OURS, 0)).await.unwrap();
    let at = socket.local_addr().unwrap();
    (at, Arc::new(Datagrams::new(socket, ServiceLease::default()).unwrap()))
}
