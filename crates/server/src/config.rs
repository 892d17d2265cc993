//! What a server is started with, besides exports and locks.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

#[cfg(doc)]
use crate::control::Control;
use crate::registrar::RpcbindMode;
use crate::rpc::limits::Limits;

/// Where a server listens, and its limits: [`Config::default`], changed by the methods `with_...` or
/// field by field.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The address of all programs but rpcbind. `[::]` is every address of both families.
    pub listen: SocketAddr,
    /// Whether all programs but rpcbind are served over UDP besides TCP (B7.99).
    pub udp: bool,
    /// How clients find the lock service, which they ask port 111 for.
    pub rpcbind: RpcbindMode,
    /// The port of this host's rpcbind. Only tests and demonstrations change it from 111.
    pub rpcbind_port: u16,
    /// The port at which the rpcbind of clients is asked for their lock and status services.
    pub peer_rpcbind_port: u16,
    /// How often the registration with the host's rpcbind is checked, and renewed if it is gone.
    pub rpcbind_check_every: Duration,
    /// Whether SM_SIMU_CRASH from this host ends the server as a crash does (B8.13); otherwise it is
    /// refused.
    pub simulated_crash: bool,
    /// Whether requests, replies and commits are counted for [`Control::metrics`].
    pub metrics: bool,
    /// What peers can make the server hold.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 2049),
            udp: true,
            rpcbind: RpcbindMode::Auto,
            rpcbind_port: wire::rpcbind::PORT,
            peer_rpcbind_port: wire::rpcbind::PORT,
            rpcbind_check_every: Duration::from_secs(30),
            simulated_crash: false,
            metrics: true,
            limits: Limits::default(),
        }
    }
}

impl Config {
    /// Listens on this address; port 0 is any free port.
    #[must_use]
    pub fn with_listen(self, listen: SocketAddr) -> Self {
        Self { listen, ..self }
    }

    /// How clients find the lock service.
    #[must_use]
    pub fn with_rpcbind(self, rpcbind: RpcbindMode) -> Self {
        Self { rpcbind, ..self }
    }

    /// Whether all programs but rpcbind are served over UDP besides TCP.
    #[must_use]
    pub fn with_udp(self, udp: bool) -> Self {
        Self { udp, ..self }
    }

    /// The port of this host's rpcbind; 111 but for tests and demonstrations.
    #[must_use]
    pub fn with_rpcbind_port(self, rpcbind_port: u16) -> Self {
        Self { rpcbind_port, ..self }
    }

    /// The port at which the rpcbind of clients is asked; 111 but for tests and demonstrations.
    #[must_use]
    pub fn with_peer_rpcbind_port(self, peer_rpcbind_port: u16) -> Self {
        Self { peer_rpcbind_port, ..self }
    }

    /// How often the registration with the host's rpcbind is checked.
    #[must_use]
    pub fn with_rpcbind_check_every(self, rpcbind_check_every: Duration) -> Self {
        Self { rpcbind_check_every, ..self }
    }

    /// Whether SM_SIMU_CRASH from this host ends the server as a crash does.
    #[must_use]
    pub fn with_simulated_crash(self, simulated_crash: bool) -> Self {
        Self { simulated_crash, ..self }
    }

    /// Whether requests, replies and commits are counted.
    #[must_use]
    pub fn with_metrics(self, metrics: bool) -> Self {
        Self { metrics, ..self }
    }

    /// What peers can make the server hold.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }
}
