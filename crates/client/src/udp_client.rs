//! Calls over one UDP socket to many peers at once.
//!
//! The socket is not connected, so a reply must match a pending call by xid *and* source address.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};
use wire::rpc::{Procedure, ProcedureId, Reply};
use wire::{Decode, Encode};

use crate::envelope::{self, Envelope, Raw};
use crate::{CallError, ConnectError, Options, socket, xid};

/// Such replies are short; a longer one is truncated, and its decoding fails.
const REPLY_BYTES_MAX: usize = 8 << 10;

/// A UDP socket with a task that receives replies. Dropping it ends the task.
#[derive(Debug)]
pub struct UdpClient {
    socket: Arc<UdpSocket>,
    table: Arc<Mutex<Table>>,
    envelope: Envelope,
    retransmit_after: Duration,
    reader: AbortHandle,
}

/// Pending calls by xid.
type Table = HashMap<u32, PendingCall>;

#[derive(Debug)]
struct PendingCall {
    from: SocketAddr,
    reply: oneshot::Sender<Bytes>,
}

/// The results of a call.
#[derive(Debug, Clone)]
pub struct UdpReply {
    pub results: Bytes,
    /// How often the call was sent. A peer without a duplicate request cache may have run it as often.
    pub sent: u32,
}

impl UdpClient {
    /// Opens a socket with this source address, or for all addresses of the family if it is
    /// unspecified. Ignores `options.source`.
    pub async fn open(source: IpAddr, options: &Options) -> Result<Self, ConnectError> {
        let options = Options { source: Some(source), ..options.clone() };
        let socket = Arc::new(socket::open_datagram(SocketAddr::new(source, 0), &options).await?);
        let table = Arc::<Mutex<Table>>::default();
        let reader = tokio::spawn(receive_replies(socket.clone(), table.clone())).abort_handle();
        let envelope = Envelope::new(&options.credential);
        let retransmit_after = options.retransmit_after.max(Duration::from_millis(1));
        Ok(Self { socket, table, envelope, retransmit_after, reader })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The number of pending calls.
    pub fn in_flight(&self) -> usize {
        lock(&self.table).len()
    }

    pub async fn call<P: Procedure>(
        &self,
        to: SocketAddr,
        args: &P::Args,
        limit: Duration,
    ) -> Result<P::Reply, CallError> {
        let answered = self.answer(to, ProcedureId::of::<P>(), args, limit).await?;
        envelope::decode(answered.results)
    }

    /// A call with encoded arguments. [`CallError::Io`] means that it was never sent.
    pub async fn call_raw(
        &self,
        to: SocketAddr,
        procedure: ProcedureId,
        args: &[u8],
        limit: Duration,
    ) -> Result<UdpReply, CallError> {
        self.answer(to, procedure, &Raw(args), limit).await
    }

    async fn answer(
        &self,
        to: SocketAddr,
        procedure: ProcedureId,
        args: &impl Encode,
        limit: Duration,
    ) -> Result<UdpReply, CallError> {
        let xid = xid::next();
        let call = self.envelope.datagram(xid, procedure, args);
        let (reply, mut replied) = oneshot::channel();
        lock(&self.table).insert(xid, PendingCall { from: to, reply });
        let _entry = RegisteredXid { xid, table: &self.table };
        let give_up = Instant::now() + limit;
        let timeout = || CallError::Timeout(limit);
        let mut wait = self.retransmit_after;
        let mut sent = 0;
        loop {
            match timeout_at(give_up, self.socket.send_to(&call, to)).await {
                Ok(Ok(_)) => sent += 1,
                Ok(Err(error)) if sent == 0 => return Err(error.into()),
                // The first one may still be answered.
                Ok(Err(_)) => {}
                Err(_) if sent == 0 => {
                    return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
                }
                Err(_) => return Err(timeout()),
            }
            let again = (Instant::now() + wait).min(give_up);
            match timeout_at(again, &mut replied).await {
                Ok(reply) => {
                    let reply = reply.map_err(|_| CallError::Closed)?;
                    let results = envelope::results(Reply::from_bytes(reply)?)?;
                    return Ok(UdpReply { results, sent });
                }
                Err(_) if Instant::now() >= give_up => return Err(timeout()),
                Err(_) => wait = wait.saturating_mul(2),
            }
        }
    }
}

impl Drop for UdpClient {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Removes the xid from the table when the caller is done, answered or not.
struct RegisteredXid<'a> {
    xid: u32,
    table: &'a Mutex<Table>,
}

impl Drop for RegisteredXid<'_> {
    fn drop(&mut self) {
        lock(self.table).remove(&self.xid);
    }
}

/// Passes each reply to its caller. One without a caller is late or forged: it is dropped.
async fn receive_replies(socket: Arc<UdpSocket>, table: Arc<Mutex<Table>>) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(REPLY_BYTES_MAX);
        let Ok((_, from)) = socket.recv_buf_from(&mut buffer).await else {
            // An error of one datagram passes; a permanent one must not spin.
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        let reply = buffer.split().freeze();
        let Some(xid) = reply.first_chunk::<4>().map(|word| u32::from_be_bytes(*word)) else {
            continue;
        };
        let mut table = lock(&table);
        if table.get(&xid).is_some_and(|call| same_endpoint(call.from, from))
            && let Some(call) = table.remove(&xid)
        {
            let _ = call.reply.send(reply);
        }
    }
}

/// Ignores scope ids and flow labels.
fn same_endpoint(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // No holder of the lock can leave the table half changed.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
