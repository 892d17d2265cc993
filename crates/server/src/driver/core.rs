//! The order that nothing may change: gather, decide, commit, tell. No I/O and no clock in here, so
//! that the simulator runs exactly this.
//!
//! Inputs wait in a [`Queue`]. Whoever works on them hands them to the [`Core`], takes one
//! [`Batch`] for all of them, commits its changes, and only then sends its messages. While it is
//! at that, the next inputs gather.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use keeper::Keeper;
use keeper::change::Change;
use keeper::event::Event;
use keeper::identity::{ClientId, GrantId, HostKey, NoticeId, RequestId};
use keeper::request::{
    CancelRequest, FreeAllRequest, GrantAnswer, LockRequest, MonitorRequest, NoticeResult,
    OperatorRequest, ProbeAnswer, Question, RebootNotice, ShareRequest, TestRequest, UnlockRequest,
    UnmonitorRequest, UnshareRequest,
};
use keeper::step::Message;
use keeper::time::Time;
use store::{Committed, Token};

/// How long a request may wait for a store that does not work (I11).
pub const STALL_MAX: Duration = Duration::from_secs(5);

/// A question that gets a reply.
#[derive(Debug, Clone)]
pub enum Ask {
    Lock(LockRequest),
    Test(TestRequest),
    Unlock(UnlockRequest),
    Cancel(CancelRequest),
    Share(ShareRequest),
    Unshare(UnshareRequest),
    FreeAll(FreeAllRequest),
    Reboot(RebootNotice),
    Monitor(MonitorRequest),
    Unmonitor(UnmonitorRequest),
    Operator(OperatorRequest),
}

impl Ask {
    pub fn id(&self) -> RequestId {
        match self {
            Self::Lock(request) => request.id,
            Self::Test(request) => request.id,
            Self::Unlock(request) => request.id,
            Self::Cancel(request) => request.id,
            Self::Share(request) => request.id,
            Self::Unshare(request) => request.id,
            Self::FreeAll(request) => request.id,
            Self::Reboot(request) => request.id,
            Self::Monitor(request) => request.id,
            Self::Unmonitor(request) => request.id,
            Self::Operator(request) => request.id,
        }
    }

    /// Whether "no" is an answer that loses nothing. After any answer to its UNLOCK a client
    /// forgets the lock, so it gets none and asks again.
    pub fn may_be_refused(&self) -> bool {
        matches!(
            self,
            Self::Lock(_) | Self::Test(_) | Self::Share(_) | Self::Monitor(_) | Self::Operator(_)
        )
    }

    /// Whether it is decided in microseconds, whatever the table holds.
    fn is_light(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Test(_) | Self::Unlock(_) | Self::Cancel(_))
    }

    fn hand_in(self, keeper: &mut Keeper, now: Time) {
        match self {
            Self::Lock(request) => keeper.handle_lock(request, now),
            Self::Test(request) => keeper.handle_test(request, now),
            Self::Unlock(request) => keeper.handle_unlock(request, now),
            Self::Cancel(request) => keeper.handle_cancel(request, now),
            Self::Share(request) => keeper.handle_share(request, now),
            Self::Unshare(request) => keeper.handle_unshare(request, now),
            Self::FreeAll(request) => keeper.handle_free_all(request, now),
            Self::Reboot(request) => keeper.handle_reboot(request, now),
            Self::Monitor(request) => keeper.handle_monitor(request, now),
            Self::Unmonitor(request) => keeper.handle_unmonitor(request, now),
            Self::Operator(request) => keeper.handle_operator(request, now),
        }
    }
}

/// Everything that enters the keeper. `T` is a ticket: whom a reply goes to.
pub enum Input<T> {
    Ask(Ask, T),
    Granted(GrantId, GrantAnswer),
    Noticed(NoticeId, NoticeResult),
    Probed(ClientId, Question, ProbeAnswer),
    /// An old connection of this host was reset, unasked.
    Reset(HostKey),
    Heard(IpAddr),
    /// Somebody wants to look, at little: others wait meanwhile.
    Read(Box<dyn FnOnce(&Keeper) + Send>),
    Timeout,
    Stop,
}

/// What has come and is not decided yet, oldest first.
pub struct Queue<T> {
    waiting: VecDeque<(Duration, Input<T>)>,
    asks: usize,
    asks_max: usize,
    reads: usize,
    heavy: usize,
}

/// Looks at the keeper that wait; more are refused (I10).
const READS_MAX: usize = 1024;

impl<T> Queue<T> {
    /// `asks_max` bounds what peers can make wait (I10); what the server itself reports is bounded
    /// by what it has under way.
    pub fn new(asks_max: usize) -> Self {
        Self { waiting: VecDeque::new(), asks: 0, asks_max, reads: 0, heavy: 0 }
    }

    /// False if there is no room: then it is dropped as a full socket drops it, and its sender asks
    /// again.
    pub fn push(&mut self, input: Input<T>, now: Duration) -> bool {
        match &input {
            Input::Ask(..) if self.asks >= self.asks_max => return false,
            Input::Heard(_) if self.waiting.len() >= self.asks_max => return false,
            Input::Read(_) if self.reads >= READS_MAX => return false,
            Input::Read(_) => self.reads += 1,
            Input::Ask(ask, _) => {
                self.asks += 1;
                self.heavy += usize::from(!ask.is_light());
            }
            _ => self.heavy += 1,
        }
        self.waiting.push_back((now, input));
        true
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether all that waits is decided in microseconds.
    pub fn is_light(&self) -> bool {
        self.heavy == 0
    }

    /// All that waits. After a stop nothing enters the keeper any more.
    pub fn take(&mut self) -> Vec<Input<T>> {
        (self.asks, self.reads, self.heavy) = (0, 0, 0);
        let mut inputs: Vec<Input<T>> = self.waiting.drain(..).map(|(_, input)| input).collect();
        if let Some(stop) = inputs.iter().position(|input| matches!(input, Input::Stop)) {
            inputs.truncate(stop + 1);
        }
        inputs
    }

    /// Takes out the questions that have waited too long for a store that does not work (I11).
    pub fn expired(&mut self, now: Duration) -> Vec<(Ask, T)> {
        let mut expired = Vec::new();
        for (since, input) in std::mem::take(&mut self.waiting) {
            match input {
                Input::Ask(ask, ticket) if since + STALL_MAX <= now => {
                    self.asks -= 1;
                    self.heavy -= usize::from(!ask.is_light());
                    expired.push((ask, ticket));
                }
                input => self.waiting.push_back((since, input)),
            }
        }
        expired
    }
}

/// What is committed as one and told afterwards.
#[derive(Debug, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    pub messages: Vec<Message>,
    pub events: Vec<Event>,
    pub token: Token,
    /// The last one: nothing comes after a clean stop.
    pub stops: bool,
}

/// What to do after an attempt to commit. A batch is never undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Tell,
    /// After a pause, the same batch under the same token.
    CommitAgain,
    /// Nobody is told anything until the store says whether it has the batch.
    Settle,
}

impl Batch {
    pub fn after(&self, outcome: &Committed) -> Next {
        match outcome {
            Committed::Done => Next::Tell,
            Committed::NotWritten(_) => Next::CommitAgain,
            Committed::Unknown(_) => Next::Settle,
        }
    }

    /// `last` is what the store says after it was opened anew.
    pub fn settled(&self, last: Token) -> Next {
        if last == self.token { Next::Tell } else { Next::CommitAgain }
    }
}

/// The keeper, and who waits for its replies.
pub struct Core<T> {
    pub keeper: Keeper,
    asked: HashMap<RequestId, T>,
    token: Token,
    stopped: bool,
}

impl<T> Core<T> {
    /// `last` is the token of the last batch in the store.
    pub fn new(keeper: Keeper, last: Token) -> Self {
        Self { keeper, asked: HashMap::new(), token: last, stopped: false }
    }

    pub fn hand_in(&mut self, input: Input<T>, now: Time) {
        let keeper = &mut self.keeper;
        match input {
            Input::Ask(ask, ticket) => {
                self.asked.insert(ask.id(), ticket);
                ask.hand_in(keeper, now);
            }
            Input::Granted(grant, answer) => keeper.handle_granted(grant, answer, now),
            Input::Noticed(notice, result) => keeper.handle_noticed(notice, result, now),
            Input::Probed(client, question, answer) => {
                keeper.handle_probed(client, question, answer, now);
            }
            Input::Reset(host) => {
                if let Some(client) = keeper.host(&host).map(|client| client.id) {
                    keeper.handle_reset(client, now);
                }
            }
            Input::Heard(address) => keeper.handle_heard(address, now),
            Input::Read(look) => look(keeper),
            Input::Timeout => keeper.handle_timeout(now),
            Input::Stop => {
                keeper.handle_stop(now);
                self.stopped = true;
            }
        }
    }

    /// What the inputs handed in since the last call come to. A batch without changes needs no
    /// commit and keeps the token of the one before.
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

    /// Whom the reply to this request goes to.
    pub fn ticket(&mut self, id: RequestId) -> Option<T> {
        self.asked.remove(&id)
    }
}
