//! Which releases the received reports, probes and failed notices allow (B3.8, B4.7, B4.15), and
//! whether such a release may hit a live holder: only after a forged or mistaken report.
//!
//! The `*_allowed` methods return `Err(reason)` if no rule allows the release, `Ok(Err(reason))` if it
//! must not hit a live holder, `Ok(Ok(()))` if it may.

use keeper::Keeper;
use keeper::change::Change;
use keeper::config::{Unreachable, Verify};
use keeper::event::{Event, GraceEnd, Proof, Rejection, Release};
use keeper::identity::{ClientId, Incarnation};
use keeper::request::{GrantAnswer, NoticeResult, ProbeAnswer, Question};
use keeper::step::{Message, Notice, Step};

use crate::cells::{CELLS, FILES};
use crate::judge::input::ObservedInput;
use crate::model::{CellState, HostReport, WaitRecord};
use crate::packet::Call;
use crate::queue::{MINUTE, SECOND};
use crate::world::{Phase, World};

impl World {
    /// Records an input for later judgements.
    pub(crate) fn note_input(&mut self, input: &ObservedInput) {
        self.note_call(input);
        match input {
            ObservedInput::Request(id, request) => {
                if request.truth.process.is_some() && request.truth.honest {
                    self.model.called.insert(request.truth.host, self.now);
                }
                self.model.pending_requests.insert(*id, (request.clone(), self.model.serial));
                let mut add_report = |name: &keeper::bytes::Name, state| {
                    self.model.host_reports.push(HostReport {
                        source: request.from,
                        name: name.clone(),
                        state,
                        speaker: request.truth.honest.then_some(request.truth.host),
                        at: self.now,
                        serial: self.model.serial,
                    });
                };
                match &request.call {
                    Call::Notify { name, state } => add_report(name, Some(*state)),
                    Call::FreeAll { name } => add_report(name, None),
                    Call::Lock { file, range, mode, wait: true, state, .. } => {
                        if let Some(process) = request.truth.process {
                            let wait = (process, *file, *range, *mode);
                            let block = self.model.block(wait);
                            let polled = self.now;
                            let block = WaitRecord { newest: *state, polled, ..block };
                            self.model.note_block(wait, block);
                        }
                    }
                    _ => {}
                }
            }
            ObservedInput::Granted(id, answer) => match self.model.grants.get_mut(id) {
                Some(grant) => grant.unclear |= *answer == GrantAnswer::Unclear,
                None if *answer != GrantAnswer::Unclear => {
                    self.coverage.reach("late GRANTED answer")
                }
                None => {}
            },
            ObservedInput::Noticed(notice, NoticeResult::Failed) => {
                if let Some(client) = self.model.notices.get(notice) {
                    self.model.failed_notices.insert(*client);
                }
            }
            ObservedInput::Probed(client, question, answer) => {
                self.model.probes.insert((*client, *question), *answer);
                if matches!(question, Question::SameKernel(_)) {
                    self.model.kernels.insert(*client, *answer);
                }
                if let ProbeAnswer::InState(state) = answer {
                    self.model.reported_states.insert((*client, state.0));
                }
            }
            ObservedInput::Reset(client) => {
                self.model.resets.insert(*client);
            }
            _ => {}
        }
    }

    /// B4.5: a client that has not answered, or has not reclaimed everything, is notified again,
    /// unless it was expected and has reclaimed everything (B4.80).
    pub(crate) fn judge_noticed(&mut self, keeper: &Keeper, inputs: &[ObservedInput]) {
        for input in inputs {
            let ObservedInput::Noticed(notice, result) = input else { continue };
            if *result == NoticeResult::Answered {
                self.model.notified.extend(self.model.notices.get(notice));
            }
            let Some(client) = self.model.restart_notices.get(notice).copied() else { continue };
            let Some(view) = keeper.client(client) else { continue };
            let goes_on =
                keeper.notices().any(|other| other.client == Some(client) && other.next.is_some());
            let young = self.now < self.model.started + 13 * MINUTE;
            let unconfirmed = view.missing > 0
                && self.window_ends().is_none_or(|ends| self.now + SECOND < ends)
                && keeper.grace().is_some();
            let complete = self.model.expected.contains(&client) && view.missing == 0;
            let unheard = !self.model.notified.contains(&client) && young && !complete;
            if (unheard || (unconfirmed && view.client.monitored)) && !goes_on {
                let name = view.client.name.clone();
                let shown = keeper.notices().find(|other| other.id == *notice);
                self.violate("B4.5", || {
                    format!("{name} is not told again after {result:?}: {shown:?}")
                });
            }
        }
    }

    pub(crate) fn note_notices(&mut self, step: &Step) {
        for message in &step.messages {
            if let Message::Notice(notice) = message
                && let Some(client) = notice.client
            {
                self.model.notices.insert(notice.id, client);
            }
        }
    }

    /// Records the events of a step for later judgements and for the coverage.
    pub(crate) fn note_events(&mut self, step: &Step) {
        for event in &step.events {
            match event {
                Event::ReclaimRefused { .. } => self.coverage.reach("reclaim refused"),
                Event::Deadlock { .. } => self.coverage.reach("deadlock"),
                Event::CycleClosed { .. } => self.coverage.reach("cycle closed by a grant"),
                Event::PassedOver { .. } => self.coverage.reach("dead waiter"),
                Event::Suspect { .. } => self.coverage.reach("suspect"),
                Event::StaleRequest { .. } => self.coverage.reach("stale request refused"),
                Event::Crashed { .. } => self.coverage.reach("host marked crashed"),
                Event::RebootPending { why, .. } => {
                    self.coverage.reach("reboot notice pending");
                    match why {
                        Rejection::Unproven => self.coverage.reach("reboot notice unproven"),
                        Rejection::Unreclaimed => self.coverage.reach("mount before the notice"),
                        Rejection::Unverified => self.coverage.reach("reboot notice unverified"),
                        Rejection::Elsewhere => self.coverage.reach("reboot notice from elsewhere"),
                        Rejection::Alive => {}
                    }
                }
                Event::FreeAllPending { .. } => self.coverage.reach("FREE_ALL pending"),
                Event::Released { why: Release::OldKernel, .. } => {
                    self.coverage.reach("old kernel released beside a later one");
                }
                Event::Released { why: Release::Unanswered, .. } => {
                    self.coverage.reach("releasable lock released");
                }
                Event::Released { why: Release::Unreachable, .. } => {
                    self.coverage.reach("unreachable host released");
                }
                Event::Refused { .. } => self.coverage.reach("refused at a bound"),
                Event::Rebooted { client, to, proof, .. } => {
                    self.coverage.reach(match proof {
                        Proof::NothingHeld => "reboot accepted: nothing held",
                        Proof::Reset => "reboot accepted: reset",
                        Proof::Notice => "reboot accepted: notice",
                        Proof::Stateless => "reboot accepted: stateless",
                        Proof::Roamed(_) => "reboot accepted: roamed",
                        Proof::Operator(_) => "reboot accepted: operator",
                        Proof::Unreclaimed => "reboot accepted: nothing reclaimed",
                    });
                    if let Some(host) = self.host_of(*client) {
                        self.model.accepted.insert(host, to.0);
                        if let Some(was) = self.state_before(*client, host, *to, step)
                            && !matches!(
                                proof,
                                Proof::NothingHeld | Proof::Unreclaimed | Proof::Operator(_)
                            )
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

    /// The state that a host rebooted out of. In a batch its LOCK may have registered it, or shown
    /// another state, just before: then the state is the recorded one that this LOCK carried.
    fn state_before(
        &self,
        client: ClientId,
        host: usize,
        to: Incarnation,
        step: &Step,
    ) -> Option<u32> {
        let recorded = step.changes.iter().rev().find_map(|change| match change {
            Change::Client(row) if row.id == client => {
                row.reboot.filter(|reboot| reboot.to == to).map(|reboot| reboot.from.0)
            }
            _ => None,
        });
        let carried = recorded.filter(|recorded| {
            self.model.pending_requests.values().any(|(request, _)| {
                matches!(request.call, Call::Lock { state, .. } if state == *recorded)
                    && request.truth.host == host
            })
        });
        carried.or_else(|| self.model.states.get(&host).copied())
    }

    /// B3.4: registrants that monitor a host are notified of its reboot.
    fn check_relayed(&mut self, _client: ClientId, step: &Step) {
        let relayed = step
            .messages
            .iter()
            .filter(|message| matches!(message, Message::Notice(Notice { .. })))
            .count();
        if relayed > 0 {
            self.coverage.reach("reboot relayed to a watcher");
        }
    }

    fn grace_ended(&mut self, why: &GraceEnd) {
        self.model.grace_over = true;
        match why {
            GraceEnd::Complete => {
                self.coverage.reach("grace ended early");
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

    /// The end of a roster grace: locks that were not reclaimed are gone (I6).
    pub(crate) fn taint_unbacked(&mut self) {
        self.taint_unbacked_shares();
        for process in 0..self.processes.len() {
            for file in 0..FILES {
                for cell in 0..CELLS {
                    let it = &self.processes[process];
                    let backed = self.model.table[process][file][cell].strength;
                    // A reply from before, under way or queued in the kernel, is void as well.
                    if backed == 0 {
                        let released = &mut self.model.released_at[process][file][cell];
                        *released = self.model.serial.max(*released);
                    }
                    if it.relies_on(file, cell) > backed && !it.tainted[file][cell] {
                        self.model.released_at[process][file][cell] = self.model.serial;
                        self.processes[process].tainted[file][cell] = true;
                        self.coverage.reach("live lock lost at the end of a roster grace");
                        // A lock whose reclaim failed was lost, and judged, then.
                        if !self.processes[process].given_up[file][cell] {
                            self.judge_calm_loss(process, "the roster's grace ended");
                        }
                    }
                }
            }
        }
    }

    /// After the faults have stopped, no healthy client loses a lock.
    pub(crate) fn judge_calm_loss(&mut self, process: usize, why: &str) {
        let host = &self.hosts[self.processes[process].host];
        // The store may lack one of two hosts behind an address; the other one's notice is not its.
        let neighbours = self.hosts.iter().filter(|other| other.address == host.address).count();
        let told = host.monitored
            && !host.deaf
            && !host.firewalled
            && (neighbours == 1 || !self.model.open);
        let healthy = host.up && told && self.phase >= Phase::Calm;
        if healthy && self.model.calm_restart {
            let who = self.who(process);
            self.violate("liveness", || {
                format!("{who} was healthy and lost a lock in a quiet restart: {why}")
            });
        }
    }

    /// The last answer about the kernel that was in this state.
    fn kernel(&self, client: ClientId, state: u32) -> Option<ProbeAnswer> {
        let question = Question::SameKernel(Incarnation(state));
        let known = self.model.probes.get(&(client, question));
        let known = if state == 0 { self.model.kernels.get(&client) } else { known };
        known.copied()
    }

    pub(crate) fn was_reset(&self, client: ClientId, state: u32) -> bool {
        self.model.resets.contains(&client) || self.kernel(client, state) == Some(ProbeAnswer::Gone)
    }

    /// B3.8: a notice from the host's own address, and no sign of life of the old kernel.
    pub(crate) fn notice_allowed(
        &mut self,
        client: ClientId,
        host: usize,
        to: u32,
        old: CellState,
    ) -> Result<Result<(), String>, String> {
        let (address, name) = (self.hosts[host].address, self.hosts[host].name.clone());
        let own: Vec<bool> = self
            .model
            .host_reports
            .iter()
            .filter(|report| report.source == address && report.state == Some(to))
            .filter(|report| report.name.names_same_machine(&name))
            .map(|report| report.speaker == Some(host))
            .collect();
        if own.is_empty() {
            return Err(format!("no notice of state {to} came from its address in its name"));
        }
        let verify = self.scenario.config.verify;
        if verify == Verify::Ask && !self.model.reported_states.contains(&(client, to)) {
            return Err("its status monitor had not answered that state".to_owned());
        }
        let alive = matches!(self.kernel(client, old.incarnation), None | Some(ProbeAnswer::Alive));
        if verify != Verify::Address && alive {
            return Err("the old kernel had answered".to_owned());
        }
        if own.contains(&false) || verify == Verify::Address {
            self.coverage.reach("false notice accepted");
            self.model.false_states.insert((host, to));
            Ok(Ok(()))
        } else {
            Ok(Err("its own honest notice took it".to_owned()))
        }
    }

    /// A reboot out of one incarnation released locks of another one.
    pub(crate) fn old_kernel_allowed(
        &mut self,
        client: ClientId,
        old: CellState,
    ) -> Result<Result<(), String>, String> {
        match self.kernel(client, old.incarnation) {
            Some(ProbeAnswer::Gone) => Ok(Err("a reset took a live one's lock".to_owned())),
            Some(ProbeAnswer::Silent) => Ok(Ok(())),
            _ => Err("the kernel that took it had answered".to_owned()),
        }
    }

    pub(crate) fn free_all_allowed(
        &mut self,
        client: ClientId,
        host: usize,
        old: CellState,
    ) -> Result<Result<(), String>, String> {
        let address = self.hosts[host].address;
        let name = self.hosts[host].name.clone();
        let trusted = self.scenario.config.verify == Verify::Address;
        let answer = self.kernel(client, old.incarnation);
        let reports = self.model.host_reports.iter().filter(|report| report.state.is_none());
        let mut own = None;
        let mut foreign = false;
        for report in reports {
            let from_there = report.source == address;
            if from_there && report.name.names_same_machine(&name) {
                own = Some(own.unwrap_or(true) && report.speaker == Some(host));
            } else {
                foreign |= from_there || report.name.names_same_machine(&name);
            }
        }
        match (own, answer) {
            (_, Some(ProbeAnswer::Alive)) if !trusted => {
                Err("the old kernel had answered".to_owned())
            }
            // If addresses are trusted, a late FREE_ALL releases locks taken after it was sent.
            (Some(true), _) if trusted => Ok(Ok(())),
            (Some(true), _) => Ok(Err("its own honest FREE_ALL took it".to_owned())),
            (Some(false), _) => Ok(Ok(())),
            (None, Some(ProbeAnswer::Gone)) if foreign => {
                Ok(Err("a FREE_ALL from elsewhere took a live lock".to_owned()))
            }
            (None, _) => Err("no FREE_ALL came from its address".to_owned()),
        }
    }

    /// B4.15: unconfirmed after the window, wanted by another owner, and its host fails a probe.
    pub(crate) fn unanswered_allowed(
        &mut self,
        client: ClientId,
        old: CellState,
        inputs: &[ObservedInput],
    ) -> Result<Result<(), String>, String> {
        let answer = self.model.probes.get(&(client, Question::Reachable)).copied();
        let just_probed = inputs.iter().any(|input| {
            matches!(input, ObservedInput::Probed(probed, Question::Reachable, _) if *probed == client)
        });
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

    /// B4.16, with `unreachable = immediate`.
    pub(crate) fn unreachable_allowed(
        &mut self,
        client: ClientId,
        old: CellState,
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
