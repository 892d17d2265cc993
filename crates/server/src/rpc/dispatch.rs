//! From a record to the service that serves it: which program, seen before, on which thread.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use vfs::Patience;
use wire::rpc::{self, Accepted, Call, Credential, Refused};
use wire::{Message, Writer, nfs3, nlm, nsm};

use super::duplicates::{Begun, Bounds, DuplicateCache, Key};
use super::limits::Limits;
use super::order::{Order, OrderKey};
use super::pending::{Charge, Duties, Incoming, Measured, PendingCall, Source, accepted, denied};
use super::workers::Workers;
use crate::liveness::Liveness;
use crate::meters::{Fate, Meters};
use crate::service::{Repeat, Served, Service};
use crate::tenure::Tenure;
use crate::transport::{Peer, ReplyBatch, ReplyTo, Transport};

/// How much of a long request is looked at to tell it from another with the same xid.
const CHECKED: usize = 512;

/// Finds the service of each call, keeps duplicates apart, and decides where the call is served: at
/// once on the network thread if the service can answer from memory, else on a worker.
pub struct Dispatcher {
    services: Vec<Arc<dyn Service>>,
    workers: Arc<Workers>,
    limits: Limits,
    duplicates: Duplicates,
    order: Mutex<Order<OrderKey, PendingCall>>,
    /// How many keys of `order` are busy; read without the lock.
    in_order: AtomicUsize,
    /// Bytes of requests and of expected and unsent replies, over all connections.
    load: Arc<AtomicUsize>,
    liveness: Liveness,
    tenure: Tenure,
    meters: Option<Arc<Meters>>,
    on_heard: OnHeard,
    /// A client of another machine has called: the recovery window runs.
    has_heard: AtomicBool,
}

/// Called with the peer of the first file, lock or status call of a connection, and with that of
/// every such datagram until it answers that this was a client of another machine; never for NULL,
/// which proves nothing. It must not block.
pub type OnHeard = Box<dyn Fn(&Peer) -> bool + Send + Sync>;

/// The duplicate request cache, in parts so that many calls of one kind do not push out others.
struct Duplicates {
    checksums: RandomState,
    started: Instant,
    once: Mutex<Cache>,
    /// Large writes are harmless to repeat in most cases.
    bulk: Mutex<Cache>,
    /// Locks must be remembered longest.
    locks: Mutex<Cache>,
}

type Cache = DuplicateCache<ReplyTo, Message>;

impl Duplicates {
    fn new(bounds: Bounds) -> Self {
        let cache = |part: usize| {
            let Bounds { per_origin, entries, bytes } = bounds;
            let (per_origin, entries) = (per_origin / part, entries / part);
            Mutex::new(Cache::new(Bounds { per_origin, entries, bytes: bytes / part }))
        };
        Self {
            checksums: RandomState::new(),
            started: Instant::now(),
            once: cache(1),
            bulk: cache(4),
            locks: cache(1),
        }
    }

    fn lock(&self, repeat: Repeat) -> Option<MutexGuard<'_, Cache>> {
        let part = match repeat {
            Repeat::Harmless => return None,
            Repeat::Once => &self.once,
            Repeat::Bulk => &self.bulk,
            Repeat::Lock => &self.locks,
        };
        Some(part.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin(&self, repeat: Repeat, key: Key, peer: &Peer, to: &ReplyTo) -> Begun<Message> {
        let (origin, waiting, now) = (to.origin(peer), to.clone(), self.started.elapsed());
        let Some(mut cache) = self.lock(repeat) else { return Begun::New };
        let begun = cache.begin(key, origin, waiting, now, ReplyTo::same_as);
        let evicted = cache.take_evicted();
        // Only then: what was evicted is dropped without the lock.
        drop(cache);
        drop(evicted);
        begun
    }

    /// `record` is the request as it came, so that its credential counts too.
    fn key(&self, call: &Call, record: &[u8], peer: &Peer, name: &[u8]) -> Key {
        let mut hasher = self.checksums.build_hasher();
        hasher.write_usize(record.len());
        hasher.write(&record[..record.len().min(CHECKED)]);
        if record.len() > CHECKED {
            hasher.write(&record[record.len() - CHECKED..]);
        }
        Key {
            from: peer.remote.ip(),
            transport: peer.transport,
            reserved_port: peer.uses_reserved_port(),
            xid: call.xid,
            procedure: (call.program, call.version, call.procedure),
            checksum: hasher.finish(),
            name: self.hash(name),
        }
    }

    fn hash(&self, name: &[u8]) -> u64 {
        if name.is_empty() { 0 } else { self.checksums.hash_one(name) }
    }
}

impl Dispatcher {
    pub fn new(
        services: Vec<Arc<dyn Service>>,
        workers: Arc<Workers>,
        limits: Limits,
        liveness: Liveness,
        tenure: Tenure,
        meters: Option<Arc<Meters>>,
        on_heard: OnHeard,
    ) -> Self {
        let duplicates = Duplicates::new(limits.duplicates());
        Self {
            services,
            workers,
            limits,
            duplicates,
            order: Mutex::default(),
            in_order: AtomicUsize::new(0),
            load: Arc::default(),
            liveness,
            tenure,
            meters,
            on_heard,
            has_heard: AtomicBool::new(false),
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Bytes under way; connections add what their peers have not read yet.
    pub fn load(&self) -> &Arc<AtomicUsize> {
        &self.load
    }

    pub fn is_overloaded(&self) -> bool {
        self.load.load(Ordering::Relaxed) >= self.limits.total_bytes_max
    }

    /// Takes one record. `Some` is a reply that was ready at once; otherwise it goes to `to` when
    /// it is, or none is due.
    pub fn receive(self: &Arc<Self>, record: Bytes, peer: &Peer, to: &ReplyTo) -> Option<Message> {
        if !self.tenure.holds() {
            return None;
        }
        let call = match Call::parse(record.clone()) {
            Ok(call) => call,
            Err(refused) => return refusal(refused),
        };
        self.note_sign_of_life(&call, peer, to);
        let mut measured = Measured::new(self.meters.as_ref(), &call);
        let service = match self.find(&call) {
            Ok(service) => service,
            Err(verdict) => {
                measured.end(Fate::NotRun);
                return Some(accepted(call.xid, verdict));
            }
        };
        let name = service.caller_name(&call).unwrap_or_default();
        if !name.is_empty() {
            to.named(name);
        }
        let repeat = service.repeat(&call, peer);
        let mut key = None;
        if repeat != Repeat::Harmless {
            let new = self.duplicates.key(&call, &record, peer, name);
            match self.duplicates.begin(repeat, new, peer, to) {
                Begun::New => key = Some((repeat, new)),
                Begun::Again(kept) => {
                    measured.end(Fate::Success);
                    return Some(service.replay(&call, peer, kept));
                }
                // The first one is counted.
                Begun::InProgress => {
                    measured.forget();
                    return None;
                }
                Begun::Full => return None,
            }
        }
        let weight = record.len() + service.reply_bytes(&call);
        let duties = Duties { key, measured };
        let source = Source::Network { dispatcher: self, to, duties, weight };
        let mut incoming = Incoming { call: &call, peer, source };
        match serve(&**service, &mut incoming, Patience::Now)? {
            Answer::Reply { reply, kept, fate } => match &mut incoming.source {
                Source::Network { duties: Duties { key: None, measured }, .. } => {
                    measured.end(fate);
                    Some(reply)
                }
                _ => {
                    let mut replies = ReplyBatch::default();
                    incoming.defer().finish(kept.then_some(&reply), &reply, fate, &mut replies);
                    replies.send();
                    None
                }
            },
            Answer::NotNow { order } => {
                let mut pending = incoming.defer();
                pending.charge.iter_mut().for_each(Charge::place);
                let pending = match order {
                    Some(order) => self.enter(order, pending)?,
                    None => pending,
                };
                self.submit(service.clone(), pending, order);
                None
            }
        }
    }

    /// Serves a call on a worker, and then the next of its order.
    fn submit(
        self: &Arc<Self>,
        service: Arc<dyn Service>,
        pending: PendingCall,
        order: Option<OrderKey>,
    ) {
        let dispatcher = self.clone();
        self.workers.submit(move || {
            dispatcher.run(&*service, pending);
            if let Some(order) = order
                && let Some(next) = dispatcher.finish(order)
            {
                dispatcher.submit(service, next, Some(order));
            }
        });
    }

    /// The worker's part.
    fn run(&self, service: &dyn Service, pending: PendingCall) {
        let PendingCall { call, peer, charge } = pending;
        let Some(charge) = charge.filter(|_| self.tenure.holds()) else { return };
        let mut incoming = Incoming { call: &call, peer: &peer, source: Source::Worker(charge) };
        let answer = serve(service, &mut incoming, Patience::Wait);
        if let Some(Answer::Reply { reply, kept, fate }) = answer
            && let Source::Worker(charge) =
                std::mem::replace(&mut incoming.source, Source::Deferred)
        {
            // The request's buffer goes before the reply does: the peer may send the next.
            drop(call);
            let mut replies = ReplyBatch::default();
            charge.finish(kept.then_some(&reply), &reply, fate, &mut replies);
            replies.send();
        }
        service.flush();
    }

    /// Whether a call of this key waits for a worker, or is with one.
    pub(super) fn is_behind(&self, order: impl FnOnce() -> OrderKey) -> bool {
        self.in_order.load(Ordering::Acquire) > 0 && self.order().is_busy(&order())
    }

    fn enter(&self, order: OrderKey, pending: PendingCall) -> Option<PendingCall> {
        let first = self.order().enter(order, pending);
        if first.is_some() {
            self.in_order.fetch_add(1, Ordering::AcqRel);
        }
        first
    }

    fn finish(&self, order: OrderKey) -> Option<PendingCall> {
        let next = self.order().finish(&order);
        if next.is_none() {
            self.in_order.fetch_sub(1, Ordering::AcqRel);
        }
        next
    }

    fn order(&self) -> MutexGuard<'_, Order<OrderKey, PendingCall>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records that had come are all handed on.
    pub fn flush(&self) {
        for service in &self.services {
            service.flush();
        }
    }

    /// Keeps what a repetition of a call is told, or forgets the call; says who waits for it.
    pub(super) fn answered(
        &self,
        repeat: Repeat,
        key: &Key,
        kept: Option<Message>,
    ) -> impl IntoIterator<Item = ReplyTo> + use<> {
        let now = self.duplicates.started.elapsed();
        let mut duplicates = self.duplicates.lock(repeat);
        let waiting = duplicates.as_mut().map(|duplicates| match kept {
            Some(kept) => {
                let bytes = kept.len();
                duplicates.answered(key, kept, bytes, now)
            }
            None => duplicates.abandoned(key),
        });
        drop(duplicates);
        waiting.into_iter().flatten()
    }

    /// What a connection asked is forgotten in a while.
    pub fn connection_ended(&self, connection: u64) {
        let now = self.duplicates.started.elapsed();
        for repeat in [Repeat::Once, Repeat::Bulk, Repeat::Lock] {
            if let Some(mut duplicates) = self.duplicates.lock(repeat) {
                duplicates.connection_ended(connection, now);
            }
        }
    }

    /// The lock requests of a host that rebooted: it may count from anywhere now.
    pub fn forget_host(&self, address: IpAddr, name: &[u8]) {
        let (name, now) = (self.duplicates.hash(name), self.duplicates.started.elapsed());
        if let Some(mut locks) = self.duplicates.lock(Repeat::Lock) {
            locks.forget(|key| key.from == address && key.name == name, now);
        }
    }

    /// A file or lock request is a sign of life of its machine; asking for a port is not.
    fn note_sign_of_life(&self, call: &Call, peer: &Peer, to: &ReplyTo) {
        const NULL: u32 = 0;
        let is_sign = match call.program {
            nfs3::PROGRAM | nlm::PROGRAM => {
                match &call.credential {
                    Credential::Sys(caller) => to.named(&caller.machine),
                    Credential::None => to.named(&[]),
                }
                call.procedure != NULL
            }
            nsm::PROGRAM => call.procedure != NULL,
            _ => false,
        };
        let tells = is_sign
            && match peer.transport {
                Transport::Tcp => to.hears_first(),
                Transport::Udp => !self.has_heard.load(Ordering::Relaxed),
            };
        if tells && (self.on_heard)(peer) {
            self.has_heard.store(true, Ordering::Relaxed);
        }
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
}

/// What a service said to a call that it did not take along.
enum Answer {
    /// `kept`: the procedure ran, so a repetition gets the same.
    Reply {
        reply: Message,
        kept: bool,
        fate: Fate,
    },
    NotNow {
        order: Option<OrderKey>,
    },
}

fn serve(service: &dyn Service, incoming: &mut Incoming<'_>, patience: Patience) -> Option<Answer> {
    let xid = incoming.call.xid;
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, xid, Accepted::Success);
    // A defect in one operation must not take a connection along, nor all of UDP.
    let served = catch_unwind(AssertUnwindSafe(|| service.serve(incoming, patience, &mut out)));
    let (reply, fate) = match served {
        Ok(Served::Reply) => {
            return Some(Answer::Reply { reply: out.finish(), kept: true, fate: Fate::Success });
        }
        Ok(Served::NotNow { order }) => return Some(Answer::NotNow { order }),
        Ok(Served::Later) => return None,
        Ok(Served::NotRun(verdict)) => (accepted(xid, verdict), Fate::NotRun),
        Ok(Served::Denied(denial)) => (denied(xid, denial), Fate::Denied),
        Err(_) => (accepted(xid, Accepted::SystemError), Fate::NotRun),
    };
    Some(Answer::Reply { reply, kept: false, fate })
}

fn refusal(refused: Refused) -> Option<Message> {
    Some(match refused {
        Refused::NotACall => return None,
        Refused::Denied { xid, denial } => denied(xid, denial),
        Refused::Garbage { xid } => accepted(xid, Accepted::GarbageArgs),
    })
}
