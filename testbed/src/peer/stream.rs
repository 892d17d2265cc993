//! One end of a TCP connection that sends whatever bytes a test wants, valid or not.

use std::io;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wire::nfs3::Null;
use wire::record::{Limits, Next, Records};
use wire::rpc::{Accepted, Call, Credential};

use super::{call, marked, reply};
use crate::wait::bounded;

/// Above every limit that a test exceeds on purpose.
const LIMITS: Limits = Limits { record_bytes_max: 64 << 20, fragments_max: 64 };

/// A listener on a free port of loopback.
pub struct Listener(TcpListener);

impl Listener {
    pub async fn bind() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self(listener), address)
    }

    pub async fn accept(&self) -> RecordStream {
        let (stream, _) = bounded("a connection", self.0.accept()).await.unwrap();
        RecordStream::new(stream)
    }
}

pub struct RecordStream {
    pub stream: TcpStream,
    received: BytesMut,
    records: Records,
}

impl RecordStream {
    pub fn new(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self { stream, received: BytesMut::new(), records: Records::new(LIMITS) }
    }

    pub async fn connect(to: SocketAddr) -> Self {
        Self::new(bounded("a connection", TcpStream::connect(to)).await.unwrap())
    }

    pub async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        bounded("space in the send buffer", self.try_send(bytes)).await.unwrap();
    }

    pub async fn send_record(&mut self, record: &[u8]) {
        self.send(&marked(record)).await;
    }

    /// The next record, however long it takes; `None` at the end of the connection.
    pub async fn next_record(&mut self) -> Option<Bytes> {
        loop {
            if let Next::Record(record) = self.records.next(&mut self.received).ok()? {
                return Some(record);
            }
            if self.stream.read_buf(&mut self.received).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// The next record; `None` at the end of the connection.
    pub async fn receive(&mut self) -> Option<Bytes> {
        bounded("a record", self.next_record()).await
    }

    /// The next record as a call.
    pub async fn receive_call(&mut self) -> Call {
        Call::parse(self.receive().await.expect("a call, but the connection was closed")).unwrap()
    }

    /// Sends a record and returns the next one that arrives.
    pub async fn exchange(&mut self, record: &[u8]) -> Bytes {
        self.send_record(record).await;
        self.receive().await.expect("the connection was closed")
    }

    /// Calls NFS NULL, which must be answered.
    pub async fn assert_answers_null(&mut self) {
        let null = call::<Null>(0xabcd, &Credential::None, &());
        let answer = reply(self.exchange(&null).await);
        assert_eq!((answer.xid, answer.verdict), (0xabcd, Ok(Accepted::Success)));
    }

    /// The other side must close the connection without another record.
    pub async fn assert_closed(&mut self) {
        let record = self.receive().await;
        assert!(record.is_none(), "a record instead of the end: {record:?}");
    }
}
