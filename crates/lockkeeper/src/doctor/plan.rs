//! What the server is set to do: as the running one was started, or as the next one would be.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::cli::{self, Rpcbind};
use crate::config::{self, AdminSocket, File};
use crate::host;
use crate::state;
use crate::stores::StoreUrl;

pub struct Plan {
    pub config_path: PathBuf,
    /// The file, or what is wrong with it.
    pub config: Result<File, String>,
    pub state: PathBuf,
    /// Where the server is asked, if not where it is looked for anyway.
    pub admin_socket: Option<PathBuf>,
    pub store: StoreUrl,
    /// Whether locks survive a power cut in an embedded store.
    pub outlives_power: bool,
    pub listen: SocketAddr,
    pub rpcbind: Rpcbind,
    pub connections_max: u64,
    pub peer_rpcbind_port: u16,
    /// The names that notices carry.
    pub names: Vec<String>,
}

impl Plan {
    /// `serve` is how the running server was started.
    pub fn make(args: &cli::Doctor, serve: Option<&cli::Serve>) -> Self {
        let named = args.config.as_deref().or_else(|| serve?.config.as_deref());
        let config = File::load(named).map_err(|error| format!("{error:#}"));
        // With a file that is wrong, the rest is judged by the defaults.
        let defaults = File::default();
        let file = config.as_ref().unwrap_or(&defaults);
        let state = args.state.clone().or_else(|| serve?.state.clone());
        let state = state.or_else(|| state::default_path().ok()).unwrap_or_else(|| ".".into());
        let store = serve.and_then(|serve| StoreUrl::parse(serve.store.as_deref()?).ok());
        let store = store.or_else(|| file.store.url.clone());
        let durability = serve.and_then(|serve| serve.durability).or(file.store.durability);
        let admin_socket = serve.and_then(|serve| serve.admin_socket.clone());
        let admin_socket = admin_socket.or_else(|| match &file.admin.socket {
            Some(AdminSocket::At(path)) => Some(path.clone()),
            _ => None,
        });
        let usual = server::Config::default();
        let listen = serve.and_then(|serve| serve.listen).or(file.rpc.listen);
        let rpcbind = serve.and_then(|serve| serve.rpcbind).or(file.rpc.rpcbind);
        let connections = file.limits.connections.unwrap_or(usual.limits.connections_max);
        let mut names: Vec<String> = serve.map(|serve| serve.names.clone()).unwrap_or_default();
        names.extend(file.rpc.names.iter().cloned());
        names.push(host::name());
        Self {
            config_path: named.unwrap_or(Path::new(config::DEFAULT_PATH)).to_owned(),
            store: store.unwrap_or_else(|| StoreUrl::Embedded(state.join("store"))),
            outlives_power: durability == Some(config::Durability::Power),
            listen: listen.unwrap_or(usual.listen),
            rpcbind: rpcbind.unwrap_or(Rpcbind::Auto),
            connections_max: connections as u64,
            peer_rpcbind_port: file.rpc.peer_rpcbind_port.unwrap_or(usual.peer_rpcbind_port),
            names,
            admin_socket,
            state,
            config,
        }
    }

    pub fn port(&self) -> u16 {
        self.listen.port()
    }

    /// Where programs of this host reach it.
    pub fn near(&self) -> SocketAddr {
        let ip = match self.listen.ip() {
            // Both families are served there, IPv4 on every host.
            ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        SocketAddr::new(ip, self.port())
    }

    /// Where this host's rpcbind may be: our own listens where the server does.
    pub fn rpcbind_places(&self) -> Vec<SocketAddr> {
        let mut places = vec![Ipv4Addr::LOCALHOST.into(), self.near().ip()];
        places.dedup();
        places.into_iter().map(|ip| SocketAddr::new(ip, wire::rpcbind::PORT)).collect()
    }
}
