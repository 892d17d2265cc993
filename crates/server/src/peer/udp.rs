//! Calls to peers over UDP. A socket lives while a call uses it; under load many calls share one, so
//! that thousands can be under way.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use client::{Answered, CallError, ConnectError, Options, UdpClient};
use tokio::time::Instant;
use tracing::debug;
use wire::rpc::Credential;

use super::tcp::lacks_reserved_port;
use super::{Failure, Numbers, Peers, Settings, rest};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Asking rpcbind; nobody expects a reserved port for that.
    Lookup,
    /// Calling a lock manager, in root's name.
    Lock,
    /// Calling a status monitor or a registrant, without a credential.
    Status,
}

/// How many calls share a socket. What goes to dead hosts of the local network stays in its send
/// buffer for seconds, until the system gives up finding them; the buffer must have room for that.
const SHARED_BY: usize = 64;
/// Reserved ports are few, and other programs need them too; past this many any port must do.
const RESERVED_MAX: usize = 64;

/// By source address and purpose. Those that no call uses any more are closed.
type Open = HashMap<(IpAddr, Purpose), Vec<Weak<UdpClient>>>;

/// The sockets that are open.
pub struct UdpClients {
    reserved: bool,
    /// A client that was slow and hears GRANTED twice denies the second: not too soon.
    repeat: Duration,
    credential: Credential,
    open: Mutex<Open>,
}

impl Peers {
    /// One call, sent again until it is answered or the time is over. `sent` of the answer says how
    /// often.
    pub async fn call_udp(
        &self,
        to: SocketAddr,
        ours: IpAddr,
        purpose: Purpose,
        numbers: Numbers,
        args: &[u8],
        until: Instant,
    ) -> Result<Answered, Failure> {
        let opened = self.0.udp.client(ours, purpose).await;
        let client = opened.map_err(|_| Failure::Unsent)?;
        self.0.gate.pass(to.ip(), ours)?;
        client.call_raw(to, numbers, args, rest(until)).await.map_err(|error| {
            debug!("procedure {} of program {} at {to}: {error}", numbers.2, numbers.0);
            match error {
                // It never left.
                CallError::Io(_) => Failure::Unsent,
                _ => Failure::NoAnswer,
            }
        })
    }
}

impl UdpClients {
    pub fn new(settings: &Settings, credential: Credential) -> Self {
        let Settings { reserved_ports: reserved, repeat, .. } = *settings;
        Self { reserved, repeat, credential, open: Mutex::default() }
    }

    /// A socket that speaks from `source` (unspecified: the system chooses).
    pub async fn client(
        &self,
        source: IpAddr,
        purpose: Purpose,
    ) -> Result<Arc<UdpClient>, ConnectError> {
        let mut count = 0;
        if let Some(clients) = self.lock().get_mut(&(source, purpose)) {
            clients.retain(|client| client.strong_count() > 0);
            count = clients.len();
            let has_room = |weak: &&Weak<UdpClient>| weak.strong_count() < SHARED_BY;
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
                retransmit_after: self.repeat,
                ..defaults
            },
        };
        options.reserved_port = self.reserved && purpose != Purpose::Lookup && count < RESERVED_MAX;
        match UdpClient::open(source, &options).await {
            Err(error) if options.reserved_port && lacks_reserved_port(&error) => {
                debug!("no reserved UDP port of {source}: {error}; taking another");
                options.reserved_port = false;
                UdpClient::open(source, &options).await
            }
            opened => opened,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
