//! TCP connections to lock managers, one per (host, our address, NLM version). A connection is kept
//! for a while after its last use, so that the next callback needs neither a lookup nor a handshake.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use client::{CallError, Connection, UdpReply};
use keeper::identity::Transport;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::gate::Gate;
use super::{Failure, Inner, LockManager, Peers, remaining};

pub(super) struct Connections {
    max: usize,
    slots: Mutex<HashMap<LockManager, Arc<Slot>>>,
}

/// Holds one connection or none. The first task to lock an empty slot connects while the others
/// wait, so a burst of callbacks opens one connection.
struct Slot {
    connection: tokio::sync::Mutex<Option<PeerConnection>>,
    used: Mutex<Instant>,
}

/// A connection to a lock manager. After a failure it is not used again.
#[derive(Clone)]
pub(crate) struct PeerConnection {
    gate: Arc<Gate>,
    to: LockManager,
    connection: Connection,
    kept: bool,
    abandoned: Arc<AtomicBool>,
}

impl PeerConnection {
    async fn call(&self, procedure: u32, args: &[u8], until: Instant) -> Result<Bytes, Failure> {
        let connection = self.connection.with_timeout(remaining(until));
        self.gate.pass(self.to.host, self.to.ours)?;
        connection.call_raw(self.to.procedure(procedure), args).await.map_err(|error| {
            self.failed(procedure, &error);
            match error {
                CallError::Closed | CallError::Io(_) => Failure::Broken,
                _ => Failure::NoAnswer,
            }
        })
    }

    async fn call_one_way(
        &self,
        procedure: u32,
        args: &[u8],
        until: Instant,
    ) -> Result<(), Failure> {
        let connection = self.connection.with_timeout(remaining(until));
        self.gate.pass(self.to.host, self.to.ours)?;
        connection.tell_raw(self.to.procedure(procedure), args).await.map_err(|error| {
            self.failed(procedure, &error);
            Failure::Broken
        })
    }

    /// Marks the connection so that no later call uses it.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    fn failed(&self, procedure: u32, error: &CallError) {
        debug!("procedure {procedure} of the lock manager of {}: {error}", self.to.host);
        self.abandon();
    }

    fn is_usable(&self) -> bool {
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
    pub(super) fn new(max: usize) -> Self {
        Self { max, slots: Mutex::default() }
    }

    /// The slot of a lock manager. If the table is full, the least recently used idle slot is
    /// evicted; if none is idle, the new slot is not entered in the table.
    fn slot(&self, to: &LockManager) -> Arc<Slot> {
        let mut slots = self.lock();
        if let Some(slot) = slots.get(to) {
            slot.touch();
            return slot.clone();
        }
        let slot = Arc::new(Slot::new());
        if slots.len() >= self.max {
            let idle = slots.iter().filter(|(_, slot)| Arc::strong_count(slot) == 1);
            let Some(oldest) = idle.min_by_key(|(_, slot)| slot.used()).map(|(to, _)| *to) else {
                return slot;
            };
            slots.remove(&oldest);
        }
        slots.insert(*to, slot.clone());
        slot
    }

    pub(super) fn close(&self) {
        let slots = std::mem::take(&mut *self.lock());
        drop(slots);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockManager, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    /// Calls a procedure of a lock manager over TCP and waits for the results. A kept connection may
    /// lead to a kernel that is gone: if it breaks, the call is sent again on a new one, and `sent` of
    /// the answer says how often. [`Failure::Unsent`] means that the call was never sent.
    pub(crate) async fn call_tcp(
        &self,
        to: &LockManager,
        procedure: u32,
        args: &[u8],
        until: Instant,
    ) -> Result<UdpReply, Failure> {
        let mut sent = 0;
        loop {
            // The peer may have executed a call that was sent before.
            let unsent = if sent == 0 { Failure::Unsent } else { Failure::Broken };
            let connection = self.connection(to, until).await.map_err(|_| unsent)?;
            sent += 1;
            match connection.call(procedure, args, until).await {
                Ok(results) => return Ok(UdpReply { results, sent }),
                Err(Failure::Unsent) => return Err(unsent),
                Err(Failure::Broken) if connection.kept => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Calls a procedure of a lock manager over TCP without waiting for the reply, on a new
    /// connection if a kept one is broken. With an error nothing was sent.
    pub(crate) async fn call_tcp_one_way(
        &self,
        to: &LockManager,
        procedure: u32,
        args: &[u8],
        until: Instant,
    ) -> Result<PeerConnection, Failure> {
        loop {
            let connection = self.connection(to, until).await?;
            match connection.call_one_way(procedure, args, until).await {
                Err(Failure::Broken) if connection.kept => {}
                sent => return sent.map(|()| connection),
            }
        }
    }

    /// A kept connection to a lock manager, or a new one. With an error nothing was sent.
    async fn connection(
        &self,
        to: &LockManager,
        until: Instant,
    ) -> Result<PeerConnection, Failure> {
        let slot = self.0.connections.slot(to);
        let held = timeout_at(until, slot.connection.lock()).await;
        let mut held = held.map_err(|_| Failure::NoAnswer)?;
        slot.touch();
        if let Some(connection) = held.as_ref().filter(|connection| connection.is_usable()) {
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
        if let Some(port) = self.0.ports.get(&service) {
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

/// Closes connections that have been idle for long. Ends when [`Peers`] is dropped.
pub(super) async fn close_idle(inner: Weak<Inner>) {
    loop {
        let Some(idle_max) = inner.upgrade().map(|inner| inner.settings.idle_max) else { return };
        sleep((idle_max / 6).clamp(Duration::from_millis(10), Duration::from_secs(10))).await;
        let Some(inner) = inner.upgrade() else { return };
        let in_use = |slot: &Arc<Slot>| Arc::strong_count(slot) > 1;
        inner.connections.lock().retain(|_, slot| in_use(slot) || slot.used().elapsed() < idle_max);
    }
}
