//! On which port a peer's program listens: asked of its own rpcbind (RFC 1833), and remembered for a
//! while.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::rpcbind::{LookupError, Over, find};
use client::{CallError, ConnectError, Options, Refusal, UdpClient};
use keeper::identity::Transport;
use tokio::time::{Instant, timeout};
use wire::rpc::Accepted;
use wire::rpcbind::{Binding, Mapping, Netid, Text, parse_universal, universal, v2, v3, v4};

use super::gate::Gate;
use super::tcp::short_replies;
use super::udp::{Purpose, UdpClients};
use super::{Failure, Settings, rest};

/// What is looked for, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Service {
    pub host: IpAddr,
    pub program: u32,
    pub version: u32,
    pub transport: Transport,
}

impl Service {
    fn netid(&self) -> Netid {
        match (self.transport, self.host.is_ipv6()) {
            (Transport::Tcp, false) => Netid::Tcp,
            (Transport::Udp, false) => Netid::Udp,
            (Transport::Tcp, true) => Netid::Tcp6,
            (Transport::Udp, true) => Netid::Udp6,
        }
    }
}

/// How long a port is believed.
const KEEP: Duration = Duration::from_secs(300);
const KNOWN_MAX: usize = 16_384;

pub struct Ports {
    rpcbind_port: u16,
    /// An rpcbind that does not answer datagrams for this long is asked over TCP: some networks
    /// let only that through, and only so a refusal is noticed.
    udp_alone: Duration,
    gate: Arc<Gate>,
    udp: Arc<UdpClients>,
    known: Mutex<HashMap<Service, (u16, Instant)>>,
}

impl Ports {
    pub fn new(settings: &Settings, gate: Arc<Gate>, udp: Arc<UdpClients>) -> Self {
        let Settings { rpcbind_port, alone: udp_alone, .. } = *settings;
        Self { rpcbind_port, udp_alone, gate, udp, known: Mutex::default() }
    }

    pub fn known(&self, service: &Service) -> Option<u16> {
        let known = self.lock();
        let (port, since) = known.get(service)?;
        (since.elapsed() < KEEP).then_some(*port)
    }

    pub fn forget(&self, service: &Service) {
        self.lock().remove(service);
    }

    /// The port that is remembered, or else the one that is found.
    pub async fn port(
        &self,
        service: Service,
        from: IpAddr,
        until: Instant,
    ) -> Result<u16, Failure> {
        if let Some(port) = self.known(&service) {
            return Ok(port);
        }
        let port = self.find(service, from, until).await?;
        let mut known = self.lock();
        if known.len() >= KNOWN_MAX {
            known.retain(|_, (_, since)| since.elapsed() < KEEP);
        }
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(service, (port, Instant::now()));
        Ok(port)
    }

    /// Asks the host's rpcbind, from our address `from`. Only a port is believed of the answer.
    ///
    /// For IPv4 the question names the protocol and may go either way. The newer question, for
    /// IPv6, is answered for the transport by which it comes, whatever netid it names (RFC 1833,
    /// 2.2.1): there it must go by the transport that is looked for.
    pub async fn find(
        &self,
        service: Service,
        from: IpAddr,
        until: Instant,
    ) -> Result<u16, Failure> {
        let at = SocketAddr::new(service.host, self.rpcbind_port);
        self.gate.pass(service.host, from)?;
        if service.host.is_ipv6() && service.transport == Transport::Tcp {
            return Box::pin(ask_by_tcp(at, &service, from, until)).await;
        }
        let client = self.udp.client(from, Purpose::Lookup).await.map_err(|_| Failure::Unsent)?;
        let mut by_udp = std::pin::pin!(ask(&client, at, &service, until));
        if service.host.is_ipv6() {
            return by_udp.await;
        }
        if let Ok(answer) = timeout(self.udp_alone.min(rest(until)), &mut by_udp).await {
            return answer;
        }
        self.gate.pass(service.host, from)?;
        let by_tcp = Box::pin(ask_by_tcp(at, &service, from, until));
        let failed = tokio::select! {
            answer = &mut by_udp => return answer,
            answer = by_tcp => match answer {
                Err(Failure::NoAnswer) => Failure::NoAnswer,
                answer => return answer,
            },
        };
        // Refused: but a datagram may be late, when the many hosts of a restart are asked at once.
        timeout(self.udp_alone.min(rest(until)), by_udp).await.unwrap_or(Err(failed))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Service, (u16, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(
    client: &UdpClient,
    at: SocketAddr,
    service: &Service,
    until: Instant,
) -> Result<u16, Failure> {
    let missing = |error| match error {
        // It never left.
        CallError::Io(_) => Failure::Unsent,
        _ => Failure::NoAnswer,
    };
    let (program, version, netid) = (service.program, service.version, service.netid());
    if !netid.is_v6() {
        let mapping = Mapping { program, version, protocol: netid.protocol(), port: 0 };
        let port = client.call::<v2::GetPort>(at, &mapping, rest(until)).await.map_err(missing)?;
        return registered(u16::try_from(port).map_err(|_| Failure::NoAnswer)?);
    }
    let binding = Binding {
        program,
        version,
        netid: Text::from(netid.name()),
        address: Text::from(universal(at)),
        owner: Text::default(),
    };
    let text = match client.call::<v4::GetAddr>(at, &binding, rest(until)).await {
        Err(CallError::Refused(Refusal::NotRun(Accepted::ProgramMismatch { .. }))) => {
            client.call::<v3::GetAddr>(at, &binding, rest(until)).await
        }
        answer => answer,
    }
    .map_err(missing)?;
    if text.is_empty() {
        return Err(Failure::NotRegistered);
    }
    registered(parse_universal(&text).ok_or(Failure::NoAnswer)?.port())
}

fn registered(port: u16) -> Result<u16, Failure> {
    if port == 0 { Err(Failure::NotRegistered) } else { Ok(port) }
}

async fn ask_by_tcp(
    at: SocketAddr,
    service: &Service,
    from: IpAddr,
    until: Instant,
) -> Result<u16, Failure> {
    let options = Options {
        source: Some(from),
        connect_timeout: rest(until),
        timeout: rest(until),
        ..short_replies()
    };
    let program = (service.program, service.version);
    match find(at, Over::Tcp, program, service.netid(), &options).await {
        Ok(found) => Ok(found.port()),
        Err(LookupError::NotRegistered { .. }) => Err(Failure::NotRegistered),
        Err(LookupError::Connect(error)) if is_ours(&error) => Err(Failure::Unsent),
        Err(_) => Err(Failure::NoAnswer),
    }
}

/// No socket, no such address of ours, no route: the peer has no part in it.
fn is_ours(error: &ConnectError) -> bool {
    match error {
        ConnectError::Bind(_) | ConnectError::NoReservedPort => true,
        ConnectError::Connect(error) => error.kind() == io::ErrorKind::NetworkUnreachable,
        ConnectError::Timeout(_) => false,
    }
}
