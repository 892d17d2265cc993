//! What a peer can make the server hold, and for how long (I10).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_server::Limits;
use rustix::process::{Resource, getrlimit, setrlimit};
use support::{
    InstrumentedFs, PATH, RecordStream, TestServer, bounded, call, export, file, memory,
    open_rules, results, until, with_a_held_request,
};
use testbed::peer::{marked, user};
use testbed::process::own_resident_kilobytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use wire::nfs3::{self, GetAttr, GetAttrArgs, Null, Read, ReadArgs, Stability, Write, WriteArgs};
use wire::rpc::Credential;

fn null(xid: u32) -> Vec<u8> {
    marked(&call::<Null>(xid, &Credential::None, &()))
}

#[tokio::test]
async fn a_record_over_the_limit_closes_its_connection_by_the_header_alone() {
    let limits = Limits { record_bytes_max: 10_000, ..Limits::default() };
    let server = TestServer::start(memory(), limits).await;
    let (mut good, mut bad) = (server.stream().await, server.stream().await);
    bad.send(&wire::record::mark(10_001).to_be_bytes()).await;
    bad.assert_closed().await;
    good.assert_answers_null().await;
    let mut fits = server.stream().await;
    fits.send_record(&vec![0xff; 10_000]).await;
    fits.assert_answers_null().await;
}

#[tokio::test]
async fn fragments_over_the_limit_together_close_the_connection() {
    let limits = Limits { record_bytes_max: 10_000, ..Limits::default() };
    let server = TestServer::start(memory(), limits).await;
    let mut bad = server.stream().await;
    bad.send(&[&6_000u32.to_be_bytes()[..], &[0; 6_000], &4_001u32.to_be_bytes()].concat()).await;
    bad.assert_closed().await;
}

#[tokio::test]
async fn endless_fragments_close_the_connection() {
    let limits = Limits { fragments_max: 16, ..Limits::default() };
    let server = TestServer::start(memory(), limits).await;
    let mut bad = server.stream().await;
    bad.send(&[0; 4 * 20]).await;
    bad.assert_closed().await;
}

#[tokio::test]
async fn a_call_in_many_fragments_is_one_call() {
    let server = TestServer::in_memory().await;
    let mut stream = server.stream().await;
    let whole = call::<Null>(5, &Credential::None, &());
    for piece in whole.chunks(3) {
        let last = piece.as_ptr_range().end == whole.as_ptr_range().end;
        let mark = piece.len() as u32 | if last { 0x8000_0000 } else { 0 };
        stream.send(&[&mark.to_be_bytes()[..], piece].concat()).await;
    }
    results::<Null>(stream.receive().await.unwrap());
    stream.assert_answers_null().await;
}

fn quick() -> Limits {
    let short = Duration::from_millis(300);
    let long = Duration::from_secs(600);
    Limits { idle_max: long, record_time_max: short, unread_time_max: long, ..Limits::default() }
}

#[tokio::test]
async fn a_record_that_never_ends_closes_the_connection() {
    let server = TestServer::start(memory(), quick()).await;
    let begun = Instant::now();
    let mut header = server.stream().await;
    header.send(&wire::record::mark(100).to_be_bytes()).await;
    let mut half = server.stream().await;
    half.send(&null(1)[..20]).await;
    let mut fragment = server.stream().await;
    fragment.send(&[0, 0, 0, 4, 1, 2, 3, 4]).await;
    let mut byte = server.stream().await;
    byte.send(&[0x80]).await;
    for mut stream in [header, half, fragment, byte] {
        stream.assert_closed().await;
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_record_that_is_sent_byte_by_byte_for_ever_closes_the_connection() {
    let server = TestServer::start(memory(), quick()).await;
    let mut stream = server.stream().await;
    stream.send(&wire::record::mark(10_000).to_be_bytes()).await;
    let begun = Instant::now();
    while stream.stream.write_all(&[0]).await.is_ok() {
        sleep(Duration::from_millis(20)).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "still open");
    }
}

/// B1.81
#[tokio::test]
async fn a_record_that_takes_longer_than_the_limit_arrives_if_it_makes_progress() {
    let server = TestServer::start(memory(), quick()).await;
    let root = server.root().await;
    let file = file(&server.nfs().await, &root, "f", 1).await;
    let mut stream = server.stream().await;
    let data = Bytes::from(vec![b'y'; 200 << 10]);
    let count = data.len() as u32;
    let args = WriteArgs { file, offset: 0, count, stability: Stability::Unstable, data };
    let record = marked(&call::<Write>(1, &user(0, 0, &[]), &args));
    let begun = Instant::now();
    // Ten times what is needed, in five times the limit.
    for piece in record.chunks(8 << 10) {
        stream.send(piece).await;
        sleep(Duration::from_millis(60)).await;
    }
    assert!(begun.elapsed() > quick().record_time_max * 4);
    let written = results::<Write>(stream.receive().await.expect("the connection was closed"));
    assert_eq!(written.unwrap().count, count);
}

#[tokio::test]
async fn a_record_begun_together_with_the_end_of_another_must_end_in_time_too() {
    let server = TestServer::start(memory(), quick()).await;
    let mut stream = server.stream().await;
    let begun = Instant::now();
    stream.send(&[&null(1)[..], &null(2)[..10]].concat()).await;
    results::<Null>(stream.receive().await.unwrap());
    stream.assert_closed().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_connection_that_sends_in_time_is_not_closed() {
    let server = TestServer::start(memory(), quick()).await;
    let mut stream = server.stream().await;
    for _ in 0..6 {
        let call = null(1);
        stream.send(&call[..11]).await;
        sleep(Duration::from_millis(100)).await;
        stream.send(&call[11..]).await;
        results::<Null>(stream.receive().await.unwrap());
    }
    sleep(Duration::from_millis(800)).await;
    stream.assert_answers_null().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_that_waits_for_an_answer_is_not() {
    let filesystem = InstrumentedFs::new();
    let limits = Limits { idle_max: Duration::from_millis(200), ..Limits::default() };
    let server = TestServer::start(filesystem.clone(), limits).await;
    let root = server.root().await;
    filesystem.hold("attributes");
    let mut waiting = server.stream().await;
    let getattr = call::<GetAttr>(1, &Credential::None, &GetAttrArgs { object: root });
    waiting.send_record(&getattr).await;
    let mut idle = server.stream().await;
    idle.assert_answers_null().await;
    idle.assert_closed().await;
    sleep(Duration::from_millis(500)).await;
    filesystem.release("attributes");
    assert!(results::<GetAttr>(waiting.receive().await.unwrap()).is_ok());
}

#[tokio::test]
async fn more_connections_than_allowed_are_closed_at_once() {
    let limits = Limits { connections_max: 3, ..Limits::default() };
    let server = TestServer::start(memory(), limits).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = server.stream().await;
        stream.assert_answers_null().await;
        open.push(stream);
    }
    server.stream().await.assert_closed().await;
    for stream in &mut open {
        stream.assert_answers_null().await;
    }
    drop(open.pop());
    // The server has to notice first that one is gone.
    bounded("a free place", async {
        loop {
            let mut stream = server.stream().await;
            stream.send(&null(9)).await;
            if stream.receive().await.is_some() {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_held_operation_does_not_block_others_of_its_connection() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    let file = file(&nfs, &root, "f", 100).await;
    let mut stream = server.stream().await;
    let by = user(0, 0, &[]);
    filesystem.hold("read");
    stream.send_record(&call::<Read>(1, &by, &ReadArgs { file, offset: 0, count: 100 })).await;
    until("READ was begun", || filesystem.started("read") == 1).await;
    for xid in 2..50 {
        let getattr = call::<GetAttr>(xid, &by, &GetAttrArgs { object: root.clone() });
        let reply = stream.exchange(&getattr).await;
        assert_eq!(support::reply(reply).xid, xid);
    }
    filesystem.release("read");
    let reply = support::reply(stream.receive().await.unwrap());
    assert_eq!(reply.xid, 1);
}

#[tokio::test]
async fn no_more_requests_are_started_than_may_be_in_flight() {
    let filesystem = InstrumentedFs::new();
    let limits = Limits { requests_in_flight_max: 4, workers: 16, ..Limits::default() };
    let server = TestServer::start(filesystem.clone(), limits).await;
    let object = server.root().await;
    let mut stream = server.stream().await;
    let mut other = server.stream().await;
    filesystem.hold("attributes");
    for xid in 0..100 {
        let args = GetAttrArgs { object: object.clone() };
        stream.send_record(&call::<GetAttr>(xid, &Credential::None, &args)).await;
    }
    until("four are running", || filesystem.running("attributes") == 4).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(filesystem.running("attributes"), 4);
    other.assert_answers_null().await;
    filesystem.release("attributes");
    let mut seen: Vec<u32> = Vec::new();
    for _ in 0..100 {
        seen.push(support::reply(stream.receive().await.unwrap()).xid);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_connection_that_is_closed_by_the_server_is_closed_though_an_operation_is_held() {
    let (filesystem, _server, mut stream) = with_a_held_request().await;
    stream.send(&[0xff; 4]).await;
    let closed = timeout(Duration::from_secs(2), stream.assert_closed()).await;
    filesystem.release("attributes");
    closed.expect("the connection stayed open while its operation was held");
}

/// Sends `count` READs of 1 MiB and reads no reply.
async fn greedy(server: &TestServer, file: &nfs3::Handle, count: u32) -> RecordStream {
    let mut stream = server.stream().await;
    let args = ReadArgs { file: file.clone(), offset: 0, count: 1 << 20 };
    for xid in 0..count {
        let read = marked(&call::<Read>(xid, &user(0, 0, &[]), &args));
        // Once the server has no room for more, it does not take more.
        if timeout(Duration::from_millis(200), stream.stream.write_all(&read)).await.is_err() {
            break;
        }
    }
    stream
}

fn unread() -> Limits {
    Limits {
        unread_time_max: Duration::from_millis(500),
        connection_bytes_max: 16 << 20,
        total_bytes_max: 64 << 20,
        ..Limits::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_no_answers_is_closed_and_others_are_served() {
    let server = TestServer::start(memory(), unread()).await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    let file = file(&nfs, &root, "f", 1 << 20).await;
    let mut stream = greedy(&server, &file, 64).await;
    let begun = Instant::now();
    let mut other = server.stream().await;
    // Writing fails when the server has closed; the answers that it sent are still unread.
    while stream.stream.write_all(&null(1)).await.is_ok() {
        other.assert_answers_null().await;
        assert!(begun.elapsed() < Duration::from_secs(5), "still open");
        sleep(Duration::from_millis(10)).await;
    }
    other.assert_answers_null().await;
    assert!(nfs.read(&file, 0, 1 << 20).await.is_ok());
}

#[test]
fn memory_stays_bounded_while_fifty_clients_read_no_answers() {
    if alone("memory_stays_bounded_while_fifty_clients_read_no_answers") {
        runtime(2).block_on(fifty_clients_read_no_answers());
    }
}

async fn fifty_clients_read_no_answers() {
    for prompt in [true, false] {
        let mut limits = unread();
        limits.unread_time_max = Duration::from_secs(600);
        let total_kilobytes = limits.total_bytes_max >> 10;
        let filesystem = InstrumentedFs::with(prompt);
        let server = TestServer::start(filesystem, limits).await;
        let (nfs, root) = (server.nfs().await, server.root().await);
        let file = file(&nfs, &root, "f", 1 << 20).await;
        let before = own_resident_kilobytes().unwrap();
        let mut lines = Vec::new();
        let mut most = before;
        for _ in 0..50 {
            lines.push(greedy(&server, &file, 300).await);
            most = most.max(own_resident_kilobytes().unwrap());
        }
        let grown = (most - before) >> 10;
        println!("prompt {prompt}: {grown} MiB more for 50 clients that read nothing");
        // The bound for all, one request of each client, and as much again for the allocator.
        assert!(grown < (total_kilobytes >> 10) + 50 + 100, "{grown} MiB");
        // Other clients are served as before.
        let mut other = server.stream().await;
        other.assert_answers_null().await;
        bounded("a READ", nfs.read(&file, 0, 1 << 20)).await.unwrap();
    }
}

/// Middle of the times that a call takes, in microseconds.
async fn median(stream: &mut RecordStream, record: &[u8]) -> f64 {
    let mut times = Vec::new();
    for _ in 0..600 {
        let begun = Instant::now();
        stream.exchange(record).await;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

#[test]
fn a_thousand_idle_and_a_thousand_slow_connections_do_not_slow_others_down() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let enough = limit.current.is_none_or(|descriptors| descriptors >= 4500);
    assert!(enough, "this test needs 4500 descriptors: raise the hard limit of `ulimit -n`");
    // The server has a runtime of its own, as it has in life; the crowd has another.
    let of_server = runtime(2);
    let of_crowd = runtime(1);
    let of_probe = runtime(1);
    let server = of_server.block_on(TestServer::start(memory(), Limits::default()));
    let at = server.at;
    let mut crowd = Vec::new();
    of_probe.block_on(async {
        let object = server.root().await;
        let mut probe = server.stream().await;
        let null = call::<Null>(1, &Credential::None, &());
        let getattr = call::<GetAttr>(2, &Credential::None, &GetAttrArgs { object });
        let before = (median(&mut probe, &null).await, median(&mut probe, &getattr).await);
        crowd.extend(of_crowd.block_on_spawned(async move {
            let mut idle = Vec::new();
            for number in 0..2000 {
                let mut stream = TcpStream::connect(at).await.unwrap();
                if number % 2 == 0 {
                    idle.push(stream);
                    continue;
                }
                tokio::spawn(async move {
                    // One byte of a long record every quarter of a second.
                    let header = wire::record::mark(100_000).to_be_bytes();
                    let mut sent = stream.write_all(&header).await;
                    while sent.is_ok() {
                        sleep(Duration::from_millis(250)).await;
                        sent = stream.write_all(&[0]).await;
                    }
                });
            }
            idle
        }));
        let after = (median(&mut probe, &null).await, median(&mut probe, &getattr).await);
        println!(
            "NULL {:.0} -> {:.0} us, GETATTR {:.0} -> {:.0} us",
            before.0, after.0, before.1, after.1
        );
        assert!(after.0 <= 5.0 * before.0 && after.1 <= 5.0 * before.1, "{before:?} {after:?}");
    });
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap()
}

trait BlockOnSpawned {
    fn block_on_spawned<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T;
}

impl BlockOnSpawned for tokio::runtime::Runtime {
    /// For a caller that is on another runtime's thread.
    fn block_on_spawned<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.spawn(async move { sender.send(future.await).unwrap() });
        receiver.recv().unwrap()
    }
}

/// Runs one test of this file in a process of its own, so that limits of the process can be set.
fn alone(test: &str) -> bool {
    if std::env::var_os("LOCKKEEPER_TEST_ALONE").is_some() {
        return true;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("LOCKKEEPER_TEST_ALONE", "1")
        .status()
        .unwrap();
    assert!(status.success(), "{test}: {status}");
    false
}

#[test]
fn a_server_without_free_descriptors_waits_and_accepts_again() {
    if !alone("a_server_without_free_descriptors_waits_and_accepts_again") {
        return;
    }
    runtime(2).block_on(async {
        let server = TestServer::in_memory().await;
        let mut first = server.stream().await;
        first.assert_answers_null().await;
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(120);
        setrlimit(Resource::Nofile, limit).unwrap();
        // A descriptor per end: connect until this process has none left, and then some.
        let mut lines = Vec::new();
        while let Ok(stream) = std::net::TcpStream::connect(server.at) {
            lines.push(stream);
        }
        assert!(lines.len() > 20, "{}", lines.len());
        sleep(Duration::from_millis(300)).await;
        let used_before = processor_time();
        sleep(Duration::from_secs(1)).await;
        let used = processor_time() - used_before;
        first.assert_answers_null().await;
        assert!(used < Duration::from_millis(500), "waiting took {used:?} of processor time");
        lines.clear();
        let mut again = bounded("a connection", async {
            loop {
                if let Ok(stream) = TcpStream::connect(server.at).await {
                    return stream;
                }
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        bounded("room", again.write_all(&null(1))).await.unwrap();
        bounded("an answer", again.readable()).await.unwrap();
    });
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_that_panics_takes_nothing_else_along() {
    for prompt in [true, false] {
        let filesystem = InstrumentedFs::with(prompt);
        let limits = Limits { connections_max: 4, requests_in_flight_max: 4, ..Limits::default() };
        let exports = vec![export(PATH, filesystem.clone(), open_rules())];
        let server = TestServer::try_start(support::config(limits), exports).await.unwrap();
        let object = server.root().await;
        let getattr = call::<GetAttr>(1, &Credential::None, &GetAttrArgs { object });
        let datagrams = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        filesystem.set_panics("attributes", true);
        for _ in 0..10 {
            let mut stream = server.stream().await;
            let answer = support::reply(stream.exchange(&getattr).await);
            assert_eq!(answer.verdict, Ok(wire::rpc::Accepted::SystemError));
            stream.assert_answers_null().await;
            datagrams.send_to(&getattr, server.at).await.unwrap();
            bounded("a datagram", datagrams.recv_from(&mut [0; 1000])).await.unwrap();
        }
        filesystem.set_panics("attributes", false);
        let mut stream = server.stream().await;
        assert!(results::<GetAttr>(stream.exchange(&getattr).await).is_ok());
    }
}

#[tokio::test]
async fn one_more_request_is_served_while_a_dozen_wait_for_a_disk() {
    let filesystem = InstrumentedFs::new();
    let limits = Limits { workers: 16, ..Limits::default() };
    let server = TestServer::start(filesystem.clone(), limits).await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    let file = file(&nfs, &root, "f", 100).await;
    let mut stream = server.stream().await;
    let by = user(0, 0, &[]);
    filesystem.hold("read");
    let read = |xid| {
        let args = ReadArgs { file: file.clone(), offset: 0, count: 100 };
        marked(&call::<Read>(xid, &by, &args))
    };
    let burst: Vec<u8> = (0..12).flat_map(read).collect();
    let getattr = marked(&call::<GetAttr>(99, &by, &GetAttrArgs { object: root }));
    stream.send(&[burst, getattr].concat()).await;
    let reply = timeout(Duration::from_secs(2), stream.receive()).await;
    filesystem.release("read");
    let reply = reply.expect("nothing was done for the last request").unwrap();
    assert_eq!(support::reply(reply).xid, 99);
}
