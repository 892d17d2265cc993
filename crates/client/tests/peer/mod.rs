//! A scripted RPC peer: the test decides what is answered, when and in which order.
#![allow(clippy::unwrap_used, dead_code)]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper_client::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wire::record::{Limits, Next, Records, mark};
use wire::rpc::{Accepted, Call, write_accepted};
use wire::{Encode, Writer};

pub(crate) fn patient() -> Options {
    Options { timeout: Duration::from_secs(5), ..Options::default() }
}

pub(crate) fn hasty() -> Options {
    Options { timeout: Duration::from_millis(100), ..Options::default() }
}

pub(crate) struct Peer {
    listener: TcpListener,
}

impl Peer {
    pub(crate) async fn new() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self { listener }, address)
    }

    pub(crate) async fn accept(&self) -> Caller {
        let (stream, _) = self.listener.accept().await.unwrap();
        let limits = Limits { record_bytes_max: 2 << 20, fragments_max: 8 };
        Caller { stream, received: BytesMut::new(), records: Records::new(limits) }
    }
}

/// One accepted connection.
pub(crate) struct Caller {
    pub(crate) stream: TcpStream,
    received: BytesMut,
    records: Records,
}

impl Caller {
    /// The next record, or `None` if the client closed.
    pub(crate) async fn record(&mut self) -> Option<Bytes> {
        loop {
            if let Next::Record(record) = self.records.next(&mut self.received).unwrap() {
                return Some(record);
            }
            if self.stream.read_buf(&mut self.received).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub(crate) async fn call(&mut self) -> Call {
        Call::parse(self.record().await.unwrap()).unwrap()
    }

    pub(crate) async fn answer(&mut self, record: &[u8]) {
        self.stream.write_all(&mark(record.len()).to_be_bytes()).await.unwrap();
        self.stream.write_all(record).await.unwrap();
    }
}

/// A reply that the procedure ran, with these results.
pub(crate) fn success(xid: u32, results: &impl Encode) -> Bytes {
    let mut out = Writer::new();
    write_accepted(&mut out, xid, Accepted::Success);
    results.encode(&mut out);
    out.finish().to_bytes()
}
