//! A call while it is being served. [`Incoming`] is what a service is shown; one that is answered
//! later, or on a worker, becomes a [`PendingCall`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use wire::rpc::{self, Accepted, Call, Denial};
use wire::{Message, Writer};

use super::dispatch::Dispatcher;
use super::duplicates::Key;
use super::order::OrderKey;
use crate::meters::{Called, Fate, Meters};
use crate::service::Repeat;
use crate::transport::{Peer, ReplyBatch, ReplyTo};

/// A call as a service sees it.
pub struct Incoming<'a> {
    pub call: &'a Call,
    pub peer: &'a Peer,
    pub(super) source: Source<'a>,
}

pub(super) enum Source<'a> {
    /// Just received: nothing is charged for it yet.
    Network { dispatcher: &'a Arc<Dispatcher>, to: &'a ReplyTo, duties: Duties, weight: usize },
    /// Taken up again on a worker.
    Worker(Charge),
    /// It has become a pending call.
    Deferred,
}

/// What is owed for a call besides its reply: its place among the duplicates and its measurement.
#[derive(Default)]
pub(super) struct Duties {
    pub key: Option<(Repeat, Key)>,
    pub measured: Measured,
}

impl Incoming<'_> {
    /// Since when the connection that it came by is open; datagrams have none.
    pub fn connected(&self) -> Option<Instant> {
        let to = match &self.source {
            Source::Network { to, .. } => to,
            Source::Worker(charge) => &charge.to,
            Source::Deferred => return None,
        };
        match to {
            ReplyTo::Connection(outgoing) => Some(outgoing.opened()),
            ReplyTo::Datagram(..) => None,
        }
    }

    /// Whether an earlier call of this order waits for a worker, or is with one.
    pub fn is_behind(&self, order: impl FnOnce() -> OrderKey) -> bool {
        match &self.source {
            Source::Network { dispatcher, .. } => dispatcher.is_behind(order),
            Source::Worker(_) | Source::Deferred => false,
        }
    }

    /// Takes the call along, to answer it later; the service then returns `Served::Later`. To be
    /// called once: later calls give one without a reply.
    pub fn defer(&mut self) -> PendingCall {
        let charge = match std::mem::replace(&mut self.source, Source::Deferred) {
            Source::Network { dispatcher, to, duties, weight } => {
                Some(Charge::new(dispatcher.clone(), to.clone(), weight, duties))
            }
            Source::Worker(charge) => Some(charge),
            Source::Deferred => None,
        };
        PendingCall { call: self.call.clone(), peer: *self.peer, charge }
    }
}

/// A call that is answered later, from whatever thread knows the answer. Dropped without an answer,
/// it is as if it had never come: a repetition is a new call.
pub struct PendingCall {
    pub call: Call,
    pub peer: Peer,
    pub(super) charge: Option<Charge>,
}

impl PendingCall {
    /// The procedure ran; `results` writes what it gives back.
    pub fn reply(self, replies: &mut ReplyBatch, results: impl FnOnce(&mut Writer)) {
        let reply = success(self.call.xid, results);
        self.finish(Some(&reply), &reply, Fate::Success, replies);
    }

    /// The procedure ran and gives back nothing here, because its result is sent in another way;
    /// `kept` is what a repetition needs to send it again.
    pub fn reply_void(self, replies: &mut ReplyBatch, kept: &Message) {
        let reply = success(self.call.xid, |_| ());
        self.finish(Some(kept), &reply, Fate::Success, replies);
    }

    /// Sends one message to all that wait and keeps another for repetitions; mostly they are one.
    /// Nothing is kept of a call that was not run.
    pub(super) fn finish(
        self,
        kept: Option<&Message>,
        sent: &Message,
        fate: Fate,
        replies: &mut ReplyBatch,
    ) {
        if let Some(charge) = self.charge {
            charge.finish(kept, sent, fate, replies);
        }
    }
}

/// What a pending call takes of the server's bounds, given back whatever becomes of it.
pub struct Charge {
    pub(super) dispatcher: Arc<Dispatcher>,
    to: ReplyTo,
    weight: usize,
    duties: Duties,
    /// It takes one of the places for requests under way. Over UDP, where all peers share them,
    /// only requests on a worker do: what waits for the engine has bounds of its own.
    is_placed: bool,
}

impl Charge {
    fn new(dispatcher: Arc<Dispatcher>, to: ReplyTo, weight: usize, duties: Duties) -> Self {
        dispatcher.load().fetch_add(weight, Ordering::Relaxed);
        if let ReplyTo::Connection(outgoing) = &to {
            outgoing.started(weight);
        }
        Self { dispatcher, to, weight, duties, is_placed: false }
    }

    /// It goes to a worker.
    pub(super) fn place(&mut self) {
        if let ReplyTo::Datagram(datagrams, _) = &self.to
            && !self.is_placed
        {
            datagrams.started();
            self.is_placed = true;
        }
    }

    pub(super) fn finish(
        mut self,
        kept: Option<&Message>,
        sent: &Message,
        fate: Fate,
        replies: &mut ReplyBatch,
    ) {
        self.duties.measured.end(fate);
        match self.duties.key.take() {
            None => replies.put(self.to.clone(), sent.clone()),
            Some((repeat, key)) => {
                for waiting in self.dispatcher.answered(repeat, &key, kept.cloned()) {
                    replies.put(waiting, sent.clone());
                }
            }
        }
        replies.answers(self);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some((repeat, key)) = &self.duties.key {
            drop(self.dispatcher.answered(*repeat, key, None));
        }
        self.dispatcher.load().fetch_sub(self.weight, Ordering::Relaxed);
        match &self.to {
            ReplyTo::Connection(outgoing) => outgoing.finished(self.weight),
            ReplyTo::Datagram(datagrams, _) if self.is_placed => datagrams.finished(),
            ReplyTo::Datagram(..) => {}
        }
    }
}

/// A call as it is counted; one that ends without a word was dropped.
#[derive(Default)]
pub(super) struct Measured(Option<(Arc<Meters>, Called)>);

impl Measured {
    pub fn new(meters: Option<&Arc<Meters>>, call: &Call) -> Self {
        Self(
            meters.and_then(|meters| {
                Some((meters.clone(), Called::now(call.program, call.procedure)?))
            }),
        )
    }

    pub fn end(&mut self, fate: Fate) {
        if let Some((meters, called)) = self.0.take() {
            meters.called(called, fate);
        }
    }

    /// It is a repetition of a call that is counted itself.
    pub fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.end(Fate::Dropped);
    }
}

pub fn success(xid: u32, results: impl FnOnce(&mut Writer)) -> Message {
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, xid, Accepted::Success);
    results(&mut out);
    out.finish()
}

pub fn accepted(xid: u32, verdict: Accepted) -> Message {
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, xid, verdict);
    out.finish()
}

pub fn denied(xid: u32, denial: Denial) -> Message {
    let mut out = Writer::new();
    rpc::write_denied(&mut out, xid, denial);
    out.finish()
}
