//! Effective settings of the running server, or of the next one to be started.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::cli::{self, Rpcbind};
use crate::config::store_url::StoreUrl;
use crate::config::{self, AdminSocket, File};

use crate::serve::state_directory;

pub(super) struct ServerSettings {
    pub config_path: PathBuf,
    /// The parsed file, or its error.
    pub config: Result<File, String>,
    pub state: PathBuf,
    /// The admin socket, if not a default one.
    pub admin_socket: Option<PathBuf>,
    pub store: StoreUrl,
    /// Whether an embedded store survives a power failure.
    pub outlives_power: bool,
    pub listen: SocketAddr,
    pub rpcbind: Rpcbind,
    pub connections_max: u64,
    pub peer_rpcbind_port: u16,
    /// Names carried by notices.
    pub names: Vec<String>,
}

impl ServerSettings {
    /// `serve` is the running server's command line.
    pub(super) fn new(args: &cli::Doctor, serve: Option<&cli::Serve>) -> Self {
        let named = args.config.as_deref().or_else(|| serve?.config.as_deref());
        let config = File::load(named).map_err(|error| format!("{error:#}"));
        // With an invalid file, assume the defaults.
        let defaults = File::default();
        let file = config.as_ref().unwrap_or(&defaults);
        let state = args.state.clone().or_else(|| serve?.state.clone());
        let state =
            state.or_else(|| state_directory::default_path().ok()).unwrap_or_else(|| ".".into());
        let store = serve.and_then(|serve| StoreUrl::parse(serve.store.as_deref()?).ok());
        let password_file = file.store.password_file.as_deref();
        let store = store.map(|url| url.with_server_password(password_file));
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
        names.push(config::host_name());
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

    pub(super) fn port(&self) -> u16 {
        self.listen.port()
    }

    /// The server's address from this host.
    pub(super) fn local_address(&self) -> SocketAddr {
        let ip = match self.listen.ip() {
            // Both families are served; every host has IPv4 loopback.
            ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        SocketAddr::new(ip, self.port())
    }

    /// Addresses where this host's rpcbind may listen; the built-in one uses the server's address.
    pub(super) fn rpcbind_addresses(&self) -> Vec<SocketAddr> {
        let mut addresses = vec![Ipv4Addr::LOCALHOST.into(), self.local_address().ip()];
        addresses.dedup();
        addresses.into_iter().map(|ip| SocketAddr::new(ip, wire::rpcbind::PORT)).collect()
    }
}
