//! One TCP connection owned by one task, with many calls under way.
//!
//! `send` only queues; `flush` writes all queued calls at once; one read from the socket may yield
//! many replies, in whatever order the server finished them. Matching them to calls by xid is the
//! owner's work.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use wire::record::{Next, Records};
use wire::rpc::{Procedure, Reply};
use wire::{Decode, Encode, Message, Writer};

use crate::envelope::{Envelope, Numbers, Raw, fill_mark, numbers};
use crate::output::Output;
use crate::{CallError, ConnectError, Options, Prepared, socket, xid};

#[derive(Debug)]
pub struct Pipeline {
    stream: TcpStream,
    envelope: Envelope,
    output: Output,
    received: BytesMut,
    records: Records,
    read_bytes: usize,
    /// What the record at the front of `received` still lacks.
    missing: usize,
    /// Past this, `flush` does not read on.
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

    /// Queues a call and says under which xid.
    pub fn send<P: Procedure>(&mut self, args: &P::Args) -> u32 {
        self.queue(numbers::<P>(), args)
    }

    /// Queues a call with arguments that are bytes already.
    pub fn send_raw(&mut self, program: u32, version: u32, procedure: u32, args: &[u8]) -> u32 {
        self.queue((program, version, procedure), &Raw(args))
    }

    /// Queues a call that was encoded before.
    pub fn send_prepared(&mut self, call: &Prepared) -> u32 {
        let xid = xid::next();
        self.output.append(|mut tail| {
            let start = tail.len();
            tail.extend_from_slice(&call.head);
            tail[start + 4..start + 8].copy_from_slice(&xid.to_be_bytes());
            (tail, call.payload.clone())
        });
        xid
    }

    /// Queues a whole record, mark included.
    pub(crate) fn send_record(&mut self, record: Message) {
        self.output.append(|mut tail| {
            tail.extend_from_slice(&record.head);
            (tail, record.payload)
        });
    }

    fn queue(&mut self, numbers: Numbers, args: &impl Encode) -> u32 {
        let xid = xid::next();
        let envelope = &self.envelope;
        self.output.append(|tail| {
            let start = tail.len();
            let mut out = Writer::after(tail);
            out.u32(0);
            envelope.write(&mut out, xid, numbers);
            args.encode(&mut out);
            let (mut tail, payload) = out.into_parts();
            fill_mark(&mut tail[start..], &payload);
            (tail, payload)
        });
        xid
    }

    /// How many bytes are queued and not written.
    pub fn queued_bytes(&self) -> usize {
        self.output.len()
    }

    /// Writes all that is queued. Replies that arrive meanwhile are kept for `recv`, so that a
    /// server which stops reading until its replies are taken cannot block both sides.
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

    /// The next reply; writes what is queued while it waits. May be cancelled without loss.
    pub async fn recv(&mut self) -> Result<Reply, CallError> {
        Ok(Reply::from_bytes(self.recv_record().await?)?)
    }

    /// The next reply among what was received already.
    ///
    /// After a record that is no reply (`BadReply`), the next ones can still be read.
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

    /// Writes until all is written or the socket takes no more.
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
