//! Whether each reply is correct, as far as an observer can tell: a denial needs a conflicting lock, a
//! deadlock needs a cycle, a reclaim needs a record.

use std::collections::BTreeSet;
use std::rc::Rc;

use keeper::Keeper;
use keeper::event::Event;
use keeper::identity::{ClientId, HostKey};
use keeper::range::Range;
use keeper::request::Mode;
use keeper::step::{CancelOutcome, Message, Outcome, Refusal, Reply, Step, TestResult};
use keeper::time::Time;

use crate::cells::{self, clash, strength};
use crate::host::ReclaimItem;
use crate::judge::cause::client_released_by;
use crate::judge::input::ObservedInput;
use crate::model::{LockGrid, ModelWaiter, WaitKey};
use crate::packet::{Answer, Call, Request};
use crate::queue::{MINUTE, Ms};
use crate::world::World;

/// How long requests of a dead incarnation are refused.
const QUARANTINE: Ms = 2 * MINUTE + 1000;

impl World {
    pub(crate) fn judge_replies(
        &mut self,
        keeper: &Keeper,
        before: &LockGrid,
        inputs: &[ObservedInput],
        step: &Step,
        _now: Time,
    ) {
        // With several decisions in one step, the table that each of them saw is unknown.
        let replies = step.messages.iter().filter(|m| matches!(m, Message::Reply(..))).count();
        let quiet = !step.messages.iter().any(|m| matches!(m, Message::Grant(_)));
        let released = step.events.iter().any(|event| client_released_by(event).is_some());
        let simple = replies == 1 && quiet && !released;
        for message in &step.messages {
            let Message::Reply(id, reply) = message else { continue };
            if matches!(reply, Reply::Operator(_)) {
                continue;
            }
            let Some((request, asked)) = self.model.pending_requests.remove(id) else {
                self.violate("I8", || {
                    format!("{id:?} is answered twice, or was never asked: {reply:?}")
                });
                continue;
            };
            if *reply == Reply::Acknowledged {
                self.judge_heard(&request, asked, step);
            }
            // Parked during a reboot of its host: a live client sends it again.
            let rebooted = step.events.iter().any(|e| matches!(e, Event::Rebooted { .. }));
            if rebooted && *reply == Reply::NoReply && matches!(request.call, Call::Lock { .. }) {
                continue;
            }
            if let (Call::Cancel { file, range, mode }, Reply::Cancel(cancelled)) =
                (&request.call, reply)
            {
                self.judge_cancel(&request, (*file, *range, *mode), *cancelled, released);
            }
            let alone = simple && matches!(inputs, [ObservedInput::Request(only, _)] if only == id);
            self.judge_reply(keeper, before, &request, reply, simple, alone);
        }
    }

    fn judge_reply(
        &mut self,
        keeper: &Keeper,
        before: &LockGrid,
        request: &Rc<Request>,
        reply: &Reply,
        simple: bool,
        alone: bool,
    ) {
        match (&request.call, reply) {
            (Call::Lock { reclaim: true, .. }, Reply::Lock(outcome)) => {
                self.judge_reclaim(keeper, before, request, *outcome, simple);
            }
            (Call::Lock { .. }, Reply::Lock(outcome)) => {
                self.judge_lock(keeper, before, request, *outcome, simple, alone);
            }
            (Call::Test { file, range, mode }, Reply::Test(tested)) => {
                self.judge_test(request, *file, *range, *mode, tested, simple);
            }
            (Call::Cancel { .. }, Reply::Cancel(_))
            | (Call::Unlock { .. }, Reply::Unlock)
            // An unlock that would split a lock beyond the bound stays unanswered.
            | (Call::Unlock { .. }, Reply::NoReply)
            | (Call::Share { .. }, Reply::Share(_))
            | (Call::Unshare { .. }, Reply::Unshare)
            | (Call::FreeAll { .. }, Reply::Acknowledged | Reply::NoReply)
            | (Call::Notify { .. }, Reply::Acknowledged | Reply::NoReply)
            | (Call::Monitor { .. }, Reply::Monitor(_))
            | (Call::Unmonitor { .. }, Reply::Unmonitor) => {}
            _ => self.violate("reply", || format!("{reply:?} is no answer to {request:?}")),
        }
    }

    fn judge_lock(
        &mut self,
        keeper: &Keeper,
        before: &LockGrid,
        request: &Rc<Request>,
        outcome: Outcome,
        simple: bool,
        alone: bool,
    ) {
        let Call::Lock { file, range, mode, wait, .. } = request.call else { return };
        let Some(process) = request.truth.process else { return };
        let in_grace = !self.model.grace_over;
        let had_some = cells::cells(range).any(|cell| before[process][file][cell].strength > 0);
        let conflict = self.conflict_exists(before, process, file, range, mode)
            || self.conflict_exists(&self.model.table, process, file, range, mode);
        let admitted = matches!(outcome, Outcome::Granted | Outcome::Blocked);
        if admitted && simple && self.is_stale_request(request) {
            self.violate("B3.16", || {
                format!("a dead kernel's late request is {outcome:?}: {request:?}")
            });
        }
        let waited =
            self.model.waiters_before.iter().any(|w| w.key() == (process, file, range, mode));
        let adds = outcome == Outcome::Granted && !had_some && !waited;
        let most = self.scenario.config.limits.locks;
        let counts = keeper.counts();
        let grown = counts.locks + counts.shares + counts.waiters > self.model.entries;
        if adds && alone && grown && self.model.entries >= most {
            let entries = self.model.entries;
            self.violate("I10", || {
                format!("{outcome:?} beside {entries} others, {most} may be: {request:?}")
            });
        }
        match outcome {
            Outcome::Granted | Outcome::Blocked | Outcome::Denied | Outcome::Deadlock
                if in_grace && self.strict() && !(had_some && self.model.exact) =>
            {
                self.violate("I5", || format!("{outcome:?} in grace, to a new lock: {request:?}"));
            }
            Outcome::Grace if !in_grace && self.model.grace_was_over => {
                self.violate("reply", || {
                    format!("refused for grace outside of grace: {request:?}")
                });
            }
            Outcome::Denied if wait => {
                self.violate("reply", || format!("a waiting request was denied: {request:?}"));
            }
            Outcome::Denied if self.model.kept.iter().any(|(kept, _)| *kept == process) => {}
            Outcome::Denied if !conflict && simple => {
                self.violate("reply", || format!("denied without a conflict: {request:?}"));
            }
            Outcome::Blocked => {
                if !wait {
                    self.violate("reply", || format!("blocked, and does not wait: {request:?}"));
                }
                if !conflict && simple {
                    self.violate("reply", || format!("blocked without a conflict: {request:?}"));
                }
                let waits =
                    self.model.waiters.iter().any(|w| w.key() == (process, file, range, mode));
                if !waits && simple {
                    self.violate("reply", || format!("blocked, and does not wait: {request:?}"));
                }
                // A releasable record under a former address makes one process two owners.
                let one_owner = self.model.kept.is_empty();
                if alone
                    && one_owner
                    && self.closes_a_cycle(&self.model.waiters, (process, file, range, mode))
                {
                    self.violate("B2.16", || format!("waits in a cycle: {request:?}"));
                }
            }
            Outcome::Deadlock
                if simple
                    && !self.closes_a_cycle(&self.model.waiters, (process, file, range, mode))
                    && !self.closes_a_cycle(
                        &self.model.waiters_before,
                        (process, file, range, mode),
                    ) =>
            {
                let waits = self.explain_blockers(process, file, range, mode);
                self.violate("B2.16", || format!("a deadlock without a cycle: {waits}"));
            }
            Outcome::Refused(refusal) if simple => self.judge_refusal(keeper, request, refusal),
            _ => {}
        }
    }

    /// Whether this is a packet of an incarnation that is known to be gone.
    fn is_stale_request(&self, request: &Request) -> bool {
        let Call::Lock { state, .. } = request.call else { return false };
        let host = request.truth.host;
        let gone = self.model.gone_states.get(&(host, state));
        request.truth.life < self.hosts[host].life
            && gone.is_some_and(|at| at + QUARANTINE > self.now + 2000)
    }

    /// A notice or FREE_ALL that is answered has been accepted and applied.
    fn judge_heard(&mut self, request: &Rc<Request>, asked: u64, step: &Step) {
        match &request.call {
            Call::Notify { state, .. } => {
                // In a batch the rejection may concern another notice, which was not answered.
                let unanswered = step
                    .messages
                    .iter()
                    .any(|message| matches!(message, Message::Reply(_, Reply::NoReply)));
                let doubted = !unanswered
                    && step.events.iter().any(
                        |event| matches!(event, Event::RebootPending { to, .. } if to.0 == *state),
                    );
                let accepted = step.events.iter().any(|event| match event {
                    Event::Rebooted { to, .. } => to.0 == *state,
                    // The state was recorded without a reboot.
                    Event::Suspect { is, .. } => is.0 == *state,
                    _ => false,
                });
                if doubted && !accepted {
                    self.violate("B3.12", || format!("not believed, and answered: {request:?}"));
                }
            }
            Call::FreeAll { .. } if request.truth.honest => {
                let host = request.truth.host;
                let granted =
                    |process: &usize| self.model.grants.values().any(|g| g.process == *process);
                let left = self.hosts[host].processes().filter(|p| !granted(p)).find(|process| {
                    (0..cells::FILES).any(|file| {
                        let mut bytes = self.model.table[*process][file].iter();
                        bytes.any(|c| c.strength > 0 && c.life < request.truth.life)
                            && self.model.touched_at[*process][file] < asked
                    })
                });
                if let Some(process) = left {
                    let who = self.who(process);
                    self.violate("B3.17", || {
                        format!("FREE_ALL was answered, and {who} still holds")
                    });
                }
            }
            _ => {}
        }
    }

    fn judge_refusal(&mut self, keeper: &Keeper, request: &Rc<Request>, refusal: Refusal) {
        let limits = self.scenario.config.limits;
        let counts = keeper.counts();
        let right = match refusal {
            // By its own row, that of another host of its name, or of another at its address.
            Refusal::Fenced => keeper.clients(ClientId(0)).any(|view| {
                let same_name = view.client.name.names_same_machine(&request.name);
                view.client.fenced && (same_name || view.client.address == request.from)
            }),
            Refusal::TooManyLocks => {
                counts.locks + counts.waiters + counts.shares + 3 > limits.locks
            }
            Refusal::TooManyLocksOnFile => limits.locks_per_file < 100,
            Refusal::TooManyLocksOfHost => limits.locks_per_client < 100,
            Refusal::TooManyWaitersOnFile => limits.waiters_per_file < 100,
            Refusal::TooManyClients => limits.clients < 100,
            Refusal::TooManyRegistrations => limits.registrations_per_address < 100,
            Refusal::TooManyParked => limits.parked < 100,
            Refusal::TooManyClientsOfAddress => limits.clients_per_address < 100,
            Refusal::TooManyLocksOfAddress => limits.locks_per_address < 100,
            Refusal::TooManyParkedOfAddress => limits.parked_per_address < 100,
            // No simulated program registers clients of its own.
            Refusal::OwnProtocol => false,
            Refusal::Withdrawn => true,
            Refusal::StaleRequest => {
                let Call::Lock { state, .. } = request.call else { return };
                // That state, or one before it.
                let mut gone = self.model.gone_states.iter();
                gone.any(|((host, gone), at)| {
                    *host == request.truth.host
                        && state.wrapping_sub(*gone) as i32 <= 0
                        && at + QUARANTINE >= self.now
                })
            }
        };
        if !right {
            let row = keeper.host(&HostKey::new(request.from, request.name.clone())).cloned();
            self.violate("I10", || format!("{refusal:?} for no reason ({row:?}): {request:?}"));
        }
        let host = &self.hosts[request.truth.host];
        let alive = host.up && host.life == request.truth.life;
        if refusal == Refusal::StaleRequest
            && alive
            && let Call::Lock { state, .. } = request.call
            && state == host.state
        {
            // A container or an adversary reported a later state of the live host.
            self.coverage.reach("stale-request refusal to a live host");
        }
    }

    fn judge_reclaim(
        &mut self,
        keeper: &Keeper,
        before: &LockGrid,
        request: &Rc<Request>,
        outcome: Outcome,
        simple: bool,
    ) {
        let Call::Lock { file, range, mode, .. } = request.call else { return };
        let Some(process) = request.truth.process else { return };
        let wanted = strength(mode);
        let covers = |grid: &LockGrid| {
            cells::cells(range).all(|cell| grid[process][file][cell].strength >= wanted)
        };
        // In a batch its owner may have locked it just before.
        let covered = covers(before) || (!simple && covers(&self.model.table));
        let in_grace = !self.model.grace_over || !self.model.grace_was_over;
        let row = keeper.host(&HostKey::new(request.from, request.name.clone()));
        let known = row.is_some_and(|row| row.epoch < self.model.epoch && row.monitored);
        match outcome {
            Outcome::Granted => {
                let roster = !self.model.exact && in_grace;
                if !covered && !in_grace {
                    self.violate("I5", || {
                        format!("reclaimed after grace what was never recorded: {request:?}")
                    });
                }
                if !covered && !known && !self.model.open {
                    self.violate("I5", || format!("reclaimed by an unknown host: {request:?}"));
                }
                if !covered && self.model.exact {
                    self.coverage.reach("unrecorded reclaim");
                }
                if roster {
                    self.judge_roster_reclaim(process, file, range, mode, request.truth.honest);
                }
            }
            Outcome::Denied | Outcome::Grace if covered && self.model.exact && simple => {
                self.violate("B4.12", || {
                    format!("a recorded lock cannot be reclaimed: {request:?}")
                });
            }
            Outcome::Denied if (known || self.model.open) && in_grace => {
                let conflict = self.conflict_exists(before, process, file, range, mode)
                    || self.conflict_exists(&self.model.table, process, file, range, mode)
                    || self.others_touched_in_step(process, file);
                if !conflict {
                    self.violate("B4.12", || format!("denied without a conflict: {request:?}"));
                }
            }
            Outcome::Refused(refusal) if simple => self.judge_refusal(keeper, request, refusal),
            Outcome::Denied | Outcome::Grace | Outcome::Refused(_) => {}
            Outcome::Blocked | Outcome::Deadlock => {
                self.violate("reply", || format!("{outcome:?} to a reclaim: {request:?}"));
            }
        }
    }

    /// In a roster grace the first reclaim wins. Losing to a forged reclaim, or to a client that does
    /// not know that its lock was released by a rule, is allowed.
    fn judge_roster_reclaim(
        &mut self,
        process: usize,
        file: usize,
        range: Range,
        mode: Mode,
        honest: bool,
    ) {
        for cell in cells::cells(range) {
            let reclaimer = &self.processes[process];
            let entitled = honest
                && !reclaimer.tainted[file][cell]
                && reclaimer.relies_on(file, cell) >= strength(mode);
            for other in 0..self.processes.len() {
                let it = &self.processes[other];
                // A failed reclaim was judged when it failed.
                if other == process
                    || it.tainted[file][cell]
                    || it.given_up[file][cell]
                    || !clash(strength(mode), it.relies_on(file, cell))
                {
                    continue;
                }
                if entitled {
                    let (a, b) = (self.who(process), self.who(other));
                    return self.violate("I4", || {
                        format!("{a} reclaimed byte {cell} of file {file}, which is {b}'s")
                    });
                }
                self.processes[other].tainted[file][cell] = true;
                self.model.released_at[other][file][cell] = self.model.serial;
                self.coverage.reach("lost to a false reclaim in a roster grace");
            }
        }
    }

    /// A reclaim was refused, as the client sees it.
    pub(crate) fn judge_lost_reclaim(&mut self, held: ReclaimItem, answer: &Answer) {
        let it = &self.processes[held.process];
        // A byte released by a rule makes the reclaim of the whole merged range fail; so does a
        // downgrade under way that was committed already.
        let relied = |cell: usize| {
            !it.tainted[held.file][cell] && it.relies_on(held.file, cell) >= strength(held.mode)
        };
        if cells::cells(held.range).all(relied) {
            let why = format!("the reclaim was answered {answer:?}");
            // The store may have lost that a fence was lifted.
            let fenced = Answer::Keeper(Reply::Lock(Outcome::Refused(Refusal::Fenced)));
            if *answer != fenced || !self.model.open {
                self.judge_calm_loss(held.process, &why);
            }
            let limit = matches!(answer, Answer::Keeper(Reply::Lock(Outcome::Refused(_))));
            let missed = !self.model.exact && self.model.grace_over;
            let known = self.hosts[self.processes[held.process].host].monitored;
            if !limit && !missed && known {
                let who = self.who(held.process);
                self.violate("B4.12", || format!("{who} lives and was refused a reclaim: {why}"));
            }
        }
    }

    fn judge_test(
        &mut self,
        request: &Rc<Request>,
        file: usize,
        range: Range,
        mode: Mode,
        tested: &TestResult,
        simple: bool,
    ) {
        let Some(process) = request.truth.process else { return };
        let in_grace = !self.model.grace_over;
        let conflict = self.conflict_exists(&self.model.table, process, file, range, mode);
        match tested {
            TestResult::Grace if !in_grace && self.model.grace_was_over => {
                self.violate("reply", || {
                    format!("refused for grace outside of grace: {request:?}")
                });
            }
            TestResult::Free | TestResult::Held(_) if in_grace && self.strict() => {
                self.violate("B4.9", || format!("{tested:?} in grace: {request:?}"));
            }
            TestResult::Free if conflict && simple => {
                self.violate("reply", || format!("free in spite of a conflict: {request:?}"));
            }
            TestResult::Held(holder) => {
                let found = (0..self.processes.len()).any(|other| {
                    let it = &self.processes[other];
                    // A record that became releasable may be of the same process under a former
                    // address of the server.
                    (other != process || self.model.kept.contains(&(other, file)))
                        && it.number == holder.owner.number
                        && it.tag == holder.owner.tag
                        && holder.range.overlaps(range)
                        && mode.conflicts(holder.mode)
                        && cells::cells(holder.range).all(|cell| {
                            self.model.table[other][file][cell].strength == strength(holder.mode)
                        })
                });
                if !found && simple {
                    self.violate("reply", || format!("{holder:?} holds nothing: {request:?}"));
                }
            }
            _ => {}
        }
    }

    fn judge_cancel(
        &mut self,
        request: &Rc<Request>,
        (file, range, mode): (usize, Range, Mode),
        cancelled: CancelOutcome,
        released: bool,
    ) {
        let Some(process) = request.truth.process else { return };
        if self.model.waiters.iter().any(|w| w.key() == (process, file, range, mode)) {
            self.violate("B2.15", || format!("cancelled, and still waits: {request:?}"));
        }
        let held = cells::cells(range)
            .all(|cell| self.model.table[process][file][cell].strength >= strength(mode));
        // A lock granted before the cancel may be released by a rule in the same step.
        let judged = held || !released;
        if judged && held != (cancelled == CancelOutcome::TooLate) {
            self.violate("B2.15", || format!("{cancelled:?}, and held: {held}: {request:?}"));
        }
    }

    pub(crate) fn conflict_exists(
        &self,
        grid: &LockGrid,
        process: usize,
        file: usize,
        range: Range,
        mode: Mode,
    ) -> bool {
        grid.iter().enumerate().any(|(other, files)| {
            other != process
                && cells::cells(range).any(|cell| clash(strength(mode), files[file][cell].strength))
        })
    }

    /// Whether another decision of this step concerned the file, so that its holders then are unknown.
    fn others_touched_in_step(&self, process: usize, file: usize) -> bool {
        let serial = self.model.serial;
        let others =
            self.model.touched_at.iter().enumerate().filter(|(other, _)| *other != process);
        others.into_iter().any(|(_, files)| files[file] == serial)
    }

    /// Whether the blockers of a wait wait, directly or not, for its own process.
    fn closes_a_cycle(&self, waiters: &[ModelWaiter], wait: WaitKey) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = self.blockers(wait);
        while let Some(blocker) = next.pop() {
            if blocker == wait.0 {
                return true;
            }
            if seen.insert(blocker) {
                let waiting = waiters.iter().filter(|waiting| waiting.process == blocker);
                next.extend(waiting.flat_map(|waiting| self.blockers(waiting.key())));
            }
        }
        false
    }

    /// The wait-for graph as text.
    fn explain_blockers(&self, process: usize, file: usize, range: Range, mode: Mode) -> String {
        let waiters = &self.model.waiters;
        let mut waits = vec![(process, file, range, mode)];
        waits.extend(waiters.iter().map(ModelWaiter::key));
        let words = waits.into_iter().map(|wait| {
            let blockers = self.blockers(wait);
            let blockers: Vec<String> = blockers.into_iter().map(|who| self.who(who)).collect();
            format!(
                "{} wants {:?} {:?} of {}: {blockers:?}",
                self.who(wait.0),
                wait.3,
                wait.2,
                wait.1
            )
        });
        words.collect::<Vec<_>>().join("; ")
    }

    /// Whether `process` holds what the waiter waits for.
    pub(crate) fn waits_for(
        &self,
        table: &LockGrid,
        waiting: &ModelWaiter,
        process: usize,
    ) -> bool {
        cells::cells(waiting.range).any(|cell| {
            let held = table[process][waiting.file][cell].strength;
            clash(strength(waiting.mode), held)
        })
    }

    /// The processes that hold a conflicting lock.
    pub(crate) fn blockers(&self, wait: WaitKey) -> Vec<usize> {
        let (process, file, range, mode) = wait;
        let holders = (0..self.processes.len()).filter(|other| {
            *other != process
                && cells::cells(range).any(|cell| {
                    clash(strength(mode), self.model.table[*other][file][cell].strength)
                })
        });
        holders.collect()
    }
}
