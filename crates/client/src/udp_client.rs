//! Calls over one UDP socket to many peers at once.
//!
//! A reply is told by its xid *and* by the address that it comes from, since the socket hears
//! everybody.

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
use wire::rpc::{Procedure, Reply};
use wire::{Decode, Encode};

use crate::envelope::{self, Envelope, Numbers, Raw, numbers};
use crate::{CallError, ConnectError, Options, socket, xid};

/// Replies to what is asked of many are short; longer ones are cut off and not understood.
const REPLY_BYTES_MAX: usize = 8 << 10;

#[derive(Debug)]
pub struct UdpClient {
    socket: Arc<UdpSocket>,
    table: Arc<Mutex<Table>>,
    envelope: Envelope,
    retransmit_after: Duration,
    reader: AbortHandle,
}

/// Who waits for what.
type Table = HashMap<u32, Waiting>;

#[derive(Debug)]
struct Waiting {
    from: SocketAddr,
    answer: oneshot::Sender<Bytes>,
}

/// The results of a call, and how it was come by.
#[derive(Debug, Clone)]
pub struct Answered {
    pub results: Bytes,
    /// How often the call was sent. A peer that keeps no replies may have carried out each.
    pub sent: u32,
}

impl UdpClient {
    /// A socket that speaks from `source`, or from all addresses of the family if it is
    /// unspecified. `options.source` is not looked at.
    pub async fn open(source: IpAddr, options: &Options) -> Result<Self, ConnectError> {
        let options = Options { source: Some(source), ..options.clone() };
        let socket = Arc::new(socket::open_datagram(SocketAddr::new(source, 0), &options).await?);
        let table = Arc::<Mutex<Table>>::default();
        let reader = tokio::spawn(hand_out(socket.clone(), table.clone())).abort_handle();
        let envelope = Envelope::new(&options.credential);
        let retransmit_after = options.retransmit_after.max(Duration::from_millis(1));
        Ok(Self { socket, table, envelope, retransmit_after, reader })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// How many calls are under way.
    pub fn in_flight(&self) -> usize {
        lock(&self.table).len()
    }

    pub async fn call<P: Procedure>(
        &self,
        to: SocketAddr,
        args: &P::Args,
        patience: Duration,
    ) -> Result<P::Reply, CallError> {
        let answered = self.answer(to, numbers::<P>(), args, patience).await?;
        envelope::decode(answered.results)
    }

    /// A call with arguments that are bytes already. [`CallError::Io`] means that it never left.
    pub async fn call_raw(
        &self,
        to: SocketAddr,
        numbers: (u32, u32, u32),
        args: &[u8],
        patience: Duration,
    ) -> Result<Answered, CallError> {
        self.answer(to, numbers, &Raw(args), patience).await
    }

    async fn answer(
        &self,
        to: SocketAddr,
        numbers: Numbers,
        args: &impl Encode,
        patience: Duration,
    ) -> Result<Answered, CallError> {
        let xid = xid::next();
        let call = self.envelope.datagram(xid, numbers, args);
        let (answer, mut answered) = oneshot::channel();
        lock(&self.table).insert(xid, Waiting { from: to, answer });
        let _entry = Entry { xid, table: &self.table };
        let give_up = Instant::now() + patience;
        let timeout = || CallError::Timeout(patience);
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
            match timeout_at(again, &mut answered).await {
                Ok(reply) => {
                    let reply = reply.map_err(|_| CallError::Closed)?;
                    let results = envelope::results(Reply::from_bytes(reply)?)?;
                    return Ok(Answered { results, sent });
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

/// Takes the xid out of the table when the caller goes, answered or not.
struct Entry<'a> {
    xid: u32,
    table: &'a Mutex<Table>,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        lock(self.table).remove(&self.xid);
    }
}

/// Hands each reply to its caller; what nobody waits for is late or not ours, and is dropped.
async fn hand_out(socket: Arc<UdpSocket>, table: Arc<Mutex<Table>>) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(REPLY_BYTES_MAX);
        let Ok((_, from)) = socket.recv_buf_from(&mut buffer).await else {
            // Nothing that one datagram did can last; a socket that fails for ever must not spin.
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        let reply = buffer.split().freeze();
        let Some(xid) = reply.first_chunk::<4>().map(|word| u32::from_be_bytes(*word)) else {
            continue;
        };
        let mut table = lock(&table);
        if table.get(&xid).is_some_and(|waiting| same_end(waiting.from, from))
            && let Some(waiting) = table.remove(&xid)
        {
            let _ = waiting.answer.send(reply);
        }
    }
}

/// Scope ids and flow labels are no part of who somebody is.
fn same_end(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // Nothing that holds the lock can leave the table half changed.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
