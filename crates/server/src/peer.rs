//! Calls to peers: may it be called, on which port, by which connection or socket, does it answer.
//!
//! Everything that this server sends to a client by itself leaves through here: callbacks and
//! notices (`callbacks/`), the witnesses and pings of `liveness/`. [`permission`] is the rule for
//! whom (R6.3), `gate.rs` the one check of it and of the lease just before something is sent.
//! What is not sent, for these or for a reason of this machine, is [`Failure::Unsent`] and says
//! nothing about the peer.
//!
//! A peer is called at the port that its own rpcbind names (`ports.rs`). Of an answer only the port
//! is used, never an address.

mod connections;
mod gate;
mod lock_manager;
mod one_way;
mod own_addresses;
pub mod permission;
mod ports;
mod status_monitor;
mod tcp;
#[cfg(test)]
pub(crate) mod tests;
mod turns;
mod udp;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use wire::rpc::{Credential, Groups, MachineName, SysCredential};

use crate::tenure::Tenure;
use crate::transport::udp::Datagrams;
use connections::Connections;
use gate::Gate;
pub use lock_manager::{LockManager, PeerStream};
use ports::Ports;
pub use ports::Service;
pub use turns::Turn;
use turns::Turns;
pub use udp::Purpose;
use udp::UdpClients;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Where peers have their rpcbind: 111 everywhere but in tests.
    pub rpcbind_port: u16,
    /// Call from ports below 1024, which needs root.
    pub reserved_ports: bool,
    /// How long one transport is tried alone before the other is tried too.
    pub alone: Duration,
    /// When a call to a lock manager is sent again over UDP.
    pub repeat: Duration,
    /// Callbacks to one host that are under way: a silent one must not use up what others need.
    pub at_once_per_host_max: usize,
    /// Connections to lock managers that are kept for the next callback, and for how long.
    pub kept_max: usize,
    pub keep: Duration,
    /// Without it nothing is sent.
    pub tenure: Tenure,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rpcbind_port: wire::rpcbind::PORT,
            reserved_ports: false,
            alone: Duration::from_secs(1),
            repeat: Duration::from_millis(1_500),
            at_once_per_host_max: 256,
            kept_max: 1_024,
            keep: Duration::from_secs(60),
            tenure: Tenure::default(),
        }
    }
}

/// Why there is no port, no connection or no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing was sent: the peer may not be called, the lease is not held, or this machine has no
    /// such address, no route or no socket. Never counts against the peer.
    Unsent,
    /// Its rpcbind knows no such program.
    NotRegistered,
    /// The connection ended first. The peer may have carried out the call.
    Broken,
    /// No answer in time, or none that can be understood. The peer may have carried out the call.
    NoAnswer,
}

/// Program, version and procedure.
pub type Numbers = (u32, u32, u32);

#[derive(Clone)]
pub struct Peers(Arc<Inner>);

struct Inner {
    settings: Settings,
    gate: Arc<Gate>,
    /// Our listening sockets and what they are bound to. Who listens owns them: a server that has
    /// ended must not keep its port.
    listening: Vec<(SocketAddr, Weak<Datagrams>)>,
    /// In whose name lock managers are called.
    credential: Credential,
    udp: Arc<UdpClients>,
    ports: Ports,
    connections: Connections,
    turns: Turns,
}

impl Peers {
    /// `listening` are our listening UDP sockets, each with the address that it is bound to. Outside
    /// of a tokio runtime idle connections stay open.
    pub fn new(settings: Settings, listening: &[(SocketAddr, Arc<Datagrams>)]) -> Self {
        let credential = root_of_this_machine();
        let gate = Arc::new(Gate::new(settings.tenure.clone()));
        let udp = Arc::new(UdpClients::new(&settings, credential.clone()));
        let inner = Arc::new(Inner {
            ports: Ports::new(&settings, gate.clone(), udp.clone()),
            connections: Connections::new(settings.kept_max),
            turns: Turns::new(settings.at_once_per_host_max),
            listening: listening.iter().map(|(at, socket)| (*at, Arc::downgrade(socket))).collect(),
            settings,
            gate,
            credential,
            udp,
        });
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(connections::sweep(Arc::downgrade(&inner)));
        }
        Self(inner)
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Whether the rule lets `host` be called from `ours` (R6.3).
    pub fn may_call(&self, host: IpAddr, ours: IpAddr) -> bool {
        self.0.gate.may_call(host, ours)
    }

    /// Waits until one more callback to that host may be under way; first come, first served.
    pub async fn turn(&self, host: IpAddr) -> Turn<'_> {
        self.0.turns.turn(host).await
    }

    /// The port that is remembered, or else the one that the host's rpcbind names.
    pub async fn port(
        &self,
        service: Service,
        ours: IpAddr,
        until: Instant,
    ) -> Result<u16, Failure> {
        self.0.ports.port(service, ours, until).await
    }

    /// The port that the host's rpcbind names now.
    pub async fn find_port(
        &self,
        service: Service,
        ours: IpAddr,
        until: Instant,
    ) -> Result<u16, Failure> {
        self.0.ports.find(service, ours, until).await
    }

    /// The next call asks rpcbind again.
    pub fn forget_port(&self, service: &Service) {
        self.0.ports.forget(service);
    }

    #[cfg(test)]
    pub fn kept_connections(&self) -> usize {
        self.0.connections.count()
    }
}

/// What time is left.
pub fn rest(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn root_of_this_machine() -> Credential {
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
