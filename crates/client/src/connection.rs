//! One TCP connection shared by many callers.
//!
//! A background task owns the [`Pipeline`]; callers register their xid in a table and wait. The task
//! ends when the last handle is dropped, or when the connection ends: then every pending call and
//! every later one fails with the reason.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use wire::rpc::{Credential, Procedure, ProcedureId, Reply};
use wire::{Decode, Encode, Message, xdr};

use crate::envelope::{self, Envelope, Raw};
use crate::{CallError, ConnectError, Options, Pipeline, xid};

/// With more bytes waiting to be written, calls wait in the channel.
const QUEUED_BYTES_MAX: usize = 4 << 20;

/// A handle on the connection; clones share it.
#[derive(Debug, Clone)]
pub struct Connection {
    calls: mpsc::Sender<Message>,
    table: Arc<Mutex<Table>>,
    /// One permit for each pending call.
    permits: Arc<Semaphore>,
    envelope: Envelope,
    timeout: Duration,
    local: Option<SocketAddr>,
    peer: SocketAddr,
}

type Answer = Result<Reply, CallError>;

#[derive(Debug, Default)]
struct Table {
    waiting: HashMap<u32, oneshot::Sender<Answer>>,
    /// Why the connection ended.
    ended: Option<CallError>,
}

impl Connection {
    pub async fn connect(to: SocketAddr, options: &Options) -> Result<Self, ConnectError> {
        Ok(Self::over(Pipeline::connect(to, options).await?, to, options))
    }

    /// Shares `pipeline`, which is connected to `to`. Must be called inside a tokio runtime.
    pub fn over(pipeline: Pipeline, to: SocketAddr, options: &Options) -> Self {
        let local = pipeline.local_addr().ok();
        let calls_max = options.calls_max.clamp(1, Semaphore::MAX_PERMITS);
        let (calls, queue) = mpsc::channel(calls_max);
        let table = Arc::new(Mutex::new(Table::default()));
        tokio::spawn(drive(pipeline, queue, table.clone()));
        Self {
            calls,
            table,
            permits: Arc::new(Semaphore::new(calls_max)),
            envelope: Envelope::new(&options.credential),
            timeout: options.timeout,
            local,
            peer: to,
        }
    }

    /// A handle on the same connection with another credential.
    pub fn with_credential(&self, credential: &Credential) -> Self {
        Self { envelope: Envelope::new(credential), ..self.clone() }
    }

    /// A handle on the same connection with another timeout.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub async fn call<P: Procedure>(&self, args: &P::Args) -> Result<P::Reply, CallError> {
        envelope::decode(self.results(ProcedureId::of::<P>(), args).await?)
    }

    /// A call with encoded arguments, valid or not; returns the encoded results.
    pub async fn call_raw(&self, to: ProcedureId, args: &[u8]) -> Result<Bytes, CallError> {
        self.results(to, &Raw(args)).await
    }

    /// Sends a call and ignores its reply. An error means that it was not queued.
    pub async fn tell_raw(&self, to: ProcedureId, args: &[u8]) -> Result<(), CallError> {
        if let Some(reason) = &lock(&self.table).ended {
            return Err(reason.clone());
        }
        let record = self.envelope.record(xid::next(), to, &Raw(args));
        match timeout(self.timeout, self.calls.send(record)).await {
            Ok(sent) => sent.map_err(|_| CallError::Closed),
            Err(_) => Err(CallError::Timeout(self.timeout)),
        }
    }

    /// Whether the connection is known to have ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.table).ended.is_some()
    }

    async fn results(&self, to: ProcedureId, args: &impl Encode) -> Result<Bytes, CallError> {
        let xid = xid::next();
        let record = self.envelope.record(xid, to, args);
        let reply = timeout(self.timeout, self.exchange(xid, record))
            .await
            .map_err(|_| CallError::Timeout(self.timeout))??;
        envelope::results(reply)
    }

    async fn exchange(&self, xid: u32, record: Message) -> Answer {
        let _permit = self.permits.acquire().await.map_err(|_| CallError::Closed)?;
        let (answer, answered) = oneshot::channel();
        let _entry = {
            let mut table = lock(&self.table);
            if let Some(reason) = &table.ended {
                return Err(reason.clone());
            }
            table.waiting.insert(xid, answer);
            RegisteredXid { xid, table: &self.table }
        };
        // If the task has ended, it has left the reason in the table.
        let _ = self.calls.send(record).await;
        answered.await.unwrap_or(Err(CallError::Closed))
    }
}

/// Removes the xid from the table when the caller is done, answered or not.
struct RegisteredXid<'a> {
    xid: u32,
    table: &'a Mutex<Table>,
}

impl Drop for RegisteredXid<'_> {
    fn drop(&mut self) {
        lock(self.table).waiting.remove(&self.xid);
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // No holder of the lock can leave the table half changed.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn drive(pipeline: Pipeline, queue: mpsc::Receiver<Message>, table: Arc<Mutex<Table>>) {
    let reason = exchange_until_end(pipeline, queue, &table).await;
    let mut table = lock(&table);
    for (_, caller) in table.waiting.drain() {
        let _ = caller.send(Err(reason.clone()));
    }
    table.ended = Some(reason);
}

async fn exchange_until_end(
    mut pipeline: Pipeline,
    mut queue: mpsc::Receiver<Message>,
    table: &Mutex<Table>,
) -> CallError {
    loop {
        let room = pipeline.queued_bytes() < QUEUED_BYTES_MAX;
        tokio::select! {
            record = pipeline.recv_record() => match record {
                Ok(record) => answer(table, record),
                Err(reason) => return reason,
            },
            call = queue.recv(), if room => match call {
                Some(call) => {
                    pipeline.send_record(call);
                    while pipeline.queued_bytes() < QUEUED_BYTES_MAX
                        && let Ok(call) = queue.try_recv()
                    {
                        pipeline.send_record(call);
                    }
                }
                None => return CallError::Closed,
            },
        }
    }
}

/// Passes a reply to its caller. One without a caller is late or forged: it is dropped.
fn answer(table: &Mutex<Table>, record: Bytes) {
    let Some(xid) = record.first_chunk::<4>().map(|word| u32::from_be_bytes(*word)) else {
        return;
    };
    let Some(caller) = lock(table).waiting.remove(&xid) else { return };
    let reply: xdr::Result<Reply> = Reply::from_bytes(record);
    let _ = caller.send(reply.map_err(CallError::BadReply));
}
