//! A clean stop: requests in progress are answered, and nothing delays the stop beyond its bound.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use client::{Datagram, Options};
use lockkeeper_server::Limits;
use support::{InstrumentedFs, TestServer, call, locker, results, until, with_a_held_request};
use tokio::net::TcpStream;
use tokio::time::sleep;
use wire::nfs3::{GetAttr, GetAttrArgs};

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
