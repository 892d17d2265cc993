//! The server process: the production inbox, decider, request order and duplicate request cache,
//! driven by events of the world instead of threads.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use keeper::Keeper;
use keeper::identity::{self, GrantId, NoticeId, RequestId};
use keeper::time::Time;
use server::engine::batch::{Batch, Decider, DurableBatch, PendingCommit};
use server::engine::inbox::{self, Inbox};
use server::engine::request;
use server::rpc::duplicate_cache::{CacheBounds, CallKey, DuplicateCache, Origin};
use server::rpc::order::{Order, OrderKey};
use server::transport::Transport;
use store::Token;

use crate::connections::Connections;
use crate::packet::{Answer, Request};
use crate::queue::Ms;

/// Beyond this, packets are dropped, as by a full socket buffer (I10).
const REQUESTS_MAX: usize = 256;
pub(crate) const REPLY_BYTES: usize = 40;

/// The request that a reply answers; `None` for an operator, whose answer is ignored.
pub(crate) type Sink = Option<Rc<Request>>;

pub(crate) type Input = inbox::Input<Sink>;

/// A request, and how long after the start of the server its connection was opened.
pub(crate) type ReceivedRequest = (Rc<Request>, Option<Duration>);

/// One attempt to call a peer, which has exactly one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AttemptKey {
    Grant(GrantId, u32),
    Notice(NoticeId, u32),
}

/// The ground truth about a message of the keeper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageTruth {
    /// The number of the decision.
    pub decided: u64,
    /// For a grant: the wait that it ends, and the boot of the waiting host.
    pub block: u64,
    pub life: u32,
}

/// Batches committed as one, with the ground truth about each message.
#[derive(Debug, Default)]
pub(crate) struct DecidedBatch {
    pub batch: Batch,
    pub truths: Vec<MessageTruth>,
}

impl DecidedBatch {
    /// Adds a further batch, so that several separately judged decisions share one commit.
    pub(crate) fn join(&mut self, batch: Batch, truths: Vec<MessageTruth>) {
        self.batch.append(batch);
        self.truths.extend(truths);
    }
}

/// A batch between its decision and its replies.
#[derive(Debug)]
pub(crate) enum CommitStage {
    PendingCommit(PendingCommit),
    /// The store has it; replies are not sent yet.
    Durable(DurableBatch),
}

impl CommitStage {
    pub(crate) fn batch(&self) -> &Batch {
        match self {
            Self::PendingCommit(committing) => committing.batch(),
            Self::Durable(durable) => durable.batch(),
        }
    }
}

/// The key by which the duplicate request cache recognises a request (B1.14).
pub(crate) fn key(request: &Request) -> CallKey {
    let call = (&request.call, request.number, &request.tag);
    CallKey {
        from: request.from,
        transport: match request.namespace.transport() {
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

pub(crate) fn hash(what: &impl std::hash::Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(what)
}

pub(crate) struct Engine {
    pub decider: Decider<Sink>,
    pub inbox: Inbox<Sink>,
    /// Replies, with the number of the decision.
    pub duplicates: DuplicateCache<Rc<Request>, (Answer, u64)>,
    pub order: Order<OrderKey, ReceivedRequest>,
    /// Requests on a worker.
    pub working: Vec<Rc<Request>>,
    pub started: Ms,
    pub stage: Option<(CommitStage, Vec<MessageTruth>)>,
    /// Requests that the decider has not answered yet.
    pub unanswered: usize,
    /// Unanswered attempts, and the address that may answer.
    pub attempts: BTreeMap<AttemptKey, IpAddr>,
    pub connections: Connections,
    /// Since when the lease on the store has not been renewed; nothing is decided meanwhile.
    pub unfresh_since: Option<Ms>,
    /// When requests entered the inbox.
    pub entered: BTreeMap<RequestId, Ms>,
    next_request: u64,
    pub batch_due: bool,
    pub timer: Option<Ms>,
}

impl Engine {
    pub(crate) fn new(keeper: Keeper, started: Ms, last: Token, duplicates: CacheBounds) -> Self {
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
            batch_due: false,
            timer: None,
        }
    }

    /// Nothing enters the keeper: a batch is being committed, or the lease is not fresh.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stage.is_some() || self.unfresh_since.is_some()
    }

    pub(crate) fn mono(&self, now: Ms) -> Duration {
        Duration::from_millis(now - self.started)
    }

    pub(crate) fn time(&self, now: Ms, wall_ms: u64) -> Time {
        Time { mono: self.mono(now), wall_ms }
    }

    pub(crate) fn new_id(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    /// `false` if the inbox is full and the input was dropped.
    pub(crate) fn push(&mut self, input: Input, now: Ms) -> bool {
        let now = self.mono(now);
        self.inbox.push(input, now)
    }

    pub(crate) fn handle(&mut self, input: Input, now: Time) {
        self.unanswered += usize::from(matches!(input, Input::Request(..)));
        self.decider.handle(input, now);
    }

    pub(crate) fn take_sink(&mut self, id: RequestId) -> Option<Sink> {
        let pending = self.decider.take_pending_reply(id)?;
        self.unanswered -= 1;
        Some(pending.sink)
    }

    /// Requests with the same key keep their order (B2.10).
    pub(crate) fn order_key(request: &request::Request) -> Option<OrderKey> {
        request.subject().map(|subject| OrderKey(hash(&subject)))
    }

    /// The origin whose share of the duplicate request cache a packet uses.
    pub(crate) fn origin(&self, request: &Request) -> Origin {
        match request.namespace.transport() {
            identity::Transport::Tcp => {
                let truth = request.truth;
                Origin::Connection(hash(&(truth.host, truth.life, request.namespace)))
            }
            identity::Transport::Udp => Origin::Address(request.from),
        }
    }
}
