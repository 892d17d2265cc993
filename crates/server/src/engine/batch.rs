//! Decide, commit, send: the order that nothing may change (I2). No I/O of its own and no clock, so
//! that production and the simulator run the same code.
//!
//! A [`Decider`] feeds inputs to the keeper and takes what they come to as one [`Batch`]. Only
//! [`Committing::attempt`] turns a batch into a [`DurableBatch`], and only a durable batch gives
//! its messages away.

use std::collections::HashMap;
use std::time::Duration;

use keeper::Keeper;
use keeper::change::Change;
use keeper::event::Event;
use keeper::identity::{Epoch, RequestId};
use keeper::step::Message;
use keeper::time::Time;
use store::{Committed, Store, StoreError, Token};

use super::inbox::Input;

/// A commit that takes longer has kept everything waiting.
const STALL_MIN: Duration = Duration::from_secs(1);

/// What is committed as one and sent afterwards.
#[derive(Debug, Default)]
pub struct Batch {
    changes: Vec<Change>,
    messages: Vec<Message>,
    events: Vec<Event>,
    token: Token,
    /// The last one: nothing comes after a clean stop.
    stops: bool,
}

impl Batch {
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }

    pub fn token(&self) -> Token {
        self.token
    }

    pub fn stops(&self) -> bool {
        self.stops
    }

    /// Adds the batch that was decided next: one commit for both.
    pub fn append(&mut self, next: Batch) {
        self.changes.extend(next.changes);
        self.messages.extend(next.messages);
        self.events.extend(next.events);
        self.token = next.token;
        self.stops |= next.stops;
    }

    /// `now` is when it was decided (`Time::mono`).
    pub fn commit(self, now: Duration) -> Committing {
        Committing { batch: self, decided: now, is_unknown: false }
    }
}

/// A batch on its way into the store. It is never undone: it is attempted until the store has it,
/// and nothing that it says is sent before.
#[derive(Debug)]
pub struct Committing {
    batch: Batch,
    decided: Duration,
    /// The store may have it: its token tells.
    is_unknown: bool,
}

/// What one attempt to commit came to.
pub enum Progress {
    Durable(DurableBatch),
    /// To be attempted again, unless the error is fatal.
    Failed(Committing, StoreError),
}

impl Committing {
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    fn durable(self) -> DurableBatch {
        DurableBatch { batch: self.batch, decided: self.decided }
    }

    /// Commits the batch, unless the store turns out to have it. A batch without changes needs no
    /// store.
    pub fn attempt(mut self, store: &mut (impl Store + ?Sized)) -> Progress {
        if self.batch.changes.is_empty() {
            return Progress::Durable(self.durable());
        }
        if self.is_unknown {
            match store.last_token() {
                Ok(last) if last == self.batch.token => {
                    return Progress::Durable(self.durable());
                }
                Ok(_) => self.is_unknown = false,
                Err(error) => return Progress::Failed(self, error),
            }
        }
        match store.commit(&self.batch.changes, self.batch.token) {
            Committed::Done => Progress::Durable(self.durable()),
            Committed::NotWritten(error) => Progress::Failed(self, error),
            Committed::Unknown(error) => {
                self.is_unknown = true;
                Progress::Failed(self, error)
            }
        }
    }
}

/// A batch that the store has: what it says may be sent.
#[derive(Debug)]
pub struct DurableBatch {
    batch: Batch,
    decided: Duration,
}

impl DurableBatch {
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    pub fn into_messages(self) -> (Vec<Event>, Vec<Message>) {
        (self.batch.events, self.batch.messages)
    }

    /// The epoch that this batch began.
    pub fn epoch(&self) -> Option<DurableEpoch> {
        self.batch.changes.iter().find_map(|change| match change {
            Change::Started { epoch, .. } => Some(DurableEpoch(*epoch)),
            _ => None,
        })
    }
}

/// An epoch whose start is in the store. A listener needs one, so no socket opens before (I3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableEpoch(Epoch);

impl DurableEpoch {
    pub fn get(self) -> Epoch {
        self.0
    }
}

/// The keeper, and the sinks of the replies that it owes.
pub struct Decider<S> {
    pub keeper: Keeper,
    owed: HashMap<RequestId, Owed<S>>,
    token: Token,
    stopped: bool,
}

/// A reply that the keeper owes.
pub struct Owed<S> {
    pub sink: S,
    pub is_reclaim: bool,
}

impl<S> Decider<S> {
    /// `last` is the token of the last batch in the store.
    pub fn new(keeper: Keeper, last: Token) -> Self {
        Self { keeper, owed: HashMap::new(), token: last, stopped: false }
    }

    pub fn handle(&mut self, input: Input<S>, now: Time) {
        let keeper = &mut self.keeper;
        match input {
            Input::Request(request, sink) => {
                let owed = Owed { sink, is_reclaim: request.is_reclaim() };
                self.owed.insert(request.id(), owed);
                request.enter(keeper, now);
            }
            Input::Granted(grant, answer) => keeper.handle_granted(grant, answer, now),
            Input::Noticed(notice, result) => keeper.handle_noticed(notice, result, now),
            Input::Probed(client, question, answer) => {
                keeper.handle_probed(client, question, answer, now);
            }
            Input::Reset { host, life } => {
                if let Some(client) = keeper.host(&host).map(|client| client.id) {
                    keeper.handle_reset(client, life, now);
                }
            }
            Input::Heard { address, local } => keeper.handle_heard(address, local, now),
            Input::Read(read) => read(keeper),
            Input::Timeout => keeper.handle_timeout(now),
            Input::Stop => {
                keeper.handle_stop(now);
                self.stopped = true;
            }
        }
    }

    /// A batch is durable. If that took long, no time passed for hosts that wanted to reclaim.
    pub fn committed(&mut self, durable: &DurableBatch, now: Duration) {
        let took = now.saturating_sub(durable.decided);
        if took >= STALL_MIN {
            self.stalled(took);
        }
    }

    /// Nothing could be decided for so long.
    pub fn stalled(&mut self, lasted: Duration) {
        self.keeper.handle_stalled(lasted);
    }

    /// What the inputs since the last call come to. A batch without changes keeps the token of the
    /// one before.
    pub fn take_batch(&mut self) -> Batch {
        let step = self.keeper.poll_step().unwrap_or_default();
        if !step.changes.is_empty() {
            self.token = Token(self.token.0 + 1);
        }
        Batch {
            changes: step.changes,
            messages: step.messages,
            events: step.events,
            token: self.token,
            stops: std::mem::take(&mut self.stopped),
        }
    }

    /// Where the reply to this request goes.
    pub fn take_owed(&mut self, id: RequestId) -> Option<Owed<S>> {
        self.owed.remove(&id)
    }
}
