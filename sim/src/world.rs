//! The world: its state, its events and the main loop. A run is one thread, and nothing in it reads
//! the time or a random source of the machine.

use std::rc::Rc;
use std::sync::Weak;

use keeper::bytes::Handle;
use keeper::identity::{ClientId, GrantId, HostKey};
use keeper::request::{GrantAnswer, Question};
use server::roster_copy::RosterCopy;

use crate::coverage::Coverage;
use crate::disk::Disk;
use crate::engine::{AttemptKey, Engine, ReceivedRequest};
use crate::host::{Host, Process};
use crate::model::Model;
use crate::network::{Direction, Link};
use crate::packet::{Request, ToHost};
use crate::queue::{HOUR, MINUTE, Ms, Queue, SECOND};
use crate::random::Random;
use crate::renumbering::Renumbering;
use crate::scenario::Scenario;
use crate::trace::{Trace, Violation};
use crate::translate;

/// What can happen next. An event of a process or host that has died meanwhile (`life`, `turn`) is
/// ignored.
pub(crate) enum Event {
    ToServer {
        request: Rc<Request>,
    },
    ToHost {
        host: usize,
        life: u32,
        message: ToHost,
    },
    /// A peer's answer to a callback or notice reaches the server.
    AttemptAnswered {
        life: u32,
        host: usize,
        what: AttemptKey,
        answer: GrantAnswer,
    },
    AttemptTimedOut {
        life: u32,
        what: AttemptKey,
    },
    /// A status monitor has answered a probe, or the probe timed out.
    StateProbeEnds {
        life: u32,
        client: ClientId,
        question: Question,
    },
    /// The server checks all its connections.
    ConnectionSweep {
        life: u32,
    },
    /// The server checks the connections of a host that an inquiry is about.
    InquiryRound {
        life: u32,
        id: u64,
    },
    /// The server checks its own connection to a lock holder.
    MaintainWitness {
        life: u32,
        host: HostKey,
        alive: Weak<()>,
    },
    /// A host reads or writes a file.
    FileAccess {
        host: usize,
        life: u32,
    },
    UserReset {
        host: usize,
    },
    LeaseRenewed {
        life: u32,
    },

    StartServer {
        life: u32,
    },
    CrashServer {
        life: u32,
        power: bool,
    },
    /// The decider takes the inbox.
    RunBatch {
        life: u32,
    },
    /// Requests that waited too long for a stalled store are refused or dropped.
    ExpireStalled {
        life: u32,
    },
    /// A worker has checked whether a caller may lock a file.
    PermissionChecked {
        life: u32,
        received: ReceivedRequest,
    },
    KeeperTimer {
        life: u32,
    },
    CommitAttempt {
        life: u32,
    },
    CommitReturned {
        life: u32,
    },
    BackgroundSync,

    Think {
        process: usize,
        turn: u64,
    },
    Poll {
        process: usize,
        turn: u64,
    },
    Signal {
        process: usize,
        turn: u64,
    },
    /// A signal arrives while a LOCK is unanswered.
    InterruptCall {
        request: Rc<Request>,
    },
    /// A delayed packet of a dead kernel arrives.
    StaleRequest {
        request: Rc<Request>,
    },
    Retransmit {
        request: Rc<Request>,
    },
    Boot {
        host: usize,
        life: u32,
    },
    /// A round of `sm-notify`.
    Announce {
        host: usize,
        life: u32,
        id: u64,
    },

    InjectFault,
    RepairLink {
        host: usize,
    },
    AdversaryActs,
    WatcherActs,
    StopFaults,
    RestartOnce,
    WindDown,
    CleanUp,
    FinalCheck,
    IdleCheck,
}

/// Options that the seed does not decide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub trace: bool,
    /// No wall-clock jumps: for the twin run that checks I13.
    pub steady_wall: bool,
}

pub struct Outcome {
    pub events: u64,
    pub faults: u64,
    pub coverage: Coverage,
    pub violation: Option<Violation>,
    pub trace: Vec<String>,
}

pub(crate) struct Server {
    pub life: u32,
    pub engine: Option<Engine>,
    /// Sockets are open, since the start was committed (I3).
    pub open: bool,
}

pub(crate) struct World {
    pub now: Ms,
    pub random: Random,
    /// A random source of its own, so that a twin run without jumps draws the same numbers.
    wall: Random,
    wall_ms: u64,
    queue: Queue<Event>,
    pub options: Options,
    pub scenario: Scenario,
    pub hosts: Vec<Host>,
    pub processes: Vec<Process>,
    pub links: Vec<Link>,
    pub disk: Disk,
    pub copy: Option<RosterCopy>,
    /// When its token was last brought up to date.
    pub copied_at: Ms,
    pub commit_fault: Option<crate::server::CommitFault>,
    pub server: Server,
    pub renumbering: Renumbering,
    pub model: Model,
    pub trace: Trace,
    pub coverage: Coverage,
    pub faults: u64,
    pub violation: Option<Violation>,
    pub blocks: u64,
    pub announcements: u64,
    pub phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Faults,
    Calm,
    WindingDown,
    Over,
}

/// More than any seed needs: beyond it the run makes no progress.
const EVENTS_MAX: u64 = 300_000;

pub fn run(seed: u64, options: Options) -> Outcome {
    run_to_end(World::new(Random::new(seed), Random::new(seed ^ 0x77a1_1c10), options))
}

/// A run whose first random draws are `choices`: those of a fuzzer. Their number decides about the
/// rest.
pub fn run_chosen(choices: &[u8], options: Options) -> Outcome {
    let wall = Random::new(choices.len() as u64);
    run_to_end(World::new(Random::chosen(choices), wall, options))
}

fn run_to_end(mut world: World) -> Outcome {
    let mut events = 0;
    while world.violation.is_none() && world.phase < Phase::Over {
        let Some((at, event)) = world.queue.pop() else { break };
        world.now = at;
        world.handle(event);
        events += 1;
        if events > EVENTS_MAX {
            world.violate("liveness", || "the run makes no progress".to_owned());
        }
    }
    if let Some(violation) = world.violation.clone() {
        world.trace(|_| format!("VIOLATION of {violation}"));
    }
    Outcome {
        events,
        faults: world.faults,
        coverage: world.coverage,
        violation: world.violation,
        trace: world.trace.lines.unwrap_or_default(),
    }
}

impl World {
    fn new(mut random: Random, wall: Random, options: Options) -> Self {
        let scenario = Scenario::draw(&mut random);
        let (hosts, processes) = Scenario::draw_hosts(&mut random);
        let weather = Link {
            lose: scenario.lose,
            repeat: scenario.repeat,
            delay: scenario.delay,
            ..Link::default()
        };
        let mut world = Self {
            now: 0,
            wall,
            wall_ms: 1_800_000_000_000,
            queue: Queue::new(),
            options,
            links: vec![weather; hosts.len()],
            disk: Disk::new(scenario.durability),
            copy: None,
            copied_at: 0,
            commit_fault: None,
            server: Server { life: 0, engine: None, open: false },
            renumbering: Renumbering::new(),
            model: Model::new(processes.len()),
            trace: Trace::new(options.trace),
            coverage: Coverage::default(),
            faults: 0,
            violation: None,
            blocks: 0,
            announcements: 0,
            phase: Phase::Faults,
            hosts,
            processes,
            scenario,
            random,
        };
        world.trace(|w| w.describe());
        world.later(0, Event::StartServer { life: 0 });
        for process in 0..world.processes.len() {
            let pause = world.random.between(10, 5 * SECOND);
            world.later(pause, Event::Think { process, turn: 0 });
        }
        world.later(5 * SECOND, Event::InjectFault);
        world.later(7 * SECOND, Event::AdversaryActs);
        world.later(3 * SECOND, Event::WatcherActs);
        world.later(2 * SECOND, Event::BackgroundSync);
        world.later(world.scenario.calm_from, Event::StopFaults);
        world
    }

    fn describe(&self) -> String {
        let config = &self.scenario.config;
        format!(
            "window {} s, grace {:?}, unreachable {:?}, durability {:?}, {} locks at most",
            config.window.as_secs(),
            config.grace,
            config.unreachable,
            self.scenario.durability,
            config.limits.locks,
        )
    }

    pub(crate) fn later(&mut self, pause: Ms, event: Event) {
        self.queue.push(self.now + pause, event);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToServer { request } => self.arrive(request),
            Event::ToHost { host, life, message } => self.deliver(host, life, message),
            Event::AttemptAnswered { life, host, what, answer } => {
                self.answered(life, host, what, answer)
            }
            Event::AttemptTimedOut { life, what } => self.attempt_timed_out(life, what),
            Event::StateProbeEnds { life, client, question } => {
                self.if_alive(life, |w| w.probe_ends(client, question));
            }
            Event::ConnectionSweep { life } => self.if_alive(life, Self::sweep_connections),
            Event::InquiryRound { life, id } => self.if_alive(life, |w| w.inquiry_round(id)),
            Event::MaintainWitness { life, host, alive } => {
                self.if_alive(life, |w| w.keep_witness(host, alive));
            }
            Event::FileAccess { host, life } => self.mount(host, life),
            Event::UserReset { host } => self.reset_user_connections(host),
            Event::LeaseRenewed { life } => self.if_alive(life, Self::renew_lease),
            Event::StartServer { life } => self.start_server(life),
            Event::CrashServer { life, power } => {
                if life == self.server.life && self.phase == Phase::Faults {
                    self.crash_server(power);
                }
            }
            Event::RunBatch { life } => self.if_alive(life, Self::run_batch),
            Event::ExpireStalled { life } => self.if_alive(life, Self::expire_stalled),
            Event::PermissionChecked { life, received } => {
                self.if_alive(life, |w| w.permission_checked(received))
            }
            Event::KeeperTimer { life } => self.if_alive(life, Self::keeper_timer),
            Event::CommitAttempt { life } => self.if_alive(life, Self::attempt_and_report),
            Event::CommitReturned { life } => self.if_alive(life, Self::commit_returned),
            Event::BackgroundSync => {
                self.disk.sync();
                let copies = self.server.open && !self.disk.is_behind();
                if copies && self.now >= self.copied_at + MINUTE {
                    self.copy_roster();
                }
                if self.phase < Phase::WindingDown {
                    let pause = self.random.between(500, 6 * SECOND);
                    self.later(pause, Event::BackgroundSync);
                }
            }
            Event::Think { process, turn } => self.if_turn(process, turn, Self::think),
            Event::Poll { process, turn } => self.if_turn(process, turn, Self::poll),
            Event::Signal { process, turn } => self.if_turn(process, turn, Self::signal),
            Event::InterruptCall { request } => self.interrupt_call(&request),
            Event::StaleRequest { request } => self.deliver_stale_request(&request),
            Event::Retransmit { request } => self.retransmit(request),
            Event::Boot { host, life } => {
                if self.hosts[host].life == life {
                    self.boot_host(host);
                }
            }
            Event::Announce { host, life, id } => {
                if self.hosts[host].up && self.hosts[host].life == life {
                    self.announce_round(host, id);
                }
            }
            Event::InjectFault => self.inject_fault(),
            Event::RepairLink { host } => self.repair_link(host),
            Event::AdversaryActs => self.adversary_acts(),
            Event::WatcherActs => self.watcher_acts(),
            Event::StopFaults => self.calm_down(),
            Event::RestartOnce => self.restart_once(),
            Event::WindDown => self.wind_down(),
            Event::CleanUp => self.clean_up(),
            Event::FinalCheck => self.final_check(),
            Event::IdleCheck => self.idle_check(),
        }
    }

    fn if_alive(&mut self, life: u32, act: impl FnOnce(&mut Self)) {
        if life == self.server.life && self.server.engine.is_some() {
            act(self);
        }
    }

    fn if_turn(&mut self, process: usize, turn: u64, act: impl FnOnce(&mut Self, usize)) {
        let it = &self.processes[process];
        if it.turn == turn && self.hosts[it.host].up {
            act(self, process);
        }
    }

    pub(crate) fn winding_down(&self) -> bool {
        self.phase >= Phase::WindingDown
    }

    /// `chance` while faults are injected, else 0.
    pub(crate) fn chaos_per_mille(&self, chance: u64) -> u64 {
        if self.phase == Phase::Faults { chance } else { 0 }
    }

    pub(crate) fn fault(&mut self, what: &'static str) {
        self.faults += 1;
        self.coverage.reach(what);
    }

    pub(crate) fn trace(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.trace.is_on() {
            let text = text(self);
            self.trace.line(self.now, &text);
        }
    }

    pub(crate) fn violate(&mut self, rule: &'static str, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { rule, what: what(), at: self.now });
        }
    }

    /// The wall clock. It jumps, and no decision may depend on it (I13).
    pub(crate) fn wall_ms(&mut self) -> u64 {
        if !self.options.steady_wall && self.wall.per_mille(5) {
            self.coverage.reach("wall clock jump");
            let jump = self.wall.below(48 * HOUR);
            let ahead = self.wall.percent(50);
            self.wall_ms =
                if ahead { self.wall_ms + jump } else { self.wall_ms.saturating_sub(jump) };
        }
        self.wall_ms + self.now
    }

    pub(crate) fn who(&self, process: usize) -> String {
        let it = &self.processes[process];
        let host = &self.hosts[it.host];
        let namespace =
            if host.namespaces.len() > 1 { format!("{}.", it.namespace) } else { String::new() };
        format!("{}/{namespace}{}", host.short_name(), it.number)
    }

    pub(crate) fn file_of(&self, handle: &Handle) -> Option<usize> {
        (0..crate::cells::FILES).find(|file| translate::handle(*file) == *handle)
    }

    pub(crate) fn reachable(&self, host: usize) -> bool {
        self.hosts[host].up && self.links[host].carries_both_ways()
    }

    pub(crate) fn send_to_server(&mut self, request: &Rc<Request>) {
        let link = &self.links[request.truth.host];
        let sent = link.send(Direction::ToServer, &mut self.random);
        self.faults += sent.faults;
        for pause in sent.copies.into_iter().flatten() {
            self.later(pause, Event::ToServer { request: request.clone() });
        }
    }

    pub(crate) fn send_to_host(&mut self, host: usize, life: u32, message: ToHost) {
        let sent = self.links[host].send(Direction::ToHost, &mut self.random);
        self.faults += sent.faults;
        for pause in sent.copies.into_iter().flatten() {
            self.later(pause, Event::ToHost { host, life, message: message.clone() });
        }
    }

    pub(crate) fn send_grant_answer(
        &mut self,
        host: usize,
        grant: GrantId,
        attempt: u32,
        answer: GrantAnswer,
    ) {
        self.send_answer(host, AttemptKey::Grant(grant, attempt), answer);
    }

    pub(crate) fn send_small_answer(&mut self, host: usize, what: AttemptKey) {
        self.send_answer(host, what, GrantAnswer::Accepted);
    }

    fn send_answer(&mut self, host: usize, what: AttemptKey, answer: GrantAnswer) {
        let sent = self.links[host].send(Direction::ToServer, &mut self.random);
        self.faults += sent.faults;
        let life = self.server.life;
        for pause in sent.copies.into_iter().flatten() {
            self.later(pause, Event::AttemptAnswered { life, host, what, answer });
        }
    }

    /// Ends the faults; the hosts continue.
    fn calm_down(&mut self) {
        self.phase = Phase::Calm;
        self.trace(|_| "the faults stop".to_owned());
        for host in 0..self.hosts.len() {
            self.links[host].heal();
            self.hosts[host].healthy_since = self.now;
        }
        self.disk.next_fault = None;
        self.commit_fault = None;
        self.later(MINUTE, Event::RestartOnce);
        let window = self.scenario.config.window.as_millis() as Ms;
        self.later(MINUTE + window + 90 * SECOND, Event::WindDown);
    }

    fn wind_down(&mut self) {
        self.phase = Phase::WindingDown;
        self.trace(|_| "every process gives back what it holds".to_owned());
        for minutes in [6, 10, 14] {
            self.later(minutes * MINUTE, Event::CleanUp);
        }
        self.later(20 * MINUTE, Event::FinalCheck);
    }
}
