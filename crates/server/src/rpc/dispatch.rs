//! The dispatcher: from a record to a call, its service, the duplicate request cache and the thread
//! that serves it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use vfs::BlockingMode;
use wire::rpc::{self, Accepted, Call, CallParseError, Credential, Procedure};
use wire::{Message, Writer, nfs3, nlm, nsm};

use super::duplicate_cache::{CacheBounds, CacheLookup, CallKey, DuplicateCache};
use super::limits::Limits;
use super::order::{Order, OrderKey};
use super::pending::{
    Bookkeeping, CallTimer, InFlightGuard, IncomingCall, PendingCall, Stage, accepted, denied,
};
use super::workers::Workers;
use crate::liveness::Liveness;
use crate::metrics::{CallOutcome, Metrics};
use crate::service::{CacheClass, ServeOutcome, Service};
use crate::service_lease::ServiceLease;
use crate::transport::{Peer, ReplyBatch, ReplyTo, Transport};

/// The checksum of a call covers this many bytes at either end of its record.
const CHECKSUM_BYTES: usize = 512;

/// Serves the calls of all connections and sockets of one port. A call runs on the network thread if
/// its service can answer without blocking, else on a worker.
pub(crate) struct Dispatcher {
    services: Vec<Arc<dyn Service>>,
    workers: Arc<Workers>,
    limits: Limits,
    caches: DuplicateCaches,
    order: Mutex<Order<OrderKey, PendingCall>>,
    /// The number of busy keys in `order`; read without the lock.
    busy_orders: AtomicUsize,
    /// Bytes of requests in progress, of their expected replies and of unsent replies, over all
    /// connections.
    load: Arc<AtomicUsize>,
    liveness: Liveness,
    lease: ServiceLease,
    metrics: Option<Arc<Metrics>>,
    on_heard: OnHeard,
    /// `on_heard` has returned true: datagrams need not be reported any more.
    has_heard: AtomicBool,
}

/// Called with the peer of the first file, lock or status call of each connection, and of every such
/// datagram until it returns true: that the peer is a client on another machine. Never called for
/// NULL, which proves nothing. Must not block.
pub(crate) type OnHeard = Box<dyn Fn(&Peer) -> bool + Send + Sync>;

/// The duplicate request cache, in parts so that calls of one kind do not evict those of another.
struct DuplicateCaches {
    checksums: RandomState,
    started: Instant,
    once: Mutex<Cache>,
    /// WRITE, which is mostly harmless to repeat: a quarter of the bounds.
    bulk: Mutex<Cache>,
    /// Lock calls, which a reboot of their host removes.
    locks: Mutex<Cache>,
}

type Cache = DuplicateCache<ReplyTo, Message>;

impl DuplicateCaches {
    fn new(bounds: CacheBounds) -> Self {
        let cache = |divisor: usize| {
            let CacheBounds { per_origin, entries, bytes } = bounds;
            let (per_origin, entries) = (per_origin / divisor, entries / divisor);
            Mutex::new(Cache::new(CacheBounds { per_origin, entries, bytes: bytes / divisor }))
        };
        Self {
            checksums: RandomState::new(),
            started: Instant::now(),
            once: cache(1),
            bulk: cache(4),
            locks: cache(1),
        }
    }

    fn lock(&self, class: CacheClass) -> Option<MutexGuard<'_, Cache>> {
        let part = match class {
            CacheClass::Uncached => return None,
            CacheClass::Once => &self.once,
            CacheClass::Bulk => &self.bulk,
            CacheClass::Lock => &self.locks,
        };
        Some(part.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin(
        &self,
        class: CacheClass,
        key: CallKey,
        peer: &Peer,
        to: &ReplyTo,
    ) -> CacheLookup<Message> {
        let (origin, to, now) = (to.origin(peer), to.clone(), self.started.elapsed());
        let Some(mut cache) = self.lock(class) else { return CacheLookup::New };
        let found = cache.begin(key, origin, to, now, ReplyTo::same_as);
        let evicted = cache.take_evicted();
        drop(cache);
        // Dropping an entry takes time, so the lock goes first.
        drop(evicted);
        found
    }

    /// `record` is the whole call, with its credential.
    fn key(&self, call: &Call, record: &[u8], peer: &Peer, name: &[u8]) -> CallKey {
        let mut hasher = self.checksums.build_hasher();
        hasher.write_usize(record.len());
        hasher.write(&record[..record.len().min(CHECKSUM_BYTES)]);
        if record.len() > CHECKSUM_BYTES {
            hasher.write(&record[record.len() - CHECKSUM_BYTES..]);
        }
        CallKey {
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
    pub(crate) fn new(
        services: Vec<Arc<dyn Service>>,
        workers: Arc<Workers>,
        limits: Limits,
        liveness: Liveness,
        lease: ServiceLease,
        metrics: Option<Arc<Metrics>>,
        on_heard: OnHeard,
    ) -> Self {
        let caches = DuplicateCaches::new(limits.duplicates());
        Self {
            services,
            workers,
            limits,
            caches,
            order: Mutex::default(),
            busy_orders: AtomicUsize::new(0),
            load: Arc::default(),
            liveness,
            lease,
            metrics,
            on_heard,
            has_heard: AtomicBool::new(false),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    pub(crate) fn lease(&self) -> &ServiceLease {
        &self.lease
    }

    /// See the field; connections add and subtract their unsent replies.
    pub(crate) fn load(&self) -> &Arc<AtomicUsize> {
        &self.load
    }

    pub(crate) fn is_overloaded(&self) -> bool {
        self.load.load(Ordering::Relaxed) >= self.limits.total_bytes_max
    }

    /// Serves one record, on a network thread. Returns the reply if it is ready at once; otherwise it
    /// is sent to `to` later, or there is none.
    pub(crate) fn receive(
        self: &Arc<Self>,
        record: Bytes,
        peer: &Peer,
        to: &ReplyTo,
    ) -> Option<Message> {
        if !self.lease.is_held() {
            return None;
        }
        let call = match Call::parse(record.clone()) {
            Ok(call) => call,
            Err(refused) => return refusal(refused),
        };
        self.note_sign_of_life(&call, peer, to);
        let mut timer = CallTimer::new(self.metrics.as_ref(), &call);
        let service = match self.find(&call) {
            Ok(service) => service,
            Err(status) => {
                timer.end(CallOutcome::NotRun);
                return Some(accepted(call.xid, status));
            }
        };
        let name = service.caller_name(&call).unwrap_or_default();
        if !name.is_empty() {
            to.named(name);
        }
        let class = service.cache_class(&call, peer);
        let mut key = None;
        if class != CacheClass::Uncached {
            let new = self.caches.key(&call, &record, peer, name);
            match self.caches.begin(class, new, peer, to) {
                CacheLookup::New => key = Some((class, new)),
                CacheLookup::Cached(kept) => {
                    timer.end(CallOutcome::Success);
                    return Some(service.reply_from_cache(&call, peer, kept));
                }
                // Only the call that runs is counted.
                CacheLookup::InProgress => {
                    timer.discard();
                    return None;
                }
                CacheLookup::Full => return None,
            }
        }
        let weight = record.len() + service.reply_bytes(&call);
        let bookkeeping = Bookkeeping { key, timer };
        let stage = Stage::Received { dispatcher: self, to, bookkeeping, weight };
        let mut incoming = IncomingCall { call: &call, peer, stage };
        match serve(&**service, &mut incoming, BlockingMode::Nonblocking)? {
            Answer::Reply { reply, kept, outcome } => match &mut incoming.stage {
                Stage::Received { bookkeeping: Bookkeeping { key: None, timer }, .. } => {
                    timer.end(outcome);
                    Some(reply)
                }
                _ => {
                    let mut replies = ReplyBatch::default();
                    incoming.defer().finish(kept.then_some(&reply), &reply, outcome, &mut replies);
                    replies.send();
                    None
                }
            },
            Answer::WouldBlock { order } => {
                let mut pending = incoming.defer();
                pending.guard.iter_mut().for_each(InFlightGuard::count_datagram);
                let pending = match order {
                    Some(order) => self.enter_order(order, pending)?,
                    None => pending,
                };
                self.submit(service.clone(), pending, order);
                None
            }
        }
    }

    /// Serves a call on a worker, and then the next call with its order key.
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
                && let Some(next) = dispatcher.finish_order(order)
            {
                dispatcher.submit(service, next, Some(order));
            }
        });
    }

    /// Serves a call, on a worker thread.
    fn run(&self, service: &dyn Service, pending: PendingCall) {
        let PendingCall { call, peer, guard } = pending;
        let Some(guard) = guard.filter(|_| self.lease.is_held()) else { return };
        let mut incoming = IncomingCall { call: &call, peer: &peer, stage: Stage::OnWorker(guard) };
        let answer = serve(service, &mut incoming, BlockingMode::MayBlock);
        if let Some(Answer::Reply { reply, kept, outcome }) = answer
            && let Stage::OnWorker(guard) = std::mem::replace(&mut incoming.stage, Stage::Deferred)
        {
            // Frees the request's buffer before the reply lets the peer send the next one.
            drop(call);
            let mut replies = ReplyBatch::default();
            guard.finish(kept.then_some(&reply), &reply, outcome, &mut replies);
            replies.send();
        }
        service.flush();
    }

    /// Whether a call with this key waits for a worker or runs on one.
    pub(super) fn is_behind(&self, order: impl FnOnce() -> OrderKey) -> bool {
        self.busy_orders.load(Ordering::Acquire) > 0 && self.order().is_busy(&order())
    }

    fn enter_order(&self, order: OrderKey, pending: PendingCall) -> Option<PendingCall> {
        let first = self.order().enter(order, pending);
        if first.is_some() {
            self.busy_orders.fetch_add(1, Ordering::AcqRel);
        }
        first
    }

    fn finish_order(&self, order: OrderKey) -> Option<PendingCall> {
        let next = self.order().finish(&order);
        if next.is_none() {
            self.busy_orders.fetch_sub(1, Ordering::AcqRel);
        }
        next
    }

    fn order(&self) -> MutexGuard<'_, Order<OrderKey, PendingCall>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called when all records that were received have been passed to [`receive`](Self::receive):
    /// decides the lock requests among them as one batch.
    pub(crate) fn flush(&self) {
        for service in &self.services {
            service.flush();
        }
    }

    /// Stores the reply for retransmissions, or removes the call if there is none to store. Returns
    /// the recipients.
    pub(super) fn complete_call(
        &self,
        class: CacheClass,
        key: &CallKey,
        kept: Option<Message>,
    ) -> impl IntoIterator<Item = ReplyTo> + use<> {
        let now = self.caches.started.elapsed();
        let mut cache = self.caches.lock(class);
        let recipients = cache.as_mut().map(|cache| match kept {
            Some(kept) => {
                let bytes = kept.len();
                cache.answered(key, kept, bytes, now)
            }
            None => cache.abandoned(key),
        });
        drop(cache);
        recipients.into_iter().flatten()
    }

    /// Lets the cached calls of a connection expire.
    pub(crate) fn connection_ended(&self, connection: u64) {
        let now = self.caches.started.elapsed();
        for class in [CacheClass::Once, CacheClass::Bulk, CacheClass::Lock] {
            if let Some(mut cache) = self.caches.lock(class) {
                cache.connection_ended(connection, now);
            }
        }
    }

    /// Removes the cached lock calls of a host that rebooted, since it may reuse transaction ids.
    pub(crate) fn forget_host(&self, address: IpAddr, name: &[u8]) {
        let (name, now) = (self.caches.hash(name), self.caches.started.elapsed());
        if let Some(mut locks) = self.caches.lock(CacheClass::Lock) {
            locks.forget(|key| key.from == address && key.name == name, now);
        }
    }

    /// Tells `liveness` the name of the peer's machine, and `on_heard` of its first call.
    fn note_sign_of_life(&self, call: &Call, peer: &Peer, to: &ReplyTo) {
        // Procedure 0 of every program (RFC 5531).
        const NULL: u32 = nfs3::Null::NUMBER;
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
                Transport::Tcp => to.take_first_call(),
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

/// The result of a call that the service did not defer.
enum Answer {
    /// `kept`: the procedure ran, so a retransmission gets the same reply.
    Reply {
        reply: Message,
        kept: bool,
        outcome: CallOutcome,
    },
    WouldBlock {
        order: Option<OrderKey>,
    },
}

fn serve(
    service: &dyn Service,
    incoming: &mut IncomingCall<'_>,
    blocking: BlockingMode,
) -> Option<Answer> {
    let xid = incoming.call.xid;
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, xid, Accepted::Success);
    // A panic in one procedure must not end a connection, or the task that serves all of UDP.
    let served = catch_unwind(AssertUnwindSafe(|| service.serve(incoming, blocking, &mut out)));
    let (reply, outcome) = match served {
        Ok(ServeOutcome::Reply) => {
            return Some(Answer::Reply {
                reply: out.finish(),
                kept: true,
                outcome: CallOutcome::Success,
            });
        }
        Ok(ServeOutcome::WouldBlock { order }) => return Some(Answer::WouldBlock { order }),
        Ok(ServeOutcome::Deferred) => return None,
        Ok(ServeOutcome::NotRun(status)) => (accepted(xid, status), CallOutcome::NotRun),
        Ok(ServeOutcome::Denied(denial)) => (denied(xid, denial), CallOutcome::Denied),
        Err(_) => (accepted(xid, Accepted::SystemError), CallOutcome::NotRun),
    };
    Some(Answer::Reply { reply, kept: false, outcome })
}

fn refusal(refused: CallParseError) -> Option<Message> {
    Some(match refused {
        CallParseError::NotACall => return None,
        CallParseError::Denied { xid, denial } => denied(xid, denial),
        CallParseError::Garbage { xid } => accepted(xid, Accepted::GarbageArgs),
    })
}
