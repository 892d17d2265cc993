//! The embedded store on a full disk: a small tmpfs in a mount namespace of its own. Needs root, and
//! fails without it.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

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
    let settings = EmbeddedSettings::new(directory, run, durability).unwrap();
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
