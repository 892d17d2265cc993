//! Decide, commit, send, in this order (I2), enforced by types. No I/O and no clock, so that the
//! simulator runs the same code.
//!
//! A [`Decider`] feeds inputs to the keeper and takes the resulting changes and messages as one
//! [`Batch`]. Only [`PendingCommit::attempt`] turns a batch into a [`DurableBatch`], and only a durable
//! batch gives up its messages. A store that has lost batches gets the whole state of the keeper
//! instead, the batch included (B6.62).

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use keeper::Keeper;
use keeper::change::Change;
use keeper::event::Event;
use keeper::identity::{Epoch, RequestId};
use keeper::step::Message;
use keeper::time::Time;
use store::{CommitOutcome, Store, StoreError, Token};

use super::inbox::Input;

/// A commit that takes this long counts as a stall of the store.
const STALL_MIN: Duration = Duration::from_secs(1);

/// Changes that are committed as one, and the messages and events to be sent afterwards.
#[derive(Debug, Default)]
pub struct Batch {
    changes: Vec<Change>,
    messages: Vec<Message>,
    events: Vec<Event>,
    token: Token,
    /// The clean stop is in this batch, so it is the last.
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

    /// Adds the batch that was decided next, so that one commit serves both.
    pub fn append(&mut self, next: Batch) {
        self.changes.extend(next.changes);
        self.messages.extend(next.messages);
        self.events.extend(next.events);
        self.token = next.token;
        self.stops |= next.stops;
    }

    /// `now` is the time of the decision (`Time::mono`).
    pub fn commit(self, now: Duration) -> PendingCommit {
        PendingCommit { batch: self, decided: now, is_unknown: false, is_behind: false }
    }

    /// Compares the store with what was committed last, although nothing is to be committed: `self`
    /// must be empty.
    pub fn review(self, now: Duration) -> PendingCommit {
        PendingCommit { is_unknown: true, ..self.commit(now) }
    }
}

/// A batch that is being committed. It is never undone: it is attempted until it is durable, and its
/// messages are out of reach until then.
#[derive(Debug)]
pub struct PendingCommit {
    batch: Batch,
    decided: Duration,
    /// An attempt ended in [`CommitOutcome::Unknown`]: the store may have the batch, as its last token
    /// tells.
    is_unknown: bool,
    /// The store has lost earlier batches: it gets the whole state.
    is_behind: bool,
}

/// The result of one attempt to commit.
pub enum Progress {
    Durable(DurableBatch),
    /// To be attempted again, unless the error is fatal.
    Failed(PendingCommit, StoreError),
}

impl PendingCommit {
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    fn durable(self) -> DurableBatch {
        DurableBatch { batch: self.batch, decided: self.decided }
    }

    /// Commits the batch, unless the store has it already. A batch without changes is durable
    /// without a commit. `keeper` has the state that follows from this batch, and that a store gets
    /// which has lost earlier ones.
    pub fn attempt(mut self, store: &mut (impl Store + ?Sized), keeper: &Keeper) -> Progress {
        if self.batch.changes.is_empty() && !self.is_unknown && !self.is_behind {
            return Progress::Durable(self.durable());
        }
        if self.is_unknown {
            match store.last_token() {
                Ok(last) if last == self.batch.token => {
                    return Progress::Durable(self.durable());
                }
                Ok(_) => (self.is_unknown, self.is_behind) = (false, false),
                Err(error) => return self.failed(error),
            }
        }
        let outcome = match self.is_behind {
            true => store.rewrite(&keeper.snapshot(), self.batch.token),
            false => store.commit(&self.batch.changes, self.batch.token),
        };
        match outcome {
            CommitOutcome::Done => Progress::Durable(self.durable()),
            CommitOutcome::NotWritten(error) => self.failed(error),
            CommitOutcome::Unknown(error) => {
                self.is_unknown = true;
                self.failed(error)
            }
        }
    }

    /// A store that reports lost batches has settled what was unknown: it has none of them.
    fn failed(mut self, error: StoreError) -> Progress {
        if error.is_behind() {
            (self.is_unknown, self.is_behind) = (false, true);
        }
        Progress::Failed(self, error)
    }
}

/// A committed batch: its messages may be sent.
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

    /// The epoch that this batch starts.
    pub fn epoch(&self) -> Option<DurableEpoch> {
        self.batch.changes.iter().find_map(|change| match change {
            Change::Started { epoch, .. } => Some(DurableEpoch(*epoch)),
            _ => None,
        })
    }
}

/// An epoch that is committed. A listener needs one, so no socket opens before (I3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableEpoch(Epoch);

impl DurableEpoch {
    pub fn get(self) -> Epoch {
        self.0
    }
}

/// The keeper, and the sinks of the replies that are still to come.
pub struct Decider<S> {
    pub keeper: Keeper,
    /// By numbers that the server gives out, so a fast hash will do.
    pending_replies: HashMap<RequestId, PendingReply<S>, RandomState>,
    token: Token,
    stopped: bool,
}

/// Where the reply to a request goes.
pub struct PendingReply<S> {
    pub sink: S,
    pub is_reclaim: bool,
}

impl<S> Decider<S> {
    /// `last` is the token of the last batch in the store.
    pub fn new(keeper: Keeper, last: Token) -> Self {
        Self { keeper, pending_replies: HashMap::default(), token: last, stopped: false }
    }

    pub fn handle(&mut self, input: Input<S>, now: Time) {
        let keeper = &mut self.keeper;
        match input {
            Input::Request(request, sink) => {
                let pending = PendingReply { sink, is_reclaim: request.is_reclaim() };
                self.pending_replies.insert(request.id(), pending);
                request.enter(keeper, now);
            }
            Input::Granted(grant, answer) => keeper.handle_grant_answer(grant, answer, now),
            Input::Noticed(notice, result) => keeper.handle_notice_result(notice, result, now),
            Input::Probed(client, question, answer) => {
                keeper.handle_probe_answer(client, question, answer, now);
            }
            Input::Reset { host, life } => {
                if let Some(client) = keeper.host(&host).map(|client| client.id) {
                    keeper.handle_connection_reset(client, life, now);
                }
            }
            Input::Heard { address, local } => keeper.handle_heard(address, local, now),
            Input::Mounted { address, ours } => keeper.handle_mounted(address, ours, now),
            Input::Appeared { host, ours } => keeper.handle_appearance(host, ours, now),
            Input::Addresses(addresses) => keeper.handle_addresses(addresses, now),
            Input::Read(read) => read(keeper),
            Input::Timeout => keeper.handle_timeout(now),
            Input::Stop => {
                keeper.handle_stop(now);
                self.stopped = true;
            }
        }
    }

    /// To be called when a batch has become durable. If the commit took long, the recovery window
    /// is extended by that time.
    pub fn committed(&mut self, durable: &DurableBatch, now: Duration) {
        let took = now.saturating_sub(durable.decided);
        if took >= STALL_MIN {
            self.stalled(took);
        }
    }

    /// Extends the recovery window by a time in which nothing could be decided.
    pub fn stalled(&mut self, lasted: Duration) {
        self.keeper.handle_stall(lasted);
    }

    /// The outcome of the inputs since the last call. A batch without changes has the token of the
    /// previous one.
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

    /// A batch without changes, to be [reviewed](Batch::review).
    pub fn last_batch(&self) -> Batch {
        Batch { token: self.token, ..Batch::default() }
    }

    /// `None` if the request was answered before.
    pub fn take_pending_reply(&mut self, id: RequestId) -> Option<PendingReply<S>> {
        self.pending_replies.remove(&id)
    }
}
