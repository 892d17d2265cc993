//! The dispatcher: from a record to a call, its service, the duplicate request cache and the thread
//! that serves it.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use vfs::BlockingMode;
use wire::rpc::{self, Accepted, Call, CallParseError, Credential, Procedure};
use wire::{Message, Writer, nfs3, nlm, nsm};

use super::callers::Callers;
use super::duplicate_cache::CacheLookup;
use super::duplicates::DuplicateCaches;
use super::gathering::Turns;
use super::limits::Limits;
use super::order::{Order, OrderKey};
use super::pending::{Bookkeeping, CallTimer, IncomingCall, Stage, accepted, denied};
use super::served_file_systems::ServedFileSystems;
use super::worker_call::WorkerCall;
use super::workers::{Lane, Workers};
use crate::client_io::ClientTable;
use crate::liveness::Liveness;
use crate::metrics::{CallOutcome, Metrics};
use crate::service::{CacheClass, ServeOutcome, Service};
use crate::service_lease::ServiceLease;
use crate::transport::budget::Budget;
use crate::transport::{Peer, ReplyBatch, ReplyTo, Transport};

/// Calls that wait behind one of their owner, of those that do not count against their connection
/// while its file system hangs (`rpc/workers/schedule.rs`).
const EXEMPT_BEHIND_MAX: usize = 16;

/// Serves the calls of all connections and sockets of one port. A call runs on the network thread if
/// its service can answer without blocking, else on a worker.
pub(crate) struct Dispatcher {
    services: Vec<Arc<dyn Service>>,
    shared: Shared,
    /// Of the service that has files.
    client_io: Option<Arc<ClientTable>>,
    caches: DuplicateCaches,
    order: Mutex<Order<OrderKey, Arc<WorkerCall>>>,
    /// The number of busy keys in `order`; read without the lock.
    busy_orders: AtomicUsize,
    turns: Turns,
    on_heard: OnHeard,
    /// `on_heard` has returned true: datagrams need not be reported any more.
    has_heard: AtomicBool,
}

/// What the dispatchers of all ports of a server share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) workers: Arc<Workers>,
    pub(crate) limits: Limits,
    /// Of all connections and datagrams.
    pub(crate) budget: Arc<Budget>,
    pub(crate) callers: Callers,
    pub(crate) liveness: Liveness,
    pub(crate) lease: ServiceLease,
    pub(crate) metrics: Option<Arc<Metrics>>,
}

/// Called with the peer of the first file, lock or status call of each connection, and of every such
/// datagram until it returns true: that the peer is a client on another machine. Never called for
/// NULL, which proves nothing. Must not block.
pub(crate) type OnHeard = Box<dyn Fn(&Peer) -> bool + Send + Sync>;

impl Dispatcher {
    pub(crate) fn new(services: Vec<Arc<dyn Service>>, shared: Shared, on_heard: OnHeard) -> Self {
        let caches = DuplicateCaches::new(shared.limits.duplicates());
        let files = services.iter().find_map(|service| service.files());
        let client_io = files.as_ref().map(|files| files.client_io.clone());
        if let Some(files) = files {
            let metrics = shared.metrics.clone();
            shared.workers.observe(Box::new(ServedFileSystems { files, metrics }));
        }
        Self {
            services,
            shared,
            client_io,
            caches,
            order: Mutex::default(),
            busy_orders: AtomicUsize::new(0),
            turns: Turns::default(),
            on_heard,
            has_heard: AtomicBool::new(false),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    pub(crate) fn liveness(&self) -> &Liveness {
        &self.shared.liveness
    }

    pub(crate) fn lease(&self) -> &ServiceLease {
        &self.shared.lease
    }

    pub(crate) fn client_io(&self) -> Option<&Arc<ClientTable>> {
        self.client_io.as_ref()
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.shared.budget
    }

    pub(crate) fn callers(&self) -> &Callers {
        &self.shared.callers
    }

    pub(crate) fn metrics(&self) -> Option<&Arc<Metrics>> {
        self.shared.metrics.as_ref()
    }

    /// The bytes that this request and its reply are expected to hold.
    pub(crate) fn weight(&self, record: &Bytes) -> usize {
        let reply_bytes = Call::parse(record.clone())
            .ok()
            .and_then(|call| Some(self.find(&call).ok()?.reply_bytes(&call)));
        record.len() + reply_bytes.unwrap_or(0)
    }

    /// Serves one record, on a network thread. Returns the reply if it is ready at once; otherwise it
    /// is sent to `to` later, or there is none.
    pub(crate) fn receive(
        self: &Arc<Self>,
        record: Bytes,
        peer: &Peer,
        to: &ReplyTo,
    ) -> Option<Message> {
        if !self.shared.lease.is_held() {
            return None;
        }
        let call = match Call::parse(record.clone()) {
            Ok(call) => call,
            Err(refused) => return refusal(refused),
        };
        self.note_sign_of_life(&call, peer, to);
        let mut timer = CallTimer::new(self.metrics(), &call);
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
            Answer::WouldBlock { file_system, order } => {
                if self.is_repeat(&mut incoming, &record) {
                    return None;
                }
                if self.must_put_off(file_system, weight)
                    && let Some(reply) = try_later(&**service, &incoming)
                {
                    let mut replies = ReplyBatch::default();
                    incoming.defer().finish(None, &reply, CallOutcome::Success, &mut replies);
                    replies.send();
                    return None;
                }
                let call = WorkerCall::new(
                    self.clone(),
                    service.clone(),
                    to.clone(),
                    incoming.defer(),
                    file_system,
                    order,
                )?;
                let call = match order {
                    Some(order) => self.enter_order(order, call)?,
                    None => call,
                };
                let now = call.arrived();
                self.submit(call, now);
                None
            }
        }
    }

    /// Enters a call that goes to a worker, and that no other part of the duplicate request cache
    /// knows. Whether it repeats one that is under way: then both get the reply of that one.
    fn is_repeat(&self, incoming: &mut IncomingCall<'_>, record: &[u8]) -> bool {
        let Stage::Received { to, bookkeeping, .. } = &mut incoming.stage else { return false };
        if bookkeeping.key.is_some() {
            return false;
        }
        let key = self.caches.key(incoming.call, record, incoming.peer, &[]);
        match self.caches.begin(CacheClass::UnderWay, key, incoming.peer, to) {
            CacheLookup::New => bookkeeping.key = Some((CacheClass::UnderWay, key)),
            // Only the call that runs is counted.
            CacheLookup::InProgress => {
                std::mem::take(&mut bookkeeping.timer).discard();
                return true;
            }
            // A repeat of it will take another worker.
            CacheLookup::Full | CacheLookup::Cached(_) => {}
        }
        false
    }

    /// Whether the file system that a call needs has so many that it must come again later.
    fn must_put_off(&self, lane: Lane, bytes: usize) -> bool {
        // One file system must not hold what all need.
        let bytes_max = self.shared.limits.total_bytes_max / 2;
        let may_hold_too_much = self.shared.budget.held() + bytes > bytes_max;
        (may_hold_too_much || self.shared.workers.any_stalled())
            && self.shared.workers.refuses(lane, bytes, bytes_max)
    }

    pub(super) fn submit(&self, call: Arc<WorkerCall>, now: Instant) {
        let (lane, bytes) = (call.file_system(), call.bytes());
        self.shared.workers.submit(lane, call, bytes, now);
    }

    /// Exempts the calls that wait behind one that has hung for `age` from the limits of their
    /// connections.
    pub(super) fn exempt_behind(&self, order: OrderKey, age: Duration) {
        let now = Instant::now();
        let order_of_calls = self.order();
        let behind = order_of_calls.waiting(&order).take(EXEMPT_BEHIND_MAX);
        let behind = behind.filter(|call| now.saturating_duration_since(call.arrived()) >= age);
        let behind: Vec<Arc<WorkerCall>> = behind.cloned().collect();
        drop(order_of_calls);
        behind.iter().for_each(|call| call.stop_counting());
    }

    /// Whether a call with this key waits for a worker or runs on one.
    pub(super) fn is_behind(&self, order: impl FnOnce() -> OrderKey) -> bool {
        self.busy_orders.load(Ordering::Acquire) > 0 && self.order().is_busy(&order())
    }

    fn enter_order(&self, order: OrderKey, call: Arc<WorkerCall>) -> Option<Arc<WorkerCall>> {
        let first = self.order().enter(order, call);
        if first.is_some() {
            self.busy_orders.fetch_add(1, Ordering::AcqRel);
        }
        first
    }

    /// The next call with this key, when one has been served.
    pub(super) fn finish_order(&self, order: OrderKey) -> Option<Arc<WorkerCall>> {
        let next = self.order().finish(&order);
        if next.is_none() {
            self.busy_orders.fetch_sub(1, Ordering::AcqRel);
        }
        next
    }

    fn order(&self) -> MutexGuard<'_, Order<OrderKey, Arc<WorkerCall>>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a connection that has passed on its records lets others do so before it calls
    /// [`flush`](Self::flush).
    pub(crate) fn gathers(&self, connection: u64) -> bool {
        self.services.iter().any(|service| service.has_unflushed()) && self.turns.note(connection)
    }

    /// To be called when all records that were received have been passed to [`receive`](Self::receive):
    /// decides the lock requests among them as one batch.
    pub(crate) fn flush(&self) {
        for service in &self.services {
            service.flush();
        }
    }

    pub(super) fn caches(&self) -> &DuplicateCaches {
        &self.caches
    }

    /// Lets the cached calls of a connection expire.
    pub(crate) fn connection_ended(&self, connection: u64) {
        self.caches.connection_ended(connection);
    }

    /// Removes the cached lock calls of a host that rebooted, since it may reuse transaction ids.
    pub(crate) fn forget_host(&self, address: IpAddr, name: &[u8]) {
        self.caches.forget_host(address, name);
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
pub(super) enum Answer {
    /// `kept`: the procedure ran, so a retransmission gets the same reply.
    Reply {
        reply: Message,
        kept: bool,
        outcome: CallOutcome,
    },
    WouldBlock {
        file_system: Lane,
        order: Option<OrderKey>,
    },
}

pub(super) fn serve(
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
        Ok(ServeOutcome::WouldBlock { file_system, order }) => {
            return Some(Answer::WouldBlock { file_system, order });
        }
        Ok(ServeOutcome::Deferred) => return None,
        Ok(ServeOutcome::NotRun(status)) => (accepted(xid, status), CallOutcome::NotRun),
        Ok(ServeOutcome::Denied(denial)) => (denied(xid, denial), CallOutcome::Denied),
        Err(_) => (accepted(xid, Accepted::SystemError), CallOutcome::NotRun),
    };
    Some(Answer::Reply { reply, kept: false, outcome })
}

/// The reply that has the client repeat the call later, if its protocol has one.
fn try_later(service: &dyn Service, incoming: &IncomingCall<'_>) -> Option<Message> {
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, incoming.call.xid, Accepted::Success);
    let written = service.write_try_later(incoming.call, incoming.peer, &mut out);
    written.then(|| out.finish())
}

fn refusal(refused: CallParseError) -> Option<Message> {
    Some(match refused {
        CallParseError::NotACall => return None,
        CallParseError::Denied { xid, denial } => denied(xid, denial),
        CallParseError::Garbage { xid } => accepted(xid, Accepted::GarbageArgs),
    })
}
