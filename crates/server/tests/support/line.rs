//! A connection that sends whatever bytes a test wants, right or wrong.

use std::io::ErrorKind;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::record::{self, Limits, Next, Records};
use wire::rpc::{self, Credential, Groups, Procedure, Reply, SysCredential};
use wire::{Decode, Encode, Writer};

use super::soon;

pub struct Line {
    pub stream: TcpStream,
    received: BytesMut,
    records: Records,
}

impl Line {
    pub async fn connect(to: SocketAddr) -> Self {
        let stream = soon("a connection", TcpStream::connect(to)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let limits = Limits { record_bytes_max: 64 << 20, fragments_max: 64 };
        Self { stream, received: BytesMut::new(), records: Records::new(limits) }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        soon("room to send", self.stream.write_all(bytes)).await.unwrap();
    }

    pub async fn send_record(&mut self, record: &[u8]) {
        self.send(&marked(record)).await;
    }

    /// The next reply, or `None` if the server closed the connection.
    pub async fn receive(&mut self) -> Option<Bytes> {
        loop {
            if let Next::Record(record) = self.records.next(&mut self.received).unwrap() {
                return Some(record);
            }
            match soon("a reply", self.stream.read_buf(&mut self.received)).await {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub async fn exchange(&mut self, record: &[u8]) -> Bytes {
        self.send_record(record).await;
        self.receive().await.expect("the server closed the connection")
    }

    /// Whether the connection still works.
    pub async fn answers_null(&mut self) {
        let null = call::<wire::nfs3::Null>(0xabcd, &Credential::None, &());
        let answer = reply(self.exchange(&null).await);
        assert_eq!((answer.xid, answer.verdict), (0xabcd, Ok(rpc::Accepted::Success)));
    }

    /// Whether the server has closed the connection, or does so soon.
    pub async fn is_closed(&mut self) {
        if let Some(record) = self.receive().await {
            panic!("a reply came instead of the end: {record:?}");
        }
    }
}

/// The record as it goes over a stream, in one fragment.
pub fn marked(record: &[u8]) -> Vec<u8> {
    [&record::mark(record.len()).to_be_bytes()[..], record].concat()
}

pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Credential {
    Credential::Sys(SysCredential {
        stamp: 0,
        machine: Default::default(),
        uid,
        gid,
        groups: Groups::new(groups),
    })
}

pub fn call<P: Procedure>(xid: u32, credential: &Credential, args: &P::Args) -> Bytes {
    let mut out = Writer::new();
    rpc::write_call(&mut out, xid, (P::PROGRAM, P::VERSION, P::NUMBER), credential);
    args.encode(&mut out);
    out.finish().to_bytes()
}

pub fn reply(record: Bytes) -> Reply {
    Reply::from_bytes(record).unwrap()
}

/// What a procedure answered.
pub fn results<P: Procedure>(record: Bytes) -> P::Reply {
    let reply = reply(record);
    assert_eq!(reply.verdict, Ok(rpc::Accepted::Success));
    P::Reply::from_bytes(reply.results).unwrap()
}
