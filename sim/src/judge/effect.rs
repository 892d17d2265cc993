//! The effects of the owners' requests and of callbacks on bytes, found in the replies of a step.

use std::rc::Rc;

use keeper::Keeper;
use keeper::event::{Event, Proof};
use keeper::identity::{GrantId, HostKey, RequestId};
use keeper::range::Range;
use keeper::request::GrantAnswer;
use keeper::step::{CancelOutcome, Grant, Message, Outcome, Refusal, Reply, Step};

use crate::cells::{self, CELLS, strength};
use crate::judge::cause::is_older;
use crate::judge::input::ObservedInput;
use crate::model::{CellState, OpenGrant, WaitRecord};
use crate::packet::{Call, Request};
use crate::world::World;

/// The effect of a request or callback on the bytes of an owner.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// Granted, by a reply or by a callback.
    Set {
        life: u32,
        /// `None` for a reclaim, which keeps the recorded state.
        state: Option<u32>,
        at_least: bool,
        reclaim: bool,
        callback: bool,
    },
    Clear,
    /// A refused grant is undone.
    Restore(Box<[CellState; CELLS]>),
}

#[derive(Clone, Debug)]
pub(super) struct Cause {
    pub process: usize,
    pub file: usize,
    pub range: Range,
    pub strength: u8,
    pub effect: Effect,
    /// It may have happened: explains a change, but requires none.
    pub perhaps: bool,
}

impl Cause {
    /// The byte after this cause alone.
    pub(super) fn applied_to(&self, cell: usize, old: CellState) -> CellState {
        match &self.effect {
            _ if self.perhaps || !cells::cells(self.range).contains(&cell) => old,
            Effect::Clear => CellState::default(),
            Effect::Restore(before) => before[cell],
            Effect::Set { at_least: true, .. } | Effect::Set { reclaim: true, .. }
                if old.strength > self.strength =>
            {
                CellState { unconfirmed: false, ..old }
            }
            Effect::Set { life, state, .. } => CellState {
                strength: self.strength,
                incarnation: state.unwrap_or(old.incarnation),
                life: *life,
                unconfirmed: false,
                ..old
            },
        }
    }
}

impl World {
    /// The effects of the owners' requests, in the order of the replies.
    pub(super) fn causes(
        &mut self,
        keeper: &Keeper,
        inputs: &[ObservedInput],
        step: &Step,
    ) -> Vec<Cause> {
        let mut causes = Vec::new();
        for input in inputs {
            if let ObservedInput::Granted(id, GrantAnswer::Accepted) = input
                && let Some(grant) = self.model.grants.get(id).cloned()
            {
                causes.push(self.cause_of_grant(&grant, false));
            }
        }
        for event in &step.events {
            if let Event::GrantUndone { grant, .. } = event {
                causes.extend(self.cause_of_undoing(*grant, inputs));
            }
        }
        // A request of the owner closes an open callback, which then counts as accepted or not.
        for message in &step.messages {
            if let Message::Reply(id, Reply::Lock(_) | Reply::Unlock | Reply::Cancel(_)) = message
                && let Some((request, _)) = self.model.pending_requests.get(id)
                && let (Some(process), Some((file, range))) =
                    (request.truth.process, request.target())
            {
                let open: Vec<OpenGrant> = self
                    .model
                    .grants
                    .values()
                    .filter(|g| g.process == process && g.file == file && g.range.overlaps(range))
                    .cloned()
                    .collect();
                for grant in open {
                    causes.push(Cause { perhaps: true, ..self.cause_of_grant(&grant, true) });
                }
            }
        }
        self.model.blocked_in_step.clear();
        for message in &step.messages {
            match message {
                Message::Reply(id, Reply::Lock(Outcome::Blocked)) => self.note_blocked(*id),
                Message::Reply(
                    id,
                    Reply::Lock(
                        Outcome::Grace
                        | Outcome::Refused(Refusal::TooManyParked | Refusal::TooManyParkedOfAddress),
                    ),
                ) => self.note_turned_away(keeper, *id),
                Message::Reply(id, Reply::Lock(Outcome::Granted)) => {
                    if let Some((request, _)) = self.model.pending_requests.get(id).cloned() {
                        causes.extend(self.cause_of_lock(&request));
                    }
                }
                // A callback closed in the step that opened it is not sent.
                Message::Reply(id, Reply::Cancel(CancelOutcome::TooLate)) => {
                    if let Some((request, _)) = self.model.pending_requests.get(id)
                        && let (Some(process), Call::Cancel { file, range, mode }) =
                            (request.truth.process, &request.call)
                    {
                        let (life, state) = (request.truth.life, None);
                        causes.push(Cause {
                            process,
                            file: *file,
                            range: *range,
                            strength: strength(*mode),
                            effect: Effect::Set {
                                life,
                                state,
                                at_least: true,
                                reclaim: false,
                                callback: true,
                            },
                            perhaps: true,
                        });
                    }
                }
                Message::Reply(id, Reply::Unlock) => {
                    if let Some((request, _)) = self.model.pending_requests.get(id)
                        && let (Some(process), Some((file, range))) =
                            (request.truth.process, request.target())
                    {
                        let effect = Effect::Clear;
                        causes.push(Cause {
                            process,
                            file,
                            range,
                            strength: 0,
                            effect,
                            perhaps: false,
                        });
                    }
                }
                _ => {}
            }
        }
        // A later request of its owner would have closed a callback, so one that is sent came last.
        for message in &step.messages {
            if let Message::Grant(grant) = message
                && grant.attempt <= 1
                && !self.model.grants.contains_key(&grant.id)
            {
                let cause = self.open_grant(keeper, grant, &causes, step);
                causes.extend(cause);
            }
        }
        causes
    }

    fn open_grant(
        &mut self,
        keeper: &Keeper,
        grant: &Grant,
        causes: &[Cause],
        step: &Step,
    ) -> Option<Cause> {
        let process = self.process_of(keeper, &grant.owner);
        let (Some(process), Some(file)) = (process, self.file_of(&grant.handle)) else {
            self.violate("I6", || format!("a grant without an owner: {grant:?}"));
            return None;
        };
        let mut before = self.model.table[process][file];
        // A reboot that this step accepts has ended what earlier kernels held.
        for event in &step.events {
            if let Event::Rebooted { client, to, proof, .. } = event
                && !matches!(proof, Proof::Stateless | Proof::Operator(_))
                && *client == grant.owner.host
            {
                let older = |byte: &&mut CellState| is_older(byte.incarnation, to.0);
                before.iter_mut().filter(older).for_each(|byte| *byte = CellState::default());
            }
        }
        for cause in causes.iter().filter(|c| c.process == process && c.file == file) {
            for (cell, byte) in before.iter_mut().enumerate() {
                *byte = cause.applied_to(cell, *byte);
            }
        }
        let (range, mode) = (grant.range, grant.mode);
        let open = OpenGrant { process, file, range, mode, before, unclear: false };
        self.judge_new_grant(keeper, &open, grant.owner.host);
        if !self.model.grant_ids.insert(grant.id) {
            self.violate("ids", || format!("callback {:?} is used again", grant.id));
        }
        let cause = self.cause_of_grant(&open, true);
        self.model.grants.insert(grant.id, open);
        Some(cause)
    }

    /// A refused request refreshes an earlier wait of its owner, unless its state is unknown: such a
    /// request is refused before any probe.
    fn note_turned_away(&mut self, keeper: &Keeper, id: RequestId) {
        let Some((request, _)) = self.model.pending_requests.get(&id).cloned() else { return };
        let Call::Lock { file, range, mode, wait: true, state, .. } = request.call else { return };
        let Some(process) = request.truth.process else { return };
        let wait = (process, file, range, mode);
        let block = self.model.block(wait);
        if block.id == 0 {
            return;
        }
        let row = keeper.host(&HostKey::new(request.from, request.name.clone()));
        let now = row.map_or(0, |row| row.incarnation.0);
        let was = self.model.states.get(&request.truth.host).copied().unwrap_or(0);
        let known = [state, was, now].contains(&0) || state == was || state == now;
        let state = if known { state } else { block.state };
        self.model.note_block(wait, WaitRecord { state, newest: state, ..block });
    }

    fn note_blocked(&mut self, id: RequestId) {
        let Some((request, _)) = self.model.pending_requests.get(&id).cloned() else { return };
        let Call::Lock { file, range, mode, state, .. } = request.call else { return };
        if let Some(process) = request.truth.process {
            let (id, life) = (request.truth.block, request.truth.life);
            let wait = (process, file, range, mode);
            let polled = self.model.block(wait).polled;
            let block = WaitRecord { id, life, state, newest: state, polled };
            self.model.note_block(wait, block);
            self.model.blocked_in_step.insert(wait);
        }
    }

    fn cause_of_grant(&self, grant: &OpenGrant, at_least: bool) -> Cause {
        let WaitRecord { life, state, .. } = self.model.block(grant.key());
        Cause {
            process: grant.process,
            file: grant.file,
            range: grant.range,
            strength: strength(grant.mode),
            effect: Effect::Set {
                life,
                state: Some(state),
                at_least,
                reclaim: false,
                callback: true,
            },
            perhaps: false,
        }
    }

    fn cause_of_lock(&mut self, request: &Rc<Request>) -> Option<Cause> {
        let Call::Lock { file, range, mode, reclaim, state, .. } = request.call else {
            return None;
        };
        let Some(process) = request.truth.process else {
            self.violate("I6", || "a lock was granted to a forged request".to_owned());
            return None;
        };
        let (life, state) = (request.truth.life, (!reclaim).then_some(state));
        let effect = Effect::Set { life, state, at_least: false, reclaim, callback: false };
        Some(Cause { process, file, range, strength: strength(mode), effect, perhaps: false })
    }

    /// I6: a refused callback undoes that grant and nothing else. The refusal of one that is closed,
    /// or that may have been accepted before, undoes nothing (I9).
    fn cause_of_undoing(&mut self, id: GrantId, inputs: &[ObservedInput]) -> Option<Cause> {
        self.coverage.reach("grant undone");
        let refused = inputs
            .iter()
            .any(|i| matches!(i, ObservedInput::Granted(g, GrantAnswer::Denied) if *g == id));
        let Some(grant) = self.model.grants.remove(&id) else {
            self.violate("I6", || format!("{id:?} was closed, and yet it was undone"));
            return None;
        };
        if !refused {
            self.violate("I6", || format!("{id:?} was undone without a refusal"));
        }
        if grant.unclear {
            self.violate("I9", || format!("{id:?} was undone, but may have been accepted before"));
        }
        Some(Cause {
            process: grant.process,
            file: grant.file,
            range: grant.range,
            strength: 0,
            effect: Effect::Restore(Box::new(grant.before)),
            perhaps: false,
        })
    }
}
