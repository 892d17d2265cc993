//! Many hosts with a status monitor each, of which some are dead.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, UdpSocket as BlockingSocket};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::{Builder, Runtime};
use wire::record::{Limits, Next, Records, mark};
use wire::rpc::{Accepted, Call, write_accepted};
use wire::rpcbind::{self, Mapping};
use wire::{Decode, Encode, Writer, nsm};

/// How a host is; a tenth is dead in one of three ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    Alive,
    /// No rpcbind: the machine refuses.
    Refusing,
    /// Its rpcbind hears and says nothing.
    Silent,
    /// Its status monitor hears and says nothing.
    Stuck,
}

pub fn kinds(count: usize, with_dead: bool) -> Vec<Is> {
    let kind = |number: usize| match number % 30 {
        7 if with_dead => Is::Refusing,
        17 if with_dead => Is::Silent,
        27 if with_dead => Is::Stuck,
        _ => Is::Alive,
    };
    (0..count).map(kind).collect()
}

/// Hosts on threads of their own, so that what they cost is not what we cost.
pub struct World {
    pub hosts: Vec<(IpAddr, Is)>,
    pub rpcbind_port: u16,
    told: Told,
    _runtime: Runtime,
}

/// Who was told, and when for the first time.
type Told = Arc<Mutex<HashMap<IpAddr, Instant>>>;

impl World {
    /// Each host has an address of loopback.
    pub fn new(kinds: &[Is], mut address: impl FnMut() -> IpAddr) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let told = Told::default();
        // Descriptors are not enough for a listener each. They share some, but not so many one that
        // connections are dropped.
        let bind = |port| BlockingSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        let rpcbind_port = bind(0).local_addr().unwrap().port();
        let listen = |answers: bool| {
            let listener = runtime.block_on(TcpListener::bind("0.0.0.0:0")).unwrap();
            let port = listener.local_addr().unwrap().port();
            runtime.spawn(accept(listener, answers, told.clone()));
            port
        };
        let ports: Vec<(u16, u16)> =
            (0..kinds.len().div_ceil(100)).map(|_| (listen(true), listen(false))).collect();
        let mut hosts = Vec::new();
        for (kind, (monitor_port, stuck_port)) in kinds.iter().zip(ports.iter().cycle().copied()) {
            let ip = address();
            hosts.push((ip, *kind));
            let answer = match kind {
                Is::Refusing => continue,
                Is::Silent => None,
                Is::Alive => Some(monitor_port),
                Is::Stuck => Some(stuck_port),
            };
            let socket = runtime.block_on(UdpSocket::bind((ip, rpcbind_port))).unwrap();
            runtime.spawn(be_rpcbind(socket, answer));
        }
        Self { hosts, rpcbind_port, told, _runtime: runtime }
    }

    /// When the last of those who live was told; none if one was not.
    pub fn all_told(&self) -> Option<Instant> {
        let told = self.told.lock().unwrap();
        let alive = self.hosts.iter().filter(|(_, kind)| *kind == Is::Alive);
        alive
            .map(|(ip, _)| told.get(ip).copied())
            .try_fold(None, |last, at| Some(last.max(Some(at?))))?
    }
}

async fn be_rpcbind(socket: UdpSocket, monitor: Option<u16>) {
    let mut buffer = [0; 512];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let call = Call::parse(Bytes::copy_from_slice(&buffer[..length])).unwrap();
        let asked = Mapping::from_bytes(call.args).unwrap();
        let Some(port) = monitor else { continue };
        let known = asked.program == nsm::PROGRAM && asked.protocol == rpcbind::PROTOCOL_TCP;
        let port = if known { u32::from(port) } else { 0 };
        let mut out = Writer::new();
        write_accepted(&mut out, call.xid, Accepted::Success);
        port.encode(&mut out);
        socket.send_to(&out.finish().to_bytes(), from).await.unwrap();
    }
}

async fn accept(listener: TcpListener, answers: bool, told: Told) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(be_monitor(stream, answers, told.clone()));
        }
    }
}

async fn be_monitor(mut stream: TcpStream, answers: bool, told: Told) {
    let Ok(here) = stream.local_addr() else { return };
    let mut records = Records::new(Limits { record_bytes_max: 8192, fragments_max: 8 });
    let mut received = BytesMut::new();
    while stream.read_buf(&mut received).await.unwrap_or(0) > 0 {
        while let Ok(Next::Record(record)) = records.next(&mut received) {
            let call = Call::parse(record).unwrap();
            assert_eq!((call.program, call.procedure), (nsm::PROGRAM, 6));
            told.lock().unwrap().entry(here.ip()).or_insert_with(Instant::now);
            let mut out = Writer::new();
            write_accepted(&mut out, call.xid, Accepted::Success);
            let bytes = out.finish().to_bytes();
            let mark = mark(bytes.len()).to_be_bytes();
            if answers && stream.write_all(&[&mark[..], &bytes].concat()).await.is_err() {
                return;
            }
        }
    }
}

/// Each host needs one.
pub fn open_all_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Kilobytes of memory that this process has in use.
pub fn resident_kilobytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
