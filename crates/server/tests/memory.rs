//! Peers that make the server hold memory: records that they never finish, replies that they never
//! read (B7.90 to B7.92). Each test runs in a process of its own, whose resident memory is mostly the server's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs::{self, Permissions};
use std::future::pending;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::nfs::Nfs;
use client::{Locker, Options};
use lockkeeper_server::Limits;
use support::{LIMIT, RecordStream, TestServer, bounded, call, file, range, user};
use tempfile::TempDir;
use testbed::peer::{marked, raise_descriptor_limit};
use testbed::process::own_resident_kilobytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;
use vfs::local::{self, LocalFs};
use wire::nfs3::{Handle, Read, ReadArgs};
use wire::nlm::Status;

const BUDGET: usize = 32 << 20;
/// What the allocator, the threads and the client side may need beside.
const MARGIN: usize = 96 << 20;

fn limits(budget: usize) -> Limits {
    Limits {
        total_bytes_max: budget,
        connections_per_address_max: 4096,
        // So that nothing but the budget ends anything.
        record_time_max: Duration::from_secs(600),
        unread_time_max: Duration::from_secs(600),
        ..Limits::default()
    }
}

/// Runs one test of this file in a process of its own.
fn alone(test: &str, work: impl Future<Output = ()>) {
    if std::env::var_os("LOCKKEEPER_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--include-ignored"])
            .env("LOCKKEEPER_TEST_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success(), "{test}: {status}");
        return;
    }
    raise_descriptor_limit();
    runtime().block_on(work);
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn resident() -> usize {
    own_resident_kilobytes().unwrap() << 10
}

/// An honest client: it reads a file and locks it, all the time.
struct Honest {
    server: TestServer,
    file: Handle,
    _directory: TempDir,
}

impl Honest {
    async fn start(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [root, state] = ["root", "state"].map(|name| directory.path().join(name));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o777)).unwrap();
        let filesystem = LocalFs::open(local::Options::new(root, state)).unwrap();
        let server = TestServer::start(Arc::new(filesystem), limits).await;
        let (nfs, root) = (server.nfs().await, server.root().await);
        let file = file(&nfs, &root, "f", 1 << 20).await;
        Self { server, file, _directory: directory }
    }

    /// One request of 1 MiB for each of some threads may come at the same time.
    fn assert_within(&self, budget: usize) {
        let peak = self.server.handle.take_peak_bytes();
        println!("the budget of {budget} bytes was used up to {peak}");
        assert!(peak < budget + (8 << 20), "{peak}");
    }

    async fn assert_served(&self) {
        let begun = Instant::now();
        let options = Options { timeout: LIMIT, ..Options::default().user(0, 0, &[]) };
        let locker = Locker::connect(self.server.at, "honest", 1, &options).await.unwrap();
        let locked = bounded("a LOCK", locker.lock(&self.file, range(0, 1))).await;
        assert_eq!(locked.unwrap(), Status::Granted);
        let unlocked = bounded("an UNLOCK", locker.unlock(&self.file, range(0, 1))).await;
        assert_eq!(unlocked.unwrap(), Status::Granted);
        let locked = begun.elapsed();
        let nfs = Nfs(self.server.connect_as(&options).await);
        for _ in 0..20 {
            bounded("a READ", nfs.read(&self.file, 0, 1 << 20)).await.unwrap();
        }
        println!("a lock took {locked:?}, then 20 READs of 1 MiB {:?}", begun.elapsed() - locked);
    }
}

/// Sends what the server takes, until it is dropped.
fn send(mut stream: RecordStream, bytes: Bytes) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        if stream.stream.write_all(&bytes).await.is_ok() {
            pending::<()>().await;
        }
    })
}

async fn half_records(connections: usize, budget: usize) {
    let honest = Honest::start(limits(budget)).await;
    let before = resident();
    let mut half = wire::record::mark(1 << 20).to_be_bytes().to_vec();
    half.resize(1 << 20, 7);
    let half = Bytes::from(half);
    let mut attack = Vec::new();
    for _ in 0..connections {
        attack.push(send(honest.server.stream().await, half.clone()));
    }
    sleep(Duration::from_secs(2)).await;
    let mut grown = resident().saturating_sub(before);
    honest.assert_served().await;
    grown = grown.max(resident().saturating_sub(before));
    println!("{connections} half records of 1 MiB: {} MiB more", grown >> 20);
    honest.assert_within(budget);
    assert!(grown < budget + (connections * (16 << 10)) + MARGIN, "{} MiB", grown >> 20);
    attack.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn unread_replies(connections: usize, budget: usize) {
    let honest = Honest::start(limits(budget)).await;
    let before = resident();
    let mut attack = Vec::new();
    let mut grown = 0;
    for number in 1..=connections {
        let socket = TcpSocket::new_v4().unwrap();
        // What the kernel holds is not the server's.
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = RecordStream::new(socket.connect(honest.server.at).await.unwrap());
        let args = ReadArgs { file: honest.file.clone(), offset: 0, count: 1 << 20 };
        // More than the send buffer takes.
        let read = |xid| marked(&call::<Read>(xid, &user(0, 0, &[]), &args));
        stream.send(&(0..8).flat_map(read).collect::<Vec<u8>>()).await;
        attack.push(stream);
        if number % 20 == 0 {
            sleep(Duration::from_millis(20)).await;
            grown = grown.max(resident().saturating_sub(before));
        }
    }
    sleep(Duration::from_secs(2)).await;
    grown = grown.max(resident().saturating_sub(before));
    honest.assert_served().await;
    grown = grown.max(resident().saturating_sub(before));
    println!("{connections} unread replies of 1 MiB: {} MiB more", grown >> 20);
    honest.assert_within(budget);
    assert!(grown < budget + (connections * (16 << 10)) + MARGIN, "{} MiB", grown >> 20);
}

/// B7.90
#[test]
fn records_that_are_never_completed_are_held_within_the_budget() {
    let name = "records_that_are_never_completed_are_held_within_the_budget";
    alone(name, half_records(300, BUDGET));
}

/// B7.91
#[test]
fn replies_that_are_never_read_are_held_within_the_budget() {
    let name = "replies_that_are_never_read_are_held_within_the_budget";
    alone(name, unread_replies(300, BUDGET));
}

/// B7.91
#[test]
#[ignore = "3,000 connections"]
fn three_thousand_slow_readers_are_held_within_the_budget() {
    let name = "three_thousand_slow_readers_are_held_within_the_budget";
    alone(name, async {
        unread_replies(3_000, Limits::default().total_bytes_max).await;
    });
}
