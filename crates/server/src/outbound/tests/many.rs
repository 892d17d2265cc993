//! A restart with many clients (R2.1): all are tried in little time, also when some are dead.
//!
//! `LOCKKEEPER_HOSTS=10000` makes it many more, and says what it measured; that wants a release
//! build, and a machine that does little else.

use super::*;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::collections::HashMap;
use std::net::UdpSocket as BlockingSocket;
use std::thread;
use std::time::Instant;
use wire::rpc::{Accepted, Call, write_accepted};
use wire::rpcbind::{self, Mapping};
use wire::{Decode, Encode, Writer, nsm};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use wire::record::{Limits, Next, Records, mark};

/// How a host is; a tenth is dead in one of three ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Alive,
    /// No rpcbind: the machine refuses.
    Refusing,
    /// Its rpcbind hears and says nothing.
    Silent,
    /// Its status monitor hears and says nothing.
    Stuck,
}

fn kinds(count: usize, with_dead: bool) -> Vec<Is> {
    let kind = |number: usize| match number % 30 {
        7 if with_dead => Is::Refusing,
        17 if with_dead => Is::Silent,
        27 if with_dead => Is::Stuck,
        _ => Is::Alive,
    };
    (0..count).map(kind).collect()
}

/// Hosts on threads of their own, so that what they cost is not what we cost.
struct World {
    hosts: Vec<(IpAddr, Is)>,
    rpcbind_port: u16,
    _runtime: Runtime,
}

impl World {
    fn new(kinds: &[Is]) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        // Descriptors are not enough for a listener each. They share some, but not so many one that
        // connections are dropped.
        let bind = |port| BlockingSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        let rpcbind_port = bind(0).local_addr().unwrap().port();
        let listen = |answers: bool| {
            let listener = runtime.block_on(TcpListener::bind("0.0.0.0:0")).unwrap();
            let port = listener.local_addr().unwrap().port();
            runtime.spawn(accept(listener, answers));
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
        Self { hosts, rpcbind_port, _runtime: runtime }
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

async fn accept(listener: TcpListener, answers: bool) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(be_monitor(stream, answers));
        }
    }
}

async fn be_monitor(mut stream: TcpStream, answers: bool) {
    let mut records = Records::new(Limits { record_bytes_max: 8192, fragments_max: 8 });
    let mut received = BytesMut::new();
    while stream.read_buf(&mut received).await.unwrap_or(0) > 0 {
        while let Ok(Next::Record(record)) = records.next(&mut received) {
            let call = Call::parse(record).unwrap();
            assert_eq!((call.program, call.procedure), (nsm::PROGRAM, 6));
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

struct Measured {
    took: Duration,
    threads: usize,
    kilobytes: usize,
    descriptors: usize,
}

/// Notifies them all; asserts that each is reported on once, as it deserves.
fn restart(world: &World, settings: Settings) -> Measured {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = (resident_kilobytes(), descriptors());
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let settings = Settings { rpcbind_port: world.rpcbind_port, ..settings };
    let watched = thread::spawn({
        let most = move |(kilobytes, open): (usize, usize)| {
            (kilobytes.max(resident_kilobytes()), open.max(descriptors()))
        };
        move || {
            let mut peak = (0, 0);
            for _ in 0..10 {
                peak = most(peak);
                thread::sleep(Duration::from_millis(200));
            }
            peak
        }
    });
    let (took, threads) = runtime.block_on(async {
        let mut desk = Desk::with(settings).await;
        let start = Instant::now();
        let mut owed: HashMap<NoticeId, bool> = HashMap::new();
        for (ip, kind) in &world.hosts {
            let told = notice(*ip, &[(OURS, "127.0.0.1"), (OURS, "server"), (OURS, "server.x")]);
            owed.insert(told.id, *kind == Is::Alive);
            desk.outbound.send_notice(told);
        }
        while !owed.is_empty() {
            let Report::Noticed(id, result) = desk.report().await else { panic!() };
            assert_eq!(owed.remove(&id), Some(result == NoticeResult::Answered), "{id:?}");
        }
        let took = start.elapsed();
        desk.no_more_reports().await;
        (took, threads())
    });
    let peak = watched.join().unwrap();
    let kilobytes = peak.0.saturating_sub(before.0);
    Measured { took, threads, kilobytes, descriptors: peak.1.saturating_sub(before.1) }
}

fn resident_kilobytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn all_hosts_are_tried_in_little_time_though_a_tenth_is_dead() {
    let count = std::env::var("LOCKKEEPER_HOSTS").ok().map(|count| count.parse().unwrap());
    let reserved_ports = rustix::process::geteuid().is_root();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let attempt = if count.is_some() { Duration::from_secs(5) } else { Duration::from_secs(2) };
    let hosts = count.unwrap_or(300);
    for with_dead in [false, true] {
        let world = World::new(&kinds(hosts, with_dead));
        let settings = Settings { reserved_ports, attempt, ..Settings::default() };
        let measured = restart(&world, settings);
        if count.is_some() {
            let Measured { took, threads, kilobytes, descriptors } = measured;
            println!(
                "{hosts} hosts, a tenth dead: {with_dead}; reserved ports: {reserved_ports}; \
                 {took:?}, {threads} threads in all, {kilobytes} kB, {descriptors} descriptors more"
            );
        }
        // On a machine that does nothing else it is a fraction of it.
        assert!(measured.took < Duration::from_secs(15), "{:?}", measured.took);
    }
}
