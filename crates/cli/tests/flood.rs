//! A flood from addresses that no export admits, while a client that is admitted locks and reads (B7.95): the real
//! program in a network of its own, with its rpcbind. Needs root.
//!
//! The flood comes and goes, so that what else runs on this machine weighs on both sides of the comparison. It
//! lasts 6 s in all, and 60 s with `LOCKKEEPER_LONG=1`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use support::PROGRAM;
use testbed::namespace::Namespace;
use testbed::peer::{call, raise_descriptor_limit};
use testbed::server::Server;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::{interval, sleep, timeout};
use wire::nfs3::{Handle, NewAttributes, Stability};
use wire::nlm::{Range, Status};
use wire::rpc::Credential;

const CLIENT: &str = "10.99.0.2";
const STRANGERS: [&str; 4] = ["10.99.0.101", "10.99.0.102", "10.99.0.103", "10.99.0.104"];
const SERVER: [u8; 4] = [10, 99, 0, 1];
/// Of each stranger.
const CONNECTIONS_PER_SECOND: u64 = 250;
const DATAGRAMS_PER_SECOND: u64 = 2_000;
/// More memory than before the flood.
const GROWTH_MAX: usize = 64 << 20;
const LINES_MAX: usize = 40;

/// The flood, and what has been sent.
#[derive(Default)]
struct Flood {
    is_on: AtomicBool,
    ends: AtomicBool,
    connections: AtomicU64,
    /// Still open a second after something was sent.
    open: AtomicU64,
    datagrams: AtomicU64,
    answers: AtomicU64,
}

impl Flood {
    async fn turn(&self) -> bool {
        while !self.is_on.load(Ordering::Relaxed) {
            if self.ends.load(Ordering::Relaxed) {
                return false;
            }
            sleep(Duration::from_millis(5)).await;
        }
        !self.ends.load(Ordering::Relaxed)
    }

    /// Half records, garbage, and connections on which nothing is sent.
    async fn connect(self: Arc<Self>, from: &'static str) {
        let mut half = wire::record::mark(1 << 20).to_be_bytes().to_vec();
        half.resize(64 << 10, 7);
        let sent = [half, vec![0xff; 4096], Vec::new()].map(Arc::new);
        let mut ticks = interval(Duration::from_micros(1_000_000 / CONNECTIONS_PER_SECOND));
        for number in 0.. {
            if !self.turn().await {
                return;
            }
            ticks.tick().await;
            let (flood, bytes) = (self.clone(), sent[number % sent.len()].clone());
            let port = if number % 4 == 0 { 111 } else { 2049 };
            tokio::spawn(async move {
                let socket = TcpSocket::new_v4().unwrap();
                let bound = socket.bind(SocketAddr::new(from.parse().unwrap(), 0));
                if bound.is_err() {
                    return;
                }
                flood.connections.fetch_add(1, Ordering::Relaxed);
                let Ok(mut stream) = socket.connect((SERVER, port).into()).await else { return };
                let _ = timeout(Duration::from_secs(1), stream.write_all(&bytes)).await;
                flood.hold(stream).await;
            });
        }
    }

    /// As long as the server lets it.
    async fn hold(&self, stream: TcpStream) {
        let mut byte = [0];
        if timeout(Duration::from_secs(1), stream.peek(&mut byte)).await.is_err() {
            self.open.fetch_add(1, Ordering::Relaxed);
            let _ = stream.peek(&mut byte).await;
        }
    }

    /// Calls and garbage.
    async fn send(self: Arc<Self>, from: &'static str) {
        let socket = UdpSocket::bind((from, 0)).await.unwrap();
        let none = &Credential::None;
        let calls = [
            call::<wire::nfs3::Null>(1, none, &()).to_vec(),
            call::<wire::mount::Exports>(1, none, &()).to_vec(),
            vec![0xff; 1400],
            vec![0; 16],
        ];
        // A timer has milliseconds.
        let mut ticks = interval(Duration::from_millis(5));
        let mut buffer = [0; 2048];
        while self.turn().await {
            ticks.tick().await;
            for number in 0..DATAGRAMS_PER_SECOND as usize / 200 {
                let port = if number % 4 == 0 { 111 } else { 2049 };
                let datagram = &calls[number % calls.len()];
                let _ = socket.try_send_to(datagram, (SERVER, port).into());
                self.datagrams.fetch_add(1, Ordering::Relaxed);
            }
            while socket.try_recv_from(&mut buffer).is_ok() {
                self.answers.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

struct Client {
    locker: Locker,
    nfs: Nfs,
    file: Handle,
}

fn options() -> Options {
    let source = Some(CLIENT.parse().unwrap());
    Options { source, ..Options::default().user(0, 0, &[]) }
}

async fn connect() -> Connection {
    Connection::connect((SERVER, 2049).into(), &options()).await.unwrap()
}

fn byte(offset: u64) -> Range {
    Range { offset, length: 1 }
}

impl Client {
    async fn mount(path: &Path) -> Self {
        let connection = connect().await;
        let root = mount::mount(&connection, path.to_str().unwrap()).await.unwrap();
        let nfs = Nfs(connection);
        let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
        let file = nfs.create(&root, b"f", new).await.unwrap();
        let data = vec![1; 16 << 10].into();
        nfs.write(&file, 0, data, Stability::Unstable).await.unwrap();
        let locker = Locker::new(connect().await, "client", 1);
        for offset in 0..100 {
            let locked = locker.lock(&file, byte(1000 + 2 * offset)).await.unwrap();
            assert_eq!(locked, Status::Granted);
        }
        Self { locker, nfs, file }
    }

    /// Calls per second.
    async fn work(&self, time: Duration) -> f64 {
        let (begun, mut calls) = (Instant::now(), 0);
        while begun.elapsed() < time {
            assert_eq!(self.locker.lock(&self.file, byte(0)).await.unwrap(), Status::Granted);
            self.nfs.read(&self.file, 0, 16 << 10).await.unwrap();
            assert_eq!(self.locker.unlock(&self.file, byte(0)).await.unwrap(), Status::Granted);
            calls += 3;
        }
        f64::from(calls) / begun.elapsed().as_secs_f64()
    }

    /// A new connection is served, and the locks that were taken at first are there.
    async fn assert_as_before(&self) {
        let other = Locker::new(connect().await, "other", 2);
        for offset in [0, 50, 99] {
            let locked = other.lock(&self.file, byte(1000 + 2 * offset)).await.unwrap();
            assert_eq!(locked, Status::Denied, "lock {offset}");
        }
        assert_eq!(other.lock(&self.file, byte(5)).await.unwrap(), Status::Granted);
        assert_eq!(other.unlock(&self.file, byte(5)).await.unwrap(), Status::Granted);
    }
}

fn resident(process: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn serve(network: &Namespace, home: &Path) -> Server {
    let export = home.join("export");
    fs::create_dir(&export).unwrap();
    fs::set_permissions(&export, fs::Permissions::from_mode(0o777)).unwrap();
    let config = home.join("lockkeeper.toml");
    let text = format!(
        "[rpc]\nrpcbind = \"embedded\"\n[admin]\nlisten = \"off\"\nsocket = {:?}\n\
         [[export]]\npath = {export:?}\nclients = [\"{CLIENT}\"]\nports = \"any\"\n",
        home.join("admin.sock"),
    );
    fs::write(&config, text).unwrap();
    let program = std::env::var("LOCKKEEPER_SERVER").unwrap_or_else(|_| PROGRAM.into());
    let mut command = network.command(program);
    command.args(["serve", "--state"]).arg(home.join("state")).arg("-c").arg(config);
    command.env_remove("NOTIFY_SOCKET");
    Server::start(&mut command, &home.join("log")).unwrap()
}

#[test]
fn a_flood_from_strangers_costs_a_client_less_than_half_of_its_throughput() {
    raise_descriptor_limit();
    let (ours, theirs) = Namespace::pair().unwrap();
    for address in STRANGERS {
        theirs.ip(&format!("addr add {address}/24 dev eth0")).unwrap();
    }
    let home = tempfile::tempdir().unwrap();
    let server = serve(&ours, home.path());
    let (process, path) = (server.id(), home.path().join("export"));
    let rounds = if std::env::var_os("LOCKKEEPER_LONG").is_some() { 30 } else { 3 };

    let flood = Arc::<Flood>::default();
    let of_flood = flood.clone();
    let strangers = theirs.spawn(async move || {
        let mut tasks = tokio::task::JoinSet::new();
        for from in STRANGERS {
            tasks.spawn(of_flood.clone().connect(from));
            tasks.spawn(of_flood.clone().send(from));
        }
        tasks.join_all().await;
    });
    let at_work = flood.clone();
    let (calm, flooded, most) = theirs.block_on(async move || {
        let client = Client::mount(&path).await;
        client.work(Duration::from_millis(500)).await;
        let before = resident(process);
        let (mut calm, mut flooded, mut most) = (0.0, 0.0, 0);
        for _ in 0..rounds {
            calm += client.work(Duration::from_secs(1)).await / f64::from(rounds);
            at_work.is_on.store(true, Ordering::Relaxed);
            flooded += client.work(Duration::from_secs(2)).await / f64::from(rounds);
            most = most.max(resident(process).saturating_sub(before));
            client.assert_as_before().await;
            at_work.is_on.store(false, Ordering::Relaxed);
            sleep(Duration::from_millis(200)).await;
        }
        (calm, flooded, most)
    });
    flood.ends.store(true, Ordering::Relaxed);
    strangers.join().unwrap();

    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let log = server.output();
    let lines = log.lines().count();
    println!(
        "{} connections ({} stayed open) and {} datagrams ({} answered) in {} s",
        read(&flood.connections),
        read(&flood.open),
        read(&flood.datagrams),
        read(&flood.answers),
        2 * rounds,
    );
    println!(
        "the client made {calm:.0} calls per second without the flood, {flooded:.0} with it; \
         {} MiB more memory, {lines} lines in the log",
        most >> 20,
    );
    assert_eq!((read(&flood.open), read(&flood.answers)), (0, 0));
    assert!(read(&flood.connections) > 100 && read(&flood.datagrams) > 1_000, "no flood");
    assert!(flooded >= 0.5 * calm, "{flooded} of {calm}");
    assert!(most < GROWTH_MAX, "{most}");
    assert!(lines < LINES_MAX, "{log}");
}
