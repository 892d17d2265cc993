//! TCP connections as the server's kernel sees them: a peer's kernel acknowledges a segment, resets
//! the connection, or does not answer. The conclusions are drawn by production code
//! (`server::liveness`).

use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use keeper::identity::{ClientId, HostKey, Incarnation};
use keeper::request::{ProbeAnswer, Question};
use server::liveness::connection::{Opener, TrackedConnection};
use server::liveness::inquiry::{CONNECTIONS_MAX, Evidence, KernelInquiry, SAME_KERNEL_MAX};
use server::liveness::registry::{Registry, UnpromptedReset};
use server::liveness::round::{OnEnded, Round};
use server::liveness::socket::{KeepAlive, NORMAL, Socket, SocketStatus, TcpState, URGENT};
use server::peer::permission;

use crate::engine::Input;
use crate::queue::{MINUTE, Ms, SECOND};
use crate::world::{Event, World};

/// An arbitrary origin: only differences matter.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn instant(at: Ms) -> Instant {
    *BEGINNING + Duration::from_millis(at)
}

/// After this idle time clients close a connection.
const IDLE_MAX: Ms = 5 * MINUTE;
/// How often the server checks its connections and the list of lock holders.
const SWEEP_EVERY: Ms = 20 * SECOND;
const REACHABLE_MAX: Ms = 5 * SECOND;
const STATE_MAX: Ms = 5 * SECOND;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Lock requests of one of the host's namespaces.
    Lock(usize),
    File,
    /// Opened by the server, to the host's lock manager.
    Witness,
    /// Opened by a user's program, from an unreserved port.
    User,
}

/// A connection, with the boot of the kernel that is really at its other end.
pub(crate) struct Connection {
    pub host: usize,
    pub life: u32,
    pub purpose: Purpose,
    socket: Mutex<SocketState>,
}

#[derive(Clone, Copy)]
struct SocketState {
    life: Ms,
    last_used: Ms,
    urgent: bool,
    urgent_since: Option<Ms>,
    unanswered: u32,
    /// Closed; `true` if by a reset.
    closed: Option<bool>,
    end_taken: bool,
}

/// What happens to a segment that the server sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reaction {
    Acknowledged,
    Reset,
    Inconclusive,
}

impl Connection {
    fn socket(&self) -> MutexGuard<'_, SocketState> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances the state of the connection to `now`.
    fn react(&self, reaction: Reaction, now: Ms) {
        let mut socket = self.socket();
        if socket.closed.is_some() {
            return;
        }
        if socket.urgent {
            socket.urgent_since.get_or_insert(now);
        } else {
            socket.urgent_since = None;
        }
        let (idle, every) = (NORMAL.idle.as_millis() as Ms, NORMAL.interval.as_millis() as Ms);
        let silent = now - socket.life;
        match reaction {
            Reaction::Acknowledged => {
                let heard = if socket.urgent { now } else { socket.life + silent / idle * idle };
                socket.life = heard;
                socket.unanswered = 0;
            }
            Reaction::Reset if socket.urgent || silent >= idle => socket.closed = Some(true),
            Reaction::Reset => {}
            Reaction::Inconclusive => {
                let asked = match socket.urgent_since {
                    Some(since) => 1 + (now - since) / (URGENT.interval.as_millis() as Ms),
                    None => silent.saturating_sub(idle) / every,
                };
                socket.unanswered = asked as u32;
                if !socket.urgent && socket.unanswered >= NORMAL.count {
                    socket.closed = Some(false);
                }
            }
        }
    }
}

impl Socket for Connection {
    fn status(&self) -> Option<SocketStatus> {
        let socket = self.socket();
        let state = if socket.closed.is_some() { TcpState::Closed } else { TcpState::Established };
        Some(SocketStatus { state, last_ack: instant(socket.life), unanswered: socket.unanswered })
    }

    fn set_keep_alive(&self, keep_alive: KeepAlive) {
        self.socket().urgent = keep_alive == URGENT;
    }

    fn take_end(&self) -> Option<bool> {
        let mut socket = self.socket();
        let closed = socket.closed.filter(|_| !socket.end_taken)?;
        socket.end_taken = true;
        Some(closed)
    }
}

/// An open connection of the server, and its entry in the registry.
pub(crate) struct OpenConnection {
    pub connection: Arc<Connection>,
    pub tracked: Arc<TrackedConnection>,
    pub opened: Ms,
}

/// While this exists, a witness connection is maintained.
pub(crate) struct Witness(#[allow(dead_code, reason = "its reference count matters")] Arc<()>);

/// The connections of the server process.
#[derive(Default)]
pub(crate) struct Connections {
    pub registry: Registry<Witness>,
    open: Vec<OpenConnection>,
    inquiries: Vec<(u64, Inquiry)>,
    next: u64,
}

struct Inquiry {
    kind: InquiryKind,
    purpose: InquiryPurpose,
    until: Ms,
}

/// The production inquiry, over the connections of a host.
enum InquiryKind {
    SameKernel(KernelInquiry),
    /// In parallel with a call to the host's lock manager.
    Reachable(Round, usize),
}

impl InquiryKind {
    fn look(&mut self, ended: OnEnded<'_>) {
        match self {
            Self::SameKernel(inquiry) => inquiry.poll(ended),
            Self::Reachable(round, _) => round.poll(ended),
        }
    }
}

enum InquiryPurpose {
    Probe(ClientId, Question),
    Reset(UnpromptedReset),
}

impl Connections {
    /// When the connection over which a kernel sends the requests of a namespace was opened.
    pub(crate) fn carries(&self, host: usize, life: u32, namespace: usize) -> Option<Ms> {
        let mut open = self.open.iter();
        let found = open.find(|OpenConnection { connection: it, .. }| {
            let same = it.host == host && it.life == life && it.purpose == Purpose::Lock(namespace);
            same && it.socket().closed.is_none()
        });
        found.map(|tracked| tracked.opened)
    }
}

impl World {
    /// What the peer's kernel does with a segment.
    fn reaction(&self, connection: &Connection) -> Reaction {
        let host = &self.hosts[connection.host];
        if !self.reachable(connection.host) {
            return Reaction::Inconclusive;
        }
        if host.life == connection.life {
            Reaction::Acknowledged
        } else if host.drops_unknown {
            Reaction::Inconclusive
        } else {
            Reaction::Reset
        }
    }

    /// When the host's connection for this purpose was opened; opens it if there is none.
    pub(crate) fn connected(&mut self, host: usize, life: u32, purpose: Purpose) -> Option<Ms> {
        let now = self.now;
        let engine = self.server.engine.as_mut()?;
        let open = &mut engine.connections.open;
        let known = open.iter().find(|tracked| {
            let it = &tracked.connection;
            it.host == host && it.life == life && it.purpose == purpose
        });
        if let Some(known) = known {
            let mut socket = known.connection.socket();
            if socket.closed.is_none() {
                socket.life = now;
                socket.last_used = now;
                return Some(known.opened);
            }
        }
        self.open_connection(host, life, purpose);
        Some(now)
    }

    pub(crate) fn open_connection(&mut self, host: usize, life: u32, purpose: Purpose) {
        let now = self.now;
        let (address, name) = (self.hosts[host].address, self.hosts[host].name.clone());
        let Some(engine) = &mut self.server.engine else { return };
        let socket = SocketState {
            life: now,
            last_used: now,
            urgent: false,
            urgent_since: None,
            unanswered: 0,
            closed: None,
            end_taken: false,
        };
        let connection = Arc::new(Connection { host, life, purpose, socket: Mutex::new(socket) });
        let opener = match purpose {
            Purpose::User => Opener::User,
            _ => Opener::Kernel,
        };
        let socket: Arc<dyn Socket> = connection.clone();
        let tracked = Arc::new(TrackedConnection::new(
            address,
            opener,
            Arc::downgrade(&socket),
            instant(now),
        ));
        tracked.add_name(name.bytes());
        engine.connections.registry.insert(tracked.clone());
        engine.connections.open.push(OpenConnection { connection, tracked, opened: now });
        if purpose != Purpose::Witness {
            self.input(Input::Heard { address, local: false });
        }
        // An unprivileged user does not speak for its host.
        if !matches!(purpose, Purpose::Witness | Purpose::User) {
            let ours = self.hosts[host].namespaces[0].server_address();
            self.input(Input::Mounted { address, ours });
        }
    }

    /// The server notices the end of a connection.
    fn connection_ended(&mut self, tracked: &Arc<TrackedConnection>, by_reset: bool) {
        let now = self.now;
        let Some(end) = tracked.set_ended(by_reset, instant(now)) else { return };
        let Some(engine) = &mut self.server.engine else { return };
        let connections = &mut engine.connections;
        let resets = connections.registry.end(tracked, end);
        connections.open.retain(|open| !Arc::ptr_eq(&open.tracked, tracked));
        for reset in resets {
            if reset.no_other_connection {
                self.report_reset(reset);
            } else {
                let (host, end) = (reset.host.clone(), reset.end);
                self.begin_inquiry(&host, end.at, Some(end.last_ack), InquiryPurpose::Reset(reset));
            }
        }
    }

    fn report_reset(&mut self, reset: UnpromptedReset) {
        let Some(engine) = &self.server.engine else { return };
        let started = instant(engine.started);
        let life = reset.end.last_ack.saturating_duration_since(started);
        self.coverage.reach("reset seen");
        self.input(Input::Reset { host: reset.host, life });
    }

    /// A user on a host resets its own connections.
    pub(crate) fn reset_user_connections(&mut self, host: usize) {
        let Some(engine) = &self.server.engine else { return };
        let users = engine.connections.open.iter().filter(|tracked| {
            tracked.connection.host == host && tracked.connection.purpose == Purpose::User
        });
        let tracked: Vec<Arc<TrackedConnection>> =
            users.map(|tracked| tracked.tracked.clone()).collect();
        for tracked in tracked {
            self.coverage.reach("user resets its own connection");
            self.connection_ended(&tracked, true);
        }
    }

    fn refresh(&mut self, address: Option<IpAddr>) {
        let now = self.now;
        let Some(engine) = &self.server.engine else { return };
        let wanted = engine.connections.open.iter();
        for tracked in wanted.filter(|t| address.is_none_or(|address| t.tracked.address == address))
        {
            let reaction = self.reaction(&tracked.connection);
            tracked.connection.react(reaction, now);
        }
    }

    /// The server checks its connections: some have ended, and clients close idle ones.
    pub(crate) fn sweep_connections(&mut self) {
        let (now, life) = (self.now, self.server.life);
        self.later(SWEEP_EVERY, Event::ConnectionSweep { life });
        self.refresh(None);
        let Some(engine) = &self.server.engine else { return };
        let mut ended = Vec::new();
        for OpenConnection { connection, tracked, .. } in &engine.connections.open {
            let idle = now - connection.socket().last_used > IDLE_MAX;
            let host = &self.hosts[connection.host];
            let alive = host.life == connection.life && self.reachable(connection.host);
            if let Some(by_reset) = connection.take_end() {
                ended.push((tracked.clone(), by_reset));
            } else if idle && alive && connection.purpose != Purpose::Witness {
                ended.push((tracked.clone(), false));
            }
        }
        for (tracked, by_reset) in ended {
            self.connection_ended(&tracked, by_reset);
        }
        self.watch_holders();
    }

    /// Adjusts the witnesses to the hosts that hold locks, restored ones included.
    fn watch_holders(&mut self) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let holders = server::holders::lock_holders(&engine.decider.keeper);
        let mut known: Vec<HostKey> = engine.connections.registry.watched().collect();
        // Sorted, because the order of the table is not deterministic.
        known.sort();
        for host in known {
            if !holders.iter().any(|(holder, _)| *holder == host) {
                engine.connections.registry.unwatch(&host, instant(now));
            }
        }
        for (host, namespace) in holders {
            self.watch_host(&host, namespace);
        }
    }

    /// The host holds or awaits a lock: maintains a witness.
    pub(crate) fn watch_host(
        &mut self,
        host: &HostKey,
        namespace: keeper::identity::OwnerNamespace,
    ) {
        let now = self.now;
        // No simulated host has an address of the server.
        let may_call =
            permission::refusal(host.address(), namespace.server_address(), &|_| false).is_none();
        let Some(engine) = &mut self.server.engine else { return };
        let mut begun = None;
        let witness = || {
            let alive = Arc::new(());
            begun = may_call.then(|| Arc::downgrade(&alive));
            begun.is_some().then_some(Witness(alive))
        };
        engine.connections.registry.watch(host, namespace, 1000, instant(now), witness);
        if let Some(alive) = begun {
            let life = self.server.life;
            let pause = self.random.between(20, 2 * SECOND);
            self.later(pause, Event::MaintainWitness { life, host: host.clone(), alive });
        }
    }

    pub(crate) fn keep_witness(&mut self, host: HostKey, alive: Weak<()>) {
        let life = self.server.life;
        let named = |it: &crate::host::Host| it.is(host.address(), host.name());
        let Some(index) = self.hosts.iter().position(named) else { return };
        let Some(engine) = &self.server.engine else { return };
        let mut witnesses = engine.connections.open.iter().filter(|tracked| {
            let it = &tracked.connection;
            it.host == index && it.purpose == Purpose::Witness
        });
        let tracked = witnesses.next().map(|tracked| tracked.tracked.clone());
        if alive.strong_count() == 0 {
            if let Some(tracked) = tracked {
                self.connection_ended(&tracked, false);
            }
            return;
        }
        if tracked.is_none() && self.can_be_called(index) {
            let kernel = self.hosts[index].life;
            self.open_connection(index, kernel, Purpose::Witness);
            self.coverage.reach("witness stands");
        }
        let pause = self.random.between(5 * SECOND, MINUTE);
        self.later(pause, Event::MaintainWitness { life, host, alive });
    }

    /// Whether a call of the server reaches the host and is answered.
    pub(crate) fn can_be_called(&self, host: usize) -> bool {
        self.reachable(host) && !self.hosts[host].firewalled
    }

    pub(crate) fn begin_probe(&mut self, client: ClientId, question: Question) {
        let Some(host) = self.host_of(client) else {
            return self.input(Input::Probed(client, question, ProbeAnswer::Silent));
        };
        if self.random.per_mille(self.chaos_per_mille(15)) {
            self.fault("probe never answered");
            return;
        }
        let life = self.server.life;
        match question {
            Question::SameKernel(about) => {
                let Some(engine) = &self.server.engine else { return };
                let Some(view) = engine.decider.keeper.client(client) else { return };
                let key = view.client.key();
                let taken = engine.connections.registry.last_lock(&key, about);
                self.begin_inquiry(
                    &key,
                    instant(self.now),
                    taken,
                    InquiryPurpose::Probe(client, question),
                );
            }
            Question::Reachable => {
                let Some(engine) = &self.server.engine else { return };
                let Some(view) = engine.decider.keeper.client(client) else { return };
                let asked = instant(self.now);
                let registry = &engine.connections.registry;
                let tracked = registry.connections_of(&view.client.key(), asked, CONNECTIONS_MAX);
                let kind = InquiryKind::Reachable(Round::new(tracked, asked, false), host);
                self.start_inquiry(kind, InquiryPurpose::Probe(client, question), REACHABLE_MAX);
            }
            Question::State => {
                let answers = self.can_be_called(host);
                let pause = if answers { self.random.between(1, 600) } else { STATE_MAX };
                self.later(pause, Event::StateProbeEnds { life, client, question });
            }
        }
    }

    fn begin_inquiry(
        &mut self,
        host: &HostKey,
        asked: Instant,
        taken: Option<Instant>,
        purpose: InquiryPurpose,
    ) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let connections = &mut engine.connections;
        let evidence = Evidence::gather(&connections.registry, host, asked, taken, instant(now));
        let kind = InquiryKind::SameKernel(KernelInquiry::begin(evidence));
        self.start_inquiry(kind, purpose, SAME_KERNEL_MAX.as_millis() as Ms);
    }

    fn start_inquiry(&mut self, kind: InquiryKind, purpose: InquiryPurpose, max: Ms) {
        let (now, life) = (self.now, self.server.life);
        let Some(engine) = &mut self.server.engine else { return };
        let connections = &mut engine.connections;
        connections.next += 1;
        let id = connections.next;
        connections.inquiries.push((id, Inquiry { kind, purpose, until: now + max }));
        let pause = self.random.between(25, 400);
        self.later(pause, Event::InquiryRound { life, id });
    }

    /// One round of an inquiry; reports the answer when it is decided or its time is over.
    pub(crate) fn inquiry_round(&mut self, id: u64) {
        let (now, life) = (self.now, self.server.life);
        self.refresh(None);
        let callable: Vec<bool> = (0..self.hosts.len()).map(|h| self.can_be_called(h)).collect();
        let Some(engine) = &mut self.server.engine else { return };
        let inquiries = &mut engine.connections.inquiries;
        let Some(at) = inquiries.iter().position(|(known, _)| *known == id) else { return };
        let mut ended = Vec::new();
        let inquiry = &mut inquiries[at].1;
        // Ends are recorded at once, as in production, and removed from the registry below.
        inquiry.kind.look(&mut |tracked, by_reset| {
            if let Some(end) = tracked.set_ended(by_reset, instant(now)) {
                ended.push((tracked.clone(), end));
            }
        });
        let late = now >= inquiry.until;
        let answer = match &inquiry.kind {
            InquiryKind::SameKernel(it) => (it.is_complete() || late).then(|| it.answer()),
            InquiryKind::Reachable(round, _) if round.is_acknowledged() => Some(ProbeAnswer::Alive),
            InquiryKind::Reachable(_, host) if callable[*host] => Some(ProbeAnswer::Alive),
            InquiryKind::Reachable(..) => late.then_some(ProbeAnswer::Silent),
        };
        let done = answer.map(|answer| (answer, inquiries.swap_remove(at).1));
        for (tracked, end) in ended {
            if let Some(engine) = &mut self.server.engine {
                engine.connections.registry.end(&tracked, end);
                engine.connections.open.retain(|open| !Arc::ptr_eq(&open.tracked, &tracked));
            }
        }
        let Some((answer, Inquiry { kind, purpose, .. })) = done else {
            let pause = self.random.between(200, 1500);
            return self.later(pause, Event::InquiryRound { life, id });
        };
        drop(kind);
        match purpose {
            InquiryPurpose::Probe(client, question) => self.probed(client, question, answer),
            InquiryPurpose::Reset(reset) => {
                if answer != ProbeAnswer::Alive {
                    self.report_reset(reset);
                }
            }
        }
    }

    /// A status monitor has answered, or the probe timed out.
    pub(crate) fn probe_ends(&mut self, client: ClientId, question: Question) {
        let host = self.host_of(client).filter(|host| self.can_be_called(*host));
        let answer = match host {
            Some(host) => ProbeAnswer::InState(self.state_answered(host)),
            None => ProbeAnswer::Silent,
        };
        self.probed(client, question, answer);
    }

    fn probed(&mut self, client: ClientId, question: Question, mut answer: ProbeAnswer) {
        let up = self.host_of(client).is_some_and(|host| self.hosts[host].up);
        if answer == ProbeAnswer::Silent && up {
            self.coverage.reach("silent but alive");
        }
        let harmless = matches!(answer, ProbeAnswer::Silent | ProbeAnswer::Gone);
        if harmless && self.random.per_mille(self.chaos_per_mille(30)) {
            self.fault("probe answered wrongly, on the safe side");
            answer = ProbeAnswer::Alive;
        }
        self.input(Input::Probed(client, question, answer));
    }

    /// The state that the host's status monitor reports.
    fn state_answered(&self, host: usize) -> Incarnation {
        let host = &self.hosts[host];
        let behind = if host.answers_old_state { 2 } else { 0 };
        Incarnation(host.state.wrapping_sub(behind))
    }
}
