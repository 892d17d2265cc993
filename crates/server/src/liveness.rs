//! Whether the kernel that took a host's locks is still running (B3.8, B3.14, B4.15).
//!
//! A kernel that has rebooted knows nothing of its predecessor's TCP connections: it answers a
//! segment on one with a reset, or not at all; a running kernel acknowledges it. So connections that
//! are older than a reported reboot are evidence. Any of them can prove that the kernel is up; only
//! those from reserved ports can prove that it is gone, because users of the host can neither open
//! nor reset those. A reset in answer to a probe of ours is proof; an unprompted reset is reported
//! (`on_reset`) only if no other connection of the host answers a probe.
//!
//! | file | |
//! |---|---|
//! | `connection.rs` | one connection: its host's names, since when its kernel is known, how it ended |
//! | `registry.rs` | which connections belong to which host; which hosts are watched |
//! | `round.rs` | probes all connections of a host at once |
//! | `verdict.rs` | what the responses mean together |
//! | `inquiry.rs` | one inquiry, from evidence to verdict |
//! | `socket.rs`, `tcp_info.rs` | what is needed of a socket; a real one, by TCP_INFO |
//! | `witness.rs` | our own connection to the lock manager of a watched host |
//!
//! All but `tcp_info.rs` and `witness.rs` are free of I/O and run in the simulator.
//!
//! Callers: `transport/` and the witnesses `track` every connection. `service/nlm.rs` calls `watch`
//! and `record_lock` for each request that is granted or blocked. `effects.rs` calls `probe`, on a
//! task of its own, for each `Message::Probe`. `holders.rs` at intervals brings the watched hosts in
//! line with the keeper (`watch`, `unwatch_except`), recovered hosts included.

pub mod connection;
pub mod inquiry;
pub mod registry;
pub mod round;
pub mod socket;
mod tcp_info;
#[cfg(test)]
mod tests;
pub mod verdict;
mod witness;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use keeper::change::Client;
use keeper::identity::{HostKey, Incarnation, OwnerNamespace, Transport};
use keeper::request::{ProbeAnswer, Question};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::peer::{LockManager, Peers};
pub(crate) use connection::Opener;
use connection::TrackedConnection;
use inquiry::{CONNECTIONS_MAX, Evidence, KernelInquiry, SAME_KERNEL_MAX};
use registry::{Registry, TakenBy, UnpromptedReset};
use round::Round;
use socket::Socket;
pub(crate) use tcp_info::Stream;
use witness::Witness;

const REACHABLE_MAX: Duration = Duration::from_secs(5);
const STATE_MAX: Duration = Duration::from_secs(5);
/// Between two polls of probed connections; doubles from the first to the second.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(2);
const POLL_PAUSE_MAX: Duration = Duration::from_millis(250);
/// Witnesses that look up or connect to their lock managers at the same time.
const CONNECTING_MAX: usize = 256;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Beyond this many, watched hosts get no witness.
    pub(crate) witnesses_max: usize,
    /// How often a witness calls NULL: lock managers close connections after 6 idle minutes.
    pub(crate) null_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { witnesses_max: 10_000, null_interval: Duration::from_secs(2 * 60) }
    }
}

/// Called with a host of which a connection was reset without a probe, and the time of the last
/// acknowledgement on it. Must not block.
pub(crate) type OnReset = Arc<dyn Fn(&HostKey, Instant) + Send + Sync>;

/// A question about a host.
#[derive(Debug, Clone)]
pub(crate) struct Inquiry {
    pub(crate) host: HostKey,
    pub(crate) question: Question,
    /// When the reboot was reported, or now. Connections opened later say nothing about the kernel
    /// before it. The connection that carried the report need not be left out: what counts is since
    /// when its kernel is known to be up.
    pub(crate) asked: Instant,
}

/// Tracks connections and answers inquiries. Cheap to clone; may be called from any thread.
#[derive(Clone)]
pub(crate) struct Liveness(Arc<Inner>);

struct Inner {
    settings: Settings,
    peers: Peers,
    registry: Mutex<Registry<Witness>>,
    on_reset: OnReset,
    connecting: Arc<Semaphore>,
    /// Runs witnesses and inquiries, whatever thread asks for them.
    runtime: Option<Handle>,
}

/// Keeps a connection tracked. Held beside the socket by its owner, who reports how the connection
/// ended; dropping it first means an orderly end.
pub(crate) struct ConnectionGuard {
    inner: Weak<Inner>,
    connection: Arc<TrackedConnection>,
}

impl Default for Liveness {
    fn default() -> Self {
        let peers = Peers::new(crate::peer::Settings::default(), &[]);
        Self::new(Settings::default(), peers, Arc::new(|_, _| ()))
    }
}

impl Liveness {
    /// To be called inside a tokio runtime; outside of one, no witnesses are started.
    pub(crate) fn new(settings: Settings, peers: Peers, on_reset: OnReset) -> Self {
        Self(Arc::new(Inner {
            settings,
            peers,
            registry: Mutex::default(),
            on_reset,
            connecting: Arc::new(Semaphore::new(CONNECTING_MAX)),
            runtime: Handle::try_current().ok(),
        }))
    }

    /// Tracks a new connection with `remote`. Does not keep `socket` alive.
    pub(crate) fn track(
        &self,
        remote: IpAddr,
        opener: Opener,
        socket: Arc<dyn Socket>,
    ) -> ConnectionGuard {
        self.0.track(remote, opener, socket)
    }

    /// Answers a question of the keeper, within about ten seconds.
    pub(crate) async fn probe(&self, inquiry: &Inquiry) -> ProbeAnswer {
        let Inquiry { host, question, asked } = inquiry;
        match question {
            Question::SameKernel(incarnation) => {
                let last_lock = self.0.lock().last_lock(host, *incarnation);
                self.0.same_kernel(host, *asked, last_lock).await
            }
            Question::Reachable => match self.0.is_reachable(host).await {
                true => ProbeAnswer::Alive,
                false => ProbeAnswer::Silent,
            },
            Question::State => {
                let namespace = self.0.namespace(host);
                let until = (Instant::now() + STATE_MAX).into();
                match self
                    .0
                    .peers
                    .nsm_state(host.address(), namespace.server_address(), until)
                    .await
                {
                    Some(state) => ProbeAnswer::InState(Incarnation(state)),
                    None => ProbeAnswer::Silent,
                }
            }
        }
    }

    /// Watches a host that holds or awaits locks, by the namespace of its request: its connections
    /// are exempt from the idle timeout, and a witness is kept. Cheap if the host is watched already.
    pub(crate) fn watch(&self, host: &HostKey, namespace: OwnerNamespace) {
        let inner = &self.0;
        let witness = || {
            let lock_manager = LockManager::new(host.address(), namespace);
            let may_call = inner.peers.may_call(lock_manager.host, lock_manager.ours);
            let runtime = inner.runtime.as_ref().filter(|_| may_call)?;
            let task = witness::run(Arc::downgrade(inner), lock_manager, host.name().clone());
            Some(runtime.spawn(task).into())
        };
        let witnesses_max = inner.settings.witnesses_max;
        inner.lock().watch(host, namespace, witnesses_max, Instant::now(), witness);
    }

    /// Whether a host at this address holds or awaits locks.
    pub(crate) fn watches(&self, address: IpAddr) -> bool {
        self.0.lock().watches(address)
    }

    /// Stops watching all hosts that are not among `holders`, the lock holders as of `at`.
    pub(crate) fn unwatch_except(&self, holders: &HashSet<HostKey>, at: Instant) {
        let mut registry = self.0.lock();
        let gone: Vec<HostKey> = registry.watched().filter(|h| !holders.contains(h)).collect();
        for host in gone {
            registry.unwatch(&host, at);
        }
    }

    /// Records that a watched host took a lock or share, and when its request arrived. Connections
    /// open by then lead to the kernel that sent it.
    pub(crate) fn record_lock(&self, host: &HostKey, by: TakenBy, arrived: Instant) {
        self.0.lock().record_lock(host, by, arrived);
    }

    /// Records the state that the client tracker has of a host.
    pub(crate) fn record_state(&self, row: &Client) {
        self.0.lock().record_state(row);
    }
}

impl ConnectionGuard {
    /// Records the host name of an NFS or NLM request (from AUTH_SYS or the caller name of a lock
    /// request; may be empty). Before the first, the connection is no evidence for any host. Costs
    /// one comparison if the name is known.
    pub(crate) fn add_name(&self, name: &[u8]) {
        self.connection.add_name(name);
    }

    /// The connection has ended.
    pub(crate) fn ended(&self, by_reset: bool) {
        match self.inner.upgrade() {
            Some(inner) => inner.ended(&self.connection, by_reset),
            None => drop(self.connection.set_ended(by_reset, Instant::now())),
        }
    }

    /// Whether its host is watched: such a connection is not closed as idle (B7.5).
    pub(crate) fn is_watched(&self) -> bool {
        self.inner.upgrade().is_some_and(|inner| inner.lock().is_watched(&self.connection))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.ended(false);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Registry<Witness>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn track(
        self: &Arc<Self>,
        remote: IpAddr,
        opener: Opener,
        socket: Arc<dyn Socket>,
    ) -> ConnectionGuard {
        socket.set_keep_alive(socket::NORMAL);
        let connection = Arc::new(TrackedConnection::new(
            remote,
            opener,
            Arc::downgrade(&socket),
            Instant::now(),
        ));
        self.lock().insert(connection.clone());
        ConnectionGuard { inner: Arc::downgrade(self), connection }
    }

    fn ended(self: &Arc<Self>, connection: &Arc<TrackedConnection>, by_reset: bool) {
        let Some(end) = connection.set_ended(by_reset, Instant::now()) else { return };
        let resets = self.lock().end(connection, end);
        for reset in resets {
            self.report_reset(reset);
        }
    }

    /// Reports an unprompted reset. If the host has other connections, they are probed first: a
    /// kernel that acknowledges on one of them did not reboot.
    fn report_reset(self: &Arc<Self>, reset: UnpromptedReset) {
        match &self.runtime {
            Some(runtime) if !reset.no_other_connection => {
                let inner = self.clone();
                runtime.spawn(async move {
                    let UnpromptedReset { host, end, .. } = &reset;
                    let answer = inner.same_kernel(host, end.at, Some(end.last_ack)).await;
                    if answer != ProbeAnswer::Alive {
                        (inner.on_reset)(host, end.last_ack);
                    }
                });
            }
            _ => (self.on_reset)(&reset.host, reset.end.last_ack),
        }
    }

    async fn same_kernel(
        self: &Arc<Self>,
        host: &HostKey,
        asked: Instant,
        last_lock: Option<Instant>,
    ) -> ProbeAnswer {
        let evidence = Evidence::gather(&self.lock(), host, asked, last_lock, Instant::now());
        let mut inquiry = KernelInquiry::begin(evidence);
        let complete = poll_until(|| {
            inquiry.poll(&mut |connection, by_reset| self.ended(connection, by_reset));
            inquiry.is_complete()
        });
        let _ = timeout(SAME_KERNEL_MAX, complete).await;
        inquiry.answer()
    }

    /// Whether the host answers: on an open connection, or by its lock manager.
    async fn is_reachable(self: &Arc<Self>, host: &HostKey) -> bool {
        let asked = Instant::now();
        let connections = self.lock().connections_of(host, asked, CONNECTIONS_MAX);
        let mut round = Round::new(connections, asked, false);
        let connection_answers = async {
            poll_until(|| {
                round.poll(&mut |connection, by_reset| self.ended(connection, by_reset));
                round.is_complete() || round.is_acknowledged()
            })
            .await;
            round.is_acknowledged()
        };
        let namespace = self.namespace(host);
        let lock_manager = LockManager::new(host.address(), namespace);
        let until = (asked + REACHABLE_MAX).into();
        let lock_manager_answers =
            self.peers.answers_null(&lock_manager, namespace.transport(), until);
        let answers = either(connection_answers, lock_manager_answers);
        timeout(REACHABLE_MAX, answers).await.unwrap_or(false)
    }

    /// The namespace of a watched host. For others: any address of ours, TCP, NLM version 4.
    fn namespace(&self, host: &HostKey) -> OwnerNamespace {
        self.lock().namespace(host).unwrap_or_else(|| {
            let ours: IpAddr = match host.address() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            OwnerNamespace::new(ours, Transport::Tcp, 4)
        })
    }
}

/// Calls `poll` at growing intervals until it returns true.
async fn poll_until(mut poll: impl FnMut() -> bool) {
    let mut pause = POLL_PAUSE_MIN;
    while !poll() {
        sleep(pause).await;
        pause = (pause * 2).min(POLL_PAUSE_MAX);
    }
}

/// True as soon as one of the two is true; false once both are false.
async fn either(one: impl Future<Output = bool>, other: impl Future<Output = bool>) -> bool {
    let (mut one, mut other) = (pin!(one), pin!(other));
    tokio::select! {
        yes = &mut one => yes || other.await,
        yes = &mut other => yes || one.await,
    }
}
