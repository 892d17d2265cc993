//! Measures one operation in one shape against one server, for a fixed time.

use std::time::{Duration, Instant};

use client::{CallError, Pipeline};
use tokio::task::JoinSet;
use wire::rpc::{Accepted, Reply};

use crate::calls::Calls;
use crate::{Measurement, Operation, Samples, Session, Shape, usage};

/// The duration of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Before the measured time, to warm up caches and threads.
    pub warm_up: Duration,
    pub measured: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { warm_up: Duration::from_millis(300), measured: Duration::from_secs(2) }
    }
}

/// A server that has not answered all calls this long after the measured time is broken.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(20);

/// Why a measurement is void: any wrong or missing reply.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{0}: {1}")]
    Call(Operation, CallError),
    #[error("{0}: the server has no lock manager: name its port, or leave the operation out")]
    Unconnected(Operation),
    #[error("{0}: the server answered status {1}")]
    Status(Operation, u32),
    #[error("{operation}: the server moved {count} bytes")]
    Count { operation: Operation, count: u32 },
    #[error("{0}: the results are too short")]
    Short(Operation),
    #[error("{0}: the server did not run the call: {1}")]
    NotRun(Operation, String),
    #[error("{0}: a reply to a call that was not made (xid {1})")]
    UnknownReply(Operation, u32),
    #[error("{0}: calls were not answered within {DRAIN_MAX:?}")]
    Stalled(Operation),
    #[error("{0}: the load was stopped")]
    Stopped(Operation),
    #[error("{0}: no call was answered in the measured time")]
    Nothing(Operation),
}

pub async fn run(
    session: &mut Session,
    operation: Operation,
    shape: Shape,
    timing: Timing,
) -> Result<Measurement, LoadError> {
    let cpu_before = usage::own_cpu();
    let from = Instant::now() + timing.warm_up;
    let window = Window { from, until: from + timing.measured };
    let mut workers = JoinSet::new();
    let ready = session.pipelines(operation);
    if ready.len() < shape.connections {
        return Err(LoadError::Unconnected(operation));
    }
    let pipelines: Vec<Pipeline> = ready.drain(..shape.connections).collect();
    session.locks_left = operation.locks();
    for (connection, pipeline) in pipelines.into_iter().enumerate() {
        let calls = Calls::new(session, operation, shape, connection);
        workers.spawn(Worker::new(operation, pipeline, calls, shape).run(window));
    }
    let mut samples = Samples::default();
    let mut answered = 0;
    let give_up = tokio::time::Instant::from_std(window.until + DRAIN_MAX);
    loop {
        let ended = tokio::time::timeout_at(give_up, workers.join_next())
            .await
            .map_err(|_| LoadError::Stalled(operation))?;
        let Some(worker) = ended else { break };
        let worker = worker.map_err(|_| LoadError::Stopped(operation))??;
        samples.append(worker.samples);
        answered += worker.answered;
        session.pipelines(operation).push(worker.pipeline);
    }
    session.locks_left = false;
    let cpu = usage::own_cpu().saturating_sub(cpu_before);
    Measurement::new(operation, shape, timing.measured, samples, answered, cpu)
        .ok_or(LoadError::Nothing(operation))
}

/// The measured time.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: Instant,
    until: Instant,
}

/// One connection and its outstanding calls.
struct Worker {
    operation: Operation,
    pipeline: Pipeline,
    calls: Calls,
    slots: Vec<Slot>,
    samples: Samples,
    answered: u64,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// `None` if no call is outstanding.
    xid: Option<u32>,
    sent: Instant,
}

impl Worker {
    fn new(operation: Operation, pipeline: Pipeline, calls: Calls, shape: Shape) -> Self {
        // Large enough for the fastest server, so that nothing is allocated while measuring.
        let samples = Samples::with_capacity((2 << 20) / shape.connections);
        let slots = Vec::with_capacity(shape.depth);
        let mut worker = Self { operation, pipeline, calls, slots, samples, answered: 0 };
        let sent = Instant::now();
        for slot in 0..shape.depth {
            let xid = worker.pipeline.send_prepared(worker.calls.next(slot));
            worker.slots.push(Slot { xid: Some(xid), sent });
        }
        worker
    }

    async fn run(mut self, window: Window) -> Result<Self, LoadError> {
        let operation = self.operation;
        let failed = |error| LoadError::Call(operation, error);
        let mut under_way = self.slots.len();
        while under_way > 0 {
            // `receive` first sends the calls queued by the last replies, all at once.
            let mut next = Some(self.pipeline.recv().await.map_err(failed)?);
            // One clock reading for all replies received together.
            let now = Instant::now();
            while let Some(reply) = next {
                let slot = self.accept(&reply)?;
                drop(reply); // Frees the buffer for the next.
                if now >= window.from && now < window.until {
                    self.samples.record(now - self.slots[slot].sent);
                }
                if now < window.until || self.calls.owes(slot) {
                    let xid = self.pipeline.send_prepared(self.calls.next(slot));
                    self.slots[slot] = Slot { xid: Some(xid), sent: now };
                } else {
                    self.slots[slot].xid = None;
                    under_way -= 1;
                }
                next = self.pipeline.try_recv().map_err(failed)?;
            }
        }
        Ok(self)
    }

    /// The slot of a correct reply.
    fn accept(&mut self, reply: &Reply) -> Result<usize, LoadError> {
        let slot = self.slots.iter().position(|slot| slot.xid == Some(reply.xid));
        let slot = slot.ok_or(LoadError::UnknownReply(self.operation, reply.xid))?;
        check(self.operation, reply)?;
        self.answered += 1;
        Ok(slot)
    }
}

/// Fails unless the call was executed and its results are correct.
pub(crate) fn check(operation: Operation, reply: &Reply) -> Result<(), LoadError> {
    match &reply.verdict {
        Ok(Accepted::Success) => operation.check(&reply.results),
        verdict => Err(LoadError::NotRun(operation, format!("{verdict:?}"))),
    }
}
