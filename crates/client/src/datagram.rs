//! Calls over UDP to one peer, retransmitted with the same xid until the reply or the timeout.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};
use wire::rpc::{Procedure, ProcedureId, Reply};
use wire::{Decode, Encode};

use crate::envelope::{self, Envelope, Raw};
use crate::{CallError, ConnectError, Options, socket, xid};

/// The maximum payload of a datagram over IPv4.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;

/// A socket with one pending call at a time. Receives from the peer's address only.
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
        envelope::decode(self.results(ProcedureId::of::<P>(), args).await?)
    }

    /// A call with encoded arguments, valid or not; returns the encoded results.
    pub async fn call_raw(&mut self, to: ProcedureId, args: &[u8]) -> Result<Bytes, CallError> {
        self.results(to, &Raw(args)).await
    }

    async fn results(&mut self, to: ProcedureId, args: &impl Encode) -> Result<Bytes, CallError> {
        let xid = xid::next();
        let call = self.envelope.datagram(xid, to, args);
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

    /// Waits for the reply with this xid; others are late replies to earlier calls.
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
