//! A store that fails: locks wait and never lie (I2, I11).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use keeper::change::{Change, Snapshot};
use lockkeeper_server::metrics::{RefusalReason, RefusedCall};
use lockkeeper_server::{Limits, LockConfig};
use store::{CommitOutcome, Memory, Store, StoreError, Token};
use support::*;
use tokio::time::{sleep, timeout};
use wire::nfs3::Handle;
use wire::nlm::Status;
use wire::nsm;
use wire::rpc::Procedure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Works,
    /// A full disk: nothing is written.
    Full,
    /// The outcome is lost; the batch is in the store.
    LostAfter,
    /// The outcome is lost; the batch is not in the store.
    LostBefore,
    /// The disk hangs.
    Hangs,
    /// The disk is broken.
    Broken,
}

/// What a test sees and decides.
#[derive(Clone)]
struct Disk(Arc<(Mutex<(Mood, usize)>, Condvar)>);

impl Disk {
    fn new() -> Self {
        Self(Arc::new((Mutex::new((Mood::Works, 0)), Condvar::new())))
    }

    fn becomes(&self, mood: Mood) {
        self.0.0.lock().unwrap().0 = mood;
        self.0.1.notify_all();
    }

    /// How many batches are written.
    fn written(&self) -> usize {
        self.0.0.lock().unwrap().1
    }
}

struct Faulty {
    inner: Memory,
    disk: Disk,
}

fn trouble() -> StoreError {
    StoreError::Unwritable("no space left".into())
}

impl Store for Faulty {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.inner.load()
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        let (state, changed) = &*self.disk.0;
        let mut state = state.lock().unwrap();
        while state.0 == Mood::Hangs {
            state = changed.wait(state).unwrap();
        }
        let mood = state.0;
        if matches!(mood, Mood::Works | Mood::LostAfter) {
            assert_ne!(self.inner.last_token().unwrap(), token, "written twice");
            let _ = self.inner.commit(changes, token);
            state.1 += 1;
        }
        match mood {
            Mood::Works | Mood::Hangs => CommitOutcome::Done,
            Mood::Full => CommitOutcome::NotWritten(trouble()),
            Mood::LostAfter | Mood::LostBefore => {
                state.0 = Mood::Works;
                CommitOutcome::Unknown(trouble())
            }
            Mood::Broken => CommitOutcome::NotWritten(StoreError::SyncFailed("EIO".into())),
        }
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.inner.last_token()
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        self.inner.clear(force)
    }
}

async fn start() -> (Disk, TestServer, Handle) {
    let disk = Disk::new();
    let store = Box::new(Faulty { inner: Memory::new(), disk: disk.clone() });
    let locks = LockConfig::new(store);
    let exports = vec![export(PATH, memory(), open_rules())];
    let server =
        TestServer::try_start_with(config(Limits::default()), exports, locks).await.unwrap();
    let file = file(&server.nfs().await, &server.root().await, "locked", 0).await;
    (disk, server, file)
}

#[tokio::test]
async fn a_full_disk_delays_what_has_begun_and_refuses_what_comes_after() {
    let (disk, server, file) = start().await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    assert_eq!(alice.lock(&file, range(0, 1)).await.unwrap(), Status::Granted);
    disk.becomes(Mood::Full);
    let begun = tokio::spawn({
        let (alice, file) = (alice.clone(), file.clone());
        async move { alice.lock(&file, range(5, 1)).await.unwrap() }
    });
    sleep(Duration::from_millis(200)).await;
    let since = Instant::now();
    let unlock = tokio::spawn({
        let (alice, file) = (alice.clone(), file.clone());
        async move { alice.unlock(&file, range(0, 1)).await }
    });
    let monitor = tokio::spawn({
        let connection = server.connect().await;
        let my_id =
            nsm::MyId { my_name: b"w"[..].into(), program: 100_021, version: 4, procedure: 16 };
        let mon_id = nsm::MonId { mon_name: b"x"[..].into(), my_id };
        async move {
            connection.call::<nsm::Mon>(&nsm::MonArgs { mon_id, private: [0; 16] }).await.unwrap()
        }
    });
    assert_eq!(bob.lock(&file, range(9, 1)).await.unwrap(), Status::DeniedNoLocks);
    assert!(since.elapsed() >= Duration::from_secs(4), "{:?}", since.elapsed());
    assert_eq!(monitor.await.unwrap().outcome, nsm::Outcome::Failure);
    let metrics = server.control.metrics().unwrap();
    assert_eq!(metrics.nsm_requests(nsm::Mon::NUMBER), (0, 1), "STAT_FAIL is an error");
    assert_eq!(metrics.refusals(RefusedCall::Monitor, RefusalReason::Store), 1);
    // Files are served meanwhile.
    timeout(LIMIT, server.root()).await.unwrap();
    assert!(!begun.is_finished() && !unlock.is_finished());
    disk.becomes(Mood::Works);
    assert_eq!(begun.await.unwrap(), Status::Granted);
    // The unlock was dropped without an answer: the client asks again, and so do we.
    unlock.abort();
    assert_eq!(alice.unlock(&file, range(0, 1)).await.unwrap(), Status::Granted);
    assert_eq!(bob.lock(&file, range(0, 1)).await.unwrap(), Status::Granted);
    assert_eq!(bob.lock(&file, range(5, 1)).await.unwrap(), Status::Denied);
}

#[tokio::test]
async fn nobody_is_told_before_the_store_has_it() {
    let (disk, server, file) = start().await;
    let alice = locker(server.at, "alice", 1).await;
    disk.becomes(Mood::Hangs);
    let asked = tokio::spawn({
        let (alice, file) = (alice.clone(), file.clone());
        async move { alice.lock(&file, range(0, 1)).await.unwrap() }
    });
    sleep(Duration::from_millis(300)).await;
    assert!(!asked.is_finished());
    let before = disk.written();
    disk.becomes(Mood::Works);
    assert_eq!(asked.await.unwrap(), Status::Granted);
    assert_eq!(disk.written(), before + 1);
}

#[tokio::test]
async fn a_lost_outcome_is_found_out_before_anybody_is_told() {
    let (disk, server, file) = start().await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    for (at, mood) in [(0, Mood::LostAfter), (1, Mood::LostBefore), (2, Mood::Works)] {
        disk.becomes(mood);
        assert_eq!(alice.lock(&file, range(at, 1)).await.unwrap(), Status::Granted);
        assert_eq!(bob.lock(&file, range(at, 1)).await.unwrap(), Status::Denied, "{mood:?}");
    }
}

#[tokio::test]
async fn a_broken_disk_ends_the_server_with_the_reason() {
    let (disk, server, file) = start().await;
    let alice = locker(server.at, "alice", 1).await;
    disk.becomes(Mood::Broken);
    let asked = alice.lock(&file, range(0, 1));
    let failed = tokio::join!(timeout(LIMIT, asked), server.failed()).1;
    assert!(failed.contains("the disk failed to keep"), "{failed}");
}

/// B8.80
#[tokio::test]
async fn a_lock_that_waits_for_the_store_at_a_stop_is_answered() {
    let (disk, server, file) = start().await;
    let alice = locker(server.at, "alice", 1).await;
    disk.becomes(Mood::Full);
    let lock = tokio::spawn(async move { alice.lock(&file, range(0, 1)).await });
    sleep(Duration::from_millis(200)).await;
    server.stop();
    sleep(Duration::from_secs(2)).await;
    disk.becomes(Mood::Works);
    assert_eq!(lock.await.unwrap().expect("no reply to LOCK"), Status::Granted);
    server.ended().await;
}

/// B8.81
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fatal_error_ends_the_server_soon() {
    let (disk, server, file) = start().await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    disk.becomes(Mood::Hangs);
    // The first one is being committed when the disk breaks, the second one is in the inbox.
    let mut asked = Vec::new();
    for (locker, at) in [(alice, 0), (bob, 9)] {
        let file = file.clone();
        asked.push(tokio::spawn(async move { locker.lock(&file, range(at, 1)).await }));
        sleep(Duration::from_millis(200)).await;
    }
    let begun = Instant::now();
    disk.becomes(Mood::Broken);
    let failed = server.failed().await;
    assert!(failed.contains("the disk failed to keep"), "{failed}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    asked.iter().for_each(tokio::task::JoinHandle::abort);
}
