//! A clean stop: requests in progress are answered, and nothing delays the stop beyond its bound.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use client::{Datagram, Options};
use lockkeeper_server::Limits;
use lockkeeper_server::metrics::{CallOutcome, Program};
use support::{InstrumentedFs, TestServer, call, locker, results, until, with_a_held_request};
use testbed::peer::{Answer, Host, RpcbindKind, UdpCaller, script};
use tokio::net::TcpStream;
use tokio::time::sleep;
use wire::nfs3::{DirOpArgs, GetAttr, GetAttrArgs, Handle, ReadDir, ReadDirArgs, Remove};
use wire::nlm;
use wire::rpc::Procedure;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_under_way_is_answered_before_the_end() {
    let (filesystem, server, mut stream) = with_a_held_request().await;
    server.stop();
    sleep(Duration::from_millis(50)).await;
    filesystem.release("attributes");
    let reply = stream.receive().await.expect("the connection was closed without the reply");
    assert!(results::<GetAttr>(reply).is_ok());
    server.ended().await;
}

/// B8.80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_under_way_is_answered_even_if_that_takes_seconds() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    let kept = support::file(&nfs, &root, "kept", 1).await;
    support::file(&nfs, &root, "removed", 1).await;
    let locker = locker(server.at, "client", 1).await;
    let mut datagram =
        Datagram::connect(server.at, &Options::default().user(0, 0, &[])).await.unwrap();
    for operation in ["remove", "attributes", "access"] {
        filesystem.hold(operation);
    }
    let removed = tokio::spawn({
        let root = root.clone();
        async move { nfs.remove(&root, b"removed").await }
    });
    let file = kept.clone();
    let locked = tokio::spawn(async move { locker.lock(&file, support::range(0, 1)).await });
    let asked =
        tokio::spawn(async move { datagram.call::<GetAttr>(&GetAttrArgs { object: kept }).await });
    for operation in ["remove", "attributes", "access"] {
        until(operation, || filesystem.running(operation) == 1).await;
    }
    server.stop();
    // Long enough for the file system to be called stalled.
    sleep(Duration::from_secs(4)).await;
    assert!(TcpStream::connect(server.at).await.is_err(), "the port is still open");
    for operation in ["remove", "attributes", "access"] {
        filesystem.release(operation);
    }
    removed.await.unwrap().expect("no reply to REMOVE");
    assert_eq!(locked.await.unwrap().expect("no reply to LOCK"), wire::nlm::Status::Granted);
    assert!(asked.await.unwrap().expect("no reply over UDP").is_ok());
    server.ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_and_unread_replies_do_not_hold_up_a_stop() {
    let server = TestServer::in_memory().await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    let file = support::file(&nfs, &root, "f", 1 << 20).await;
    let mut idle = server.stream().await;
    idle.assert_answers_null().await;
    let mut unread = server.stream().await;
    let args = wire::nfs3::ReadArgs { file, offset: 0, count: 1 << 20 };
    for xid in 0..20 {
        let by = support::user(0, 0, &[]);
        unread.send_record(&call::<wire::nfs3::Read>(xid, &by, &args)).await;
    }
    sleep(Duration::from_millis(100)).await;
    let at = server.at;
    let begun = Instant::now();
    server.stop();
    server.ended().await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    idle.assert_closed().await;
    assert!(TcpStream::connect(at).await.is_err(), "the port is still open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_never_ends_does_not_hold_up_a_stop() {
    let (filesystem, server, _line) = with_a_held_request().await;
    server.stop();
    let begun = Instant::now();
    server.ended().await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // The abandoned operation ends without a panic.
    let panics = Arc::new(AtomicUsize::new(0));
    let count = panics.clone();
    std::panic::set_hook(Box::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    filesystem.release("attributes");
    until("the file system is left alone", || Arc::strong_count(&filesystem) == 1).await;
    sleep(Duration::from_millis(50)).await;
    let _ = std::panic::take_hook();
    assert_eq!(panics.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_server_takes_its_port_again_at_once() {
    let server = TestServer::in_memory().await;
    let mut stream = server.stream().await;
    stream.assert_answers_null().await;
    let at = server.at;
    server.stop();
    server.ended().await;
    let mut config = support::config(Limits::default());
    config.listen = at;
    let exports = vec![support::export(support::PATH, support::memory(), support::open_rules())];
    let again = TestServer::try_start(config, exports).await.unwrap();
    assert_eq!(again.at, at);
    again.stream().await.assert_answers_null().await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_with_a_way_to_find_who_has_it() {
    let server = TestServer::in_memory().await;
    let mut config = support::config(Limits::default());
    config.listen = server.at;
    let error = TestServer::try_start(config, vec![]).await.err().unwrap().to_string();
    assert!(error.contains(&server.at.to_string()) && error.contains("ss -lptun"), "{error}");
}

#[tokio::test]
async fn exports_are_replaced_without_a_stop() {
    let server = TestServer::in_memory().await;
    let connection = server.connect().await;
    let new = support::export("/new", support::memory(), support::open_rules());
    server.handle.replace_exports(vfs::Exports::new(vec![new]).unwrap());
    assert!(client::mount::mount(&connection, support::PATH).await.is_err());
    assert!(client::mount::mount(&connection, "/new").await.is_ok());
}

/// B7.85
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_over_a_new_connection_is_answered_before_the_end() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    support::file(&nfs, &root, "removed", 1).await;
    let list = ReadDirArgs { dir: root.clone(), cookie: 0, verifier: [0; 8], count: 4096 };
    // One is kept in the duplicate request cache, the other is there while a worker has it.
    let remove = call::<Remove>(77, &support::user(0, 0, &[]), &in_root(&root, "removed"));
    let list = call::<ReadDir>(78, &support::user(0, 0, &[]), &list);
    filesystem.hold("remove");
    filesystem.hold("read_dir");
    let mut repeats = Vec::new();
    for record in [&remove, &list] {
        let mut first = server.stream().await;
        first.send_record(record).await;
        first.assert_answers_null().await;
        let mut second = server.stream().await;
        second.send_record(record).await;
        second.assert_answers_null().await;
        repeats.push(second);
    }
    until("remove", || filesystem.running("remove") == 1).await;
    until("read_dir", || filesystem.running("read_dir") == 1).await;
    server.stop();
    sleep(Duration::from_secs(2)).await;
    filesystem.release("remove");
    filesystem.release("read_dir");
    let removed = repeats[0].receive().await.expect("no reply to the repeat of REMOVE");
    assert!(results::<Remove>(removed).is_ok());
    let listed = repeats[1].receive().await.expect("no reply to the repeat of READDIR");
    assert!(results::<ReadDir>(listed).is_ok());
    server.ended().await;
}

/// B7.85
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeats_do_not_count_against_the_limits_and_keep_their_connection() {
    let filesystem = InstrumentedFs::new();
    let limits = Limits {
        requests_in_flight_max: 2,
        idle_max: Duration::from_millis(500),
        ..Limits::default()
    };
    let server = TestServer::start(filesystem.clone(), limits).await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    filesystem.hold("remove");
    let mut streams = Vec::new();
    let mut repeating = server.stream().await;
    for xid in 0..6 {
        let name = format!("f{xid}");
        support::file(&nfs, &root, &name, 1).await;
        let remove = call::<Remove>(xid, &support::user(0, 0, &[]), &in_root(&root, &name));
        let mut stream = server.stream().await;
        stream.send_record(&remove).await;
        stream.assert_answers_null().await;
        streams.push(stream);
        repeating.send_record(&remove).await;
        // It is read and answered, so the repeats before it have not filled the connection.
        repeating.assert_answers_null().await;
    }
    sleep(Duration::from_secs(2)).await;
    filesystem.release("remove");
    for _ in 0..6 {
        let reply = repeating.receive().await.expect("the connection was taken to be idle");
        assert!(results::<Remove>(reply).is_ok());
    }
}

/// B8.80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_answered_any_more_is_not_carried_out() {
    let filesystem = InstrumentedFs::new();
    let limits = Limits { workers: 1, ..Limits::default() };
    let server = TestServer::start(filesystem.clone(), limits).await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    let kept = support::file(&nfs, &root, "kept", 1).await;
    support::file(&nfs, &root, "removed", 1).await;
    filesystem.hold("attributes");
    let by = support::user(0, 0, &[]);
    let mut stream = server.stream().await;
    stream.send_record(&call::<GetAttr>(76, &by, &GetAttrArgs { object: kept })).await;
    until("getattr", || filesystem.running("attributes") == 1).await;
    stream.send_record(&call::<Remove>(77, &by, &in_root(&root, "removed"))).await;
    sleep(Duration::from_millis(300)).await;
    server.stop();
    assert!(stream.receive().await.is_none());
    filesystem.release("attributes");
    server.ended().await;
    assert_eq!(filesystem.started("remove"), 0, "REMOVE was carried out, and nobody is told");
}

/// B8.80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_result_of_the_last_lock_call_over_udp_is_sent() {
    let filesystem = InstrumentedFs::new();
    let ip: IpAddr = [127, 0, 0, 77].into();
    // The port of the client's lock service is known only after the call was answered.
    let slow = RpcbindKind::Slow(Duration::from_millis(20));
    let mut client = Host::bind(ip, 0, slow).await;
    client.udp(nlm::PROGRAM, 4, script(|_| Answer::Nothing)).await;
    let mut config = support::config(Limits::default());
    config.peer_rpcbind_port = client.rpcbind_port;
    let export = support::export(support::PATH, filesystem.clone(), support::open_rules());
    let server = TestServer::try_start(config, vec![export]).await.unwrap();
    let file = support::file(&server.nfs().await, &server.root().await, "f", 1).await;
    let caller = UdpCaller::bind(ip, 0, server.at).await;
    let locker = locker(server.at, "client", 1).await;
    filesystem.hold("access");
    caller.send::<nlm::v4::LockMsg>(7, &locker.lock_args(&file, support::range(0, 1), false)).await;
    until("access", || filesystem.running("access") == 1).await;
    server.stop();
    sleep(Duration::from_millis(300)).await;
    filesystem.release("access");
    server.ended().await;
    const LOCK_RES: u32 = 12;
    let calls = client.calls();
    assert!(calls.iter().any(|call| call.procedure == LOCK_RES), "no LOCK_RES: {calls:?}");
}

/// B8.80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_an_owner_behind_one_that_hangs_are_dropped_at_the_end() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let file = support::file(&server.nfs().await, &server.root().await, "f", 1).await;
    let locker = locker(server.at, "client", 1).await;
    filesystem.hold("access");
    let mut asked = Vec::new();
    for at in 0..4 {
        let (locker, file) = (locker.clone(), file.clone());
        asked.push(tokio::spawn(async move { locker.lock(&file, support::range(at, 1)).await }));
        sleep(Duration::from_millis(50)).await;
    }
    until("access", || filesystem.running("access") == 1).await;
    server.stop();
    let control = server.control.clone();
    server.ended().await;
    asked.iter().for_each(tokio::task::JoinHandle::abort);
    filesystem.release("access");
    let metrics = control.metrics().unwrap();
    let dropped = || metrics.calls(Program::Nlm, nlm::v4::Lock::NUMBER, CallOutcome::Dropped);
    until("the calls are dropped", || dropped() == 4).await;
    assert_eq!(filesystem.started("access"), 1);
}

fn in_root(root: &Handle, name: &str) -> DirOpArgs {
    DirOpArgs { dir: root.clone(), name: bytes::Bytes::copy_from_slice(name.as_bytes()).into() }
}
