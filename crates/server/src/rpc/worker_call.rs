//! A call that is served by a worker: it waits in the queue of its file system, or behind an earlier
//! call of its owner, then runs, and answers.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vfs::BlockingMode;

use super::dispatch::{Answer, Dispatcher, serve};
use super::order::OrderKey;
use super::pending::{IncomingCall, PendingCall, Stage};
use super::workers::{Job, Lane, Summary};
use crate::metrics::Program;
use crate::service::Service;
use crate::transport::{ReplyBatch, ReplyTo};

/// See the [module](self).
pub(super) struct WorkerCall {
    dispatcher: Arc<Dispatcher>,
    service: Arc<dyn Service>,
    file_system: Lane,
    order: Option<OrderKey>,
    arrived: Instant,
    /// Program and procedure.
    procedure: (u32, u32),
    peer: IpAddr,
    to: ReplyTo,
    bytes: usize,
    /// It does not count against the limits of its connection or socket any more.
    is_exempt: AtomicBool,
    /// Until it runs.
    pending: Mutex<Option<PendingCall>>,
}

impl WorkerCall {
    /// `None` for a call that was deferred before.
    pub(super) fn new(
        dispatcher: Arc<Dispatcher>,
        service: Arc<dyn Service>,
        to: ReplyTo,
        mut pending: PendingCall,
        file_system: Lane,
        order: Option<OrderKey>,
    ) -> Option<Arc<Self>> {
        let guard = pending.guard.as_mut()?;
        guard.count_datagram();
        Some(Arc::new(Self {
            dispatcher,
            service,
            file_system,
            order,
            arrived: Instant::now(),
            procedure: (pending.call.program, pending.call.procedure),
            peer: pending.peer.remote.ip(),
            to,
            bytes: guard.weight(),
            is_exempt: AtomicBool::new(false),
            pending: Mutex::new(Some(pending)),
        }))
    }

    pub(super) fn file_system(&self) -> Lane {
        self.file_system
    }

    /// Of the request and its expected reply.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Whether the call still counts against the limits of its connection or socket; true once: the
    /// caller subtracts it.
    pub(super) fn take_count(&self) -> bool {
        !self.is_exempt.swap(true, Ordering::AcqRel)
    }

    pub(super) fn stop_counting(&self) {
        if self.take_count() {
            match &self.to {
                ReplyTo::Connection(outgoing) => outgoing.exempted(self.bytes),
                ReplyTo::Datagram(datagrams, _) => datagrams.finished_on_worker(),
            }
        }
    }

    fn serve(self: &Arc<Self>) {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(PendingCall { call, peer, guard: Some(mut guard) }) = pending else { return };
        guard.on_worker(self.clone());
        if !self.dispatcher.lease().is_held() {
            return;
        }
        let service = &*self.service;
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
}

impl Job for WorkerCall {
    /// Serves the call, and lets the next one with its order key follow.
    fn run(self: Arc<Self>) {
        self.serve();
        if let Some(order) = self.order
            && let Some(next) = self.dispatcher.finish_order(order)
        {
            self.dispatcher.submit(next, Instant::now());
        }
    }

    /// Drops those that wait behind it, which nothing would run: the order of calls keeps them, and they
    /// keep the dispatcher.
    fn abandon(&self) {
        if let Some(order) = self.order {
            while let Some(next) = self.dispatcher.finish_order(order) {
                drop(next);
            }
        }
    }

    fn exempt(&self, age: Duration) {
        self.stop_counting();
        if let Some(order) = self.order {
            self.dispatcher.exempt_behind(order, age);
        }
    }

    fn summary(&self) -> Summary {
        let (program, number) = self.procedure;
        let known = Program::of(program).and_then(|program| {
            program.procedures().iter().find(|procedure| procedure.0 == number)
        });
        let procedure = known.map_or("unknown", |(_, name)| *name);
        Summary { procedure, peer: self.peer }
    }
}

impl Drop for WorkerCall {
    fn drop(&mut self) {
        let pending = self.pending.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It was never run, so the guard does not know.
        if *self.is_exempt.get_mut()
            && let Some(PendingCall { guard: Some(guard), .. }) = pending
        {
            guard.was_exempted();
        }
    }
}
