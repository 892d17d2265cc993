//! From a record to the service that answers it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use vfs::Patience;
use wire::rpc::{self, Accepted, Call, Refused};
use wire::{Message, Writer};

use crate::limits::Limits;
use crate::replay::{Key, Replay, Verdict};
use crate::service::{Repeat, Served, Service};
use crate::transport::{Peer, ReplyTo};
use crate::workers::Workers;

/// Finds the service of each call, keeps duplicates apart, and decides where the work is done:
/// at once on the network thread if the service can answer from memory, else on a worker.
pub struct Dispatcher {
    services: Vec<Arc<dyn Service>>,
    workers: Arc<Workers>,
    limits: Limits,
    /// Replies to requests that must not be done twice.
    once: Replay,
    /// Replies to large writes, kept apart so that they do not push the others out.
    bulk: Replay,
    /// Bytes of requests and of expected and unsent replies, over all connections.
    load: Arc<AtomicUsize>,
}

impl Dispatcher {
    pub fn new(services: Vec<Arc<dyn Service>>, workers: Arc<Workers>, limits: Limits) -> Self {
        let (entries, bytes) = (limits.replay_entries_max, limits.replay_bytes_max);
        Self {
            services,
            workers,
            once: Replay::new(entries, bytes),
            bulk: Replay::new(entries / 4, bytes / 4),
            limits,
            load: Arc::default(),
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Bytes under way; connections add what their peers have not read yet.
    pub fn load(&self) -> Arc<AtomicUsize> {
        self.load.clone()
    }

    pub fn is_overloaded(&self) -> bool {
        self.load.load(Ordering::Relaxed) >= self.limits.total_bytes_max
    }

    /// Takes one record. `Some` is a reply that was ready at once; otherwise it goes to `to`
    /// when it is, or nobody waits for one.
    pub fn receive(self: &Arc<Self>, record: Bytes, peer: &Peer, to: &ReplyTo) -> Option<Message> {
        let call = match Call::parse(record.clone()) {
            Ok(call) => call,
            Err(refused) => return refusal(refused),
        };
        let service = match self.find(&call) {
            Ok(service) => service,
            Err(verdict) => return Some(accepted(call.xid, verdict)),
        };
        let repeat = service.repeat(&call);
        let mut key = None;
        if let Some(replay) = self.replay(repeat) {
            match replay.begin(&call, &record, peer, to) {
                Verdict::New(new) => key = Some((repeat, new)),
                Verdict::Again(reply) => return Some(reply),
                Verdict::Started => return None,
            }
        } else if let Some(reply) = answer(&**service, &call, peer, Patience::Now) {
            return Some(reply);
        }
        self.hand_over(service.clone(), call, record.len(), *peer, to.clone(), key);
        None
    }

    fn find(&self, call: &Call) -> Result<&Arc<dyn Service>, Accepted> {
        let service = self
            .services
            .iter()
            .find(|service| service.program() == call.program)
            .ok_or(Accepted::ProgramUnavailable)?;
        let versions = service.versions();
        if versions.contains(&call.version) {
            return Ok(service);
        }
        let (low, high) = (versions.first(), versions.last());
        Err(Accepted::ProgramMismatch {
            low: low.copied().unwrap_or_default(),
            high: high.copied().unwrap_or_default(),
        })
    }

    fn hand_over(
        self: &Arc<Self>,
        service: Arc<dyn Service>,
        call: Call,
        request_bytes: usize,
        peer: Peer,
        to: ReplyTo,
        key: Option<(Repeat, Key)>,
    ) {
        let weight = request_bytes + service.reply_bytes(&call);
        let underway = Underway::new(self.clone(), to, weight, key);
        self.workers.submit(move || {
            let reply = answer(&*service, &call, &peer, Patience::Wait);
            // The request's buffer goes before the reply does: the peer may send the next.
            drop(call);
            underway.finish(reply);
        });
    }

    /// Where replies of this kind are kept.
    fn replay(&self, repeat: Repeat) -> Option<&Replay> {
        match repeat {
            Repeat::Harmless => None,
            Repeat::Once => Some(&self.once),
            Repeat::Bulk => Some(&self.bulk),
        }
    }
}

/// A request that a worker has; its weight is given back whatever becomes of it.
struct Underway {
    dispatcher: Arc<Dispatcher>,
    to: ReplyTo,
    weight: usize,
    key: Option<(Repeat, Key)>,
}

impl Underway {
    fn new(
        dispatcher: Arc<Dispatcher>,
        to: ReplyTo,
        weight: usize,
        key: Option<(Repeat, Key)>,
    ) -> Self {
        dispatcher.load.fetch_add(weight, Ordering::Relaxed);
        match &to {
            ReplyTo::Connection(outgoing) => outgoing.started(weight),
            ReplyTo::Datagram(datagrams, _) => datagrams.started(),
        }
        Self { dispatcher, to, weight, key }
    }

    fn finish(mut self, reply: Option<Message>) {
        let Some(reply) = reply else { return };
        let Some((repeat, key)) = self.key.take() else { return self.to.send(reply) };
        let replay = self.dispatcher.replay(repeat);
        for waiting in replay.map(|replay| replay.answered(key, &reply)).unwrap_or_default() {
            waiting.send(reply.clone());
        }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        if let Some((repeat, key)) = &self.key
            && let Some(replay) = self.dispatcher.replay(*repeat)
        {
            replay.abandoned(key);
        }
        self.dispatcher.load.fetch_sub(self.weight, Ordering::Relaxed);
        match &self.to {
            ReplyTo::Connection(outgoing) => outgoing.finished(self.weight),
            ReplyTo::Datagram(datagrams, _) => datagrams.finished(),
        }
    }
}

/// `None`: it takes patience.
fn answer(service: &dyn Service, call: &Call, peer: &Peer, patience: Patience) -> Option<Message> {
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, call.xid, Accepted::Success);
    // A defect in one operation must not take a connection along, nor all of UDP.
    let served = catch_unwind(AssertUnwindSafe(|| service.serve(call, peer, patience, &mut out)));
    let verdict = match served {
        Ok(Served::Reply) => return Some(out.finish()),
        Ok(Served::NotNow) => return None,
        Ok(Served::GarbageArgs) => Accepted::GarbageArgs,
        Ok(Served::NoSuchProcedure) => Accepted::ProcedureUnavailable,
        Err(_) => Accepted::SystemError,
    };
    Some(accepted(call.xid, verdict))
}

fn accepted(xid: u32, verdict: Accepted) -> Message {
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, xid, verdict);
    out.finish()
}

fn refusal(refused: Refused) -> Option<Message> {
    let mut out = Writer::new();
    match refused {
        Refused::NotACall => return None,
        Refused::Denied { xid, denial } => rpc::write_denied(&mut out, xid, denial),
        Refused::Garbage { xid } => rpc::write_accepted(&mut out, xid, Accepted::GarbageArgs),
    }
    Some(out.finish())
}
