//! Which connections belong to which host, and whether the kernel at their other end still lives
//! (R6.1, R6.2, R4.5).
//!
//! A kernel that rebooted knows nothing of the TCP connections of its predecessor: it answers a
//! segment on one with a reset, or not at all; a living kernel acknowledges it. So old connections
//! are witnesses: any of them may testify life, those from reserved ports also death, because a user
//! of the machine can neither open nor reset those. `round.rs` asks all lines of a host at once,
//! `verdict.rs` says what their answers mean together, `inquiry.rs` joins the two; they and
//! `registry.rs` and `line.rs` decide without I/O, and the simulator runs them. `tcp_info.rs` makes
//! the kernel ask.
//!
//! A reset that answers our question is proof. A reset that comes by itself is only a suspicion: it
//! is reported (`on_reset`), unless another connection of the same kernel answers at once.
//!
//! What the driver does: [`watch`](Liveness::watch) and then [`took`](Liveness::took) when a host is
//! given a lock or a place in line, and for every recovered host at a start; `took` for a reclaim
//! that is granted; [`unwatch_except`](Liveness::unwatch_except) when hosts have nothing left;
//! [`probe`](Liveness::probe), on a task of its own, for each `Message::Probe`.

pub mod inquiry;
pub mod line;
pub mod pulse;
pub mod registry;
pub mod round;
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

use keeper::identity::{HostKey, Incarnation, Lane, Transport};
use keeper::request::{ProbeAnswer, Question};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::peer::{LockManager, Peers};
use inquiry::{Evidence, LINES_MAX, SAME_KERNEL_MAX, SameKernel};
use line::Line;
pub use line::{Opener, Socket};
use registry::{Registry, Suspect};
use round::Round;
pub use tcp_info::Stream;
use witness::Witness;

const REACHABLE_MAX: Duration = Duration::from_secs(5);
const STATE_MAX: Duration = Duration::from_secs(5);
/// How often lines are looked at; the first times sooner.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Witnesses that look for their lock managers at once.
const CONNECTING_MAX: usize = 256;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Hosts with a connection to their lock manager of our own.
    pub witnesses_max: usize,
    /// How often a witness calls NULL: lock managers close what is idle for 6 minutes.
    pub null_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { witnesses_max: 10_000, null_every: Duration::from_secs(2 * 60) }
    }
}

/// Called with a host of which a connection was reset without our having asked, and when there was
/// the last sign of life on it. It must not block.
pub type OnReset = Arc<dyn Fn(&HostKey, Instant) + Send + Sync>;

/// What to find out about a host.
#[derive(Debug, Clone)]
pub struct Inquiry {
    pub host: HostKey,
    pub question: Question,
    /// When the claim arrived, or now: connections opened later say nothing about the kernel before
    /// it. The connection that brought the claim need not be left out: what counts is since when its
    /// kernel is known.
    pub asked: Instant,
}

#[derive(Clone)]
pub struct Liveness(Arc<Shared>);

struct Shared {
    settings: Settings,
    peers: Peers,
    registry: Mutex<Registry<Witness>>,
    on_reset: OnReset,
    connecting: Arc<Semaphore>,
    /// Callers may be on threads of their own.
    runtime: Option<Handle>,
}

/// A connection that `Liveness` knows of. Whoever owns the socket keeps this beside it, and says how
/// it ended; if this is dropped before, it ended in order.
pub struct Acquaintance {
    shared: Weak<Shared>,
    line: Arc<Line>,
}

impl Default for Liveness {
    fn default() -> Self {
        let peers = Peers::new(crate::peer::Settings::default(), &[]);
        Self::new(Settings::default(), peers, Arc::new(|_, _| ()))
    }
}

impl Liveness {
    /// To be called inside a runtime: witnesses run there, whatever thread asks for them.
    pub fn new(settings: Settings, peers: Peers, on_reset: OnReset) -> Self {
        Self(Arc::new(Shared {
            settings,
            peers,
            registry: Mutex::default(),
            on_reset,
            connecting: Arc::new(Semaphore::new(CONNECTING_MAX)),
            runtime: Handle::try_current().ok(),
        }))
    }

    /// A connection with `remote` opened. It is looked at through `socket` as long as that exists.
    pub fn opened(&self, remote: IpAddr, opener: Opener, socket: Arc<dyn Socket>) -> Acquaintance {
        self.0.opened(remote, opener, socket)
    }

    /// The answer to a question of the keeper.
    pub async fn probe(&self, inquiry: &Inquiry) -> ProbeAnswer {
        let Inquiry { host, question, asked } = inquiry;
        match question {
            Question::SameKernel(incarnation) => {
                let taken = self.0.lock().taken(host, *incarnation);
                self.0.same_kernel(host, *asked, taken).await
            }
            Question::Reachable => match self.0.is_reachable(host).await {
                true => ProbeAnswer::Alive,
                false => ProbeAnswer::Silent,
            },
            Question::State => {
                let lane = self.0.lock().lane(host).unwrap_or_else(|| any_lane(host));
                let until = (Instant::now() + STATE_MAX).into();
                match self.0.peers.nsm_state(host.address(), lane.ours(), until).await {
                    Some(state) => ProbeAnswer::InState(Incarnation(state)),
                    None => ProbeAnswer::Silent,
                }
            }
        }
    }

    /// The host holds or awaits locks, and came by this lane: its connections are not closed for being idle,
    /// and one of our own to its lock manager is kept up. Repeating it costs little.
    pub fn watch(&self, host: &HostKey, lane: Lane) {
        let shared = &self.0;
        let (settings, weak) = (&shared.settings, Arc::downgrade(shared));
        let witness = || {
            let lock_manager = LockManager::new(host.address(), lane);
            let task = witness::stand(weak, lock_manager, host.name().clone());
            let may_call = shared.peers.may_call(lock_manager.host, lock_manager.ours);
            let runtime = shared.runtime.as_ref().filter(|_| may_call)?;
            Some(runtime.spawn(task).into())
        };
        shared.lock().hold(host, lane, settings.witnesses_max, Instant::now(), witness);
    }

    /// Hosts that are watched and, as of that time, held nothing are watched no more.
    pub fn unwatch_except(&self, holders: &HashSet<HostKey>, at: Instant) {
        let mut registry = self.0.lock();
        let gone: Vec<HostKey> = registry.holders().filter(|h| !holders.contains(h)).collect();
        for host in gone {
            registry.release(&host, at);
        }
    }

    /// A watched host was given a lock: its request arrived at that time and carried that state
    /// (none if it was a reclaim). Connections that were open by then are that kernel's.
    pub fn took(&self, host: &HostKey, incarnation: Incarnation, arrived: Instant) {
        self.0.lock().took(host, incarnation, arrived);
    }
}

impl Acquaintance {
    /// A file or lock request came from a machine of that name (AUTH_SYS, or the caller of a lock
    /// request; empty if it does not say). Costs a comparison if that is known. Until then the
    /// connection is nobody's sign of life.
    pub fn named(&self, name: &[u8]) {
        self.line.named(name);
    }

    /// The connection is over.
    pub fn ended(&self, by_reset: bool) {
        match self.shared.upgrade() {
            Some(shared) => shared.ended(&self.line, by_reset),
            None => drop(self.line.set_ended(by_reset, Instant::now())),
        }
    }

    /// A lock holder's connections are not closed for being idle (R6.5).
    pub fn is_kept(&self) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.lock().is_holder(&self.line))
    }
}

impl Drop for Acquaintance {
    fn drop(&mut self) {
        self.ended(false);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Registry<Witness>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(
        self: &Arc<Self>,
        remote: IpAddr,
        opener: Opener,
        socket: Arc<dyn Socket>,
    ) -> Acquaintance {
        socket.set_rhythm(pulse::CALM);
        let line = Arc::new(Line::new(remote, opener, Arc::downgrade(&socket), Instant::now()));
        self.lock().insert(line.clone());
        Acquaintance { shared: Arc::downgrade(self), line }
    }

    fn ended(self: &Arc<Self>, line: &Arc<Line>, by_reset: bool) {
        let Some(end) = line.set_ended(by_reset, Instant::now()) else { return };
        let suspects = self.lock().end(line, end);
        for suspect in suspects {
            self.suspect(suspect);
        }
    }

    /// A line of this host was reset by itself. If others are left, they are asked first: a kernel
    /// that answers on one of its older lines did not reboot.
    fn suspect(self: &Arc<Self>, suspect: Suspect) {
        match &self.runtime {
            Some(runtime) if !suspect.alone => {
                let shared = self.clone();
                runtime.spawn(async move {
                    let Suspect { host, end, .. } = &suspect;
                    let answer = shared.same_kernel(host, end.at, Some(end.life)).await;
                    if answer != ProbeAnswer::Alive {
                        (shared.on_reset)(host, end.life);
                    }
                });
            }
            _ => (self.on_reset)(&suspect.host, suspect.end.life),
        }
    }

    async fn same_kernel(
        self: &Arc<Self>,
        host: &HostKey,
        asked: Instant,
        taken: Option<Instant>,
    ) -> ProbeAnswer {
        let evidence = Evidence::gather(&self.lock(), host, asked, taken, Instant::now());
        let mut inquiry = SameKernel::begin(evidence);
        let mut ended = |line: &Arc<Line>, by_reset| self.ended(line, by_reset);
        let look = async {
            let mut pause = PAUSE_MIN;
            inquiry.look(&mut ended);
            while !inquiry.is_over() {
                next_look(&mut pause).await;
                inquiry.look(&mut ended);
            }
        };
        let _ = timeout(SAME_KERNEL_MAX, look).await;
        inquiry.answer()
    }

    /// Whether anybody answers there: on a connection that is open, or its lock manager.
    async fn is_reachable(self: &Arc<Self>, host: &HostKey) -> bool {
        let asked = Instant::now();
        let (lines, lane) = {
            let registry = self.lock();
            (registry.lines_of(host, asked, LINES_MAX), registry.lane(host))
        };
        let mut round = Round::new(lines, asked, false);
        let mut ended = |line: &Arc<Line>, by_reset| self.ended(line, by_reset);
        let lines_answer = async {
            let mut pause = PAUSE_MIN;
            round.look(&mut ended);
            while !round.is_over() && !round.hears_life() {
                next_look(&mut pause).await;
                round.look(&mut ended);
            }
            round.hears_life()
        };
        let lane = lane.unwrap_or_else(|| any_lane(host));
        let lock_manager = LockManager::new(host.address(), lane);
        let until = (asked + REACHABLE_MAX).into();
        let lock_manager_answers = self.peers.answers_null(&lock_manager, lane.transport(), until);
        timeout(REACHABLE_MAX, either(lines_answer, lock_manager_answers)).await.unwrap_or(false)
    }
}

async fn next_look(pause: &mut Duration) {
    sleep(*pause).await;
    *pause = (*pause * 2).min(PAUSE_MAX);
}

/// For a host of which we do not know by which way it came.
fn any_lane(host: &HostKey) -> Lane {
    let ours: IpAddr = match host.address() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Lane::new(ours, Transport::Tcp, 4)
}

/// True as soon as one of them is, false when both are not.
async fn either(one: impl Future<Output = bool>, other: impl Future<Output = bool>) -> bool {
    let (mut one, mut other) = (pin!(one), pin!(other));
    tokio::select! {
        yes = &mut one => yes || other.await,
        yes = &mut other => yes || one.await,
    }
}
