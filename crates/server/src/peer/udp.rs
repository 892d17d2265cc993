//! Calls to peers over UDP. A socket lives while a call uses it; under load many calls share one, so
//! that thousands can be in flight.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use client::{CallError, ConnectError, Options, UdpClient, UdpReply};
use tokio::time::Instant;
use tracing::debug;
use wire::rpc::{Credential, ProcedureId};

use super::tcp::lacks_reserved_port;
use super::{Failure, Peers, Settings, remaining};

/// What a socket is used for; decides its source port and credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Asking rpcbind: any source port.
    Lookup,
    /// Calling a lock manager, with root's credential.
    Lock,
    /// Calling a status monitor or a registrant, without a credential.
    Status,
}

/// Calls that share a socket. Datagrams to dead hosts on the local network stay in its send buffer
/// until ARP gives up, for seconds; the buffer must have room for all of them.
const CALLS_PER_SOCKET_MAX: usize = 64;
/// Reserved ports are few and other programs need them too; further sockets use any port.
const RESERVED_SOCKETS_MAX: usize = 64;

/// By source address and purpose. A socket closes when its last call ends.
type OpenSockets = HashMap<(IpAddr, Purpose), Vec<Weak<UdpClient>>>;

pub(super) struct UdpClients {
    send_from_reserved_ports: bool,
    /// Not too soon: a slow client that receives GRANTED twice denies the second.
    retransmit_after: Duration,
    credential: Credential,
    open: Mutex<OpenSockets>,
}

impl Peers {
    /// One call, retransmitted until it is answered or `until` has passed. `sent` of the answer says
    /// how often it was sent.
    pub(crate) async fn call_udp(
        &self,
        to: SocketAddr,
        ours: IpAddr,
        purpose: Purpose,
        procedure: ProcedureId,
        args: &[u8],
        until: Instant,
    ) -> Result<UdpReply, Failure> {
        let opened = self.0.udp.client(ours, purpose).await;
        let client = opened.map_err(|_| Failure::Unsent)?;
        self.0.gate.pass(to.ip(), ours)?;
        client.call_raw(to, procedure, args, remaining(until)).await.map_err(|error| {
            debug!(
                "procedure {} of program {} at {to}: {error}",
                procedure.procedure, procedure.program
            );
            match error {
                // Never sent.
                CallError::Io(_) => Failure::Unsent,
                _ => Failure::NoAnswer,
            }
        })
    }
}

impl UdpClients {
    pub(super) fn new(settings: &Settings, credential: Credential) -> Self {
        let Settings { send_from_reserved_ports, retransmit_after, .. } = *settings;
        Self { send_from_reserved_ports, retransmit_after, credential, open: Mutex::default() }
    }

    /// A socket that sends from `source` (unspecified: the system chooses).
    pub(super) async fn client(
        &self,
        source: IpAddr,
        purpose: Purpose,
    ) -> Result<Arc<UdpClient>, ConnectError> {
        let mut count = 0;
        if let Some(clients) = self.lock().get_mut(&(source, purpose)) {
            clients.retain(|client| client.strong_count() > 0);
            count = clients.len();
            let has_room = |weak: &&Weak<UdpClient>| weak.strong_count() < CALLS_PER_SOCKET_MAX;
            if let Some(client) = clients.iter().rev().find(has_room).and_then(Weak::upgrade) {
                return Ok(client);
            }
        }
        let client = Arc::new(self.open(source, purpose, count).await?);
        let mut open = self.lock();
        open.retain(|_, clients| clients.iter().any(|client| client.strong_count() > 0));
        open.entry((source, purpose)).or_default().push(Arc::downgrade(&client));
        Ok(client)
    }

    async fn open(
        &self,
        source: IpAddr,
        purpose: Purpose,
        count: usize,
    ) -> Result<UdpClient, ConnectError> {
        let defaults = Options::default();
        let mut options = match purpose {
            Purpose::Lookup | Purpose::Status => defaults,
            Purpose::Lock => Options {
                credential: self.credential.clone(),
                retransmit_after: self.retransmit_after,
                ..defaults
            },
        };
        options.reserved_port = self.send_from_reserved_ports
            && purpose != Purpose::Lookup
            && count < RESERVED_SOCKETS_MAX;
        match UdpClient::open(source, &options).await {
            Err(error) if options.reserved_port && lacks_reserved_port(&error) => {
                debug!("no reserved UDP port of {source}: {error}; using another");
                options.reserved_port = false;
                UdpClient::open(source, &options).await
            }
            opened => opened,
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenSockets> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
