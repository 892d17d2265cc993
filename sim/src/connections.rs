//! TCP connections as the server's kernel sees them, and what the kernels at the other end do with
//! the segments on them: acknowledge, reset, or nothing. What follows from that is the server's own
//! code (`server::liveness`).

use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use keeper::identity::{ClientId, HostKey, Incarnation};
use keeper::request::{ProbeAnswer, Question};
use server::liveness::inquiry::{Evidence, LINES_MAX, SAME_KERNEL_MAX, SameKernel};
use server::liveness::line::{Line, Opener, Socket};
use server::liveness::pulse::{CALM, Pulse, Rhythm, State, URGENT};
use server::liveness::registry::{Registry, Suspect};
use server::liveness::round::{OnEnded, Round};
use server::peer::permission;

use crate::engine::Input;
use crate::queue::{MINUTE, Ms, SECOND};
use crate::world::{Event, World};

/// A fixed moment: only what lies between two moments counts.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

pub fn instant(at: Ms) -> Instant {
    *BEGINNING + Duration::from_millis(at)
}

/// Clients close what is idle for so long.
const IDLE_MAX: Ms = 5 * MINUTE;
/// How often the server looks at its connections, and at who holds locks.
const LOOK_EVERY: Ms = 20 * SECOND;
const REACHABLE_MAX: Ms = 5 * SECOND;
const STATE_MAX: Ms = 5 * SECOND;

/// What a connection is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Lock requests, over one of the host's lanes.
    Lock(usize),
    File,
    /// Ours, to its lock manager.
    Witness,
    /// A program of a user, from an unreserved port.
    User,
}

/// One connection, with the kernel that truly is at its other end.
pub struct Connection {
    pub host: usize,
    pub life: u32,
    pub purpose: Purpose,
    seen: Mutex<Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    life: Ms,
    last_used: Ms,
    urgent: bool,
    urgent_since: Option<Ms>,
    unanswered: u32,
    /// It is closed; true if by a reset.
    closed: Option<bool>,
    end_taken: bool,
}

/// What happens to a segment of ours on a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reaction {
    Acknowledged,
    Reset,
    Nothing,
}

impl Connection {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass on the connection.
    fn react(&self, reaction: Reaction, now: Ms) {
        let mut seen = self.seen();
        if seen.closed.is_some() {
            return;
        }
        if seen.urgent {
            seen.urgent_since.get_or_insert(now);
        } else {
            seen.urgent_since = None;
        }
        let (idle, every) = (CALM.idle.as_millis() as Ms, CALM.every.as_millis() as Ms);
        let silent = now - seen.life;
        match reaction {
            Reaction::Acknowledged => {
                let heard = if seen.urgent { now } else { seen.life + silent / idle * idle };
                seen.life = heard;
                seen.unanswered = 0;
            }
            Reaction::Reset if seen.urgent || silent >= idle => seen.closed = Some(true),
            Reaction::Reset => {}
            Reaction::Nothing => {
                let asked = match seen.urgent_since {
                    Some(since) => 1 + (now - since) / (URGENT.every.as_millis() as Ms),
                    None => silent.saturating_sub(idle) / every,
                };
                seen.unanswered = asked as u32;
                if !seen.urgent && seen.unanswered >= CALM.count {
                    seen.closed = Some(false);
                }
            }
        }
    }
}

impl Socket for Connection {
    fn pulse(&self) -> Option<Pulse> {
        let seen = self.seen();
        let state = if seen.closed.is_some() { State::Closed } else { State::Established };
        Some(Pulse { state, life: instant(seen.life), unanswered: seen.unanswered })
    }

    fn set_rhythm(&self, rhythm: Rhythm) {
        self.seen().urgent = rhythm == URGENT;
    }

    fn take_end(&self) -> Option<bool> {
        let mut seen = self.seen();
        let closed = seen.closed.filter(|_| !seen.end_taken)?;
        seen.end_taken = true;
        Some(closed)
    }
}

/// A connection that the server has open.
pub struct Tracked {
    pub connection: Arc<Connection>,
    pub line: Arc<Line>,
    pub opened: Ms,
}

/// As long as this exists, a witness is kept up.
pub struct Witness(#[allow(dead_code, reason = "it counts those who hold it")] Arc<()>);

/// All that the server knows of connections; it ends with the process.
#[derive(Default)]
pub struct Connections {
    pub registry: Registry<Witness>,
    open: Vec<Tracked>,
    inquiries: Vec<(u64, Inquiry)>,
    next: u64,
}

struct Inquiry {
    question: Asking,
    purpose: Asked,
    until: Ms,
}

/// What the server's own code does with the lines of a host.
enum Asking {
    SameKernel(SameKernel),
    /// The lines of a host; beside them its lock manager is called.
    Reachable(Round, usize),
}

impl Asking {
    fn look(&mut self, ended: OnEnded<'_>) {
        match self {
            Self::SameKernel(inquiry) => inquiry.look(ended),
            Self::Reachable(round, _) => round.look(ended),
        }
    }
}

enum Asked {
    Probe(ClientId, Question),
    Reset(Suspect),
}

impl Connections {
    /// Since when there is one over which a kernel sends the requests of this lane.
    pub fn carries(&self, host: usize, life: u32, lane: usize) -> Option<Ms> {
        let mut open = self.open.iter();
        let found = open.find(|Tracked { connection: it, .. }| {
            let same = it.host == host && it.life == life && it.purpose == Purpose::Lock(lane);
            same && it.seen().closed.is_none()
        });
        found.map(|tracked| tracked.opened)
    }
}

impl World {
    /// What the kernel at the other end does with a segment.
    fn reaction(&self, connection: &Connection) -> Reaction {
        let host = &self.hosts[connection.host];
        if !self.reachable(connection.host) {
            return Reaction::Nothing;
        }
        if host.life == connection.life {
            Reaction::Acknowledged
        } else if host.drops_unknown {
            Reaction::Nothing
        } else {
            Reaction::Reset
        }
    }

    /// The connection of a host for this purpose, and since when it is open; opened if it must be.
    pub fn connected(&mut self, host: usize, life: u32, purpose: Purpose) -> Option<Ms> {
        let now = self.now;
        let engine = self.server.engine.as_mut()?;
        let open = &mut engine.connections.open;
        let known = open.iter().find(|tracked| {
            let it = &tracked.connection;
            it.host == host && it.life == life && it.purpose == purpose
        });
        if let Some(known) = known {
            let mut seen = known.connection.seen();
            if seen.closed.is_none() {
                seen.life = now;
                seen.last_used = now;
                return Some(known.opened);
            }
        }
        self.open_connection(host, life, purpose);
        Some(now)
    }

    pub fn open_connection(&mut self, host: usize, life: u32, purpose: Purpose) {
        let now = self.now;
        let (address, name) = (self.hosts[host].address, self.hosts[host].name.clone());
        let Some(engine) = &mut self.server.engine else { return };
        let seen = Seen {
            life: now,
            last_used: now,
            urgent: false,
            urgent_since: None,
            unanswered: 0,
            closed: None,
            end_taken: false,
        };
        let connection = Arc::new(Connection { host, life, purpose, seen: Mutex::new(seen) });
        let opener = match purpose {
            Purpose::User => Opener::User,
            _ => Opener::Kernel,
        };
        let socket: Arc<dyn Socket> = connection.clone();
        let line = Arc::new(Line::new(address, opener, Arc::downgrade(&socket), instant(now)));
        line.named(name.bytes());
        engine.connections.registry.insert(line.clone());
        engine.connections.open.push(Tracked { connection, line, opened: now });
        if purpose != Purpose::Witness {
            self.input(Input::Heard { address, local: false });
        }
    }

    /// A connection is over, as whoever reads it notices.
    fn connection_ended(&mut self, line: &Arc<Line>, by_reset: bool) {
        let now = self.now;
        let Some(end) = line.set_ended(by_reset, instant(now)) else { return };
        let Some(engine) = &mut self.server.engine else { return };
        let connections = &mut engine.connections;
        let suspects = connections.registry.end(line, end);
        connections.open.retain(|tracked| !Arc::ptr_eq(&tracked.line, line));
        for suspect in suspects {
            if suspect.alone {
                self.report_reset(suspect);
            } else {
                let (host, end) = (suspect.host.clone(), suspect.end);
                self.begin_inquiry(&host, end.at, Some(end.life), Asked::Reset(suspect));
            }
        }
    }

    fn report_reset(&mut self, suspect: Suspect) {
        let Some(engine) = &self.server.engine else { return };
        let started = instant(engine.started);
        let life = suspect.end.life.saturating_duration_since(started);
        self.tally.reach("reset seen");
        self.input(Input::Reset { host: suspect.host, life });
    }

    /// The user of a machine closes a connection of its own by a reset.
    pub fn reset_user_connections(&mut self, host: usize) {
        let Some(engine) = &self.server.engine else { return };
        let users = engine.connections.open.iter().filter(|tracked| {
            tracked.connection.host == host && tracked.connection.purpose == Purpose::User
        });
        let lines: Vec<Arc<Line>> = users.map(|tracked| tracked.line.clone()).collect();
        for line in lines {
            self.tally.reach("user resets its own connection");
            self.connection_ended(&line, true);
        }
    }

    fn refresh(&mut self, address: Option<IpAddr>) {
        let now = self.now;
        let Some(engine) = &self.server.engine else { return };
        let wanted = engine.connections.open.iter();
        for tracked in wanted.filter(|t| address.is_none_or(|address| t.line.address == address)) {
            let reaction = self.reaction(&tracked.connection);
            tracked.connection.react(reaction, now);
        }
    }

    /// The server looks at its connections: some have ended by themselves, some are idle.
    pub fn look_at_connections(&mut self) {
        let (now, life) = (self.now, self.server.life);
        self.later(LOOK_EVERY, Event::Connections { life });
        self.refresh(None);
        let Some(engine) = &self.server.engine else { return };
        let mut ended = Vec::new();
        for Tracked { connection, line, .. } in &engine.connections.open {
            let idle = now - connection.seen().last_used > IDLE_MAX;
            let host = &self.hosts[connection.host];
            let alive = host.life == connection.life && self.reachable(connection.host);
            if let Some(by_reset) = connection.take_end() {
                ended.push((line.clone(), by_reset));
            } else if idle && alive && connection.purpose != Purpose::Witness {
                ended.push((line.clone(), false));
            }
        }
        for (line, by_reset) in ended {
            self.connection_ended(&line, by_reset);
        }
        self.watch_holders();
    }

    /// Witnesses are kept in step with who holds locks, recovered ones too.
    fn watch_holders(&mut self) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let holders = server::locks::holders(&engine.decider.keeper);
        let mut known: Vec<HostKey> = engine.connections.registry.holders().collect();
        // One seed is one run, whatever order a table is walked in.
        known.sort();
        for host in known {
            if !holders.iter().any(|(holder, _)| *holder == host) {
                engine.connections.registry.release(&host, instant(now));
            }
        }
        for (host, lane) in holders {
            self.watch_host(&host, lane);
        }
    }

    /// The host holds or awaits something: a witness is kept up.
    pub fn watch_host(&mut self, host: &HostKey, lane: keeper::identity::Lane) {
        let now = self.now;
        // Which addresses are the server's own does not matter here: no host has one of them.
        let may_call = permission::refusal(host.address(), lane.ours(), &|_| false).is_none();
        let Some(engine) = &mut self.server.engine else { return };
        let mut begun = None;
        let witness = || {
            let alive = Arc::new(());
            begun = may_call.then(|| Arc::downgrade(&alive));
            begun.is_some().then_some(Witness(alive))
        };
        engine.connections.registry.hold(host, lane, 1000, instant(now), witness);
        if let Some(alive) = begun {
            let life = self.server.life;
            let pause = self.random.between(20, 2 * SECOND);
            self.later(pause, Event::Witness { life, host: host.clone(), alive });
        }
    }

    pub fn keep_witness(&mut self, host: HostKey, alive: Weak<()>) {
        let life = self.server.life;
        let named = |it: &crate::host::Host| it.is(host.address(), host.name());
        let Some(index) = self.hosts.iter().position(named) else { return };
        let Some(engine) = &self.server.engine else { return };
        let mut witnesses = engine.connections.open.iter().filter(|tracked| {
            let it = &tracked.connection;
            it.host == index && it.purpose == Purpose::Witness
        });
        let line = witnesses.next().map(|tracked| tracked.line.clone());
        if alive.strong_count() == 0 {
            if let Some(line) = line {
                self.connection_ended(&line, false);
            }
            return;
        }
        if line.is_none() && self.can_be_called(index) {
            let kernel = self.hosts[index].life;
            self.open_connection(index, kernel, Purpose::Witness);
            self.tally.reach("witness stands");
        }
        let pause = self.random.between(5 * SECOND, MINUTE);
        self.later(pause, Event::Witness { life, host, alive });
    }

    /// Whether our own calls reach a host and are answered.
    pub fn can_be_called(&self, host: usize) -> bool {
        self.reachable(host) && !self.hosts[host].firewalled
    }

    pub fn begin_probe(&mut self, client: ClientId, question: Question) {
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
                let taken = engine.connections.registry.taken(&key, about);
                self.begin_inquiry(&key, instant(self.now), taken, Asked::Probe(client, question));
            }
            Question::Reachable => {
                let Some(engine) = &self.server.engine else { return };
                let Some(view) = engine.decider.keeper.client(client) else { return };
                let asked = instant(self.now);
                let registry = &engine.connections.registry;
                let lines = registry.lines_of(&view.client.key(), asked, LINES_MAX);
                let asking = Asking::Reachable(Round::new(lines, asked, false), host);
                self.ask_lines(asking, Asked::Probe(client, question), REACHABLE_MAX);
            }
            Question::State => {
                let answers = self.can_be_called(host);
                let pause = if answers { self.random.between(1, 600) } else { STATE_MAX };
                self.later(pause, Event::Probed { life, client, question });
            }
        }
    }

    fn begin_inquiry(
        &mut self,
        host: &HostKey,
        asked: Instant,
        taken: Option<Instant>,
        purpose: Asked,
    ) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let connections = &mut engine.connections;
        let evidence = Evidence::gather(&connections.registry, host, asked, taken, instant(now));
        let asking = Asking::SameKernel(SameKernel::begin(evidence));
        self.ask_lines(asking, purpose, SAME_KERNEL_MAX.as_millis() as Ms);
    }

    fn ask_lines(&mut self, question: Asking, purpose: Asked, max: Ms) {
        let (now, life) = (self.now, self.server.life);
        let Some(engine) = &mut self.server.engine else { return };
        let connections = &mut engine.connections;
        connections.next += 1;
        let id = connections.next;
        connections.inquiries.push((id, Inquiry { question, purpose, until: now + max }));
        let pause = self.random.between(25, 400);
        self.later(pause, Event::Look { life, id });
    }

    /// Looks at the lines of a host that is asked about; answers when there is nothing more to hear.
    pub fn look(&mut self, id: u64) {
        let (now, life) = (self.now, self.server.life);
        self.refresh(None);
        let callable: Vec<bool> = (0..self.hosts.len()).map(|h| self.can_be_called(h)).collect();
        let Some(engine) = &mut self.server.engine else { return };
        let inquiries = &mut engine.connections.inquiries;
        let Some(at) = inquiries.iter().position(|(known, _)| *known == id) else { return };
        let mut ended = Vec::new();
        let inquiry = &mut inquiries[at].1;
        // What ends is noted at once, as its own line does, and taken out of the registry below.
        inquiry.question.look(&mut |line, by_reset| {
            if let Some(end) = line.set_ended(by_reset, instant(now)) {
                ended.push((line.clone(), end));
            }
        });
        let late = now >= inquiry.until;
        let answer = match &inquiry.question {
            Asking::SameKernel(it) => (it.is_over() || late).then(|| it.answer()),
            Asking::Reachable(round, _) if round.hears_life() => Some(ProbeAnswer::Alive),
            Asking::Reachable(_, host) if callable[*host] => Some(ProbeAnswer::Alive),
            Asking::Reachable(..) => late.then_some(ProbeAnswer::Silent),
        };
        let done = answer.map(|answer| (answer, inquiries.swap_remove(at).1));
        for (line, end) in ended {
            if let Some(engine) = &mut self.server.engine {
                engine.connections.registry.end(&line, end);
                engine.connections.open.retain(|tracked| !Arc::ptr_eq(&tracked.line, &line));
            }
        }
        let Some((answer, Inquiry { question, purpose, .. })) = done else {
            let pause = self.random.between(200, 1500);
            return self.later(pause, Event::Look { life, id });
        };
        drop(question);
        match purpose {
            Asked::Probe(client, question) => self.probed(client, question, answer),
            Asked::Reset(suspect) => {
                if answer != ProbeAnswer::Alive {
                    self.report_reset(suspect);
                }
            }
        }
    }

    /// A status monitor has answered, or not.
    pub fn probe_ends(&mut self, client: ClientId, question: Question) {
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
            self.tally.reach("silent but alive");
        }
        let harmless = matches!(answer, ProbeAnswer::Silent | ProbeAnswer::Gone);
        if harmless && self.random.per_mille(self.chaos_per_mille(30)) {
            self.fault("probe answered wrongly, on the safe side");
            answer = ProbeAnswer::Alive;
        }
        self.input(Input::Probed(client, question, answer));
    }

    /// What its status monitor says.
    fn state_answered(&self, host: usize) -> Incarnation {
        let host = &self.hosts[host];
        let behind = if host.answers_old_state { 2 } else { 0 };
        Incarnation(host.state.wrapping_sub(behind))
    }
}
