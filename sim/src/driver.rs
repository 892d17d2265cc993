//! The server process around the keeper. The order of things is the server's own (its queue, its core
//! and its replay cache); in the place of its threads there are the events of this world.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use keeper::Keeper;
use keeper::bytes::Name;
use keeper::identity::{GrantId, NoticeId, RequestId, Transport};
use keeper::step::Step;
use keeper::time::Time;
use server::driver::core::{self, Batch, Core, Queue};
use server::replay::Replay;
use store::Token;

use crate::packet::{Answer, Call, Request};
use crate::queue::Ms;

/// More than this and packets are dropped, as a full socket buffer drops them (I10).
const QUEUE_MAX: usize = 256;
/// More than any seed asks in two minutes.
const REPLIES_MAX: usize = 10_000;
const REPLIES_BYTES_MAX: usize = 1 << 20;
pub const REPLY_BYTES: usize = 40;

/// The request that a reply answers; none for an operator, whom nobody follows.
pub type Ticket = Option<Rc<Request>>;

pub type Input = core::Input<Ticket>;

/// An attempt to tell somebody something has exactly one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answered {
    Grant(GrantId, u32),
    Notice(NoticeId, u32),
}

/// What is true about a message.
#[derive(Clone, Copy, Debug)]
pub struct Background {
    /// The number of the decision.
    pub decided: u64,
    /// For a grant: the wait that it ends, and the life of the host that waits.
    pub block: u64,
    pub life: u32,
}

/// A batch, and what is true about each of its messages.
#[derive(Debug, Default)]
pub struct Decided {
    pub batch: Batch,
    pub background: Vec<Background>,
}

impl Decided {
    /// Adds what came out of the core once more: several decisions, each of them judged, and one
    /// commit.
    pub fn join(&mut self, step: Step, token: Token, stops: bool, background: Vec<Background>) {
        self.batch.changes.extend(step.changes);
        self.batch.messages.extend(step.messages);
        self.batch.events.extend(step.events);
        self.batch.token = token;
        self.batch.stops |= stops;
        self.background.extend(background);
    }
}

/// What makes two packets one request (R3.8).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub from: IpAddr,
    transport: Transport,
    xid: u32,
    call: Call,
    pub name: Name,
}

impl Key {
    pub fn of(request: &Request) -> Self {
        Self {
            from: request.from,
            transport: request.lane.transport(),
            xid: request.xid,
            call: request.call.clone(),
            name: request.name.clone(),
        }
    }
}

pub struct Driver {
    pub core: Core<Ticket>,
    pub queue: Queue<Ticket>,
    /// Answers, with the number of the decision.
    pub replay: Replay<Key, Rc<Request>, (Answer, u64)>,
    pub started: Ms,
    pub committing: Option<Decided>,
    /// Questions that the core has and nobody is told about yet.
    pub unanswered: usize,
    /// What was sent and not answered yet, and who may answer.
    pub attempts: BTreeMap<Answered, IpAddr>,
    /// Lives of the hosts that we have or had connections of, which the server cannot see, and since
    /// when.
    pub connections: BTreeMap<(IpAddr, Name), BTreeMap<u32, Ms>>,
    next_request: u64,
    pub gathering: bool,
    pub timer: Option<Ms>,
}

impl Driver {
    pub fn new(keeper: Keeper, started: Ms, last: Token) -> Self {
        Self {
            core: Core::new(keeper, last),
            queue: Queue::new(QUEUE_MAX),
            replay: Replay::new(REPLIES_MAX, REPLIES_BYTES_MAX),
            started,
            committing: None,
            unanswered: 0,
            attempts: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_request: 0,
            gathering: false,
            timer: None,
        }
    }

    pub fn mono(&self, now: Ms) -> Duration {
        Duration::from_millis(now - self.started)
    }

    pub fn time(&self, now: Ms, wall_ms: u64) -> Time {
        Time { mono: self.mono(now), wall_ms }
    }

    pub fn new_id(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    /// False if there is no room and the input is gone.
    pub fn push(&mut self, input: Input, now: Ms) -> bool {
        let now = self.mono(now);
        self.queue.push(input, now)
    }

    pub fn hand_in(&mut self, input: Input, now: Time) {
        self.unanswered += usize::from(matches!(input, Input::Ask(..)));
        self.core.hand_in(input, now);
    }

    /// What the core decided, as one step of the keeper, with its token, and whether it is the last.
    pub fn take_step(&mut self) -> (Step, Token, bool) {
        let Batch { changes, messages, events, token, stops } = self.core.take_batch();
        (Step { changes, messages, events }, token, stops)
    }

    pub fn take_ticket(&mut self, id: RequestId) -> Option<Ticket> {
        let ticket = self.core.ticket(id)?;
        self.unanswered -= 1;
        Some(ticket)
    }
}
