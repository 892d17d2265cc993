//! Port lookup: asks a peer's rpcbind (RFC 1833) for the port of one of its programs, and caches it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::rpcbind::{LookupError, RpcTransport, find};
use client::{CallError, ConnectError, Options, Refusal, UdpClient};
use keeper::identity::Transport;
use tokio::time::{Instant, timeout};
use wire::rpc::Accepted;
use wire::rpcbind::{Binding, Mapping, Netid, Text, parse_universal, universal, v2, v3, v4};

use super::tcp::short_replies;
use super::udp::Purpose;
use super::{Failure, Inner, Peers, remaining};

/// A program of a peer, over one transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PeerService {
    pub host: IpAddr,
    pub program: u32,
    pub version: u32,
    pub transport: Transport,
}

impl PeerService {
    fn netid(&self) -> Netid {
        match (self.transport, self.host.is_ipv6()) {
            (Transport::Tcp, false) => Netid::Tcp,
            (Transport::Udp, false) => Netid::Udp,
            (Transport::Tcp, true) => Netid::Tcp6,
            (Transport::Udp, true) => Netid::Udp6,
        }
    }
}

/// How long a port is cached.
const CACHED_FOR: Duration = Duration::from_secs(300);
const CACHED_MAX: usize = 16_384;

#[derive(Default)]
pub(super) struct PortCache(Mutex<HashMap<PeerService, (u16, Instant)>>);

impl PortCache {
    pub(super) fn get(&self, service: &PeerService) -> Option<u16> {
        let cache = self.lock();
        let (port, since) = cache.get(service)?;
        (since.elapsed() < CACHED_FOR).then_some(*port)
    }

    fn insert(&self, service: PeerService, port: u16) {
        let mut cache = self.lock();
        if cache.len() >= CACHED_MAX {
            cache.retain(|_, (_, since)| since.elapsed() < CACHED_FOR);
        }
        if cache.len() >= CACHED_MAX {
            cache.clear();
        }
        cache.insert(service, (port, Instant::now()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PeerService, (u16, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    /// The cached port, or else the result of a lookup, which is then cached.
    pub(crate) async fn port(
        &self,
        service: PeerService,
        ours: IpAddr,
        until: Instant,
    ) -> Result<u16, Failure> {
        if let Some(port) = self.0.ports.get(&service) {
            return Ok(port);
        }
        let port = self.find_port(service, ours, until).await?;
        self.0.ports.insert(service, port);
        Ok(port)
    }

    /// Asks the host's rpcbind, from our address `ours`; the cache is neither read nor written. Of the
    /// answer only the port is used.
    ///
    /// PMAPPROC_GETPORT (IPv4) names the protocol and may be sent over either transport.
    /// RPCBPROC_GETADDR (IPv6) is answered for the transport that carries it, whatever netid it names
    /// (RFC 1833, 2.2.1), so it must use the transport that is looked up.
    pub(crate) async fn find_port(
        &self,
        service: PeerService,
        ours: IpAddr,
        until: Instant,
    ) -> Result<u16, Failure> {
        let Inner { settings, gate, udp, .. } = &*self.0;
        let at = SocketAddr::new(service.host, settings.rpcbind_port);
        gate.pass(service.host, ours)?;
        if service.host.is_ipv6() && service.transport == Transport::Tcp {
            return Box::pin(ask_by_tcp(at, &service, ours, until)).await;
        }
        let client = udp.client(ours, Purpose::Lookup).await.map_err(|_| Failure::Unsent)?;
        let mut by_udp = std::pin::pin!(ask(&client, at, &service, until));
        if service.host.is_ipv6() {
            return by_udp.await;
        }
        // Some networks pass only TCP, and only TCP reports a refusal.
        let fallback_after = settings.fallback_after;
        if let Ok(answer) = timeout(fallback_after.min(remaining(until)), &mut by_udp).await {
            return answer;
        }
        gate.pass(service.host, ours)?;
        let by_tcp = Box::pin(ask_by_tcp(at, &service, ours, until));
        let failed = tokio::select! {
            answer = &mut by_udp => return answer,
            answer = by_tcp => match answer {
                Err(Failure::NoAnswer) => Failure::NoAnswer,
                answer => return answer,
            },
        };
        // TCP was refused, but a datagram may be late when a restart asks many hosts at once.
        timeout(fallback_after.min(remaining(until)), by_udp).await.unwrap_or(Err(failed))
    }

    /// Drops a cached port: the next call asks rpcbind again.
    pub(crate) fn forget_port(&self, service: &PeerService) {
        self.0.ports.lock().remove(service);
    }
}

async fn ask(
    client: &UdpClient,
    at: SocketAddr,
    service: &PeerService,
    until: Instant,
) -> Result<u16, Failure> {
    let missing = |error| match error {
        // Never sent.
        CallError::Io(_) => Failure::Unsent,
        _ => Failure::NoAnswer,
    };
    let (program, version, netid) = (service.program, service.version, service.netid());
    if !netid.is_v6() {
        let mapping = Mapping { program, version, protocol: netid.protocol(), port: 0 };
        let port =
            client.call::<v2::GetPort>(at, &mapping, remaining(until)).await.map_err(missing)?;
        return registered(u16::try_from(port).map_err(|_| Failure::NoAnswer)?);
    }
    let binding = Binding {
        program,
        version,
        netid: Text::from(netid.name()),
        address: Text::from(universal(at)),
        owner: Text::default(),
    };
    let text = match client.call::<v4::GetAddr>(at, &binding, remaining(until)).await {
        Err(CallError::Refused(Refusal::NotRun(Accepted::ProgramMismatch { .. }))) => {
            client.call::<v3::GetAddr>(at, &binding, remaining(until)).await
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
    service: &PeerService,
    from: IpAddr,
    until: Instant,
) -> Result<u16, Failure> {
    let options = Options {
        source: Some(from),
        connect_timeout: remaining(until),
        timeout: remaining(until),
        ..short_replies()
    };
    let program = (service.program, service.version);
    match find(at, RpcTransport::Tcp, program, service.netid(), &options).await {
        Ok(found) => Ok(found.port()),
        Err(LookupError::NotRegistered { .. }) => Err(Failure::NotRegistered),
        Err(LookupError::Connect(error)) if is_local(&error) => Err(Failure::Unsent),
        Err(_) => Err(Failure::NoAnswer),
    }
}

/// No socket, no such address, no route: a failure of this machine, not of the peer.
fn is_local(error: &ConnectError) -> bool {
    match error {
        ConnectError::Bind(_) | ConnectError::NoReservedPort => true,
        ConnectError::Connect(error) => error.kind() == io::ErrorKind::NetworkUnreachable,
        ConnectError::Timeout(_) => false,
    }
}
