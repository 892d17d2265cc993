//! What was claimed about hosts, what the probes said, and which release that allows (R6.1, R2.6,
//! R4.5). The last word is whether it may hit a holder that lives: only if the world lied.

use keeper::Keeper;
use keeper::config::{Unreachable, Verify};
use keeper::event::{Doubt, Event, GraceEnd, Proof, Release};
use keeper::identity::{ClientId, Incarnation};
use keeper::request::{GrantAnswer, NoticeResult, ProbeAnswer, Question};
use keeper::step::{Message, Notice, Step};

use crate::cells::{CELLS, FILES};
use crate::judge::note::Note;
use crate::model::{Block, Cell, Claim};
use crate::packet::Call;
use crate::queue::{MINUTE, SECOND};
use crate::world::{Phase, World};

impl World {
    /// What an input says, for what is judged later.
    pub fn note_input(&mut self, input: &Note) {
        self.note_call(input);
        match input {
            Note::Request(id, request) => {
                self.model.asked.insert(*id, (request.clone(), self.model.serial));
                let mut claim = |name: &keeper::bytes::Name, state| {
                    self.model.claims.push(Claim {
                        source: request.from,
                        name: name.clone(),
                        state,
                        speaker: request.truth.honest.then_some(request.truth.host),
                        at: self.now,
                    });
                };
                match &request.call {
                    Call::Notify { name, state } => claim(name, Some(*state)),
                    Call::FreeAll { name } => claim(name, None),
                    Call::Lock { file, range, mode, wait: true, state, .. } => {
                        if let Some(process) = request.truth.process {
                            let wait = (process, *file, *range, *mode);
                            let block = self.model.block(wait);
                            self.model.note_block(wait, Block { newest: *state, ..block });
                        }
                    }
                    _ => {}
                }
            }
            Note::Granted(id, answer) => match self.model.grants.get_mut(id) {
                Some(grant) => grant.unclear |= *answer == GrantAnswer::Unclear,
                None if *answer != GrantAnswer::Unclear => self.tally.reach("late GRANTED answer"),
                None => {}
            },
            Note::Noticed(notice, NoticeResult::Failed) => {
                if let Some(client) = self.model.notices.get(notice) {
                    self.model.failed_notices.insert(*client);
                }
            }
            Note::Probed(client, question, answer) => {
                self.model.probes.insert((*client, *question), *answer);
                if matches!(question, Question::SameKernel(_)) {
                    self.model.kernels.insert(*client, *answer);
                }
                if let ProbeAnswer::InState(state) = answer {
                    self.model.vouched.insert((*client, state.0));
                }
            }
            Note::Reset(client) => {
                self.model.resets.insert(*client);
            }
            _ => {}
        }
    }

    /// R2.5: who did not answer, or has not reclaimed everything, is told again.
    pub fn judge_noticed(&mut self, keeper: &Keeper, inputs: &[Note]) {
        for input in inputs {
            let Note::Noticed(notice, result) = input else { continue };
            if *result == NoticeResult::Answered {
                self.model.told.extend(self.model.notices.get(notice));
            }
            let Some(client) = self.model.owed.get(notice).copied() else { continue };
            let Some(view) = keeper.client(client) else { continue };
            let goes_on =
                keeper.notices().any(|other| other.client == client && other.next.is_some());
            let young = self.now < self.model.started + 13 * MINUTE;
            let unconfirmed = view.unconfirmed > 0
                && self.window_ends().is_none_or(|ends| self.now + SECOND < ends)
                && keeper.grace().is_some();
            let unheard = !self.model.told.contains(&client) && young;
            if (unheard || (unconfirmed && view.client.monitored)) && !goes_on {
                let name = view.client.name.clone();
                let shown = keeper.notices().find(|other| other.id == *notice);
                self.violate("R2.5", || {
                    format!("{name} is not told again after {result:?}: {shown:?}")
                });
            }
        }
    }

    pub fn note_notices(&mut self, step: &Step) {
        for message in &step.messages {
            if let Message::Notice(notice) = message {
                self.model.notices.insert(notice.id, notice.client);
            }
        }
    }

    /// What a step says, for what is judged later and for the tally.
    pub fn note_events(&mut self, step: &Step) {
        for event in &step.events {
            match event {
                Event::ReclaimRefused { .. } => self.tally.reach("reclaim refused"),
                Event::Deadlock { .. } => self.tally.reach("deadlock"),
                Event::PassedOver { .. } => self.tally.reach("dead waiter"),
                Event::Suspect { .. } => self.tally.reach("suspect"),
                Event::Ghost { .. } => self.tally.reach("ghost refused"),
                Event::Crashed { .. } => self.tally.reach("host marked crashed"),
                Event::RebootPending { why, .. } => {
                    self.tally.reach("reboot notice pending");
                    match why {
                        Doubt::Unproven => self.tally.reach("reboot notice unproven"),
                        Doubt::Unreclaimed => self.tally.reach("mount before the notice"),
                        Doubt::Unverified => self.tally.reach("reboot notice unverified"),
                        Doubt::Alive => {}
                    }
                }
                Event::Released { why: Release::OldKernel, .. } => {
                    self.tally.reach("old kernel released beside a later one");
                }
                Event::Released { why: Release::Unanswered, .. } => {
                    self.tally.reach("releasable lock released");
                }
                Event::Released { why: Release::Unreachable, .. } => {
                    self.tally.reach("unreachable host released");
                }
                Event::Refused { .. } => self.tally.reach("refused at a bound"),
                Event::Rebooted { client, to, proof, .. } => {
                    self.tally.reach(match proof {
                        Proof::NothingHeld => "reboot accepted: nothing held",
                        Proof::Reset => "reboot accepted: reset",
                        Proof::Notice => "reboot accepted: notice",
                        Proof::Stateless => "reboot accepted: stateless",
                        Proof::Operator(_) => "reboot accepted: operator",
                        Proof::Unreclaimed => "reboot accepted: nothing reclaimed",
                    });
                    if let Some(host) = self.host_of(*client) {
                        self.model.accepted.insert(host, to.0);
                        if let Some(was) = self.model.states.get(&host).copied()
                            && !matches!(proof, Proof::NothingHeld | Proof::Unreclaimed)
                            && was != to.0
                        {
                            self.model.gone_states.retain(|(of, _), _| *of != host);
                            self.model.gone_states.insert((host, was), self.now);
                        }
                        self.model.gone_states.remove(&(host, to.0));
                    }
                    self.check_relayed(*client, step);
                }
                Event::GraceEnded { why } => self.grace_ended(why),
                _ => {}
            }
        }
    }

    /// R1.6: whoever watches a host hears of its reboot.
    fn check_relayed(&mut self, _client: ClientId, step: &Step) {
        let relayed = step
            .messages
            .iter()
            .filter(|message| matches!(message, Message::Notice(Notice { .. })))
            .count();
        if relayed > 0 {
            self.tally.reach("reboot relayed to a watcher");
        }
    }

    fn grace_ended(&mut self, why: &GraceEnd) {
        self.model.grace_over = true;
        match why {
            GraceEnd::Complete => {
                self.tally.reach("grace ended early");
                let missing = (0..self.processes.len()).find(|process| {
                    self.hosts[self.processes[*process].host].monitored
                        && self.model.table[*process]
                            .iter()
                            .flatten()
                            .any(|cell| cell.strength > 0 && cell.unconfirmed)
                });
                if let Some(process) = missing {
                    let who = self.who(process);
                    self.violate("I4", || format!("grace ended before {who} had reclaimed"));
                }
                if !self.model.exact {
                    self.violate("I4", || "a roster grace ended early".to_owned());
                }
            }
            GraceEnd::Deadline => self.judge_deadline(),
            GraceEnd::Operator(_) => {}
        }
        if self.model.recovering {
            self.model.recovering = false;
            self.taint_unbacked();
        }
    }

    /// The end of a roster grace: what was not reclaimed is nobody's (I6).
    pub fn taint_unbacked(&mut self) {
        self.taint_unbacked_shares();
        for process in 0..self.processes.len() {
            for file in 0..FILES {
                for cell in 0..CELLS {
                    let it = &self.processes[process];
                    let backed = self.model.table[process][file][cell].strength;
                    // An answer from before, under way or waiting in the kernel, is over, too.
                    if backed == 0 {
                        let released = &mut self.model.released_at[process][file][cell];
                        *released = self.model.serial.max(*released);
                    }
                    if it.relies_on(file, cell) > backed && !it.tainted[file][cell] {
                        self.model.released_at[process][file][cell] = self.model.serial;
                        self.processes[process].tainted[file][cell] = true;
                        self.tally.reach("live lock lost at the end of a roster grace");
                        // What a reclaim failed to get back before was lost then.
                        if !self.processes[process].given_up[file][cell] {
                            self.judge_calm_loss(process, "the roster's grace ended");
                        }
                    }
                }
            }
        }
    }

    /// After the faults stopped nobody loses anything any more.
    pub fn judge_calm_loss(&mut self, process: usize, why: &str) {
        let host = &self.hosts[self.processes[process].host];
        let told = host.monitored && !host.deaf && !host.firewalled;
        let healthy = host.up && told && self.phase >= Phase::Calm;
        if healthy && self.model.calm_restart {
            let who = self.who(process);
            self.violate("liveness", || {
                format!("{who} was healthy and lost a lock in a quiet restart: {why}")
            });
        }
    }

    /// What was last said of the kernel that took something in this state.
    fn kernel(&self, client: ClientId, state: u32) -> Option<ProbeAnswer> {
        let question = Question::SameKernel(Incarnation(state));
        let known = self.model.probes.get(&(client, question));
        let known = if state == 0 { self.model.kernels.get(&client) } else { known };
        known.copied()
    }

    pub fn was_reset(&self, client: ClientId, state: u32) -> bool {
        self.model.resets.contains(&client) || self.kernel(client, state) == Some(ProbeAnswer::Gone)
    }

    /// R6.1: from the host's own address, and nothing shows that the old kernel lives.
    pub fn notice_allowed(
        &mut self,
        client: ClientId,
        host: usize,
        to: u32,
        old: Cell,
    ) -> Result<Result<(), String>, String> {
        let (address, name) = (self.hosts[host].address, self.hosts[host].name.clone());
        let own: Vec<bool> = self
            .model
            .claims
            .iter()
            .filter(|claim| claim.source == address && claim.state == Some(to))
            .filter(|claim| claim.name.names_same_machine(&name))
            .map(|claim| claim.speaker == Some(host))
            .collect();
        if own.is_empty() {
            return Err(format!("no notice of state {to} came from its address in its name"));
        }
        let verify = self.scenario.config.verify;
        if verify == Verify::Ask && !self.model.vouched.contains(&(client, to)) {
            return Err("its status monitor had not answered that state".to_owned());
        }
        let alive = matches!(self.kernel(client, old.incarnation), None | Some(ProbeAnswer::Alive));
        if verify != Verify::Address && alive {
            return Err("the old kernel had answered".to_owned());
        }
        if own.contains(&false) || verify == Verify::Address {
            self.tally.reach("false notice accepted");
            Ok(Ok(()))
        } else {
            Ok(Err("its own honest notice took it".to_owned()))
        }
    }

    /// A reboot was proven of one kernel, while another one of the host is not.
    pub fn old_kernel_allowed(
        &mut self,
        client: ClientId,
        old: Cell,
    ) -> Result<Result<(), String>, String> {
        match self.kernel(client, old.incarnation) {
            Some(ProbeAnswer::Gone) => Ok(Err("a reset took a live one's lock".to_owned())),
            Some(ProbeAnswer::Silent) => Ok(Ok(())),
            _ => Err("the kernel that took it had answered".to_owned()),
        }
    }

    pub fn free_all_allowed(
        &mut self,
        client: ClientId,
        host: usize,
        old: Cell,
    ) -> Result<Result<(), String>, String> {
        let address = self.hosts[host].address;
        let name = self.hosts[host].name.clone();
        let trusted = self.scenario.config.verify == Verify::Address;
        let answer = self.kernel(client, old.incarnation);
        let claims = self.model.claims.iter().filter(|claim| claim.state.is_none());
        let mut own = None;
        let mut foreign = false;
        for claim in claims {
            let from_there = claim.source == address;
            if from_there && claim.name.names_same_machine(&name) {
                own = Some(own.unwrap_or(true) && claim.speaker == Some(host));
            } else {
                foreign |= from_there || claim.name.names_same_machine(&name);
            }
        }
        match (own, answer) {
            (_, Some(ProbeAnswer::Alive)) if !trusted => {
                Err("the old kernel had answered".to_owned())
            }
            // A FREE_ALL that comes late takes what was locked since, if the address is believed.
            (Some(true), _) if trusted => Ok(Ok(())),
            (Some(true), _) => Ok(Err("its own honest FREE_ALL took it".to_owned())),
            (Some(false), _) => Ok(Ok(())),
            (None, Some(ProbeAnswer::Gone)) if foreign => {
                Ok(Err("a FREE_ALL from elsewhere took a live lock".to_owned()))
            }
            (None, _) => Err("no FREE_ALL came from its address".to_owned()),
        }
    }

    /// R4.5: unconfirmed after the window, wanted, and its host fails a probe.
    pub fn unanswered_allowed(
        &mut self,
        client: ClientId,
        old: Cell,
        inputs: &[Note],
    ) -> Result<Result<(), String>, String> {
        let answer = self.model.probes.get(&(client, Question::Reachable)).copied();
        let just_probed = inputs.iter().any(|input| {
            matches!(input, Note::Probed(probed, Question::Reachable, _) if *probed == client)
        });
        if !self.model.exact {
            return Err("the store was a roster".to_owned());
        }
        if self.scenario.config.unreachable == Unreachable::Retain {
            return Err("unreachable = retain".to_owned());
        }
        if !old.unconfirmed {
            return Err("it was confirmed".to_owned());
        }
        if !self.model.grace_over {
            return Err("grace is not over".to_owned());
        }
        if !just_probed || matches!(answer, None | Some(ProbeAnswer::Alive)) {
            return Err("its host did not fail a probe".to_owned());
        }
        Ok(Ok(()))
    }

    /// R2.6, `immediate`.
    pub fn unreachable_allowed(
        &mut self,
        client: ClientId,
        old: Cell,
    ) -> Result<Result<(), String>, String> {
        if self.scenario.config.unreachable != Unreachable::Immediate {
            return Err("unreachable is not immediate".to_owned());
        }
        if !old.unconfirmed {
            return Err("it was confirmed".to_owned());
        }
        if !self.model.failed_notices.contains(&client) {
            return Err("no notice to it had failed".to_owned());
        }
        Ok(Ok(()))
    }
}
