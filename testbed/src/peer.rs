//! Scripted RPC peers: each call gets the answer that the test chose for it. Built on `wire` alone,
//! so that also the unit tests of `client` and `server` can use them.
//!
//! - [`Host`]: an rpcbind with any programs behind it, on one address.
//! - [`Population`]: many hosts with a status monitor each, some of them dead.
//! - [`RecordStream`]: one end of a TCP connection, record by record.
//! - [`UdpCaller`]: a client over UDP that chooses its transaction ids.
//!
//! Their functions panic where a test would: on an error of the operating system, or after
//! [`wait::LIMIT`](crate::wait::LIMIT).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod datagram;
mod host;
mod message;
mod population;
mod stream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::sleep;
use wire::rpc::{Accepted, Call, Credential, write_accepted};
use wire::{Encode, Writer};

pub use datagram::{UdpCaller, receive_call, udp_socket};
pub use host::{Host, RpcbindKind};
pub use message::{call, marked, reply, results, success, user};
pub use population::{HostState, Population, host_states, raise_descriptor_limit};
pub use stream::{Listener, RecordStream};

/// A call that a peer received.
#[derive(Debug, Clone)]
pub struct ReceivedCall {
    pub over_tcp: bool,
    pub from: SocketAddr,
    /// The address that it was sent to.
    pub to: SocketAddr,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub credential: Credential,
    pub args: Bytes,
    pub at: Instant,
    /// How many calls the programs of this [`Host`] received before.
    pub index: usize,
}

/// What a peer does about a call.
#[derive(Debug, Clone)]
pub enum Answer {
    Results(Bytes),
    Delayed(Duration, Bytes),
    Status(Accepted),
    Nothing,
    /// Closes the connection.
    Close,
    /// Results under another transaction id.
    WrongXid(Bytes),
}

impl Answer {
    pub fn results(results: &impl Encode) -> Self {
        Self::Results(results.to_bytes())
    }

    /// The reply message, if there is one, after its delay.
    async fn message(self, xid: u32) -> Option<Bytes> {
        let (xid, status, results) = match self {
            Self::Nothing | Self::Close => return None,
            Self::Results(results) => (xid, Accepted::Success, results),
            Self::WrongXid(results) => (xid ^ 0x8000_0000, Accepted::Success, results),
            Self::Status(status) => (xid, status, Bytes::new()),
            Self::Delayed(delay, results) => {
                sleep(delay).await;
                (xid, Accepted::Success, results)
            }
        };
        let mut out = Writer::new();
        write_accepted(&mut out, xid, status);
        out.fixed(&results);
        Some(out.finish().to_bytes())
    }
}

pub type Script = Arc<dyn Fn(&ReceivedCall) -> Answer + Send + Sync>;

pub fn script(answer: impl Fn(&ReceivedCall) -> Answer + Send + Sync + 'static) -> Script {
    Arc::new(answer)
}

/// Answers calls that arrive at a socket, one after the other.
pub async fn serve_datagrams(socket: UdpSocket, script: Script) {
    let Ok(to) = socket.local_addr() else { return };
    let mut buffer = vec![0; 9000];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let record = Bytes::copy_from_slice(&buffer[..length]);
        // Replies to calls from a listening socket arrive here, too.
        let Some((xid, call)) = received(record, from, to, false) else { continue };
        if let Some(message) = script(&call).message(xid).await {
            let _ = socket.send_to(&message, from).await;
        }
    }
}

/// Answers calls on all connections to a listener; `accepted` is called for each connection. The
/// connections end with the future.
pub async fn serve_streams(listener: TcpListener, script: Script, accepted: impl Fn() + Send) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, from)) = listener.accept().await else { continue };
        accepted();
        let Ok(to) = stream.local_addr() else { continue };
        connections.spawn(serve_stream(RecordStream::new(stream), from, to, script.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_stream(mut stream: RecordStream, from: SocketAddr, to: SocketAddr, script: Script) {
    while let Some(record) = stream.next_record().await {
        let Some((xid, call)) = received(record, from, to, true) else { return };
        let answer = script(&call);
        if matches!(answer, Answer::Close) {
            return;
        }
        if let Some(message) = answer.message(xid).await
            && stream.try_send(&marked(&message)).await.is_err()
        {
            return;
        }
    }
}

fn received(
    record: Bytes,
    from: SocketAddr,
    to: SocketAddr,
    over_tcp: bool,
) -> Option<(u32, ReceivedCall)> {
    let at = Instant::now();
    let Call { xid, program, version, procedure, credential, args } = Call::parse(record).ok()?;
    let call = ReceivedCall {
        over_tcp,
        from,
        to,
        program,
        version,
        procedure,
        credential,
        args,
        at,
        index: 0,
    };
    Some((xid, call))
}
