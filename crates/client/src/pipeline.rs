//! One TCP connection owned by one task, with many pending calls.
//!
//! `send` only queues; `flush` writes all queued calls at once; one read from the socket may return
//! many replies, in any order. The owner matches them to its calls by xid.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use wire::record::{Next, Records};
use wire::rpc::{Procedure, ProcedureId, Reply};
use wire::{Decode, Encode, Message, Writer};

use crate::envelope::{Envelope, Raw, fill_mark};
use crate::output::Output;
use crate::{CallError, ConnectError, Options, PreparedCall, socket, xid};

/// A TCP connection without a task of its own.
#[derive(Debug)]
pub struct Pipeline {
    stream: TcpStream,
    envelope: Envelope,
    output: Output,
    received: BytesMut,
    records: Records,
    read_bytes: usize,
    /// The bytes that the record at the front of `received` still lacks.
    missing: usize,
    /// With more bytes received, `flush` stops reading.
    kept_bytes_max: usize,
}

impl Pipeline {
    pub async fn connect(to: SocketAddr, options: &Options) -> Result<Self, ConnectError> {
        Ok(Self {
            stream: socket::connect(to, options).await?,
            envelope: Envelope::new(&options.credential),
            output: Output::default(),
            received: BytesMut::with_capacity(options.read_bytes),
            read_bytes: options.read_bytes.max(1),
            records: Records::new(options.limits()),
            missing: 4,
            kept_bytes_max: options.record_bytes_max.saturating_mul(16),
        })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Queues a call and returns its xid.
    pub fn send<P: Procedure>(&mut self, args: &P::Args) -> u32 {
        self.queue(ProcedureId::of::<P>(), args)
    }

    /// Queues a call with encoded arguments.
    pub fn send_raw(&mut self, to: ProcedureId, args: &[u8]) -> u32 {
        self.queue(to, &Raw(args))
    }

    /// Queues an encoded call with a new xid.
    pub fn send_prepared(&mut self, call: &PreparedCall) -> u32 {
        let xid = xid::next();
        self.output.append(|mut tail| {
            let start = tail.len();
            tail.extend_from_slice(&call.head);
            tail[start + 4..start + 8].copy_from_slice(&xid.to_be_bytes());
            (tail, call.payload.clone())
        });
        xid
    }

    /// Queues a record with its mark.
    pub(crate) fn send_record(&mut self, record: Message) {
        self.output.append(|mut tail| {
            tail.extend_from_slice(&record.head);
            (tail, record.payload)
        });
    }

    fn queue(&mut self, to: ProcedureId, args: &impl Encode) -> u32 {
        let xid = xid::next();
        let envelope = &self.envelope;
        self.output.append(|tail| {
            let start = tail.len();
            let mut out = Writer::after(tail);
            out.u32(0);
            envelope.write(&mut out, xid, to);
            args.encode(&mut out);
            let (mut tail, payload) = out.into_parts();
            fill_mark(&mut tail[start..], &payload);
            (tail, payload)
        });
        xid
    }

    /// The number of bytes that are queued and not written.
    pub fn queued_bytes(&self) -> usize {
        self.output.len()
    }

    /// Writes everything that is queued. Receives replies meanwhile and keeps them for `recv`: a
    /// server may stop reading until its replies are received.
    pub async fn flush(&mut self) -> Result<(), CallError> {
        poll_fn(|context| {
            loop {
                let _ = self.poll_write(context)?;
                if self.output.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                if self.received.len() >= self.kept_bytes_max {
                    return Poll::Pending;
                }
                ready!(self.poll_read(context))?;
            }
        })
        .await
    }

    /// Waits for the next reply, and writes queued calls meanwhile. Cancel safe.
    pub async fn recv(&mut self) -> Result<Reply, CallError> {
        Ok(Reply::from_bytes(self.recv_record().await?)?)
    }

    /// The next reply that was received already.
    ///
    /// After a record that is not a reply (`BadReply`), the next ones can still be read.
    pub fn try_recv(&mut self) -> Result<Option<Reply>, CallError> {
        Ok(self.try_record()?.map(Reply::from_bytes).transpose()?)
    }

    pub(crate) async fn recv_record(&mut self) -> Result<Bytes, CallError> {
        loop {
            if let Some(record) = self.try_record()? {
                return Ok(record);
            }
            poll_fn(|context| {
                let _ = self.poll_write(context)?;
                self.poll_read(context)
            })
            .await?;
        }
    }

    fn try_record(&mut self) -> Result<Option<Bytes>, CallError> {
        match self.records.next(&mut self.received)? {
            Next::Record(record) => Ok(Some(record)),
            Next::Missing(bytes) => {
                self.missing = bytes;
                Ok(None)
            }
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.received.reserve(self.missing.max(self.read_bytes));
        let read = pin!(self.stream.read_buf(&mut self.received));
        Poll::Ready(match ready!(read.poll(context)) {
            Ok(0) => Err(CallError::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(failed(error)),
        })
    }

    /// Writes until the queue is empty or the socket's buffer is full.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        while !self.output.is_empty() {
            let (slices, count) = self.output.slices();
            let stream = Pin::new(&mut self.stream);
            match ready!(stream.poll_write_vectored(context, &slices[..count])) {
                Ok(written) => self.output.advance(written),
                Err(error) => return Poll::Ready(Err(failed(error))),
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn failed(error: io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => CallError::Closed,
        _ => error.into(),
    }
}
