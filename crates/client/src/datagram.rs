//! Calls over UDP: a call is repeated, under the same xid, until it is answered or given up.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};
use wire::rpc::{Procedure, Reply};
use wire::{Decode, Encode};

use crate::envelope::{self, Envelope, Numbers, Raw, numbers};
use crate::{CallError, ConnectError, Options, socket, xid};

/// The most that one datagram carries over IPv4.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;

/// A socket with one call under way at a time. Only the peer's own address is heard.
#[derive(Debug)]
pub struct Datagram {
    socket: UdpSocket,
    envelope: Envelope,
    timeout: Duration,
    retransmit_after: Duration,
}

impl Datagram {
    pub async fn connect(to: SocketAddr, options: &Options) -> Result<Self, ConnectError> {
        Ok(Self {
            socket: socket::datagram(to, options).await?,
            envelope: Envelope::new(&options.credential),
            timeout: options.timeout,
            retransmit_after: options.retransmit_after.max(Duration::from_millis(1)),
        })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub async fn call<P: Procedure>(&mut self, args: &P::Args) -> Result<P::Reply, CallError> {
        envelope::decode(self.results(numbers::<P>(), args).await?)
    }

    /// A call with arguments that are bytes already, right or wrong; the results as they came.
    pub async fn call_raw(
        &mut self,
        program: u32,
        version: u32,
        procedure: u32,
        args: &[u8],
    ) -> Result<Bytes, CallError> {
        self.results((program, version, procedure), &Raw(args)).await
    }

    async fn results(&mut self, numbers: Numbers, args: &impl Encode) -> Result<Bytes, CallError> {
        let xid = xid::next();
        let call = self.envelope.datagram(xid, numbers, args);
        let give_up = Instant::now() + self.timeout;
        let mut wait = self.retransmit_after;
        loop {
            self.socket.send(&call).await?;
            let again = (Instant::now() + wait).min(give_up);
            match timeout_at(again, self.reply_to(xid)).await {
                Ok(reply) => return envelope::results(reply?),
                Err(_) if Instant::now() >= give_up => {
                    return Err(CallError::Timeout(self.timeout));
                }
                Err(_) => wait = wait.saturating_mul(2),
            }
        }
    }

    /// Waits for the reply with this xid; others are late answers to earlier calls.
    async fn reply_to(&self, xid: u32) -> Result<Reply, CallError> {
        let mut buffer = BytesMut::with_capacity(DATAGRAM_BYTES_MAX);
        loop {
            buffer.clear();
            self.socket.recv_buf(&mut buffer).await?;
            if buffer.first_chunk::<4>() == Some(&xid.to_be_bytes()) {
                return Ok(Reply::from_bytes(buffer.freeze())?);
            }
        }
    }
}
