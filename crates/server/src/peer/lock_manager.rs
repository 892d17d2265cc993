//! A host's lock manager: the TCP stream of a witness, and a NULL call to see if it answers.
//!
//! Both look up the port anew and use any source port: NULL needs no privilege.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use client::{CallError, Connection, Datagram, Options};
use keeper::identity::{OwnerNamespace, Transport};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};
use tracing::debug;
use wire::rpc::{Credential, Procedure, ProcedureId, write_call};
use wire::{Writer, nlm, record};

use super::gate::Gate;
use super::ports::PeerService;
use super::{Failure, Peers, remaining};

/// The lock manager of a host, and our address that the host uses: calls leave from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LockManager {
    pub host: IpAddr,
    pub ours: IpAddr,
    pub version: u32,
}

impl LockManager {
    /// The lock manager of a host whose requests came by this namespace.
    pub(crate) fn new(host: IpAddr, namespace: OwnerNamespace) -> Self {
        Self { host, ours: namespace.server_address(), version: namespace.version().into() }
    }

    pub(crate) fn service(&self, transport: Transport) -> PeerService {
        PeerService { host: self.host, program: nlm::PROGRAM, version: self.version, transport }
    }

    pub(crate) fn procedure(&self, number: u32) -> ProcedureId {
        ProcedureId::new(nlm::PROGRAM, self.version, number)
    }
}

/// A stream to a lock manager, kept open so that its TCP state can be read. Only NULL is sent on it.
pub(crate) struct PeerStream {
    gate: Arc<Gate>,
    to: LockManager,
    stream: Arc<TcpStream>,
}

impl Peers {
    pub(crate) async fn stream(
        &self,
        to: &LockManager,
        until: Instant,
    ) -> Result<PeerStream, Failure> {
        let open = async {
            let at = self.find_address(to.service(Transport::Tcp), to.ours, until).await?;
            self.0.gate.pass(to.host, to.ours)?;
            connect(at, to.ours).await
        };
        let stream = Arc::new(timeout_at(until, open).await.map_err(|_| Failure::NoAnswer)??);
        Ok(PeerStream { gate: self.0.gate.clone(), to: *to, stream })
    }

    /// Whether the lock manager answers NULL over that transport. An RPC error counts as an answer.
    pub(crate) async fn answers_null(
        &self,
        to: &LockManager,
        transport: Transport,
        until: Instant,
    ) -> bool {
        let found = self.find_address(to.service(transport), to.ours, until).await;
        let Ok(at) = found else { return false };
        if self.0.gate.pass(to.host, to.ours).is_err() {
            return false;
        }
        let options = Options {
            source: Some(to.ours),
            connect_timeout: remaining(until),
            timeout: remaining(until),
            calls_max: 1,
            record_bytes_max: 4096,
            ..Options::default()
        };
        let null = to.procedure(nlm::v4::Null::NUMBER);
        let answer = match transport {
            Transport::Tcp => match Connection::connect(at, &options).await {
                Ok(connection) => connection.call_raw(null, &[]).await,
                Err(_) => return false,
            },
            Transport::Udp => match Datagram::connect(at, &options).await {
                Ok(mut socket) => socket.call_raw(null, &[]).await,
                Err(_) => return false,
            },
        };
        matches!(answer, Ok(_) | Err(CallError::Refused(_)))
    }

    /// The address of a host's service, by its rpcbind. [`Failure::Unsent`] if that is this server:
    /// for a client on this machine rpcbind names us, and our own reply says nothing about it.
    pub(super) async fn find_address(
        &self,
        service: PeerService,
        ours: IpAddr,
        until: Instant,
    ) -> Result<SocketAddr, Failure> {
        let port = self.find_port(service, ours, until).await?;
        let at = SocketAddr::new(service.host, port);
        if self.is_this_server(at) {
            debug!("not calling {at}: it is this server");
            return Err(Failure::Unsent);
        }
        Ok(at)
    }

    fn is_this_server(&self, at: SocketAddr) -> bool {
        let is_own = || at.ip().is_loopback() || self.0.gate.is_own(at.ip());
        let mut bound = self.0.listening.iter().map(|(bound, _)| bound);
        bound.any(|bound| {
            bound.port() == at.port()
                && (bound.ip() == at.ip() || (bound.ip().is_unspecified() && is_own()))
        })
    }
}

impl PeerStream {
    /// For reading and inspection; writes must go through [`send_null`](Self::send_null).
    pub(crate) fn socket(&self) -> &Arc<TcpStream> {
        &self.stream
    }

    /// Sends NULL without a credential. `Ok(false)` if the gate did not let it pass.
    pub(crate) fn send_null(&self) -> io::Result<bool> {
        if self.gate.pass(self.to.host, self.to.ours).is_err() {
            return Ok(false);
        }
        self.stream.try_write(&null_record(&self.to))?;
        Ok(true)
    }
}

async fn connect(at: SocketAddr, ours: IpAddr) -> Result<TcpStream, Failure> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(|_| Failure::Unsent)?;
    socket.bind(SocketAddr::new(ours, 0)).map_err(|_| Failure::Unsent)?;
    let stream = socket.connect(at).await.map_err(|_| Failure::NoAnswer)?;
    stream.set_nodelay(true).map_err(|_| Failure::Broken)?;
    Ok(stream)
}

/// A NULL call with its record mark.
fn null_record(to: &LockManager) -> Vec<u8> {
    let (mut out, null) = (Writer::new(), to.procedure(nlm::v4::Null::NUMBER));
    write_call(&mut out, client::next_xid(), null, &Credential::None);
    let call = out.finish().to_bytes();
    [&record::mark(call.len()).to_be_bytes(), &call[..]].concat()
}
