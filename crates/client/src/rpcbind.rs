//! rpcbind: the port of a program, RFC 1833.

use std::net::SocketAddr;

use wire::rpc::{Accepted, Procedure};
use wire::rpcbind::{Binding, Mapping, Netid, Text, parse_universal, universal, v2, v3, v4};

use crate::{CallError, ConnectError, Connection, Datagram, Options, Refusal};

#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error("rpcbind: {0}")]
    Connect(#[from] ConnectError),
    #[error("rpcbind: {0}")]
    Call(#[from] CallError),
    #[error("program {program} version {version} is not registered for {netid}")]
    NotRegistered { program: u32, version: u32, netid: &'static str },
    #[error("rpcbind returned an invalid address: {0:?}")]
    BadAddress(Text),
}

/// How rpcbind is called; the program itself may use another transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcTransport {
    Tcp,
    Udp,
}

/// A connection to rpcbind.
#[derive(Debug)]
pub enum Rpcbind {
    Tcp(Connection),
    Udp(Datagram),
}

impl Rpcbind {
    /// `at` is rpcbind's address; its port is nearly always [`wire::rpcbind::PORT`].
    pub async fn connect(
        at: SocketAddr,
        transport: RpcTransport,
        options: &Options,
    ) -> Result<Self, ConnectError> {
        Ok(match transport {
            RpcTransport::Tcp => Self::Tcp(Connection::connect(at, options).await?),
            RpcTransport::Udp => Self::Udp(Datagram::connect(at, options).await?),
        })
    }

    pub async fn call<P: Procedure>(&mut self, args: &P::Args) -> Result<P::Reply, CallError> {
        match self {
            Self::Tcp(connection) => connection.call::<P>(args).await,
            Self::Udp(datagram) => datagram.call::<P>(args).await,
        }
    }

    /// Version 2, for IPv4.
    pub async fn get_port(
        &mut self,
        program: u32,
        version: u32,
        netid: Netid,
    ) -> Result<u16, LookupError> {
        let mapping = Mapping { program, version, protocol: netid.protocol(), port: 0 };
        match self.call::<v2::GetPort>(&mapping).await? {
            0 => Err(not_registered(program, version, netid)),
            port => u16::try_from(port)
                .map_err(|_| LookupError::BadAddress(Text::from(port.to_string()))),
        }
    }

    /// Version 4, or 3 if the server has no 4. `near` tells the server by which of its addresses
    /// it was reached.
    pub async fn get_addr(
        &mut self,
        program: u32,
        version: u32,
        netid: Netid,
        near: SocketAddr,
    ) -> Result<SocketAddr, LookupError> {
        let binding = Binding {
            program,
            version,
            netid: Text::from(netid.name()),
            address: Text::from(universal(near)),
            owner: Text::default(),
        };
        let text = match self.call::<v4::GetAddr>(&binding).await {
            Err(CallError::Refused(Refusal::NotRun(Accepted::ProgramMismatch { .. }))) => {
                self.call::<v3::GetAddr>(&binding).await?
            }
            answer => answer?,
        };
        if text.is_empty() {
            return Err(not_registered(program, version, netid));
        }
        match parse_universal(&text) {
            Some(found) if found.port() == 0 => Err(not_registered(program, version, netid)),
            Some(found) if found.ip().is_unspecified() => {
                Ok(SocketAddr::new(near.ip(), found.port()))
            }
            Some(found) => Ok(found),
            None => Err(LookupError::BadAddress(text)),
        }
    }
}

/// The address of a program on the machine whose rpcbind is `at`.
///
/// Only the port of the reply is used, with the IP address of `at`: a reply cannot direct the caller
/// to a third machine.
pub async fn find(
    at: SocketAddr,
    transport: RpcTransport,
    (program, version): (u32, u32),
    netid: Netid,
    options: &Options,
) -> Result<SocketAddr, LookupError> {
    let mut rpcbind = Rpcbind::connect(at, transport, options).await?;
    let port = match netid.is_v6() {
        true => rpcbind.get_addr(program, version, netid, at).await?.port(),
        false => rpcbind.get_port(program, version, netid).await?,
    };
    Ok(SocketAddr::new(at.ip(), port))
}

fn not_registered(program: u32, version: u32, netid: Netid) -> LookupError {
    LookupError::NotRegistered { program, version, netid: netid.name() }
}
