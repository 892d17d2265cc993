//! A server that shares its store says nothing while its lease on it is not held, and ends when
//! another has taken over.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::time::Duration;

use client::nfs::NfsError;
use client::{Connection, Datagram, Locker, Options};
use lockkeeper_server::{Limits, LockConfig, WritePolicy};
use store::Lease;
use store::lease::boottime;
use support::{InstrumentedFs, PATH, TestServer, config, export, memory, open_rules, until};
use wire::nfs3::{self, GetAttr, GetAttrArgs, NewAttributes, Null};
use wire::nlm::{Range, Status};

const TERM: Duration = Duration::from_secs(60);

async fn leased() -> (TestServer, std::sync::Arc<InstrumentedFs>, Lease) {
    let lease = Lease::new(TERM, boottime());
    let locks = LockConfig::in_memory().with_lease(lease.clone());
    let filesystem = InstrumentedFs::new();
    let exports = vec![export(PATH, filesystem.clone(), open_rules())];
    let server =
        TestServer::try_start_with(config(Limits::default()), exports, locks).await.unwrap();
    (server, filesystem, lease)
}

fn options() -> Options {
    Options { timeout: Duration::from_millis(300), ..Options::default() }.user(0, 0, &[])
}

async fn is_answered(server: &TestServer) -> (bool, bool) {
    let by_tcp = match Connection::connect(server.at, &options()).await {
        Ok(connection) => connection.call::<Null>(&()).await.is_ok(),
        Err(_) => false,
    };
    let mut datagram = Datagram::connect(server.at, &options()).await.unwrap();
    (by_tcp, datagram.call::<Null>(&()).await.is_ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_answered_while_the_lease_is_not_held() {
    let (server, _, lease) = leased().await;
    assert_eq!(is_answered(&server).await, (true, true));
    lease.renew(boottime().saturating_sub(TERM), true);
    assert_eq!(is_answered(&server).await, (false, false));
    lease.renew(boottime(), true);
    assert_eq!(is_answered(&server).await, (true, true));
}

/// A database that is out of reach, as far as is known without a standby.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_wait_for_the_lease_to_be_fresh_and_files_do_not() {
    let term = Duration::from_secs(2);
    let lease = Lease::new(term, boottime());
    lease.renew(boottime(), false);
    let locks = LockConfig::in_memory().with_lease(lease.clone());
    let exports = vec![export(PATH, memory(), open_rules())];
    let server =
        TestServer::try_start_with(config(Limits::default()), exports, locks).await.unwrap();
    let (nfs, root) = (server.nfs().await, server.root().await);
    let file = support::file(&nfs, &root, "f", 1).await;
    let locker = Locker::new(server.connect().await, "host", 1);
    let range = Range { offset: 0, length: 1 };
    assert_eq!(locker.lock(&file.0, range).await.unwrap(), Status::Granted);
    let ticking = lease.clone();
    let ticks = tokio::spawn(async move {
        loop {
            ticking.tick();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    tokio::time::sleep(term).await;
    assert!(lease.is_held() && !lease.is_fresh());
    assert_eq!(is_answered(&server).await, (true, true));
    // It holds this lock, and nothing would change: but perhaps another has it by now.
    assert_eq!(locker.lock(&file.0, range).await.unwrap(), Status::DeniedNoLocks);
    lease.renew(boottime() + TERM, false);
    assert_eq!(locker.lock(&file.0, range).await.unwrap(), Status::Granted);
    ticks.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_under_way_when_it_ran_out_is_not_answered() {
    let (server, filesystem, lease) = leased().await;
    let object = server.root().await;
    let connection = server.connect_as(&options()).await;
    filesystem.hold("attributes");
    let asked =
        tokio::spawn(
            async move { connection.call::<GetAttr>(&GetAttrArgs { object }).await.is_ok() },
        );
    until("GETATTR was begun", || filesystem.running("attributes") == 1).await;
    lease.renew(boottime().saturating_sub(TERM), true);
    filesystem.release("attributes");
    assert!(!asked.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_replaced_ends_and_says_by_whom() {
    let (server, _, lease) = leased().await;
    lease.set_replaced_by("filer2");
    let why = server.failed().await;
    assert!(why.contains("filer2 has taken over"), "{why}");
}

/// B6.80: a standby that registered after the database was lost may have taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_pair_changes_files_under_a_fresh_lease_only() {
    for (writes, when_stale) in
        [(WritePolicy::Strict, Some(nfs3::Status::Jukebox)), (WritePolicy::Available, None)]
    {
        let term = Duration::from_secs(2);
        let lease = Lease::new(term, boottime());
        lease.renew(boottime() + TERM, false);
        let locks = LockConfig::in_memory().with_lease(lease.clone()).with_writes(writes);
        let exports = vec![export(PATH, memory(), open_rules())];
        let server =
            TestServer::try_start_with(config(Limits::default()), exports, locks).await.unwrap();
        let (nfs, root) = (server.nfs().await, server.root().await);
        let file = support::file(&nfs, &root, "f", 1).await;
        let mut number = 0;
        let mut changes = async || {
            number += 1;
            let new = NewAttributes::default();
            let name = format!("new{number}");
            let refused = |error| match error {
                NfsError::Status(status) => status,
                other => panic!("{other}"),
            };
            [
                nfs.write(&file, 0, b"x"[..].into(), nfs3::Stability::FileSync)
                    .await
                    .err()
                    .map(refused),
                nfs.create(&root, name.as_bytes(), new).await.err().map(refused),
                nfs.remove(&root, b"no such name").await.err().map(refused),
            ]
        };
        let missing = Some(nfs3::Status::NoEnt);
        assert_eq!(changes().await, [None, None, missing]);
        // The heartbeat runs, but the database does not answer: as far as is known, no standby is
        // there.
        lease.renew(boottime(), false);
        let ticking = lease.clone();
        let ticks = tokio::spawn(async move {
            loop {
                ticking.tick();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        until("the lease is stale", || !lease.is_fresh()).await;
        assert!(lease.is_held() && nfs.attributes(&file).await.is_ok());
        assert_eq!(changes().await, [when_stale, when_stale, when_stale.or(missing)]);
        lease.renew(boottime() + TERM, false);
        ticks.abort();
        assert_eq!(changes().await, [None, None, missing]);
    }
}
