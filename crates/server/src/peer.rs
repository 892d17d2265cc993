//! Outgoing RPC calls to clients: permission, port lookup, connections and sockets.
//!
//! Every message that this server originates leaves through `Peers`: the callbacks and notices of
//! `callbacks/`, the witnesses and probes of `liveness/`. [`permission`] decides which addresses may
//! be called (B7.9); `gate.rs` checks that rule and the lease immediately before each send. A message
//! held back by either, or by a local error (no address, route or socket), is `Failure::Unsent`:
//! it says nothing about the peer.
//!
//! A peer is called at the port that its own rpcbind names (`ports.rs`); an address in that reply is
//! never used. All functions are async and run on the caller's task; none retries past its deadline.

mod connections;
mod gate;
mod host_limit;
mod lock_manager;
mod one_way_call;
pub(crate) mod own_addresses;
pub mod permission;
mod ports;
mod status_monitor;
mod tcp;
#[cfg(test)]
pub(crate) mod tests;
mod udp;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use wire::rpc::{Credential, Groups, MachineName, SysCredential};

use crate::service_lease::ServiceLease;
use crate::transport::udp::Datagrams;
use connections::Connections;
use gate::Gate;
use host_limit::HostLimits;
pub(crate) use host_limit::HostPermit;
pub(crate) use lock_manager::{LockManager, PeerStream};
pub(crate) use ports::PeerService;
use ports::PortCache;
pub(crate) use udp::Purpose;
use udp::UdpClients;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The port of the peers' rpcbind: 111 except in tests.
    pub rpcbind_port: u16,
    /// Call from source ports below 1024, which needs root.
    pub send_from_reserved_ports: bool,
    /// How long the first transport is tried before the second is tried in parallel.
    pub fallback_after: Duration,
    /// When a call to a lock manager is first retransmitted over UDP.
    pub retransmit_after: Duration,
    /// Concurrent callbacks to one host, so that a silent host cannot starve the others.
    pub callbacks_per_host_max: usize,
    /// Connections to lock managers that are kept for the next callback.
    pub kept_connections_max: usize,
    /// How long an unused one is kept.
    pub idle_max: Duration,
    /// Nothing is sent while it is not held.
    pub lease: ServiceLease,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rpcbind_port: wire::rpcbind::PORT,
            send_from_reserved_ports: false,
            fallback_after: Duration::from_secs(1),
            retransmit_after: Duration::from_millis(1_500),
            callbacks_per_host_max: 256,
            kept_connections_max: 1_024,
            idle_max: Duration::from_secs(60),
            lease: ServiceLease::default(),
        }
    }
}

/// Why a lookup, connection or call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing was sent: the peer may not be called, the lease is not held, or this machine has no
    /// such address, no route or no socket. Never counts against the peer.
    Unsent,
    /// The peer's rpcbind has no such program.
    NotRegistered,
    /// The connection ended before the reply. The peer may have executed the call.
    Broken,
    /// No reply in time, or an unintelligible one. The peer may have executed the call.
    NoAnswer,
}

/// Calls peers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Peers(Arc<Inner>);

struct Inner {
    settings: Settings,
    gate: Arc<Gate>,
    /// Our listening sockets and their bound addresses. Weak: the listener owns them, and a stopped
    /// server must not keep its port.
    listening: Vec<(SocketAddr, Weak<Datagrams>)>,
    /// AUTH_SYS credential of calls to lock managers.
    credential: Credential,
    udp: UdpClients,
    ports: PortCache,
    connections: Connections,
    limits: HostLimits,
}

impl Peers {
    /// `listening`: our listening UDP sockets with their bound addresses. Outside a tokio runtime idle
    /// connections are never closed.
    pub(crate) fn new(settings: Settings, listening: &[(SocketAddr, Arc<Datagrams>)]) -> Self {
        let credential = root_credential();
        let gate = Arc::new(Gate::new(settings.lease.clone()));
        let udp = UdpClients::new(&settings, credential.clone());
        let inner = Arc::new(Inner {
            ports: PortCache::default(),
            connections: Connections::new(settings.kept_connections_max),
            limits: HostLimits::new(settings.callbacks_per_host_max),
            listening: listening.iter().map(|(at, socket)| (*at, Arc::downgrade(socket))).collect(),
            settings,
            gate,
            credential,
            udp,
        });
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(connections::close_idle(Arc::downgrade(&inner)));
        }
        Self(inner)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Whether `host` may be called from our address `ours` (B7.9).
    pub(crate) fn may_call(&self, host: IpAddr, ours: IpAddr) -> bool {
        self.0.gate.may_call(host, ours)
    }

    /// Closes the connections that are kept for later calls.
    pub(crate) fn close(&self) {
        self.0.connections.close();
    }

    /// Waits for a slot among the callbacks to that host, in order of arrival.
    pub(crate) async fn permit(&self, host: IpAddr) -> HostPermit<'_> {
        self.0.limits.permit(host).await
    }

    #[cfg(test)]
    pub(crate) fn kept_connections(&self) -> usize {
        self.0.connections.count()
    }
}

/// The time left until a deadline.
pub(crate) fn remaining(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn root_credential() -> Credential {
    let name = rustix::system::uname();
    let name = name.nodename().to_bytes();
    Credential::Sys(SysCredential {
        stamp: 0,
        machine: MachineName::from(name[..name.len().min(255)].to_vec()),
        uid: 0,
        gid: 0,
        groups: Groups::default(),
    })
}
