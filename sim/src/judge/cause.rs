//! Why a byte changed hands: by a request of its owner, found in the replies, or by an event that
//! names a rule whose conditions hold.

use std::collections::BTreeMap;

use keeper::Keeper;
use keeper::event::{Event, Proof, Release};
use keeper::identity::ClientId;
use keeper::range::Range;
use keeper::step::{CancelOutcome, Message, Outcome, Reply, Step};
use keeper::time::Time;

use crate::cells::{self, CELLS, FILES, strength};
use crate::judge::effect::{Cause, Effect};
use crate::judge::input::ObservedInput;
use crate::model::{CellState, Model};
use crate::world::World;

/// Whether an NSM state is known and before another.
pub(super) fn is_older(state: u32, than: u32) -> bool {
    state != 0 && (state.wrapping_sub(than) as i32) < 0
}

/// The client whose locks and shares an event released.
pub(super) fn client_released_by(event: &Event) -> Option<ClientId> {
    match event {
        Event::Rebooted { client, .. }
        | Event::Released { client, .. }
        | Event::ReleasedByOperator { client, .. }
        | Event::Fenced { client, .. } => Some(*client),
        _ => None,
    }
}

impl World {
    /// Judges one input, or a batch of them.
    pub(crate) fn judge(
        &mut self,
        keeper: &Keeper,
        inputs: &[ObservedInput],
        step: &Step,
        now: Time,
    ) {
        self.model.serial += 1;
        for input in inputs {
            self.note_input(input);
        }
        self.judge_noticed(keeper, inputs);
        if step.is_empty() {
            return;
        }
        self.note_clients(step);
        self.trace_step(step);
        let seen = self.read_table(keeper);
        let waiters = self.read_waiters(keeper);
        let before = self.model.table.clone();
        self.model.grace_was_over = self.model.grace_over;
        self.note_notices(step);
        let causes = self.causes(keeper, inputs, step);
        let alone = inputs.len() == 1;
        for cause in causes.iter().filter(|cause| !cause.perhaps) {
            self.model.touched_at[cause.process][cause.file] = self.model.serial;
        }
        for process in 0..self.processes.len() {
            for file in 0..FILES {
                if before[process][file] == [CellState::default(); CELLS]
                    && seen[process][file] == [CellState::default(); CELLS]
                    && !causes.iter().any(|c| c.process == process && c.file == file)
                {
                    continue;
                }
                for cell in 0..CELLS {
                    let (old, new) = (before[process][file][cell], seen[process][file][cell]);
                    let cell = (process, file, cell);
                    self.judge_cell(cell, old, new, &causes, step, inputs, alone);
                }
            }
        }
        self.judge_waiters(&before, waiters, inputs, step);
        self.judge_shares(keeper, inputs, step);
        self.note_events(step);
        self.judge_share_replies(step);
        self.judge_swept(step);
        self.judge_confirmed(inputs, step);
        self.check_conflicts();
        self.check_beliefs();
        self.check_bounds(keeper, now);
        self.close_grants(inputs, step);
        self.judge_replies(keeper, &before, inputs, step, now);
        self.note_states(keeper);
        let counts = keeper.counts();
        self.model.entries = counts.locks + counts.shares + counts.waiters;
        self.judge_grantable(keeper);
        let Model { kept, table, shares, .. } = &mut self.model;
        kept.retain(|key| {
            table[key.0][key.1].iter().any(|cell| cell.unconfirmed)
                || shares.get(key).is_some_and(|shared| shared.unconfirmed)
        });
    }

    /// Records the NSM states of hosts, for the judgement of the next step.
    pub(crate) fn note_states(&mut self, keeper: &Keeper) {
        let (mut states, mut rows) = (BTreeMap::new(), BTreeMap::new());
        for view in keeper.clients(ClientId(0)) {
            if let Some(Some(host)) = self.model.hosts.get(&view.client.id) {
                states.insert(*host, view.client.incarnation.0);
                rows.insert(*host, view.client.id);
            }
        }
        self.note_pending(keeper);
        let before = std::mem::replace(&mut self.model.rows, rows);
        let same =
            |host: &usize| before.get(host).is_none_or(|id| self.model.rows.get(host) == Some(id));
        // With a client record, the memory of its reboots goes.
        self.model.gone_states.retain(|(host, _), _| states.contains_key(host) && same(host));
        self.model.accepted.retain(|host, _| states.contains_key(host));
        self.model.states = states;
    }

    #[allow(clippy::too_many_arguments)]
    fn judge_cell(
        &mut self,
        (process, file, cell): (usize, usize, usize),
        old: CellState,
        seen: CellState,
        causes: &[Cause],
        step: &Step,
        inputs: &[ObservedInput],
        alone: bool,
    ) {
        let same = old.strength == seen.strength && old.incarnation == seen.incarnation;
        let mine: Vec<&Cause> = causes
            .iter()
            .filter(|c| c.process == process && c.file == file)
            .filter(|c| cells::cells(c.range).contains(&cell))
            .collect();
        let CellState { strength, incarnation, .. } = seen;
        let mut new = CellState { strength, incarnation, ..old };
        let fits = |cause: &Cause| match &cause.effect {
            Effect::Clear => seen.strength == 0,
            Effect::Set { at_least: true, .. } if cause.perhaps => {
                seen.strength >= cause.strength && seen.strength <= old.strength.max(cause.strength)
            }
            // A stronger lock is not weakened until the client has accepted the grant.
            Effect::Set { at_least: true, .. } => seen.strength == old.strength.max(cause.strength),
            // A reclaim weakens nothing: the client may reclaim the rest later.
            Effect::Set { reclaim: true, .. } => seen.strength == old.strength.max(cause.strength),
            Effect::Set { .. } => seen.strength == cause.strength,
            Effect::Restore(before) => before[cell].strength == seen.strength,
        };
        let demanded = mine.iter().rev().copied().find(|cause| !cause.perhaps);
        let cause = if alone { demanded } else { None };
        // Certain causes take precedence over possible ones.
        let certain = mine.iter().rev().copied().find(|cause| !cause.perhaps && fits(cause));
        let cause = cause.or(certain);
        let cause = cause.or_else(|| mine.iter().rev().copied().find(|cause| fits(cause)));
        let in_turn = mine.iter().fold(old, |byte, cause| cause.applied_to(cell, byte));
        let several = mine.iter().filter(|cause| !cause.perhaps).count() > 1;
        match cause {
            Some(cause) if cause.perhaps && same => {}
            // For example, the refusal of one callback lets the next one of the same owner go out.
            Some(_) if alone && several && in_turn.strength == seen.strength => {
                new = CellState { incarnation: seen.incarnation, ..in_turn };
            }
            Some(cause) if fits(cause) => {
                if let Effect::Set { life, .. } = cause.effect {
                    new.life = life;
                    new.unconfirmed = false;
                }
                if let Effect::Restore(before) = &cause.effect {
                    new = before[cell];
                }
            }
            Some(_) if self.is_ambiguous(process, file, step) => {}
            Some(cause) if !self.may_be_released(process, step) => {
                let (who, cause) = (self.who(process), cause.clone());
                self.violate("I6", || {
                    format!(
                        "{who}, byte {cell} of file {file}: {cause:?} left {seen:?}, was {old:?}"
                    )
                });
            }
            Some(_) if seen.strength == 0 => {
                self.judge_release((process, file, cell), old, step, inputs);
            }
            _ if same => {}
            // B4.91: the kernel that reclaimed it is identified.
            None if old.incarnation == 0
                && old.strength == seen.strength
                && self.model.was_open =>
            {
                let host = self.processes[process].host;
                if old.life != 0 && old.life != self.hosts[host].life {
                    let who = self.who(process);
                    self.violate("I7", || {
                        format!("{who}, byte {cell} of file {file}: another kernel adopts {old:?}")
                    });
                }
                self.coverage.reach("kernel of a reclaim identified");
            }
            _ if old.strength == 0 && self.became_releasable(process, file, cell, seen, step) => {
                new.life = self.model.remembered[process][file][cell].life;
                new.unconfirmed = true;
                self.model.kept.insert((process, file));
            }
            // All causes in sequence.
            None if demanded.is_some() && in_turn.strength == seen.strength => {
                new = CellState { incarnation: seen.incarnation, ..in_turn };
            }
            _ if seen.strength == 0 || seen.strength < old.strength => {
                self.judge_release((process, file, cell), old, step, inputs);
                let granted = mine.iter().find_map(|cause| match cause.effect {
                    Effect::Set { life, .. } => Some(life),
                    _ => None,
                });
                new.life = granted.unwrap_or(0);
                new.unconfirmed &= granted.is_none();
            }
            _ => match self.waited_for((process, file, cell), seen.strength, step) {
                Some(life) => new.life = life,
                None => {
                    let who = self.who(process);
                    self.violate("I6", || {
                        format!(
                            "{who} got byte {cell} of file {file} without a cause: {seen:?}, was {old:?}"
                        )
                    });
                }
            },
        }
        // A reclaim confirms a lock that was taken before.
        let takes = |cause: &&&Cause| match cause.effect {
            Effect::Set { reclaim, .. } => !reclaim || old.strength == 0,
            _ => false,
        };
        if mine.iter().any(|cause| takes(&cause)) || new.strength > old.strength {
            let at_once = |cause: &&Cause| match cause.effect {
                Effect::Set { callback, .. } => !callback && !cause.perhaps,
                _ => false,
            };
            new.taken = self.model.serial;
            new.by_callback = mine.is_empty() || !mine.iter().all(at_once);
        }
        if new.strength == 0 {
            let granted = mine.iter().any(|cause| matches!(cause.effect, Effect::Set { .. }));
            if granted && self.may_be_released(process, step) {
                // Granted and released in one step: the reply is outdated when it is sent.
                self.model.released_at[process][file][cell] = self.model.serial + 1;
            }
            new = CellState::default();
        }
        self.model.table[process][file][cell] = new;
    }

    /// The boot that waited for a byte, if the callback of its grant may have been closed before it
    /// was sent: by a request of the owner that was decided later in the same step, because it came
    /// in the same batch or awaited the same probe.
    fn waited_for(
        &self,
        (process, file, cell): (usize, usize, usize),
        wanted: u8,
        step: &Step,
    ) -> Option<u32> {
        let closes = |range: Range| {
            step.messages.iter().any(|message| {
                let Message::Reply(
                    id,
                    Reply::Lock(Outcome::Granted)
                    | Reply::Unlock
                    | Reply::Cancel(CancelOutcome::TooLate),
                ) = message
                else {
                    return false;
                };
                self.model.pending_requests.get(id).is_some_and(|(request, _)| {
                    let target = request.target();
                    request.truth.process == Some(process)
                        && target.is_some_and(|(on, of)| on == file && of.overlaps(range))
                })
            })
        };
        let mut waiting = self.model.waiters.iter();
        let wait = waiting.find(|w| {
            (w.process, w.file) == (process, file)
                && cells::cells(w.range).contains(&cell)
                && strength(w.mode) == wanted
                && closes(w.range)
        });
        wait.map(|wait| self.model.block(wait.key()).life)
    }

    /// Whether an event of this step may have released what a reply of it granted.
    fn may_be_released(&mut self, process: usize, step: &Step) -> bool {
        let host = self.processes[process].host;
        let mut released = step.events.iter().filter_map(client_released_by);
        released.any(|client| self.host_of(client) == Some(host))
    }

    /// A byte was released without its owner's request: finds the rule.
    fn judge_release(
        &mut self,
        (process, file, cell): (usize, usize, usize),
        old: CellState,
        step: &Step,
        inputs: &[ObservedInput],
    ) {
        let host = self.processes[process].host;
        let mut why = Err("no event says why".to_owned());
        for event in &step.events {
            let Some(client) = client_released_by(event) else { continue };
            if self.host_of(client) != Some(host) {
                continue;
            }
            match self.allowed(client, host, event, old, inputs) {
                Ok(live) => {
                    why = Ok(live);
                    break;
                }
                Err(reason) => why = Err(reason),
            }
        }
        self.model.released_at[process][file][cell] = self.model.serial;
        let who = self.who(process);
        let live = match why {
            Ok(live) => live,
            Err(reason) => {
                return self.violate("I6", || {
                    format!("{who} lost byte {cell} of file {file} ({old:?}): {reason}")
                });
            }
        };
        let it = &self.processes[process];
        let relies = it.belief[file][cell] > 0 && !it.tainted[file][cell];
        if relies && old.life == self.hosts[host].life {
            if let Err(reason) = live {
                self.violate("I1", || {
                    format!("{who} is alive and lost byte {cell} of file {file}: {reason}")
                });
            }
            self.processes[process].tainted[file][cell] = true;
            self.coverage.reach("live lock released by a rule");
        } else if relies {
            // Taken by an earlier boot, but this one relies on it.
            self.processes[process].tainted[file][cell] = true;
        }
    }

    /// Whether a rule allows this release, and whether it may hit a live holder; see `releases.rs`.
    pub(crate) fn allowed(
        &mut self,
        client: ClientId,
        host: usize,
        event: &Event,
        old: CellState,
        inputs: &[ObservedInput],
    ) -> Result<Result<(), String>, String> {
        let by_operator = inputs.iter().any(|input| matches!(input, ObservedInput::Operator(..)));
        match event {
            Event::Rebooted { to, proof, .. } => {
                if let Proof::Operator(_) = proof {
                    return self.confirmation_allowed(client, to.0, old, inputs);
                }
                if old.incarnation == to.0 && *proof != Proof::Stateless {
                    return Err(format!("I7: news of state {} freed a lock of that state", to.0));
                }
                if *proof == Proof::Unreclaimed {
                    return self.unreclaimed_allowed(client, host, Some(to.0), old);
                }
                self.reboot_allowed(client, host, to.0, proof, old)
            }
            Event::Released { why, .. } => match why {
                Release::Operator(_) if by_operator => Ok(Ok(())),
                Release::Operator(_) => Err("no operator was there".to_owned()),
                Release::FreeAll => self.free_all_allowed(client, host, old),
                Release::OldKernel => self.old_kernel_allowed(client, old),
                Release::Unanswered => self.unanswered_allowed(client, old, inputs),
                Release::Unreachable => self.unreachable_allowed(client, old),
                Release::Unreclaimed => self.unreclaimed_allowed(client, host, None, old),
                Release::RosterEnd if !self.model.exact => Ok(Ok(())),
                Release::RosterEnd => Err("the store was exact".to_owned()),
            },
            Event::Fenced { .. } | Event::ReleasedByOperator { .. } if by_operator => Ok(Ok(())),
            _ => Err("no operator was there".to_owned()),
        }
    }

    fn reboot_allowed(
        &mut self,
        client: ClientId,
        host: usize,
        to: u32,
        proof: &Proof,
        old: CellState,
    ) -> Result<Result<(), String>, String> {
        match proof {
            Proof::NothingHeld => Err("it held something".to_owned()),
            Proof::Reset if self.was_reset(client, old.incarnation) => {
                Ok(Err("a reset of an old kernel took a live one's lock".to_owned()))
            }
            Proof::Reset => Err("no connection was reset".to_owned()),
            Proof::Stateless if self.was_reset(client, old.incarnation) => {
                Ok(Err("a reset before its time took a live lock".to_owned()))
            }
            Proof::Stateless => Err("no connection was reset".to_owned()),
            Proof::Notice => self.notice_allowed(client, host, to, old),
            Proof::Roamed(source) => self.roaming_allowed(client, host, to, *source),
            Proof::Unreclaimed | Proof::Operator(_) => Err("it is judged elsewhere".to_owned()),
        }
    }
}
