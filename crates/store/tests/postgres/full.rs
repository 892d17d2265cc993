//! A database on a full disk: a small tmpfs in a mount namespace of its own. Needs root, and fails
//! without it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use keeper::change::Change;
use lockkeeper_store::conformance::lock;
use lockkeeper_store::{CommitOutcome, Store, StoreError, Token};
use testbed::postgres::{Options, Server, Stop, give};
use testbed::small_disk::run_test_inside;

use crate::driver::{DrivenStore, settings, taken};

const DIRECTORY: &str = "LOCKKEEPER_STORE_FULL_POSTGRES";

#[test]
fn a_full_disk_stalls_the_store_until_there_is_space() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    run_test_inside("full::inside", directory.path(), "90m", DIRECTORY).unwrap();
}

#[test]
#[ignore = "runs inside the namespace that the other test makes"]
fn inside() {
    let small = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    give(&small).unwrap();
    // With the write-ahead log elsewhere the tables have no space, and the database survives.
    let elsewhere = tempfile::tempdir().unwrap();
    give(elsewhere.path()).unwrap();
    tables_have_no_space(&small.join("a"), &elsewhere.path().join("wal"));
    fs::remove_dir_all(small.join("a")).unwrap();
    // With the write-ahead log on the same disk the database crashes.
    the_log_has_no_space(&small.join("b"));
}

fn locks(first: u64) -> Vec<Change> {
    (first..first + 200).map(|id| lock(id, 1)).collect()
}

/// Uses up all space but `spare` bytes.
fn fill(directory: &Path, spare: u64) -> PathBuf {
    let ballast = directory.with_extension("ballast");
    let output =
        Command::new("df").args(["--output=avail", "-B1"]).arg(directory).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let free: u64 = text.lines().last().unwrap().trim().parse().unwrap();
    fs::write(&ballast, vec![0; free.saturating_sub(spare) as usize]).unwrap();
    ballast
}

fn tables_have_no_space(data: &Path, wal: &Path) {
    let (data, wal) = (Some(data.to_owned()), Some(wal.to_owned()));
    let server = Server::start_with(&Options { data: data.clone(), wal, ..Options::default() });
    let server = server.unwrap();
    let settings = settings(&server, "a");
    let mut driven = DrivenStore::new(taken(&settings).0);
    let ballast = fill(&data.unwrap(), 300_000);
    let mut first = 0;
    let error = loop {
        let token = Token(driven.token.0 + 1);
        match driven.store.commit(&locks(first), token) {
            CommitOutcome::Done => {
                locks(first).into_iter().for_each(|change| driven.expected.apply(change));
                driven.token = token;
                first += 200;
            }
            CommitOutcome::NotWritten(error) => break error,
            other @ CommitOutcome::Unknown(_) => panic!("{other:?}: {}", server.log()),
        }
        assert!(first < 100_000, "the disk never fills up");
    };
    let text = error.to_string();
    assert!(matches!(error, StoreError::Unwritable(_)) && !error.is_fatal(), "{text}");
    assert!(text.contains("53100") && text.contains("full disk"), "{text}");
    driven.compare(&settings);
    fs::remove_file(ballast).unwrap();
    driven.commit(&locks(first));
    driven.compare(&settings);
}

fn the_log_has_no_space(data: &Path) {
    let options = Options { data: Some(data.to_owned()), fsync: true, ..Options::default() };
    let server = Server::start_with(&options).unwrap();
    let settings = settings(&server, "a");
    let mut driven = DrivenStore::new(taken(&settings).0);
    let ballast = fill(data, 500_000);
    let deadline = Instant::now() + Duration::from_secs(30);
    let ids = |token: Token| [Change::IdsBelow(token.0)];
    let mut unknown = false;
    loop {
        assert!(Instant::now() < deadline, "the disk never fills up: {}", server.log());
        let token = Token(driven.token.0 + 1);
        match driven.store.commit(&ids(token), token) {
            CommitOutcome::Done => {
                driven.expected.apply(Change::IdsBelow(token.0));
                driven.token = token;
            }
            CommitOutcome::NotWritten(error) => {
                assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
                break;
            }
            CommitOutcome::Unknown(_) => {
                unknown = true;
                break;
            }
        }
        // Switches to the next segment of the log, for which there is no space eventually.
        let _ = server.psql("SELECT pg_switch_wal()");
    }
    assert!(server.log().contains("No space left on device"), "{}", server.log());
    fs::remove_file(ballast).unwrap();
    let _ = server.stop(Stop::Immediate);
    server.start_again().unwrap();
    // As the engine does: the unknown batch is settled first.
    let next = Token(driven.token.0 + 1);
    let last = loop {
        match driven.store.last_token() {
            Ok(token) => break token,
            Err(error) => assert!(Instant::now() < deadline && !error.is_fatal(), "{error}"),
        }
        thread::sleep(Duration::from_millis(50));
    };
    println!("unknown: {unknown}, last {last:?}, acknowledged {:?}", driven.token);
    if last == next {
        assert!(unknown);
        driven.expected.apply(Change::IdsBelow(next.0));
        driven.token = last;
    } else {
        assert_eq!(last, driven.token);
        driven.commit(&ids(next));
    }
    driven.compare(&settings);
}
