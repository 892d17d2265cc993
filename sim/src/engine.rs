//! The server process around the keeper. The order of things is the server's own (its inbox, its
//! decider and its duplicate request cache); in the place of its threads there are the events of
//! this world.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use keeper::Keeper;
use keeper::identity::{self, GrantId, NoticeId, RequestId};
use keeper::time::Time;
use server::engine::batch::{Batch, Committing, Decider, DurableBatch};
use server::engine::inbox::{self, Inbox};
use server::engine::request;
use server::rpc::duplicates::{Bounds, DuplicateCache, Key, Origin};
use server::rpc::order::{Order, OrderKey};
use server::transport::Transport;
use store::Token;

use crate::connections::Connections;
use crate::packet::{Answer, Request};
use crate::queue::Ms;

/// More than this and packets are dropped, as a full socket buffer drops them (I10).
const REQUESTS_MAX: usize = 256;
pub const REPLY_BYTES: usize = 40;

/// The request that a reply answers; none for an operator, whose answer is not followed.
pub type Sink = Option<Rc<Request>>;

pub type Input = inbox::Input<Sink>;

/// A request, and since when the connection that it came by is open.
pub type Received = (Rc<Request>, Option<Duration>);

/// An attempt to call a peer has exactly one result.
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

/// Batches that are committed as one, and what is true about each of their messages.
#[derive(Debug, Default)]
pub struct Decided {
    pub batch: Batch,
    pub background: Vec<Background>,
}

impl Decided {
    /// Adds what came out of the decider once more: several decisions, each of them judged, and one
    /// commit.
    pub fn join(&mut self, batch: Batch, background: Vec<Background>) {
        self.batch.append(batch);
        self.background.extend(background);
    }
}

/// A batch between its decision and its replies.
#[derive(Debug)]
pub enum Stage {
    Committing(Committing),
    /// The store has it; the thread that sends has not come to it.
    Durable(DurableBatch),
}

impl Stage {
    pub fn batch(&self) -> &Batch {
        match self {
            Self::Committing(committing) => committing.batch(),
            Self::Durable(durable) => durable.batch(),
        }
    }
}

/// What makes two packets one request (R3.8).
pub fn key(request: &Request) -> Key {
    let call = (&request.call, request.number, &request.tag);
    Key {
        from: request.from,
        transport: match request.lane.transport() {
            identity::Transport::Tcp => Transport::Tcp,
            identity::Transport::Udp => Transport::Udp,
        },
        reserved_port: true,
        xid: request.xid,
        procedure: (0, 0, 0),
        checksum: hash(&call),
        name: hash(&request.name),
    }
}

pub fn hash(what: &impl std::hash::Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(what)
}

pub struct Engine {
    pub decider: Decider<Sink>,
    pub inbox: Inbox<Sink>,
    /// Answers, with the number of the decision.
    pub duplicates: DuplicateCache<Rc<Request>, (Answer, u64)>,
    pub order: Order<OrderKey, Received>,
    /// Requests that are with a worker.
    pub working: Vec<Rc<Request>>,
    pub started: Ms,
    pub stage: Option<(Stage, Vec<Background>)>,
    /// Requests that the decider has not answered yet.
    pub unanswered: usize,
    /// What was sent and not answered yet, and who may answer.
    pub attempts: BTreeMap<Answered, IpAddr>,
    pub connections: Connections,
    /// Since when the lease on the store has not been fresh: nothing is decided.
    pub unfresh_since: Option<Ms>,
    /// When requests entered the inbox.
    pub entered: BTreeMap<RequestId, Ms>,
    next_request: u64,
    pub gathering: bool,
    pub timer: Option<Ms>,
}

impl Engine {
    pub fn new(keeper: Keeper, started: Ms, last: Token, duplicates: Bounds) -> Self {
        Self {
            decider: Decider::new(keeper, last),
            inbox: Inbox::new(REQUESTS_MAX),
            duplicates: DuplicateCache::new(duplicates),
            order: Order::default(),
            working: Vec::new(),
            started,
            stage: None,
            unanswered: 0,
            attempts: BTreeMap::new(),
            connections: Connections::default(),
            unfresh_since: None,
            entered: BTreeMap::new(),
            next_request: 0,
            gathering: false,
            timer: None,
        }
    }

    /// Nothing enters the keeper: a batch is not durable yet, or the lease is not fresh.
    pub fn is_stalled(&self) -> bool {
        self.stage.is_some() || self.unfresh_since.is_some()
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
        self.inbox.push(input, now)
    }

    pub fn handle(&mut self, input: Input, now: Time) {
        self.unanswered += usize::from(matches!(input, Input::Request(..)));
        self.decider.handle(input, now);
    }

    pub fn take_sink(&mut self, id: RequestId) -> Option<Sink> {
        let owed = self.decider.take_owed(id)?;
        self.unanswered -= 1;
        Some(owed.sink)
    }

    /// By what requests keep their order (R3.8).
    pub fn order_key(request: &request::Request) -> Option<OrderKey> {
        request.subject().map(|subject| OrderKey(hash(&subject)))
    }

    /// Whose share of the duplicate request cache a packet counts against.
    pub fn origin(&self, request: &Request) -> Origin {
        match request.lane.transport() {
            identity::Transport::Tcp => {
                let truth = request.truth;
                Origin::Connection(hash(&(truth.host, truth.life, request.lane)))
            }
            identity::Transport::Udp => Origin::Address(request.from),
        }
    }
}
