//! The server under test: an export, and the ports of its services.

use std::net::{IpAddr, SocketAddr};

use client::Options;
use client::rpcbind::{LookupError, RpcTransport, find};
use wire::rpcbind::{Netid, PORT};

/// The known ports of a host's services.
#[derive(Debug, Clone, Default)]
pub struct Ports {
    /// 111 if `None`.
    pub rpcbind: Option<u16>,
    pub nfs: Option<u16>,
    pub mount: Option<u16>,
    pub nlm: Option<u16>,
}

#[derive(Debug, Clone)]
pub struct Target {
    pub nfs: SocketAddr,
    pub mount: SocketAddr,
    /// The lock manager, if there is one.
    pub nlm: Option<SocketAddr>,
    pub export: String,
    /// The credential and source port of calls.
    pub options: Options,
}

impl Target {
    /// Asks the host's rpcbind for unknown ports.
    pub async fn find(
        host: IpAddr,
        ports: &Ports,
        export: String,
        options: Options,
    ) -> Result<Self, LookupError> {
        let netid = if host.is_ipv6() { Netid::Tcp6 } else { Netid::Tcp };
        let rpcbind = SocketAddr::new(host, ports.rpcbind.unwrap_or(PORT));
        let look_up = async |known: Option<u16>, program| match known {
            Some(port) => Ok(SocketAddr::new(host, port)),
            None => find(rpcbind, RpcTransport::Tcp, program, netid, &options).await,
        };
        let nfs = look_up(ports.nfs, (wire::nfs3::PROGRAM, wire::nfs3::VERSION)).await?;
        let mount = look_up(ports.mount, (wire::mount::PROGRAM, wire::mount::V3)).await?;
        let nlm = match look_up(ports.nlm, (wire::nlm::PROGRAM, wire::nlm::V4)).await {
            Ok(nlm) => Some(nlm),
            Err(LookupError::NotRegistered { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { nfs, mount, nlm, export, options })
    }
}
