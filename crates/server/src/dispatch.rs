//! From a record to the service that answers it.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;

use vfs::Patience;
use wire::rpc::{self, Accepted, Call, Credential, Refused};
use wire::{Message, Writer, nfs3, nlm};

use crate::duplicates::{Duplicates, Key};
use crate::limits::Limits;
use crate::liveness::Liveness;
use crate::meters::{Called, Fate, Meters};
use crate::replay::Verdict;
use crate::service::{Deferred, Program, Repeat, Served, Service};
use crate::task::Task;
use crate::tenure::Tenure;
use crate::transport::{Mailbag, Peer, ReplyTo};
use crate::workers::Workers;

/// Finds the service of each call, keeps duplicates apart, and decides where the work is done:
/// at once on the network thread if the service can answer from memory, else on a worker.
pub struct Dispatcher {
    programs: Vec<Program>,
    workers: Arc<Workers>,
    limits: Limits,
    /// Requests that must not be done twice.
    once: Duplicates,
    /// Large writes, kept apart so that they do not push the others out.
    bulk: Duplicates,
    /// Locks, kept apart for the same reason: they must be remembered longest.
    locks: Duplicates,
    /// Bytes of requests and of expected and unsent replies, over all connections.
    load: Arc<AtomicUsize>,
    liveness: Liveness,
    tenure: Tenure,
    meters: Option<Arc<Meters>>,
}

impl Dispatcher {
    pub fn new(
        programs: Vec<Program>,
        workers: Arc<Workers>,
        limits: Limits,
        liveness: Liveness,
        tenure: Tenure,
        meters: Option<Arc<Meters>>,
    ) -> Self {
        let (entries, bytes) = (limits.replay_entries_max, limits.replay_bytes_max);
        Self {
            programs,
            workers,
            once: Duplicates::new(entries, bytes),
            bulk: Duplicates::new(entries / 4, bytes / 4),
            locks: Duplicates::new(entries, bytes),
            limits,
            load: Arc::default(),
            liveness,
            tenure,
            meters,
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
    pub fn load(&self) -> Arc<AtomicUsize> {
        self.load.clone()
    }

    pub fn is_overloaded(&self) -> bool {
        self.load.load(Ordering::Relaxed) >= self.limits.total_bytes_max
    }

    /// Takes one record. `Some` is a reply that was ready at once; otherwise it goes to `to`
    /// when it is, or nobody waits for one.
    pub fn receive(self: &Arc<Self>, record: Bytes, peer: &Peer, to: &ReplyTo) -> Option<Message> {
        if !self.tenure.holds() {
            return None;
        }
        let call = match Call::parse(record.clone()) {
            Ok(call) => call,
            Err(refused) => return refusal(refused),
        };
        // Who works with files or locks is a sign of life of its machine; who asks for a port is not.
        if matches!(call.program, nfs3::PROGRAM | nlm::PROGRAM) {
            match &call.credential {
                Credential::Sys(caller) => to.named(&caller.machine),
                Credential::None => to.named(&[]),
            }
        }
        let measured = self.measure(&call);
        match self.find(&call) {
            Ok(Program::Direct(service)) => {
                self.receive_direct(service, call, record, peer, to, measured)
            }
            Ok(Program::Deferred(service)) => {
                self.receive_deferred(service, call, record, peer, to, measured)
            }
            Err(verdict) => {
                measured.ended(Fate::NotRun);
                Some(accepted(call.xid, verdict))
            }
        }
    }

    fn measure(&self, call: &Call) -> Measured {
        let meters = self.meters.as_ref();
        Measured(
            meters.and_then(|meters| {
                Some((meters.clone(), Called::now(call.program, call.procedure)?))
            }),
        )
    }

    /// The records that had come are all handed on: what was gathered of them is now done.
    pub fn flush(&self) {
        for program in &self.programs {
            if let Program::Deferred(service) = program {
                service.flush();
            }
        }
    }

    fn receive_direct(
        self: &Arc<Self>,
        service: &Arc<dyn Service>,
        call: Call,
        record: Bytes,
        peer: &Peer,
        to: &ReplyTo,
        measured: Measured,
    ) -> Option<Message> {
        let repeat = service.repeat(&call);
        let mut key = None;
        if let Some(seen) = self.seen(repeat) {
            let new = seen.key(&call, &record, peer, &[]);
            match seen.begin(&new, to) {
                Verdict::New => key = Some((repeat, new)),
                Verdict::Again(reply) => {
                    measured.ended(Fate::Success);
                    return Some(reply);
                }
                // The first one is counted.
                Verdict::Started => {
                    measured.forgotten();
                    return None;
                }
            }
        } else if let Some((reply, fate)) = answer(&**service, &call, peer, Patience::Now) {
            measured.ended(fate);
            return Some(reply);
        }
        let weight = record.len() + service.reply_bytes(&call);
        let underway = Underway::new(self.clone(), to.clone(), weight, key, false, measured);
        let (service, peer) = (service.clone(), *peer);
        self.workers.submit(move || {
            if !underway.dispatcher.tenure.holds() {
                return;
            }
            let reply = answer(&*service, &call, &peer, Patience::Wait);
            // The request's buffer goes before the reply does: the peer may send the next.
            drop(call);
            if let Some((reply, fate)) = reply {
                let mut mail = Mailbag::default();
                underway.finish(&reply, &reply, fate, &mut mail);
                mail.send();
            }
        });
        None
    }

    fn receive_deferred(
        self: &Arc<Self>,
        service: &Arc<dyn Deferred>,
        call: Call,
        record: Bytes,
        peer: &Peer,
        to: &ReplyTo,
        measured: Measured,
    ) -> Option<Message> {
        let repeat = service.repeat(&call);
        let sender = service.sender(&call).unwrap_or_default();
        if !sender.is_empty() {
            to.named(sender);
        }
        let mut key = None;
        if let Some(seen) = self.seen(repeat) {
            let new = seen.key(&call, &record, peer, sender);
            match seen.begin(&new, to) {
                Verdict::New => key = Some((repeat, new)),
                Verdict::Again(kept) => {
                    measured.ended(Fate::Success);
                    return Some(service.again(&call, peer, kept));
                }
                Verdict::Started => {
                    measured.forgotten();
                    return None;
                }
            }
        }
        let weight = record.len() + service.reply_bytes();
        let underway = Underway::new(self.clone(), to.clone(), weight, key, true, measured);
        let task = Task::new(call, *peer, underway);
        let task = take(&**service, task, Patience::Now)?;
        let service = service.clone();
        self.workers.submit(move || {
            take(&*service, task, Patience::Wait);
            service.flush();
        });
        None
    }

    fn find(&self, call: &Call) -> Result<&Program, Accepted> {
        let program = self
            .programs
            .iter()
            .find(|program| program.number() == call.program)
            .ok_or(Accepted::ProgramUnavailable)?;
        let versions = program.versions();
        if versions.contains(&call.version) {
            return Ok(program);
        }
        let (low, high) = (versions.first(), versions.last());
        Err(Accepted::ProgramMismatch {
            low: low.copied().unwrap_or_default(),
            high: high.copied().unwrap_or_default(),
        })
    }

    /// A connection was opened from there: somebody is up.
    pub fn heard(&self, address: IpAddr) {
        for program in &self.programs {
            if let Program::Deferred(service) = program {
                service.heard(address);
            }
        }
    }

    /// The lock requests of a host that rebooted: it may count from anywhere now.
    pub fn forget_host(&self, address: IpAddr, name: &[u8]) {
        self.locks.forget(address, name);
    }

    /// Where requests of this kind are remembered.
    fn seen(&self, repeat: Repeat) -> Option<&Duplicates> {
        match repeat {
            Repeat::Harmless => None,
            Repeat::Once => Some(&self.once),
            Repeat::Bulk => Some(&self.bulk),
            Repeat::Lock => Some(&self.locks),
        }
    }
}

/// A request that is being worked on; its weight is given back whatever becomes of it.
pub struct Underway {
    dispatcher: Arc<Dispatcher>,
    to: ReplyTo,
    weight: usize,
    key: Option<(Repeat, Key)>,
    /// It takes one of the places for requests under way. Over UDP, where all peers share them,
    /// requests that wait for something outside do not: they have bounds of their own.
    placed: bool,
    measured: Measured,
}

/// A call as it is counted; one that ends without a word was dropped.
struct Measured(Option<(Arc<Meters>, Called)>);

impl Measured {
    fn ended(mut self, fate: Fate) {
        self.end(fate);
    }

    fn forgotten(mut self) {
        self.0 = None;
    }

    fn end(&mut self, fate: Fate) {
        if let Some((meters, called)) = self.0.take() {
            meters.called(called, fate);
        }
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.end(Fate::Dropped);
    }
}

impl Underway {
    fn new(
        dispatcher: Arc<Dispatcher>,
        to: ReplyTo,
        weight: usize,
        key: Option<(Repeat, Key)>,
        waits: bool,
        measured: Measured,
    ) -> Self {
        dispatcher.load.fetch_add(weight, Ordering::Relaxed);
        let placed = !waits || matches!(to, ReplyTo::Connection(_));
        match &to {
            ReplyTo::Connection(outgoing) => outgoing.started(weight),
            ReplyTo::Datagram(datagrams, _) if placed => datagrams.started(),
            ReplyTo::Datagram(..) => {}
        }
        Self { dispatcher, to, weight, key, placed, measured }
    }

    pub fn connected(&self) -> Option<Instant> {
        match &self.to {
            ReplyTo::Connection(outgoing) => Some(outgoing.opened()),
            ReplyTo::Datagram(..) => None,
        }
    }

    /// Keeps one message for repetitions and sends another to all who wait; mostly they are one.
    pub fn finish(mut self, kept: &Message, sent: &Message, fate: Fate, mail: &mut Mailbag) {
        self.measured.end(fate);
        match self.key.take() {
            None => mail.put(self.to.clone(), sent.clone()),
            Some((repeat, key)) => {
                let seen = self.dispatcher.seen(repeat);
                for waiting in seen.map(|seen| seen.answered(key, kept)).unwrap_or_default() {
                    mail.put(waiting, sent.clone());
                }
            }
        }
        mail.answers(self);
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        if let Some((repeat, key)) = &self.key
            && let Some(seen) = self.dispatcher.seen(*repeat)
        {
            seen.abandoned(key);
        }
        self.dispatcher.load.fetch_sub(self.weight, Ordering::Relaxed);
        match &self.to {
            ReplyTo::Connection(outgoing) => outgoing.finished(self.weight),
            ReplyTo::Datagram(datagrams, _) if self.placed => datagrams.finished(),
            ReplyTo::Datagram(..) => {}
        }
    }
}

/// Gives the task to its service; what comes back takes patience.
fn take(service: &dyn Deferred, task: Task, patience: Patience) -> Option<Task> {
    let mut mail = Mailbag::default();
    // A task that is lost in a defect is never answered: the client asks again.
    let taken = catch_unwind(AssertUnwindSafe(|| service.take(task, patience, &mut mail)));
    mail.send();
    taken.unwrap_or_default()
}

/// `None`: it takes patience.
fn answer(
    service: &dyn Service,
    call: &Call,
    peer: &Peer,
    patience: Patience,
) -> Option<(Message, Fate)> {
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, call.xid, Accepted::Success);
    // A defect in one operation must not take a connection along, nor all of UDP.
    let served = catch_unwind(AssertUnwindSafe(|| service.serve(call, peer, patience, &mut out)));
    let verdict = match served {
        Ok(Served::Reply) => return Some((out.finish(), Fate::Success)),
        Ok(Served::NotNow) => return None,
        Ok(Served::GarbageArgs) => Accepted::GarbageArgs,
        Ok(Served::NoSuchProcedure) => Accepted::ProcedureUnavailable,
        Err(_) => Accepted::SystemError,
    };
    Some((accepted(call.xid, verdict), Fate::NotRun))
}

pub fn accepted(xid: u32, verdict: Accepted) -> Message {
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
