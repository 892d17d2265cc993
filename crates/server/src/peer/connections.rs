//! Connections to lock managers. One for each (host, our address, version) is kept for a while
//! after it was used, so that the next callback needs neither a look-up nor a handshake.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use client::{CallError, Connection};
use keeper::identity::Transport;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;
use wire::nlm;

use super::gate::Gate;
use super::{Failure, Inner, LockManager, Peers, rest};

pub struct Connections {
    max: usize,
    kept: Mutex<HashMap<LockManager, Arc<Slot>>>,
}

/// A connection or the place of one. The first caller fills an empty one while the others wait, so
/// that a burst of callbacks makes one connection.
struct Slot {
    connection: tokio::sync::Mutex<Option<PeerConnection>>,
    used: Mutex<Instant>,
}

/// A connection to a lock manager. After a failure it is not used again.
#[derive(Clone)]
pub struct PeerConnection {
    gate: Arc<Gate>,
    to: LockManager,
    connection: Connection,
    kept: bool,
    abandoned: Arc<AtomicBool>,
}

impl PeerConnection {
    /// It was there before, and may be to a kernel that is gone.
    pub fn was_kept(&self) -> bool {
        self.kept
    }

    /// Calls a procedure of the lock manager and waits for its results.
    pub async fn call(
        &self,
        procedure: u32,
        args: &[u8],
        until: Instant,
    ) -> Result<Bytes, Failure> {
        let connection = self.connection.with_timeout(rest(until));
        self.gate.pass(self.to.host, self.to.ours)?;
        let called = connection.call_raw(nlm::PROGRAM, self.to.version, procedure, args).await;
        called.map_err(|error| {
            self.failed(procedure, &error);
            match error {
                CallError::Closed | CallError::Io(_) => Failure::Broken,
                _ => Failure::NoAnswer,
            }
        })
    }

    /// Calls a procedure of the lock manager whose reply is not waited for. An error means that it
    /// was not sent; after [`Failure::Broken`] a new connection may do.
    pub async fn tell(&self, procedure: u32, args: &[u8], until: Instant) -> Result<(), Failure> {
        let connection = self.connection.with_timeout(rest(until));
        self.gate.pass(self.to.host, self.to.ours)?;
        let told = connection.tell_raw(nlm::PROGRAM, self.to.version, procedure, args).await;
        told.map_err(|error| {
            self.failed(procedure, &error);
            Failure::Broken
        })
    }

    /// It is not used again.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    fn failed(&self, procedure: u32, error: &CallError) {
        debug!("procedure {procedure} of the lock manager of {}: {error}", self.to.host);
        self.abandon();
    }

    fn is_good(&self) -> bool {
        !self.abandoned.load(Ordering::Relaxed) && !self.connection.has_ended()
    }
}

impl Slot {
    fn new() -> Self {
        Self { connection: tokio::sync::Mutex::default(), used: Mutex::new(Instant::now()) }
    }

    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Connections {
    pub fn new(max: usize) -> Self {
        Self { max, kept: Mutex::default() }
    }

    /// When all places are taken, the one that was not used for longest goes; if all are in use,
    /// this one is not kept.
    fn slot(&self, to: &LockManager) -> Arc<Slot> {
        let mut kept = self.lock();
        if let Some(slot) = kept.get(to) {
            slot.touch();
            return slot.clone();
        }
        let slot = Arc::new(Slot::new());
        if kept.len() >= self.max {
            let idle = kept.iter().filter(|(_, slot)| Arc::strong_count(slot) == 1);
            let Some(oldest) = idle.min_by_key(|(_, slot)| slot.used()).map(|(to, _)| *to) else {
                return slot;
            };
            kept.remove(&oldest);
        }
        kept.insert(*to, slot.clone());
        slot
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockManager, Arc<Slot>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    /// A connection to a lock manager. With an error nothing was sent to it.
    pub async fn connection(
        &self,
        to: &LockManager,
        until: Instant,
    ) -> Result<PeerConnection, Failure> {
        let slot = self.0.connections.slot(to);
        let held = timeout_at(until, slot.connection.lock()).await;
        let mut held = held.map_err(|_| Failure::NoAnswer)?;
        slot.touch();
        if let Some(connection) = held.as_ref().filter(|connection| connection.is_good()) {
            return Ok(PeerConnection { kept: true, ..connection.clone() });
        }
        *held = None;
        let connection = PeerConnection {
            gate: self.0.gate.clone(),
            to: *to,
            connection: self.new_connection(to, until).await?,
            kept: false,
            abandoned: Arc::default(),
        };
        *held = Some(connection.clone());
        Ok(connection)
    }

    async fn new_connection(
        &self,
        to: &LockManager,
        until: Instant,
    ) -> Result<Connection, Failure> {
        let service = to.service(Transport::Tcp);
        let connect = |port| self.connect(SocketAddr::new(to.host, port), to.ours, until);
        if let Some(port) = self.0.ports.known(&service) {
            match connect(port).await {
                Err(Failure::NoAnswer) => self.forget_port(&service),
                connected => return connected,
            }
        }
        let port = self.port(service, to.ours, until).await?;
        let connected = connect(port).await;
        if connected.is_err() {
            self.forget_port(&service);
        }
        connected
    }
}

/// Closes connections that were not used for a while, until `Peers` is dropped.
pub async fn sweep(inner: Weak<Inner>) {
    loop {
        let Some(keep) = inner.upgrade().map(|inner| inner.settings.keep) else { return };
        sleep((keep / 6).clamp(Duration::from_millis(10), Duration::from_secs(10))).await;
        let Some(inner) = inner.upgrade() else { return };
        let in_use = |slot: &Arc<Slot>| Arc::strong_count(slot) > 1;
        inner.connections.lock().retain(|_, slot| in_use(slot) || slot.used().elapsed() < keep);
    }
}
