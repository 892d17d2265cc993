//! A host on an address of its own: an rpcbind and whatever programs the test gives it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::sleep;
use wire::record::{Limits, Next, Records, mark};
use wire::rpc::{Accepted, Call, Credential, write_accepted};
use wire::rpcbind::{self, Binding, Mapping, Netid, Text, universal};
use wire::{Decode, Encode, Writer};

/// One call that a host heard.
#[derive(Debug, Clone)]
pub struct Heard {
    pub by_tcp: bool,
    pub from: SocketAddr,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub credential: Credential,
    pub args: Bytes,
    /// How many calls its program had heard before.
    pub before: usize,
}

#[derive(Debug, Clone)]
pub enum Answer {
    Results(Bytes),
    Late(Duration, Bytes),
    Verdict(Accepted),
    Nothing,
    /// Ends the connection.
    Close,
    /// The results, but with another xid.
    OtherXid(Bytes),
}

impl Answer {
    pub fn with(results: &impl Encode) -> Self {
        Self::Results(results.to_bytes())
    }
}

pub type Script = Arc<dyn Fn(&Heard) -> Answer + Send + Sync>;

pub fn script(answer: impl Fn(&Heard) -> Answer + Send + Sync + 'static) -> Script {
    Arc::new(answer)
}

#[derive(Default)]
struct Memory {
    registered: HashMap<(u32, u32, u32), u16>,
    calls: Vec<Heard>,
    lookups: Vec<(u32, SocketAddr)>,
    connections: usize,
}

/// Everything of it ends when it is dropped.
pub struct Host {
    pub ip: IpAddr,
    pub rpcbind_port: u16,
    memory: Arc<Mutex<Memory>>,
    tasks: JoinSet<()>,
}

/// What the host's rpcbind is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rpcbind {
    /// Hears both transports.
    Usual,
    /// Hears only TCP.
    Tcp,
    /// Hears only UDP; over TCP nobody is there.
    Udp,
    /// Version 3 and no 4.
    Old,
    /// Hears and says nothing.
    Silent,
}

impl Host {
    /// Port 0 is any that is free.
    pub async fn at(ip: IpAddr, rpcbind_port: u16, kind: Rpcbind) -> Self {
        let socket = UdpSocket::bind((ip, rpcbind_port)).await.unwrap();
        let rpcbind_port = socket.local_addr().unwrap().port();
        let memory = Arc::<Mutex<Memory>>::default();
        let mut host = Self { ip, rpcbind_port, memory, tasks: JoinSet::new() };
        let memory = host.memory.clone();
        let table = script(move |heard: &Heard| {
            let mut memory = memory.lock().unwrap();
            memory.lookups.push((heard.version, heard.from));
            lookup(&memory.registered, heard, ip, kind)
        });
        let by_udp = match kind {
            Rpcbind::Usual | Rpcbind::Udp | Rpcbind::Old => table.clone(),
            Rpcbind::Silent | Rpcbind::Tcp => script(|_| Answer::Nothing),
        };
        host.tasks.spawn(serve_datagrams(socket, by_udp));
        if kind != Rpcbind::Udp {
            let listener = TcpListener::bind((ip, rpcbind_port)).await.unwrap();
            let count = host.memory.clone();
            host.tasks.spawn(serve_streams(listener, table, count));
        }
        host
    }

    pub async fn tcp(&mut self, program: u32, version: u32, script: Script) -> SocketAddr {
        let listener = TcpListener::bind((self.ip, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        self.register(program, version, true, at.port());
        let (script, memory) = (self.noting(script), self.memory.clone());
        self.tasks.spawn(serve_streams(listener, script, memory));
        at
    }

    pub async fn udp(&mut self, program: u32, version: u32, script: Script) -> SocketAddr {
        let socket = UdpSocket::bind((self.ip, 0)).await.unwrap();
        let at = socket.local_addr().unwrap();
        self.register(program, version, false, at.port());
        let script = self.noting(script);
        self.tasks.spawn(serve_datagrams(socket, script));
        at
    }

    pub fn register(&self, program: u32, version: u32, tcp: bool, port: u16) {
        let protocol = if tcp { rpcbind::PROTOCOL_TCP } else { rpcbind::PROTOCOL_UDP };
        self.memory.lock().unwrap().registered.insert((program, version, protocol), port);
    }

    fn noting(&self, script: Script) -> Script {
        let memory = self.memory.clone();
        Arc::new(move |heard: &Heard| {
            let before = memory.lock().unwrap().calls.len();
            let heard = Heard { before, ..heard.clone() };
            memory.lock().unwrap().calls.push(heard.clone());
            script(&heard)
        })
    }

    /// What its programs heard, rpcbind not among them.
    pub fn calls(&self) -> Vec<Heard> {
        self.memory.lock().unwrap().calls.clone()
    }

    /// Version and source of each question to its rpcbind.
    pub fn lookups(&self) -> Vec<(u32, SocketAddr)> {
        self.memory.lock().unwrap().lookups.clone()
    }

    pub fn connections(&self) -> usize {
        self.memory.lock().unwrap().connections
    }
}

fn lookup(
    registered: &HashMap<(u32, u32, u32), u16>,
    heard: &Heard,
    ip: IpAddr,
    kind: Rpcbind,
) -> Answer {
    if kind == Rpcbind::Silent {
        return Answer::Nothing;
    }
    assert_eq!((heard.program, heard.procedure), (rpcbind::PROGRAM, 3));
    if heard.version == rpcbind::V2 {
        let asked = Mapping::from_bytes(heard.args.clone()).unwrap();
        let key = (asked.program, asked.version, asked.protocol);
        return Answer::with(&u32::from(registered.get(&key).copied().unwrap_or(0)));
    }
    if kind == Rpcbind::Old && heard.version == rpcbind::V4 {
        return Answer::Verdict(Accepted::ProgramMismatch { low: 2, high: 3 });
    }
    let asked = Binding::from_bytes(heard.args.clone()).unwrap();
    let netid = Netid::parse(&asked.netid).unwrap();
    assert_eq!(netid.is_v6(), ip.is_ipv6());
    // As the real one does: it answers for the transport that the question came by.
    let protocol = if heard.by_tcp { rpcbind::PROTOCOL_TCP } else { rpcbind::PROTOCOL_UDP };
    let port = registered.get(&(asked.program, asked.version, protocol));
    // An answer that points elsewhere: only its port may be believed.
    let elsewhere = "fd00::dead".parse().unwrap();
    Answer::with(
        &port.map_or(Text::default(), |port| {
            Text::from(universal(SocketAddr::new(elsewhere, *port)))
        }),
    )
}

fn heard(record: Bytes, from: SocketAddr, by_tcp: bool) -> Option<(u32, Heard)> {
    let call = Call::parse(record).ok()?;
    let Call { xid, program, version, procedure, credential, args } = call;
    Some((xid, Heard { by_tcp, from, program, version, procedure, credential, args, before: 0 }))
}

/// The reply, or none; after a while.
async fn reply(xid: u32, answer: Answer) -> Option<Bytes> {
    let (xid, verdict, results) = match answer {
        Answer::Nothing | Answer::Close => return None,
        Answer::Results(results) => (xid, Accepted::Success, results),
        Answer::OtherXid(results) => (xid ^ 0x8000_0000, Accepted::Success, results),
        Answer::Verdict(verdict) => (xid, verdict, Bytes::new()),
        Answer::Late(after, results) => {
            sleep(after).await;
            (xid, Accepted::Success, results)
        }
    };
    let mut out = Writer::new();
    write_accepted(&mut out, xid, verdict);
    out.fixed(&results);
    Some(out.finish().to_bytes())
}

async fn serve_datagrams(socket: UdpSocket, script: Script) {
    let mut buffer = vec![0; 4096];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let record = Bytes::copy_from_slice(&buffer[..length]);
        // Replies to what was said from a listening socket come here as well.
        let Some((xid, heard)) = heard(record, from, false) else { continue };
        if let Some(bytes) = reply(xid, script(&heard)).await {
            socket.send_to(&bytes, from).await.unwrap();
        }
    }
}

async fn serve_streams(listener: TcpListener, script: Script, memory: Arc<Mutex<Memory>>) {
    let mut streams = JoinSet::new();
    loop {
        let Ok((stream, from)) = listener.accept().await else { continue };
        memory.lock().unwrap().connections += 1;
        streams.spawn(serve_stream(stream, from, script.clone()));
        while streams.try_join_next().is_some() {}
    }
}

async fn serve_stream(mut stream: TcpStream, from: SocketAddr, script: Script) {
    let mut records = Records::new(Limits { record_bytes_max: 8192, fragments_max: 8 });
    let mut received = BytesMut::new();
    loop {
        let record = match records.next(&mut received).unwrap() {
            Next::Record(record) => record,
            Next::Missing(_) => {
                if stream.read_buf(&mut received).await.unwrap_or(0) == 0 {
                    return;
                }
                continue;
            }
        };
        let (xid, heard) = heard(record, from, true).expect("a call");
        let answer = script(&heard);
        if matches!(answer, Answer::Close) {
            return;
        }
        if let Some(bytes) = reply(xid, answer).await {
            let mark = mark(bytes.len()).to_be_bytes();
            if stream.write_all(&[&mark[..], &bytes].concat()).await.is_err() {
                return;
            }
        }
    }
}
