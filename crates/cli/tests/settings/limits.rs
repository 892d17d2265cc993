//! What is seen of the first request beyond a limit.

use std::fs;
use std::time::Duration;

use client::nfs::Nfs;
use client::{Connection, Options};
use testbed::peer::RecordStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wire::nfs3::{NewAttributes, Null};

use crate::setup::{Running, Setup, byte};

pub async fn second_connection(setup: Setup) -> String {
    let server = setup.start();
    let first = server.connect(0, 0).await;
    first.call::<Null>(&()).await.unwrap();
    let second = Connection::connect(server.address(), &Options::default()).await;
    let answered = match second {
        Ok(second) => second.call::<Null>(&()).await.is_ok(),
        Err(_) => false,
    };
    first.call::<Null>(&()).await.unwrap();
    if answered { "answered" } else { "closed" }.into()
}

/// Whether a NULL is answered before or after a LOCK of the same connection that grace holds back.
pub async fn second_request(setup: Setup) -> String {
    let server = setup.restarted().await;
    let file = server.file(&setup, "a").await;
    let bob = server.locker("bob").await;
    let lock = bob.lock(&file, byte(9));
    let null = async {
        // Behind the LOCK on the wire.
        tokio::task::yield_now().await;
        bob.connection.call::<Null>(&()).await.unwrap();
    };
    tokio::select! {
        biased;
        _ = lock => "after".into(),
        () = null => "before".into(),
    }
}

/// The worker threads after many operations at once.
pub async fn workers(setup: Setup) -> String {
    let server = setup.start();
    let path = setup.text("export.path");
    let mut seen = 0;
    // One is enough to be sure of several, and some rounds to be fairly sure of only one.
    for round in 0..10 {
        let mut created = JoinSet::new();
        for client in 0..8 {
            let nfs = Nfs(server.connect(0, 0).await);
            let root = client::mount::mount(&nfs.0, path).await.unwrap();
            created.spawn(async move {
                for number in 0..20 {
                    let name = format!("{round}-{client}-{number}");
                    nfs.create(&root, name.as_bytes(), NewAttributes::default()).await.unwrap();
                }
            });
        }
        created.join_all().await;
        seen = seen.max(worker_threads(&server));
        if seen > 1 {
            break;
        }
    }
    if seen > 1 { "several" } else { "one" }.into()
}

fn worker_threads(server: &Running) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.server.id())).unwrap();
    let name =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let names = tasks.flatten().map(name);
    names.filter(|name| name.starts_with("worker-") && !name.starts_with("worker-watch")).count()
}

pub async fn idle_connection(setup: Setup) -> String {
    let server = setup.start();
    let mut stream = RecordStream::connect(server.address()).await;
    stream.assert_answers_null().await;
    match timeout(Duration::from_secs(10), stream.next_record()).await {
        Ok(record) => {
            assert!(record.is_none());
            "closed".into()
        }
        Err(_) => "open".into(),
    }
}

pub async fn second_host(setup: Setup) -> String {
    locks_of(&setup, ["alice", "bob"]).await
}

pub async fn second_lock(setup: Setup) -> String {
    locks_of(&setup, ["alice", "alice"]).await
}

async fn locks_of(setup: &Setup, names: [&str; 2]) -> String {
    let server = setup.start();
    let file = server.file(setup, "a").await;
    let mut last = String::new();
    for (number, name) in names.into_iter().enumerate() {
        let status = server.locker(name).await.lock(&file, byte(number as u64 * 9)).await;
        last = format!("{:?}", status.unwrap());
    }
    last
}

pub async fn second_waiter(setup: Setup) -> String {
    let server = setup.start();
    let file = server.file(&setup, "a").await;
    let mut last = String::new();
    for name in ["alice", "bob", "carol"] {
        last = format!("{:?}", server.locker(name).await.wait(&file, byte(0)).await.unwrap());
    }
    last
}
