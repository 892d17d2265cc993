//! The world answers the keeper's questions about hosts: truthfully, or on the safe side, or not at
//! all. `Gone` is proof and never a lie; a live host behind a cut link is silent.

use keeper::identity::{ClientId, Incarnation};
use keeper::request::{ProbeAnswer, Question};

use crate::engine::Input;
use crate::queue::SECOND;
use crate::world::{Event, World};

impl World {
    pub fn begin_probe(&mut self, client: ClientId, question: Question) {
        let Some(host) = self.host_of(client) else {
            return self.input(Input::Probed(client, question, ProbeAnswer::Silent));
        };
        if self.random.per_mille(self.chaos_per_mille(15)) {
            self.fault("probe never answered");
            return;
        }
        let lives = self.lives_with_connections(host);
        let pause = match self.probe_truth(host, question, &lives) {
            ProbeAnswer::Silent => self.random.between(3 * SECOND, 10 * SECOND),
            _ => self.random.between(1, 600),
        };
        let life = self.server.life;
        self.later(pause, Event::Probed { life, client, question, lives });
    }

    pub fn probe_ends(&mut self, life: u32, client: ClientId, question: Question, lives: &[u32]) {
        if life != self.server.life || self.server.engine.is_none() {
            return;
        }
        let Some(host) = self.host_of(client) else {
            return self.input(Input::Probed(client, question, ProbeAnswer::Silent));
        };
        let mut answer = self.probe_truth(host, question, lives);
        if answer == ProbeAnswer::Silent && self.hosts[host].up {
            self.tally.reach("silent but alive");
        }
        if answer != ProbeAnswer::Alive && self.random.per_mille(self.chaos_per_mille(30)) {
            self.fault("probe answered wrongly, on the safe side");
            answer = ProbeAnswer::Alive;
        }
        self.input(Input::Probed(client, question, answer));
    }

    /// Lives of this host that hold or await something and that we have a connection of. A kernel
    /// that has taken nothing yet says nothing about the one that has.
    fn lives_with_connections(&self, host: usize) -> Vec<u32> {
        let Some(engine) = &self.server.engine else { return Vec::new() };
        let key = (self.hosts[host].address, self.hosts[host].name.clone());
        let connected = engine.connections.get(&key).cloned().unwrap_or_default();
        let at_stake = self.model.lives_of(self.hosts[host].processes());
        connected.into_keys().filter(|life| at_stake.contains(life)).collect()
    }

    /// What its status monitor says.
    fn state_answered(&self, host: usize) -> Incarnation {
        let host = &self.hosts[host];
        let behind = if host.answers_old_state { 2 } else { 0 };
        Incarnation(host.state.wrapping_sub(behind))
    }

    fn probe_truth(&self, host: usize, question: Question, lives: &[u32]) -> ProbeAnswer {
        if !self.reachable(host) {
            return ProbeAnswer::Silent;
        }
        match question {
            Question::Reachable => ProbeAnswer::Alive,
            Question::SameKernel if lives.contains(&self.hosts[host].life) => ProbeAnswer::Alive,
            Question::SameKernel if lives.is_empty() => ProbeAnswer::Silent,
            Question::SameKernel => ProbeAnswer::Gone,
            Question::State => ProbeAnswer::InState(self.state_answered(host)),
        }
    }
}
