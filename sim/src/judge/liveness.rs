//! Waiters: why they come and go, and in which order they are granted; and what must hold at the
//! end, when the faults have stopped and every process has given back its locks.

use std::collections::{BTreeMap, BTreeSet};

use keeper::Keeper;
use keeper::event::{Event, Proof};
use keeper::identity::{ClientId, GrantId, HostKey, LockId};
use keeper::request::OperatorAction;
use keeper::step::{CancelOutcome, Message, Outcome, Refusal, Reply, Step};
use keeper::time::Time;

use crate::host::Activity;
use crate::judge::cause::{client_released_by, is_older};
use crate::judge::input::ObservedInput;
use crate::model::{LockGrid, ModelWaiter, OpenGrant, WaitKey, WaitRecord};
use crate::packet::Call;
use crate::queue::{HOUR, Ms, SECOND};
use crate::scenario::HostKind;
use crate::world::{Event as Next, Phase, World};

/// A waiter whose host was not heard lately is probed (30 s) before it is granted a free range.
const GRANT_MAX: Ms = 90 * SECOND;
/// One that has repeated its request within this time is granted it at once.
const FRESH: Ms = 44 * SECOND;

impl World {
    pub(crate) fn judge_timer(&mut self, keeper: &Keeper, now: Time) {
        if keeper.poll_timeout().is_some_and(|at| at <= now.mono) {
            self.violate("liveness", || {
                "a timer that has fired wants to fire again at once".to_owned()
            });
        }
    }

    /// No waiter is added, removed or moved without a cause.
    pub(crate) fn judge_waiters(
        &mut self,
        before: &LockGrid,
        seen: Vec<ModelWaiter>,
        inputs: &[ObservedInput],
        step: &Step,
    ) {
        let old = std::mem::replace(&mut self.model.waiters, seen);
        self.model.waiters_before.clone_from(&old);
        if old == self.model.waiters && step.messages.is_empty() {
            return;
        }
        let (blocked, over) = self.waits_answered(step);
        let mut swept = self.hosts_swept(step);
        swept.extend(self.neighbours_of_fenced(step));
        let now_waiting: BTreeSet<WaitKey> =
            self.model.waiters.iter().map(ModelWaiter::key).collect();
        let had: BTreeSet<WaitKey> = old.iter().map(ModelWaiter::key).collect();
        for wait in now_waiting.difference(&had) {
            if !blocked.contains(wait) {
                let who = self.who(wait.0);
                self.violate("B2.11", || format!("{who} waits, and was not told: {wait:?}"));
            }
        }
        for wait in had.difference(&now_waiting) {
            let host = self.processes[wait.0].host;
            if !over.iter().any(|done| done(wait)) && !swept.contains(&host) {
                let who = self.who(wait.0);
                self.violate("B2.11", || {
                    format!("{who} no longer waits, without a cause: {wait:?}")
                });
            }
        }
        drop(over);
        // A waiter that was swept and requested again in the same step has lost its place.
        let mut old = old;
        let one_by_one = self.scenario.one_by_one;
        old.retain(|w| {
            !swept.contains(&self.processes[w.process].host)
                && (one_by_one || !blocked.contains(&w.key()))
        });
        self.judge_order(&old, before, inputs.len() > 1, step);
    }

    /// Waits that were answered Blocked, and conditions that end a wait.
    #[allow(clippy::type_complexity)]
    fn waits_answered(
        &self,
        step: &Step,
    ) -> (BTreeSet<WaitKey>, Vec<Box<dyn Fn(&WaitKey) -> bool>>) {
        let mut blocked = BTreeSet::new();
        let mut over: Vec<Box<dyn Fn(&WaitKey) -> bool>> = Vec::new();
        for message in &step.messages {
            match message {
                Message::Reply(id, reply) => {
                    let Some((request, _)) = self.model.pending_requests.get(id) else { continue };
                    let (Some(process), Some((file, range))) =
                        (request.truth.process, request.target())
                    else {
                        continue;
                    };
                    match (&request.call, reply) {
                        (Call::Lock { mode, .. }, Reply::Lock(Outcome::Blocked)) => {
                            blocked.insert((process, file, range, *mode));
                        }
                        (Call::Lock { mode, .. } | Call::Cancel { mode, .. }, _) => {
                            let key = (process, file, range, *mode);
                            // In a batch, a wait may become a grant that the owner's next request
                            // closes before it is sent.
                            let batch = !self.scenario.one_by_one;
                            over.push(Box::new(move |wait| {
                                let closed = batch && (wait.0, wait.1) == (process, file);
                                *wait == key || (closed && wait.2.overlaps(range))
                            }));
                        }
                        (Call::Unlock { .. }, _) => {
                            let batch = !self.scenario.one_by_one;
                            over.push(Box::new(move |wait| {
                                let inside = range.covers(wait.2);
                                let closed = batch && range.overlaps(wait.2);
                                (wait.0, wait.1) == (process, file) && (inside || closed)
                            }));
                        }
                        _ => {}
                    }
                }
                Message::Grant(grant) => {
                    if let Some(open) = self.model.grants.get(&grant.id) {
                        let key = (open.process, open.file, open.range, open.mode);
                        over.push(Box::new(move |wait| *wait == key));
                    }
                }
                _ => {}
            }
        }
        (blocked, over)
    }

    /// Hosts whose locks were released in this step.
    fn hosts_swept(&mut self, step: &Step) -> BTreeSet<usize> {
        let released = step.events.iter().filter_map(client_released_by);
        released.filter_map(|client| self.host_of(client)).collect()
    }

    /// Hosts that may no longer wait, in a step with a fence.
    fn neighbours_of_fenced(&mut self, step: &Step) -> Vec<usize> {
        let fenced = step.events.iter().any(|event| matches!(event, Event::Fenced { .. }));
        let refused = step.events.iter().filter(|_| fenced).filter_map(|event| match event {
            Event::Refused { client, why: Refusal::Fenced } => *client,
            _ => None,
        });
        refused.filter_map(|client| self.host_of(client)).collect()
    }

    /// An accepted reboot leaves no lock or waiter of an earlier state (the converse of I7).
    pub(crate) fn judge_swept(&mut self, step: &Step) {
        for event in &step.events {
            let Event::Rebooted { client, to, proof, .. } = event else { continue };
            let Some(host) = self.host_of(*client) else { continue };
            // In a batch the host may have locked again afterwards. What an operator confirms is
            // judged in `confirmation.rs`.
            let partial = matches!(proof, Proof::Stateless | Proof::Operator(_));
            if partial || !self.scenario.one_by_one {
                continue;
            }
            let older = |state: u32| is_older(state, to.0);
            let left = self.hosts[host].processes().find(|process| {
                let held = self.model.table[*process].iter().flatten();
                let mut held = held.filter(|cell| cell.strength > 0);
                let mut waiting = self.model.waiters.iter().filter(|w| w.process == *process);
                held.any(|cell| older(cell.incarnation))
                    || waiting.any(|w| {
                        let block = self.model.block(w.key());
                        older(block.state) && !self.model.blocked_in_step.contains(&w.key())
                    })
            });
            if let Some(process) = left {
                let who = self.who(process);
                self.violate("liveness", || {
                    format!(
                        "its host rebooted to {}, and something of {who} before that is left",
                        to.0
                    )
                });
            }
        }
    }

    /// Waiters keep their order, and a grant does not overtake an earlier waiter that only this grant
    /// is in the way of.
    fn judge_order(&mut self, old: &[ModelWaiter], before: &LockGrid, batch: bool, step: &Step) {
        let places: BTreeMap<WaitKey, usize> =
            self.model.waiters.iter().enumerate().map(|(place, w)| (w.key(), place)).collect();
        let kept: Vec<usize> = old.iter().filter_map(|w| places.get(&w.key()).copied()).collect();
        if kept.windows(2).any(|pair| pair[0] > pair[1]) {
            self.violate("B2.13", || "waiters changed their places".to_owned());
        }
        // In a batch, what was in the way of an earlier waiter may be gone at the end of the step.
        if batch {
            return;
        }
        // Locks granted in this step block other waiters as well.
        let mut taken: Vec<WaitKey> = self.granted_at_once(step);
        for message in &step.messages {
            let Message::Grant(grant) = message else { continue };
            let Some(open) = self.model.grants.get(&grant.id).cloned() else { continue };
            let key = open.key();
            let Some(place) = old.iter().position(|w| w.key() == key) else { continue };
            let overtaken = old[..place].iter().find(|earlier| {
                earlier.file == open.file
                    && earlier.process != open.process
                    && !earlier.passed_over
                    && earlier.range.overlaps(open.range)
                    && earlier.mode.conflicts(open.mode)
                    && self.blockers(earlier.key()).iter().all(|other| *other == open.process)
                    && !self.waits_for(before, earlier, open.process)
                    && !taken.iter().any(|(process, file, range, mode)| {
                        (*process, *file) == (open.process, open.file)
                            && range.overlaps(earlier.range)
                            && mode.conflicts(earlier.mode)
                    })
                    && self.model.block(earlier.key()).polled + FRESH > self.now
                    && !self.has_open_grant(earlier)
                    && places
                        .get(&earlier.key())
                        .is_some_and(|place| !self.is_passed_over(&self.model.waiters[*place]))
            });
            if let Some(earlier) = overtaken {
                let (a, b) = (self.who(open.process), self.who(earlier.process));
                self.violate("B2.13", || format!("{a} overtook {b}"));
            }
            taken.push(key);
        }
    }

    /// LOCKs that this step grants by a reply.
    fn granted_at_once(&self, step: &Step) -> Vec<WaitKey> {
        let granted = step.messages.iter().filter_map(|message| match message {
            Message::Reply(id, Reply::Lock(Outcome::Granted)) => {
                self.model.pending_requests.get(id)
            }
            _ => None,
        });
        let wait = granted.filter_map(|(request, _)| match request.call {
            Call::Lock { file, range, mode, .. } => {
                request.truth.process.map(|process| (process, file, range, mode))
            }
            _ => None,
        });
        wait.collect()
    }

    /// I7: the incarnation of a waiter is checked again when it is granted.
    pub(crate) fn judge_new_grant(&mut self, keeper: &Keeper, grant: &OpenGrant, client: ClientId) {
        let key = (grant.process, grant.file, grant.range, grant.mode);
        let waited = self.model.waiters.iter().any(|waiting| waiting.key() == key);
        if !waited && !self.model.blocked_in_step.contains(&key) {
            let who = self.who(grant.process);
            self.violate("B2.11", || format!("{who} is granted what it did not wait for: {key:?}"));
        }
        let WaitRecord { state, newest, .. } = self.model.block(grant.key());
        let recorded = keeper.client(client).map_or(0, |view| view.client.incarnation.0);
        // A parked request may have refreshed the waiter already, and another parked request may
        // have changed the state later in the same step.
        let before = self.model.states.get(&self.processes[grant.process].host);
        let fits = state == recorded || newest == recorded || before == Some(&state);
        if state != 0 && recorded != 0 && !fits {
            let who = self.who(grant.process);
            self.violate("I7", || {
                format!("{who} waited in state {state}, its host is in {recorded}: granted {key:?}")
            });
        }
    }

    /// Removes callbacks closed by a request of the owner, an answer or a release.
    pub(crate) fn close_grants(&mut self, inputs: &[ObservedInput], step: &Step) {
        use keeper::request::GrantAnswer;
        if self.model.grants.is_empty() {
            return;
        }
        for input in inputs {
            if let ObservedInput::Granted(id, GrantAnswer::Accepted | GrantAnswer::Denied) = input {
                self.model.grants.remove(id);
            }
        }
        for message in &step.messages {
            let Message::Reply(
                id,
                Reply::Lock(Outcome::Granted)
                | Reply::Unlock
                | Reply::Cancel(CancelOutcome::TooLate),
            ) = message
            else {
                continue;
            };
            let Some((request, _)) = self.model.pending_requests.get(id).cloned() else { continue };
            let (Some(process), Some((file, range))) = (request.truth.process, request.target())
            else {
                continue;
            };
            let fresh = |id: &GrantId| {
                step.messages
                    .iter()
                    .any(|m| matches!(m, Message::Grant(g) if g.id == *id && g.attempt <= 1))
            };
            self.model.grants.retain(|id, grant| {
                grant.process != process
                    || grant.file != file
                    || !grant.range.overlaps(range)
                    || fresh(id)
            });
        }
        let swept = self.hosts_swept(step);
        if !swept.is_empty() {
            let table = &self.model.table;
            let processes = &self.processes;
            self.model.grants.retain(|_, grant| {
                !swept.contains(&processes[grant.process].host)
                    || crate::cells::cells(grant.range).all(|cell| {
                        table[grant.process][grant.file][cell].strength
                            >= crate::cells::strength(grant.mode)
                    })
            });
        }
    }

    /// Passed over by the keeper, or waiting in an outdated incarnation (I7).
    pub(crate) fn is_passed_over(&self, waiting: &ModelWaiter) -> bool {
        let state = self.model.block(waiting.key()).state;
        let recorded = self.model.states.get(&self.processes[waiting.process].host);
        waiting.passed_over || (state != 0 && recorded.is_some_and(|known| *known != state))
    }

    /// Its owner has an unanswered grant in the range.
    fn has_open_grant(&self, waiting: &ModelWaiter) -> bool {
        self.model.grants.values().any(|grant| {
            grant.process == waiting.process
                && grant.file == waiting.file
                && grant.range.overlaps(waiting.range)
        })
    }

    /// A freed range reaches its waiters.
    pub(crate) fn judge_grantable(&mut self, keeper: &Keeper) {
        if self.model.waiters.is_empty() || (keeper.grace().is_some() && self.strict()) {
            self.model.grantable.clear();
            return;
        }
        let free: Vec<WaitKey> = self
            .model
            .waiters
            .iter()
            .filter(|w| {
                !self.is_passed_over(w)
                    && !self.has_open_grant(w)
                    && self.blockers(w.key()).is_empty()
            })
            .map(ModelWaiter::key)
            .collect();
        let now = self.now;
        self.model.grantable.retain(|wait, _| free.contains(wait));
        for wait in free {
            let since = *self.model.grantable.entry(wait).or_insert(now);
            let polled = self.model.block(wait).polled;
            let lately = polled + FRESH > now && keeper.grace().is_none();
            if lately || since + GRANT_MAX < now {
                let who = self.who(wait.0);
                self.violate("liveness", || format!("{who} waits for what is free: {wait:?}"));
            }
        }
    }

    /// Every remaining lock has a holder that relies on it, or an explanation that no server can know.
    /// The operator then releases the latter.
    pub(crate) fn clean_up(&mut self) {
        let Some(engine) = self.server.engine.take() else {
            return self.violate("liveness", || "the server is not up".to_owned());
        };
        let mut left = Vec::new();
        for lock in engine.decider.keeper.locks(LockId(0)) {
            let (Some(process), Some(file)) =
                (self.process_of(&engine.decider.keeper, lock.owner), self.file_named(lock.file))
            else {
                continue;
            };
            let host = self.processes[process].host;
            let cell = crate::cells::cells(lock.range).next().unwrap_or(0);
            let life = self.model.table[process][file][cell].life;
            let relies = crate::cells::cells(lock.range)
                .any(|cell| self.processes[process].belief[file][cell] > 0);
            let busy =
                !matches!(self.processes[process].doing, Activity::Finished | Activity::Idle);
            if relies || busy {
                continue;
            }
            left.push(lock.id);
            let other_life = life != self.hosts[host].life;
            let verified = self.model.accepted.get(&host) == Some(&self.hosts[host].state);
            let same_state = lock.incarnation.0 == self.hosts[host].state;
            // An undecided report is shown to the operator.
            let view = engine.decider.keeper.client(lock.owner.host);
            let shown = view.is_some_and(|view| view.pending.is_some() || view.suspect);
            // The machine never reports a reboot, or gave up.
            let silent = matches!(self.hosts[host].kind, HostKind::Netboot)
                || self.hosts[host].gave_up_announcing;
            let forged = self.processes[process].number == crate::scenario::FORGED_NUMBER;
            let explained = forged
                || self.hosts[host].never_back
                || self.model.abandoned.contains(&(process, file))
                || self.model.kept.contains(&(process, file))
                || shown
                || (other_life && same_state)
                || (other_life && self.model.false_states.contains(&(host, lock.incarnation.0)))
                || (other_life && !verified && silent);
            if !explained {
                let who = self.who(process);
                let (range, id) = (lock.range, lock.id);
                self.violate("liveness", || {
                    format!("{who} relies on nothing, and {id:?} {range:?} of file {file} is left (life {life})")
                });
            }
            self.coverage.reach("lock left for an operator");
        }
        self.server.engine = Some(engine);
        self.clean_up_shares();
        for id in left {
            self.operator(OperatorAction::Release(id));
        }
    }

    pub(crate) fn final_check(&mut self) {
        let Some(engine) = &self.server.engine else {
            return self.violate("liveness", || "the server is not up".to_owned());
        };
        let counts = engine.decider.keeper.counts();
        let in_grace = engine.decider.keeper.grace().is_some();
        let notices = engine.decider.keeper.notices().filter(|n| n.next.is_some()).count();
        let unanswered = engine.unanswered;
        let left: Vec<String> =
            engine.decider.keeper.locks(LockId(0)).map(|lock| format!("{lock:?}")).collect();
        for process in 0..self.processes.len() {
            let it = &self.processes[process];
            if self.hosts[it.host].up && !matches!(it.doing, Activity::Finished) {
                let (who, doing) = (self.who(process), it.doing);
                self.violate("liveness", || format!("{who} is not done: {doing:?}"));
            }
        }
        if counts.locks + counts.shares + counts.waiters + counts.parked + counts.open_grants > 0 {
            self.violate("liveness", || {
                format!("all processes are done, and {counts:?} is left: {left:?}")
            });
        }
        if in_grace {
            self.violate("liveness", || "grace has not ended".to_owned());
        }
        if notices > 0 {
            self.violate("liveness", || format!("{notices} notices are still owed"));
        }
        if unanswered > 0 {
            self.violate("liveness", || format!("{unanswered} requests were never answered"));
        }
        self.later(26 * HOUR, Next::IdleCheck);
    }

    /// After a day without locks no client is registered any more (B3.2).
    pub(crate) fn idle_check(&mut self) {
        self.phase = Phase::Over;
        let Some(engine) = &self.server.engine else { return };
        let idle = engine
            .decider
            .keeper
            .clients(ClientId(0))
            .find(|view| view.client.registrant.is_none() && !view.client.fenced)
            .map(|view| view.client.clone());
        if let Some(client) = idle {
            let row = engine
                .decider
                .keeper
                .host(&HostKey::new(client.address, client.name.clone()))
                .cloned();
            self.violate("B3.2", || format!("still registered after a day: {row:?}"));
        }
    }
}
