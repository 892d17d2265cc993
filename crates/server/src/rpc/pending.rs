//! A call that is being served. A service gets an [`IncomingCall`]; a call that is answered later, or
//! by a worker, becomes a [`PendingCall`].

use std::sync::Arc;
use std::time::Instant;

use wire::rpc::{self, Accepted, Call, Denial};
use wire::{Message, Writer};

use super::dispatch::Dispatcher;
use super::duplicate_cache::CallKey;
use super::order::OrderKey;
use super::worker_call::WorkerCall;
use crate::io_counts::CallIo;
use crate::metrics::{CallOutcome, CallStart, Metrics};
use crate::service::CacheClass;
use crate::transport::{Peer, ReplyBatch, ReplyTo};

/// A call as it is passed to a service.
pub(crate) struct IncomingCall<'a> {
    pub call: &'a Call,
    pub peer: &'a Peer,
    pub(super) stage: Stage<'a>,
}

pub(super) enum Stage<'a> {
    /// On the network thread; not counted as in progress yet.
    Received {
        dispatcher: &'a Arc<Dispatcher>,
        to: &'a ReplyTo,
        bookkeeping: Bookkeeping,
        weight: usize,
    },
    OnWorker(InFlightGuard),
    /// It has become a pending call.
    Deferred,
}

/// What must be completed when a call ends: its entry in the duplicate request cache and its timer.
#[derive(Default)]
pub(super) struct Bookkeeping {
    pub key: Option<(CacheClass, CallKey)>,
    pub timer: CallTimer,
}

impl IncomingCall<'_> {
    /// When the connection of the call was opened; `None` for datagrams.
    pub(crate) fn connected(&self) -> Option<Instant> {
        let to = match &self.stage {
            Stage::Received { to, .. } => to,
            Stage::OnWorker(guard) => &guard.to,
            Stage::Deferred => return None,
        };
        match to {
            ReplyTo::Connection(outgoing) => Some(outgoing.opened()),
            ReplyTo::Datagram(..) => None,
        }
    }

    /// Counts what the call did for its client.
    pub(crate) fn count(&self, io: CallIo) {
        let (dispatcher, to) = match &self.stage {
            Stage::Received { dispatcher, to, .. } => (*dispatcher, *to),
            Stage::OnWorker(guard) => (&guard.dispatcher, &guard.to),
            Stage::Deferred => return,
        };
        match to {
            ReplyTo::Connection(outgoing) => outgoing.count(io),
            ReplyTo::Datagram(..) => {
                if let Some(clients) = dispatcher.client_io() {
                    clients.count(self.peer.remote.ip(), io);
                }
            }
        }
    }

    /// Whether an earlier call with this key waits for a worker or runs on one.
    pub(crate) fn is_behind(&self, order: impl FnOnce() -> OrderKey) -> bool {
        match &self.stage {
            Stage::Received { dispatcher, .. } => dispatcher.is_behind(order),
            Stage::OnWorker(_) | Stage::Deferred => false,
        }
    }

    /// Takes the call, to answer it later; the service then returns `ServeOutcome::Deferred`. To be called
    /// once: a second call returns a `PendingCall` whose reply goes nowhere.
    pub(crate) fn defer(&mut self) -> PendingCall {
        let guard = match std::mem::replace(&mut self.stage, Stage::Deferred) {
            Stage::Received { dispatcher, to, bookkeeping, weight } => {
                Some(InFlightGuard::new(dispatcher.clone(), to.clone(), weight, bookkeeping))
            }
            Stage::OnWorker(guard) => Some(guard),
            Stage::Deferred => None,
        };
        PendingCall { call: self.call.clone(), peer: *self.peer, guard }
    }
}

/// A call that is answered later, by any thread. If it is dropped without a reply, a retransmission is
/// a new call.
pub(crate) struct PendingCall {
    pub call: Call,
    pub peer: Peer,
    pub(super) guard: Option<InFlightGuard>,
}

impl PendingCall {
    /// Replies with success and the results that `results` writes.
    pub(crate) fn reply(self, replies: &mut ReplyBatch, results: impl FnOnce(&mut Writer)) {
        let reply = success(self.call.xid, results);
        self.finish(Some(&reply), &reply, CallOutcome::Success, replies);
    }

    /// Replies with results that report a failure.
    pub(crate) fn reply_failure(self, replies: &mut ReplyBatch, results: impl FnOnce(&mut Writer)) {
        let reply = success(self.call.xid, results);
        self.finish(Some(&reply), &reply, CallOutcome::Failed, replies);
    }

    /// Replies with success and no results, for the _MSG procedures, whose result is a call of its
    /// own. `kept` is stored, so that a retransmission has that call sent again.
    pub(crate) fn reply_void(self, replies: &mut ReplyBatch, kept: &Message) {
        let reply = success(self.call.xid, |_| ());
        self.finish(Some(kept), &reply, CallOutcome::Success, replies);
    }

    /// Sends `sent` to all recipients and stores `kept` for retransmissions; mostly they are the same
    /// message. Nothing is stored for a call that did not run.
    pub(super) fn finish(
        self,
        kept: Option<&Message>,
        sent: &Message,
        outcome: CallOutcome,
        replies: &mut ReplyBatch,
    ) {
        if let Some(guard) = self.guard {
            guard.finish(kept, sent, outcome, replies);
        }
    }
}

/// Counts a call as in progress until it is dropped, and sends its reply.
pub(crate) struct InFlightGuard {
    pub(super) dispatcher: Arc<Dispatcher>,
    to: ReplyTo,
    weight: usize,
    bookkeeping: Bookkeeping,
    /// Counted in [`Answering::started_on_worker`](crate::transport::udp::Answering::started_on_worker).
    /// All peers share that bound, so only calls on a worker count; the engine has a bound of its own.
    is_counted_datagram: bool,
    /// It no longer counts against the limits of its connection or socket.
    is_exempt: bool,
    /// Set while the call runs on a worker, which may be exempted at any time.
    worker: Option<Arc<WorkerCall>>,
}

impl InFlightGuard {
    fn new(
        dispatcher: Arc<Dispatcher>,
        to: ReplyTo,
        weight: usize,
        bookkeeping: Bookkeeping,
    ) -> Self {
        dispatcher.budget().add(weight);
        match &to {
            ReplyTo::Connection(outgoing) => outgoing.started(weight),
            ReplyTo::Datagram(datagrams, _) => datagrams.started(),
        }
        let (is_counted_datagram, is_exempt, worker) = (false, false, None);
        Self { dispatcher, to, weight, bookkeeping, is_counted_datagram, is_exempt, worker }
    }

    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// To be called before the call goes to a worker.
    pub(super) fn count_datagram(&mut self) {
        if let ReplyTo::Datagram(datagrams, _) = &self.to
            && !self.is_counted_datagram
        {
            datagrams.started_on_worker();
            self.is_counted_datagram = true;
        }
    }

    /// The call runs on a worker.
    pub(super) fn on_worker(&mut self, call: Arc<WorkerCall>) {
        self.worker = Some(call);
    }

    /// The call was exempted while it waited for a worker, and will not run.
    pub(super) fn was_exempted(&mut self) {
        self.is_exempt = true;
    }

    pub(super) fn finish(
        mut self,
        kept: Option<&Message>,
        sent: &Message,
        outcome: CallOutcome,
        replies: &mut ReplyBatch,
    ) {
        self.bookkeeping.timer.end(outcome);
        match self.bookkeeping.key.take() {
            None => replies.put(self.to.clone(), sent.clone()),
            Some((class, key)) => {
                for recipient in self.dispatcher.caches().complete(class, &key, kept.cloned()) {
                    replies.answer(recipient, sent.clone());
                }
            }
        }
        replies.hold(self);
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if let Some((class, key)) = &self.bookkeeping.key {
            drop(self.dispatcher.caches().complete(*class, key, None));
        }
        self.dispatcher.budget().subtract(self.weight);
        let worker = self.worker.as_ref();
        let is_exempt = self.is_exempt || worker.is_some_and(|call| !call.take_count());
        match &self.to {
            ReplyTo::Connection(outgoing) if is_exempt => outgoing.finished_exempt(),
            ReplyTo::Connection(outgoing) => outgoing.finished(self.weight),
            ReplyTo::Datagram(datagrams, _) => {
                if self.is_counted_datagram && !is_exempt {
                    datagrams.finished_on_worker();
                }
                datagrams.finished();
            }
        }
    }
}

/// Counts a call in the metrics when it ends: as dropped, unless [`end`](Self::end) says otherwise.
#[derive(Default)]
pub(super) struct CallTimer(Option<(Arc<Metrics>, CallStart)>);

impl CallTimer {
    pub(super) fn new(metrics: Option<&Arc<Metrics>>, call: &Call) -> Self {
        Self(metrics.and_then(|metrics| {
            Some((metrics.clone(), CallStart::now(call.program, call.procedure)?))
        }))
    }

    pub(super) fn end(&mut self, outcome: CallOutcome) {
        if let Some((metrics, start)) = self.0.take() {
            metrics.count_call(start, outcome);
        }
    }

    /// Counts nothing: the call is a retransmission of one that is counted itself.
    pub(super) fn discard(mut self) {
        self.0 = None;
    }
}

impl Drop for CallTimer {
    fn drop(&mut self) {
        self.end(CallOutcome::Dropped);
    }
}

pub(crate) fn success(xid: u32, results: impl FnOnce(&mut Writer)) -> Message {
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, xid, Accepted::Success);
    results(&mut out);
    out.finish()
}

pub(crate) fn accepted(xid: u32, status: Accepted) -> Message {
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, xid, status);
    out.finish()
}

pub(crate) fn denied(xid: u32, denial: Denial) -> Message {
    let mut out = Writer::new();
    rpc::write_denied(&mut out, xid, denial);
    out.finish()
}
