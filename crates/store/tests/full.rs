//! The embedded store on a full disk: a small tmpfs in a mount namespace of its own. Needs root, and
//! fails without it.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use keeper::change::{Change, Exactness};
use keeper::identity::{Epoch, LockId};
use lockkeeper_store::conformance::{client, lock};
use lockkeeper_store::{
    CommitOutcome, Durability, Embedded, EmbeddedSettings, Store, StoreError, Token,
};
use testbed::small_disk::run_test_inside;

const DIRECTORY: &str = "LOCKKEEPER_STORE_FULL_DIRECTORY";

#[test]
fn a_full_disk_stalls_the_store_until_there_is_space() {
    let directory = tempfile::tempdir().unwrap();
    run_test_inside("inside", directory.path(), "3m", DIRECTORY).unwrap();
}

/// B5.65: the reserve lets the server start and commit its epoch; locks then wait for space.
#[test]
fn a_restart_on_a_full_disk_commits_its_epoch() {
    let directory = tempfile::tempdir().unwrap();
    run_test_inside("restarts", directory.path(), "5m", DIRECTORY).unwrap();
}

#[test]
#[ignore = "runs inside the namespace that the other test makes"]
fn restarts() {
    let small = std::env::var_os(DIRECTORY).unwrap();
    for durability in [Durability::Process, Durability::Power] {
        for rebooted in [false, true] {
            restart_when_full(&Path::new(&small).join("store"), durability, rebooted);
        }
    }
}

fn restart_when_full(directory: &Path, durability: Durability, rebooted: bool) {
    let run = tempfile::tempdir().unwrap();
    let settings = |boot: u64| {
        let run = run.path().join(if rebooted { boot.to_string() } else { String::new() });
        let mut settings = EmbeddedSettings::new(directory, run, durability).unwrap();
        settings.reserve_bytes = 64 << 10;
        settings.sync_delay = Duration::from_millis(5);
        settings
    };
    let reserve = || {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("reserve.")).count()
    };
    let wait_for_reserve = || {
        let deadline = Instant::now() + Duration::from_secs(10);
        while reserve() < 8 {
            assert!(Instant::now() < deadline, "{} files", reserve());
            thread::sleep(Duration::from_millis(5));
        }
    };
    let mut store = Embedded::open(settings(0)).unwrap();
    let mut token = 1;
    let started = |epoch| Change::Started { epoch: Epoch(epoch), grace: None };
    let first = [started(1), client(1), lock(1, 1)];
    assert!(matches!(store.commit(&first, Token(token)), CommitOutcome::Done));
    wait_for_reserve();
    fill_up(&directory.join("ballast"));
    drop(store);

    let mut starts = 0;
    let error = loop {
        let epoch = starts + 2;
        let mut store = match Embedded::open(settings(epoch)) {
            Ok(store) => store,
            Err(error) => break error,
        };
        let saved = store.load().unwrap();
        assert_eq!((saved.epoch, saved.locks.len()), (Epoch(epoch - 1), 1));
        // More than a block: a start that also registers clients.
        let mut batch = vec![started(epoch)];
        batch.extend((2..40).map(client));
        match store.commit(&batch, Token(token + 1)) {
            CommitOutcome::Done => {}
            CommitOutcome::NotWritten(error) => break error,
            other => panic!("{other:?}"),
        }
        (token, starts) = (token + 1, starts + 1);
    };
    assert!(starts >= 4, "{starts} starts on a full disk, then {error}");
    assert!(matches!(error, StoreError::Unwritable(_)) && !error.is_fatal(), "{error}");

    fs::remove_file(directory.join("ballast")).unwrap();
    let mut store = Embedded::open(settings(99)).unwrap();
    assert_eq!(store.load().unwrap().epoch, Epoch(starts + 1));
    assert!(matches!(store.commit(&[started(99)], Token(token + 1)), CommitOutcome::Done));
    wait_for_reserve();
    drop(store);
    fs::remove_dir_all(directory).unwrap();
}

/// Writes until the disk is full.
fn fill_up(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    let error = loop {
        if let Err(error) = file.write_all(&[1; 512]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
}

#[test]
#[ignore = "runs inside the namespace that the other test makes"]
fn inside() {
    let small = std::env::var_os(DIRECTORY).unwrap();
    let run = tempfile::tempdir().unwrap();
    for durability in [Durability::Process, Durability::Power] {
        fill(&Path::new(&small).join(format!("{durability:?}")), run.path(), durability);
    }
}

fn fill(directory: &Path, run: &Path, durability: Durability) {
    let mut settings = EmbeddedSettings::new(directory, run, durability).unwrap();
    settings.reserve_bytes = 0;
    let mut store = Embedded::open(settings.clone()).unwrap();
    let ballast = directory.join("ballast");
    fs::write(&ballast, vec![0; 1 << 20]).unwrap();
    let (mut token, mut next) = (0, 0);
    let mut batch = |store: &mut Embedded, token: u64| {
        let first = next;
        let mut changes: Vec<Change> = (first..first + 50).map(|id| lock(id, 1)).collect();
        changes.push(client(1));
        let committed = store.commit(&changes, Token(token));
        if matches!(committed, CommitOutcome::Done) {
            next += 50;
        }
        (committed, next)
    };
    let (error, held) = loop {
        token += 1;
        match batch(&mut store, token) {
            (CommitOutcome::Done, _) => {}
            (CommitOutcome::NotWritten(error), held) => break (error, held),
            (other, _) => panic!("{other:?}"),
        }
    };
    let text = error.to_string();
    assert!(matches!(error, StoreError::Unwritable(_)) && !error.is_fatal(), "{text}");
    assert!(text.contains("full disk") && text.contains(&*directory.to_string_lossy()), "{text}");
    assert!(matches!(batch(&mut store, token), (CommitOutcome::NotWritten(_), _)));

    // The process ends and starts again without space; that start may fail.
    drop(store);
    if let Ok(mut store) = Embedded::open(settings.clone()) {
        assert_eq!(store.last_token().unwrap(), Token(token - 1));
    }
    fs::remove_file(&ballast).unwrap();
    let mut store = Embedded::open(settings).unwrap();
    assert_eq!(store.last_token().unwrap(), Token(token - 1));
    let saved = store.load().unwrap();
    assert_eq!((saved.locks.len() as u64, saved.exactness), (held, Exactness::Exact));
    let more = [Change::Started { epoch: Epoch(2), grace: None }, Change::LockGone(LockId(0))];
    assert!(matches!(store.commit(&more, Token(token)), CommitOutcome::Done));
    assert_eq!(store.load().unwrap().locks.len() as u64, held - 1);
    drop(store);
    fs::remove_dir_all(directory).unwrap();
}
