//! Fault injection, and operator actions.

use keeper::bytes::Name;
use keeper::identity::{ClientId, LockId};
use keeper::request::{OperatorAction, OperatorRequest};
use server::engine::request::Request as EngineRequest;

use crate::connections::Purpose;
use crate::engine::Input;
use crate::queue::{Ms, SECOND};
use crate::server::CommitFault;
use crate::world::{Event, Phase, World};

impl World {
    pub(crate) fn inject_fault(&mut self) {
        if self.phase != Phase::Faults {
            return;
        }
        let host = self.random.index(self.hosts.len());
        match self.random.below(100) {
            0..=15 => self.crash_host(host),
            16..=36 => self.cut_link(host),
            37..=62 | 87..=88 if self.scenario.steady => self.heard(host),
            37 => self.cut_all_links(),
            38..=39 => {
                self.crash_host(host);
                self.crash_server(false);
            }
            40..=51 => self.crash_server(false),
            52..=56 => self.crash_server(true),
            57 => self.fail_over(),
            58 => self.lose_store(),
            59..=62 => {
                if self.server.open {
                    self.fault("server stop");
                    self.stop_server();
                }
            }
            63..=80 => {
                let slow = self.random.between(500, 12 * SECOND);
                let written = self.random.percent(50);
                self.commit_fault = Some(match self.random.below(4) {
                    0 => CommitFault::Slow(slow),
                    1 => CommitFault::NotWritten,
                    _ => CommitFault::Unknown { written },
                });
            }
            81..=86 => self.container_trap(host),
            87..=88 => self.lose_lease(),
            89..=96 => self.operate(),
            _ => self.heard(host),
        }
        let mean = self.scenario.fault_every;
        let pause = self.random.between(mean / 4, mean * 2);
        self.later(pause, Event::InjectFault);
    }

    fn cut_link(&mut self, host: usize) {
        let link = &mut self.links[host];
        if link.cut_to_host || link.cut_to_server {
            return;
        }
        let which = self.random.below(3);
        link.cut_to_server = which != 0;
        link.cut_to_host = which != 1;
        self.fault("link cut");
        self.trace(|w| {
            format!(
                "{} is cut off ({})",
                w.hosts[host].name,
                ["from us", "to us", "both ways"][which as usize]
            )
        });
        let pause: Ms = self.random.between(SECOND, 100 * SECOND);
        self.later(pause, Event::RepairLink { host });
    }

    /// The server restarts, and is unreachable for longer than the recovery window.
    fn cut_all_links(&mut self) {
        self.fault("outage longer than the window");
        self.trace(|_| "the server is unreachable".to_owned());
        let window = self.scenario.config.window.as_millis() as Ms;
        for host in 0..self.hosts.len() {
            self.links[host].cut_to_server = true;
            self.links[host].cut_to_host = true;
            let pause = window + self.random.between(20 * SECOND, 2 * window);
            self.later(pause, Event::RepairLink { host });
        }
        let power = self.random.percent(50);
        self.crash_server(power);
    }

    pub(crate) fn repair_link(&mut self, host: usize) {
        self.links[host].cut_to_host = false;
        self.links[host].cut_to_server = false;
        self.hosts[host].healthy_since = self.now;
        self.trace(|w| format!("{} is connected again", w.hosts[host].name));
    }

    /// A file operation: a sign of life without a lock request.
    fn heard(&mut self, host: usize) {
        let life = self.hosts[host].life;
        self.mount(host, life);
    }

    pub(crate) fn mount(&mut self, host: usize, life: u32) {
        if self.hosts[host].life == life && self.reachable(host) && self.server.open {
            self.connected(host, life, Purpose::File);
        }
    }

    /// After a restart of the server: some clients reconnect for file access.
    pub(crate) fn clients_reconnect(&mut self) {
        for host in 0..self.hosts.len() {
            if self.random.percent(60) {
                let pause = self.random.between(5, 40 * SECOND);
                let life = self.hosts[host].life;
                self.later(pause, Event::FileAccess { host, life });
            }
        }
    }

    /// A random operator action.
    fn operate(&mut self) {
        if !self.server.open {
            return;
        }
        let Some(engine) = &self.server.engine else { return };
        let locks: Vec<LockId> =
            engine.decider.keeper.locks(LockId(0)).map(|lock| lock.id).collect();
        let clients: Vec<ClientId> =
            engine.decider.keeper.clients(ClientId(0)).map(|view| view.client.id).collect();
        let fenced: Vec<ClientId> = engine
            .decider
            .keeper
            .clients(ClientId(0))
            .filter(|view| view.client.fenced)
            .map(|view| view.client.id)
            .collect();
        if clients.is_empty() {
            return;
        }
        let client = *self.random.pick(&clients);
        let reported: Vec<ClientId> = engine
            .decider
            .keeper
            .clients(ClientId(0))
            .filter(|view| view.pending.is_some())
            .map(|view| view.client.id)
            .collect();
        let action = match self.random.below(8) {
            0 if !locks.is_empty() => OperatorAction::Release(*self.random.pick(&locks)),
            1 => OperatorAction::Fence(client),
            2 | 3 if !fenced.is_empty() => OperatorAction::Unfence(*self.random.pick(&fenced)),
            4 if !reported.is_empty() && self.random.percent(70) => {
                let client = *self.random.pick(&reported);
                OperatorAction::ConfirmReboot { client, force: false }
            }
            4 => OperatorAction::ConfirmReboot { client, force: true },
            5 => OperatorAction::EndGrace,
            6 => OperatorAction::Renotify(client),
            _ => OperatorAction::Forget(client),
        };
        self.operator(action);
    }

    pub(crate) fn operator(&mut self, action: OperatorAction) {
        if let Some(engine) = &mut self.server.engine {
            let id = engine.new_id();
            self.coverage.reach("operator action");
            let by = Name::from("operator");
            let request = OperatorRequest { id, by, action };
            self.input(Input::Request(EngineRequest::Operator(request), None));
        }
    }
}
