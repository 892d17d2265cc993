//! A host's lock manager: a stream to it for a witness, and whether it answers NULL.
//!
//! Both look the port up anew and take any source port: neither needs to be believed by the peer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use client::{CallError, Connection, Datagram, Options};
use keeper::identity::{Lane, Transport};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};
use tracing::debug;
use wire::rpc::{Credential, write_call};
use wire::{Writer, nlm, record};

use super::gate::Gate;
use super::ports::Service;
use super::{Failure, Peers, rest};

const NULL: u32 = 0;

/// The lock manager of a host, and the address of ours that it knows: it is called from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockManager {
    pub host: IpAddr,
    pub ours: IpAddr,
    pub version: u32,
}

impl LockManager {
    /// Of a host that came by this lane.
    pub fn new(host: IpAddr, lane: Lane) -> Self {
        Self { host, ours: lane.ours(), version: lane.version().into() }
    }

    pub fn service(&self, transport: Transport) -> Service {
        Service { host: self.host, program: nlm::PROGRAM, version: self.version, transport }
    }
}

/// A stream to a lock manager. It is there to be looked at; all that is sent on it is NULL.
pub struct PeerStream {
    gate: Arc<Gate>,
    to: LockManager,
    stream: Arc<TcpStream>,
}

impl Peers {
    /// Opens a stream to a lock manager.
    pub async fn stream(&self, to: &LockManager, until: Instant) -> Result<PeerStream, Failure> {
        let open = async {
            let at = self.find_elsewhere(to.service(Transport::Tcp), to.ours, until).await?;
            self.0.gate.pass(to.host, to.ours)?;
            connect(at, to.ours).await
        };
        let stream = Arc::new(timeout_at(until, open).await.map_err(|_| Failure::NoAnswer)??);
        Ok(PeerStream { gate: self.0.gate.clone(), to: *to, stream })
    }

    /// Whether it answers NULL over that transport. A refusal is an answer too: somebody is there.
    pub async fn answers_null(
        &self,
        to: &LockManager,
        transport: Transport,
        until: Instant,
    ) -> bool {
        let found = self.find_elsewhere(to.service(transport), to.ours, until).await;
        let Ok(at) = found else { return false };
        if self.0.gate.pass(to.host, to.ours).is_err() {
            return false;
        }
        let options = Options {
            source: Some(to.ours),
            connect_timeout: rest(until),
            timeout: rest(until),
            calls_max: 1,
            record_bytes_max: 4096,
            ..Options::default()
        };
        let answer = match transport {
            Transport::Tcp => match Connection::connect(at, &options).await {
                Ok(connection) => connection.call_raw(nlm::PROGRAM, to.version, NULL, &[]).await,
                Err(_) => return false,
            },
            Transport::Udp => match Datagram::connect(at, &options).await {
                Ok(mut socket) => socket.call_raw(nlm::PROGRAM, to.version, NULL, &[]).await,
                Err(_) => return false,
            },
        };
        matches!(answer, Ok(_) | Err(CallError::Refused(_)))
    }

    /// Where a service of the host listens, by its rpcbind. Never this server itself, which is what
    /// the rpcbind of this machine names: its answer would say nothing about a client here.
    pub(super) async fn find_elsewhere(
        &self,
        service: Service,
        ours: IpAddr,
        until: Instant,
    ) -> Result<SocketAddr, Failure> {
        let port = self.find_port(service, ours, until).await?;
        let at = SocketAddr::new(service.host, port);
        if self.is_this_server(at) {
            debug!("{at} is this server");
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
    /// To be read and looked at, not to be written to.
    pub fn socket(&self) -> &Arc<TcpStream> {
        &self.stream
    }

    /// Sends NULL without a credential, and says whether it was sent.
    pub fn send_null(&self) -> io::Result<bool> {
        if self.gate.pass(self.to.host, self.to.ours).is_err() {
            return Ok(false);
        }
        self.stream.try_write(&null_call(self.to.version))?;
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

/// A whole record.
fn null_call(version: u32) -> Vec<u8> {
    let mut out = Writer::new();
    let numbers = (nlm::PROGRAM, version, NULL);
    write_call(&mut out, client::next_xid(), numbers, &Credential::None);
    let call = out.finish().to_bytes();
    [&record::mark(call.len()).to_be_bytes(), &call[..]].concat()
}
