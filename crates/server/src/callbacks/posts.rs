//! UDP sockets for calls to many peers. A socket lives while somebody uses it; under load many
//! calls share one, so that thousands can be under way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use client::{ConnectError, Options, UdpClient};
use tracing::debug;
use wire::rpc::Credential;

use super::{Settings, lacks_reserved_port};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Asking rpcbind; nobody expects a reserved port for that.
    Lookup,
    /// Calling a lock manager, as root of this machine.
    Lock,
    /// Calling a status monitor.
    Notice,
}

/// How many calls share a socket. What goes to dead hosts of the local network stays in its send
/// buffer for seconds, until the system gives up finding them; the buffer must have room for that.
const SHARED_BY: usize = 64;
/// Reserved ports are few, and other programs need them too; past this many any port must do.
const RESERVED_MAX: usize = 64;

/// By where they speak from and what for; those that nobody uses any more are empty shells.
type Open = HashMap<(IpAddr, Purpose), Vec<Weak<UdpClient>>>;

pub struct Posts {
    reserved: bool,
    /// A client that was slow and hears GRANTED twice denies the second: not too soon.
    repeat: Duration,
    credential: Credential,
    open: Mutex<Open>,
}

impl Posts {
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
        if let Some(boxes) = self.lock().get_mut(&(source, purpose)) {
            boxes.retain(|client| client.strong_count() > 0);
            count = boxes.len();
            let has_room = |weak: &&Weak<UdpClient>| weak.strong_count() < SHARED_BY;
            if let Some(client) = boxes.iter().rev().find(has_room).and_then(Weak::upgrade) {
                return Ok(client);
            }
        }
        let client = Arc::new(self.open(source, purpose, count).await?);
        let mut open = self.lock();
        open.retain(|_, boxes| boxes.iter().any(|client| client.strong_count() > 0));
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
            Purpose::Lookup | Purpose::Notice => defaults,
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
