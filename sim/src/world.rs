//! The world: everything that lives in it, and what happens next. One seed is one run; a run is one
//! thread, and nothing in it asks the machine for time or chance.

use std::rc::Rc;
use std::sync::Weak;

use keeper::bytes::Handle;
use keeper::identity::{ClientId, GrantId, HostKey};
use keeper::request::{GrantAnswer, Question};

use crate::ask;
use crate::disk::Disk;
use crate::engine::{Answered, Engine, Received};
use crate::host::{Host, Process};
use crate::model::Model;
use crate::network::{Direction, Link};
use crate::packet::{Request, ToHost};
use crate::queue::{HOUR, MINUTE, Ms, Queue, SECOND};
use crate::random::Random;
use crate::scenario::Scenario;
use crate::story::{Story, Violation};
use crate::tally::Tally;

pub enum Event {
    ToServer {
        request: Rc<Request>,
    },
    ToHost {
        host: usize,
        life: u32,
        message: ToHost,
    },
    /// A small answer comes back to one of the server's attempts.
    Answered {
        life: u32,
        host: usize,
        what: Answered,
        answer: GrantAnswer,
    },
    AttemptTimedOut {
        life: u32,
        what: Answered,
    },
    Probed {
        life: u32,
        client: ClientId,
        question: Question,
    },
    /// The server looks at all its connections, or at those of a host that it asks about.
    Connections {
        life: u32,
    },
    Look {
        life: u32,
        id: u64,
    },
    Witness {
        life: u32,
        host: HostKey,
        alive: Weak<()>,
    },
    /// A host reads and writes files.
    Mount {
        host: usize,
        life: u32,
    },
    UserReset {
        host: usize,
    },
    LeaseFresh {
        life: u32,
    },

    StartServer {
        life: u32,
    },
    CrashServer {
        life: u32,
        power: bool,
    },
    Gather {
        life: u32,
    },
    Expire {
        life: u32,
    },
    /// A worker has found out whether a caller may lock a file.
    Looked {
        life: u32,
        received: Received,
    },
    KeeperTimer {
        life: u32,
    },
    Write {
        life: u32,
    },
    Written {
        life: u32,
    },
    Sync,

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
    Impatience {
        request: Rc<Request>,
    },
    Ghost {
        request: Rc<Request>,
    },
    Retransmit {
        request: Rc<Request>,
    },
    Boot {
        host: usize,
        life: u32,
    },
    Announce {
        host: usize,
        life: u32,
        id: u64,
    },

    Fault,
    Mend {
        host: usize,
    },
    Lie,
    Watch,
    Calm,
    RestartOnce,
    WindDown,
    CleanUp,
    Verdict,
    Idle,
}

/// What the seed does not decide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub story: bool,
    /// Wall-clock jumps are on unless a twin run wants to know what they change (I13).
    pub steady_wall: bool,
}

pub struct Outcome {
    pub events: u64,
    pub faults: u64,
    pub tally: Tally,
    pub violation: Option<Violation>,
    pub story: Vec<String>,
}

pub struct Server {
    pub life: u32,
    pub engine: Option<Engine>,
    /// Sockets are open: the start is committed (I3).
    pub open: bool,
}

pub struct World {
    pub now: Ms,
    pub random: Random,
    /// The wall clock has its own source of chance, so that a twin without jumps is the same run.
    wall: Random,
    wall_ms: u64,
    queue: Queue<Event>,
    pub options: Options,
    pub scenario: Scenario,
    pub hosts: Vec<Host>,
    pub processes: Vec<Process>,
    pub links: Vec<Link>,
    pub disk: Disk,
    pub commit_fault: Option<crate::server::CommitFault>,
    pub server: Server,
    pub model: Model,
    pub story: Story,
    pub tally: Tally,
    pub faults: u64,
    pub violation: Option<Violation>,
    pub blocks: u64,
    pub announcements: u64,
    pub phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Faults,
    Calm,
    WindingDown,
    Over,
}

/// No seed needs more; one that does turns in circles.
const EVENTS_MAX: u64 = 300_000;

pub fn run(seed: u64, options: Options) -> Outcome {
    let mut world = World::new(seed, options);
    let mut events = 0;
    while world.violation.is_none() && world.phase < Phase::Over {
        let Some((at, event)) = world.queue.pop() else { break };
        world.now = at;
        world.happen(event);
        events += 1;
        if events > EVENTS_MAX {
            world.violate("liveness", || "the world turns in circles".to_owned());
        }
    }
    if let Some(violation) = world.violation.clone() {
        world.tell(|_| format!("VIOLATION of {violation}"));
    }
    Outcome {
        events,
        faults: world.faults,
        tally: world.tally,
        violation: world.violation,
        story: world.story.lines.unwrap_or_default(),
    }
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
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
            wall: Random::new(seed ^ 0x77a1_1c10),
            wall_ms: 1_800_000_000_000,
            queue: Queue::new(),
            options,
            links: vec![weather; hosts.len()],
            disk: Disk::new(scenario.durability),
            commit_fault: None,
            server: Server { life: 0, engine: None, open: false },
            model: Model::new(processes.len()),
            story: Story::new(options.story),
            tally: Tally::default(),
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
        world.tell(|w| w.describe());
        world.later(0, Event::StartServer { life: 0 });
        for process in 0..world.processes.len() {
            let pause = world.random.between(10, 5 * SECOND);
            world.later(pause, Event::Think { process, turn: 0 });
        }
        world.later(5 * SECOND, Event::Fault);
        world.later(7 * SECOND, Event::Lie);
        world.later(3 * SECOND, Event::Watch);
        world.later(2 * SECOND, Event::Sync);
        world.later(world.scenario.calm_from, Event::Calm);
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

    pub fn later(&mut self, pause: Ms, event: Event) {
        self.queue.push(self.now + pause, event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToServer { request } => self.arrive(request),
            Event::ToHost { host, life, message } => self.deliver(host, life, message),
            Event::Answered { life, host, what, answer } => self.answered(life, host, what, answer),
            Event::AttemptTimedOut { life, what } => self.attempt_timed_out(life, what),
            Event::Probed { life, client, question } => {
                self.if_alive(life, |w| w.probe_ends(client, question));
            }
            Event::Connections { life } => self.if_alive(life, Self::look_at_connections),
            Event::Look { life, id } => self.if_alive(life, |w| w.look(id)),
            Event::Witness { life, host, alive } => {
                self.if_alive(life, |w| w.keep_witness(host, alive));
            }
            Event::Mount { host, life } => self.mount(host, life),
            Event::UserReset { host } => self.reset_user_connections(host),
            Event::LeaseFresh { life } => self.if_alive(life, Self::renew_lease),
            Event::StartServer { life } => self.start_server(life),
            Event::CrashServer { life, power } => {
                if life == self.server.life && self.phase == Phase::Faults {
                    self.crash_server(power);
                }
            }
            Event::Gather { life } => self.if_alive(life, Self::gather),
            Event::Expire { life } => self.if_alive(life, Self::expire),
            Event::Looked { life, received } => self.if_alive(life, |w| w.looked(received)),
            Event::KeeperTimer { life } => self.if_alive(life, Self::keeper_timer),
            Event::Write { life } => self.if_alive(life, Self::write),
            Event::Written { life } => self.if_alive(life, Self::written),
            Event::Sync => {
                self.disk.sync();
                if self.phase < Phase::WindingDown {
                    let pause = self.random.between(500, 6 * SECOND);
                    self.later(pause, Event::Sync);
                }
            }
            Event::Think { process, turn } => self.if_turn(process, turn, Self::think),
            Event::Poll { process, turn } => self.if_turn(process, turn, Self::poll),
            Event::Signal { process, turn } => self.if_turn(process, turn, Self::signal),
            Event::Impatience { request } => self.impatient(&request),
            Event::Ghost { request } => self.haunt(&request),
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
            Event::Fault => self.cause_a_fault(),
            Event::Mend { host } => self.mend_link(host),
            Event::Lie => self.lie(),
            Event::Watch => self.watch(),
            Event::Calm => self.calm_down(),
            Event::RestartOnce => self.restart_once(),
            Event::WindDown => self.wind_down(),
            Event::CleanUp => self.clean_up(),
            Event::Verdict => self.verdict(),
            Event::Idle => self.idle_verdict(),
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

    pub fn winding_down(&self) -> bool {
        self.phase >= Phase::WindingDown
    }

    /// Chances that exist only while the faults last.
    pub fn chaos_per_mille(&self, chance: u64) -> u64 {
        if self.phase == Phase::Faults { chance } else { 0 }
    }

    pub fn fault(&mut self, what: &'static str) {
        self.faults += 1;
        self.tally.reach(what);
    }

    pub fn tell(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.story.is_told() {
            let text = text(self);
            self.story.line(self.now, &text);
        }
    }

    pub fn violate(&mut self, rule: &'static str, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { rule, what: what(), at: self.now });
        }
    }

    /// What people's clocks show; it jumps, and nothing may depend on it (I13).
    pub fn wall_ms(&mut self) -> u64 {
        if !self.options.steady_wall && self.wall.per_mille(5) {
            self.tally.reach("wall clock jump");
            let jump = self.wall.below(48 * HOUR);
            let ahead = self.wall.percent(50);
            self.wall_ms =
                if ahead { self.wall_ms + jump } else { self.wall_ms.saturating_sub(jump) };
        }
        self.wall_ms + self.now
    }

    pub fn who(&self, process: usize) -> String {
        let it = &self.processes[process];
        let host = &self.hosts[it.host];
        let lane = if host.lanes.len() > 1 { format!("{}.", it.lane) } else { String::new() };
        format!("{}/{lane}{}", host.short_name(), it.number)
    }

    pub fn file_of(&self, handle: &Handle) -> Option<usize> {
        (0..crate::cells::FILES).find(|file| ask::handle(*file) == *handle)
    }

    pub fn reachable(&self, host: usize) -> bool {
        self.hosts[host].up && self.links[host].carries_both_ways()
    }

    pub fn send_to_server(&mut self, request: &Rc<Request>) {
        let link = &self.links[request.truth.host];
        let sent = link.send(Direction::ToServer, &mut self.random);
        self.faults += sent.faults;
        for pause in sent.copies.into_iter().flatten() {
            self.later(pause, Event::ToServer { request: request.clone() });
        }
    }

    pub fn send_to_host(&mut self, host: usize, life: u32, message: ToHost) {
        let sent = self.links[host].send(Direction::ToHost, &mut self.random);
        self.faults += sent.faults;
        for pause in sent.copies.into_iter().flatten() {
            self.later(pause, Event::ToHost { host, life, message: message.clone() });
        }
    }

    pub fn send_grant_answer(
        &mut self,
        host: usize,
        grant: GrantId,
        attempt: u32,
        answer: GrantAnswer,
    ) {
        self.send_answer(host, Answered::Grant(grant, attempt), answer);
    }

    pub fn send_small_answer(&mut self, host: usize, what: Answered) {
        self.send_answer(host, what, GrantAnswer::Accepted);
    }

    fn send_answer(&mut self, host: usize, what: Answered, answer: GrantAnswer) {
        let sent = self.links[host].send(Direction::ToServer, &mut self.random);
        self.faults += sent.faults;
        let life = self.server.life;
        for pause in sent.copies.into_iter().flatten() {
            self.later(pause, Event::Answered { life, host, what, answer });
        }
    }

    /// The faults stop; the hosts go on.
    fn calm_down(&mut self) {
        self.phase = Phase::Calm;
        self.tell(|_| "the faults stop".to_owned());
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
        self.tell(|_| "everybody gives back what it holds".to_owned());
        for minutes in [6, 10, 14] {
            self.later(minutes * MINUTE, Event::CleanUp);
        }
        self.later(20 * MINUTE, Event::Verdict);
    }
}
