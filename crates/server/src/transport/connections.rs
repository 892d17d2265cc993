//! The open TCP connections of one port: who may have one, and which are closed for the sake of others.
//!
//! The decisions are in [`Callers`] (strangers), `slots.rs` (connections are few) and `slow_peers.rs`
//! (memory is short). A connection's task is woken, and learns by [`OpenConnection::evicted`] that it is to end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use super::budget::Budget;
use super::outgoing::OutgoingReplies;
use super::slots::{Candidate, Network, SlotLimits, SlotRefusal, Slots, to_evict};
use super::slow_peers::{Direction, Sample, slowest};
use super::{AnswersMax, Peer, stopping};
use crate::log_rate_limit::LogRateLimit;
use crate::metrics::{EvictionReason, Metrics, RefusedConnection};
use crate::rpc::callers::{Callers, Standing};
use crate::rpc::limits::Limits;

const POLL_EVERY: Duration = Duration::from_millis(5);
/// So that not each new connection searches all others for room.
const EVICTED_AT_ONCE: usize = 64;
const SEARCH_PAUSE: Duration = Duration::from_millis(100);
/// For how long the speed of peers is measured while memory is short.
const MEASURED_FOR: Duration = Duration::from_secs(1);

pub(crate) struct Connections {
    callers: Callers,
    limits: SlotLimits,
    metrics: Option<Arc<Metrics>>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    slots: Slots,
    connections: HashMap<u64, Arc<OpenConnection>>,
    /// No room was found for a new connection; not searched again before. Apart for each address that has all that
    /// it may have, and for kernels: what others ask for in vain must not keep these from being served.
    full_until: HashMap<Search, Instant>,
}

/// Among whose connections room is searched for a new one, and whether that is a kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Search {
    only: Option<Network>,
    for_kernel: bool,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectionRefusal {
    #[error("no export admits this address (`clients`)")]
    Stranger,
    #[error(transparent)]
    Slots(#[from] SlotRefusal),
}

/// One connection, as others see it.
pub(crate) struct OpenConnection {
    id: u64,
    peer: Peer,
    opened: Instant,
    /// When it was accepted, or the exports last changed.
    was_client: AtomicBool,
    outgoing: OnceLock<Weak<OutgoingReplies>>,
    /// Bytes charged for a record that is not complete.
    charged: Arc<AtomicUsize>,
    received: AtomicU64,
    /// The server would read if the peer sent.
    is_read: AtomicBool,
    evicted: OnceLock<EvictionReason>,
}

impl OpenConnection {
    /// To be called once the connection is served.
    pub(crate) fn set_outgoing(&self, outgoing: &Arc<OutgoingReplies>) {
        let _ = self.outgoing.set(Arc::downgrade(outgoing));
    }

    pub(crate) fn charged(&self) -> &Arc<AtomicUsize> {
        &self.charged
    }

    pub(crate) fn set_received(&self, total: u64) {
        self.received.store(total, Ordering::Relaxed);
    }

    pub(crate) fn set_is_read(&self, is_read: bool) {
        self.is_read.store(is_read, Ordering::Relaxed);
    }

    /// Why the connection is to be closed, if it is.
    pub(crate) fn evicted(&self) -> Option<EvictionReason> {
        self.evicted.get().copied()
    }

    fn network(&self) -> Network {
        Network::of(self.peer.remote.ip())
    }

    fn close(&self, reason: EvictionReason) {
        let _ = self.evicted.set(reason);
        // If the task has not begun yet, it will look first.
        if let Some(outgoing) = self.outgoing.get().and_then(Weak::upgrade) {
            outgoing.wake();
        }
    }

    fn candidate(&self, callers: &Callers, now: Instant) -> Candidate {
        let outgoing = self.outgoing.get().and_then(Weak::upgrade);
        Candidate {
            connection: self.id,
            is_stranger: !self.was_client.load(Ordering::Relaxed) && !callers.serves(&self.peer),
            has_called: outgoing.as_ref().is_some_and(|outgoing| outgoing.had_call()),
            is_user: !callers.can_lock(&self.peer),
            is_busy: outgoing
                .is_some_and(|outgoing| outgoing.unanswered() > 0 || outgoing.unsent() > 0),
            age: now.saturating_duration_since(self.opened),
        }
    }

    fn sample(&self) -> Sample {
        let is_read = self.is_read.load(Ordering::Relaxed);
        let held = if is_read { self.charged.load(Ordering::Relaxed) } else { 0 };
        let incoming = Direction { held, moved: self.received.load(Ordering::Relaxed) };
        let outgoing = self.outgoing.get().and_then(Weak::upgrade);
        let outgoing = outgoing.map_or(Direction::default(), |outgoing| Direction {
            held: outgoing.unsent(),
            moved: outgoing.written(),
        });
        Sample { connection: self.id, incoming, outgoing }
    }
}

/// Counts one connection until it is dropped.
pub(crate) struct ConnectionPermit {
    connections: Arc<Connections>,
    pub(crate) connection: Arc<OpenConnection>,
}

impl ConnectionPermit {
    /// A client has made a call on this connection, for the first time.
    pub(crate) fn has_called(&self) {
        let network = self.connection.network();
        self.connections.lock().slots.has_called(network);
    }
}

impl Connections {
    pub(crate) fn new(callers: Callers, limits: &Limits, metrics: Option<Arc<Metrics>>) -> Self {
        let (total, per_address) = (limits.connections_max, limits.connections_per_address_max);
        let limits = SlotLimits { total, per_address };
        Self { callers, limits, metrics, open: Mutex::default() }
    }

    /// Whether a new connection is served; may close others for it. A refusal is counted.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: &Peer,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        let admitted = self.try_admit(peer);
        if let (Err(refusal), Some(metrics)) = (&admitted, &self.metrics) {
            metrics.count_refused_connection(match refusal {
                ConnectionRefusal::Stranger => RefusedConnection::NotAdmitted,
                ConnectionRefusal::Slots(SlotRefusal::PerAddress(_)) => {
                    RefusedConnection::PerAddress
                }
                ConnectionRefusal::Slots(_) => RefusedConnection::Total,
            });
        }
        admitted
    }

    fn try_admit(self: &Arc<Self>, peer: &Peer) -> Result<ConnectionPermit, ConnectionRefusal> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let standing = self.callers.standing(peer);
        if standing == Standing::Stranger {
            return Err(ConnectionRefusal::Stranger);
        }
        let (address, now) = (peer.remote.ip(), Instant::now());
        let network = Network::of(address);
        let is_known = standing == Standing::Local || self.callers.is_holder(address);
        let mut open = self.lock();
        // Exports that changed since are applied to what is open: this connection is not yet.
        if !self.callers.serves(peer) {
            return Err(ConnectionRefusal::Stranger);
        }
        if let Err(refusal) = open.slots.check(network, is_known, self.limits) {
            // An address that has all that it may have makes room for itself.
            let only = matches!(refusal, SlotRefusal::PerAddress(_)).then_some(network);
            let search = Search { only, for_kernel: self.callers.can_lock(peer) };
            if !self.make_room(&mut open, search, now) {
                return Err(refusal.into());
            }
            open.slots.check(network, is_known, self.limits)?;
        }
        let connection = Arc::new(OpenConnection {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            peer: *peer,
            opened: now,
            was_client: AtomicBool::new(standing != Standing::Holder),
            outgoing: OnceLock::new(),
            charged: Arc::default(),
            received: AtomicU64::new(0),
            is_read: AtomicBool::new(true),
            evicted: OnceLock::new(),
        });
        open.slots.opened(network);
        open.connections.insert(connection.id, connection.clone());
        Ok(ConnectionPermit { connections: self.clone(), connection })
    }

    /// Closes connections that are not needed. Their slots are free at once.
    fn make_room(&self, open: &mut Open, search: Search, now: Instant) -> bool {
        if open.full_until.get(&search).is_some_and(|until| now < *until) {
            return false;
        }
        let all = open.connections.values();
        let there = all.filter(|one| search.only.is_none_or(|only| one.network() == only));
        let candidates = there.map(|connection| connection.candidate(&self.callers, now));
        let evicted = to_evict(candidates, search.for_kernel, EVICTED_AT_ONCE);
        evicted.iter().for_each(|id| self.evict(open, *id, EvictionReason::Slots));
        open.full_until.retain(|_, until| now < *until);
        if evicted.is_empty() {
            open.full_until.insert(search, now + SEARCH_PAUSE);
        }
        !evicted.is_empty()
    }

    fn evict(&self, open: &mut Open, id: u64, reason: EvictionReason) {
        let Some(connection) = open.connections.remove(&id) else { return };
        open.slots.closed(connection.network());
        connection.close(reason);
        if let Some(metrics) = &self.metrics {
            metrics.count_evicted_connection(reason);
        }
    }

    /// The exports have changed: closes the connections of those who are strangers now.
    pub(crate) fn reconsider(&self) {
        let mut open = self.lock();
        let mut strangers = Vec::new();
        for connection in open.connections.values() {
            let standing = self.callers.standing(&connection.peer);
            let is_client = matches!(standing, Standing::Client | Standing::Local);
            connection.was_client.store(is_client, Ordering::Relaxed);
            if standing == Standing::Stranger {
                strangers.push(connection.id);
            }
        }
        strangers.iter().for_each(|id| self.evict(&mut open, *id, EvictionReason::NotAdmitted));
        if !strangers.is_empty() {
            info!(
                "closed {} connections from addresses that no export admits any more",
                strangers.len()
            );
        }
    }

    fn samples(&self) -> Vec<Sample> {
        self.lock().connections.values().map(|connection| connection.sample()).collect()
    }

    fn close_slow(&self, connections: &[u64]) -> usize {
        let mut open = self.lock();
        let before = open.connections.len();
        connections.iter().for_each(|id| self.evict(&mut open, *id, EvictionReason::Memory));
        before - open.connections.len()
    }

    /// Resolves when none is open.
    pub(crate) async fn ended(self: &Arc<Self>) {
        while self.lock().slots.total() > 0 {
            sleep(POLL_EVERY).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        if open.connections.remove(&self.connection.id).is_some() {
            open.slots.closed(self.connection.network());
        }
    }
}

/// While connections of these ports wait for memory, closes the slowest that hold it. Until a stop.
pub(crate) async fn relieve(
    ports: Vec<Arc<Connections>>,
    budget: Arc<Budget>,
    mut stop: watch::Receiver<AnswersMax>,
) {
    tokio::select! {
        () = relieve_always(&ports, &budget) => {}
        _ = stopping(&mut stop) => {}
    }
}

async fn relieve_always(ports: &[Arc<Connections>], budget: &Budget) {
    static CLOSED: LogRateLimit = LogRateLimit::new();
    let samples = || ports.iter().flat_map(|port| port.samples()).collect::<Vec<Sample>>();
    loop {
        budget.wanted().await;
        let mut earlier = samples();
        loop {
            let since = Instant::now();
            sleep(MEASURED_FOR).await;
            let excess = budget.excess();
            if excess == 0 {
                break;
            }
            let by_id = earlier.into_iter().map(|sample| (sample.connection, sample)).collect();
            let later = samples();
            let slow = slowest(&by_id, &later, since.elapsed(), excess);
            let closed: usize = ports.iter().map(|port| port.close_slow(&slow)).sum();
            if closed > 0 && CLOSED.due() {
                let held = budget.held() >> 20;
                warn!(
                    "closed {closed} connections whose clients send or read too slowly, as \
                     requests and replies take {held} MiB"
                );
            }
            earlier = later;
        }
    }
}
