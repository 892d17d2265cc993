//! A server whose disk really is full: a small tmpfs in a mount namespace of its own. Needs root,
//! and fails without it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use keeper::change::Change;
use lockkeeper_store::conformance::lock;
use lockkeeper_store::{Committed, Store, StoreError, Token};
use testbed::postgres::{Options, Server, Stop, give};
use testbed::small_disk::run_test_inside;

use crate::world::{Driven, settings, taken};

const DIRECTORY: &str = "LOCKKEEPER_STORE_FULL_POSTGRES";

#[test]
fn a_full_disk_stops_the_store_and_room_lets_it_go_on() {
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
    // Its log of changes elsewhere: then it is the tables that find no room, and it lives.
    let elsewhere = tempfile::tempdir().unwrap();
    give(elsewhere.path()).unwrap();
    tables_find_no_room(&small.join("a"), &elsewhere.path().join("wal"));
    fs::remove_dir_all(small.join("a")).unwrap();
    // With it in the same place: then it is the log, and the server dies of it.
    the_log_finds_no_room(&small.join("b"));
}

fn locks(first: u64) -> Vec<Change> {
    (first..first + 200).map(|id| lock(id, 1)).collect()
}

/// Takes all the room but so many bytes.
fn fill(directory: &Path, spare: u64) -> PathBuf {
    let ballast = directory.with_extension("ballast");
    let output =
        Command::new("df").args(["--output=avail", "-B1"]).arg(directory).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let free: u64 = text.lines().last().unwrap().trim().parse().unwrap();
    fs::write(&ballast, vec![0; free.saturating_sub(spare) as usize]).unwrap();
    ballast
}

fn tables_find_no_room(data: &Path, wal: &Path) {
    let (data, wal) = (Some(data.to_owned()), Some(wal.to_owned()));
    let server = Server::start_with(&Options { data: data.clone(), wal, ..Options::default() });
    let server = server.unwrap();
    let settings = settings(&server, "a");
    let mut driven = Driven::new(taken(&settings).0);
    let ballast = fill(&data.unwrap(), 300_000);
    let mut first = 0;
    let error = loop {
        let token = Token(driven.token.0 + 1);
        match driven.store.commit(&locks(first), token) {
            Committed::Done => {
                locks(first).into_iter().for_each(|change| driven.expected.apply(change));
                driven.token = token;
                first += 200;
            }
            Committed::NotWritten(error) => break error,
            other @ Committed::Unknown(_) => panic!("{other:?}: {}", server.log()),
        }
        assert!(first < 100_000, "it is never full");
    };
    let text = error.to_string();
    assert!(matches!(error, StoreError::Unwritable(_)) && !error.is_fatal(), "{text}");
    assert!(text.contains("53100") && text.contains("full disk"), "{text}");
    driven.compare(&settings);
    fs::remove_file(ballast).unwrap();
    driven.commit(&locks(first));
    driven.compare(&settings);
}

fn the_log_finds_no_room(data: &Path) {
    let options = Options { data: Some(data.to_owned()), fsync: true, ..Options::default() };
    let server = Server::start_with(&options).unwrap();
    let settings = settings(&server, "a");
    let mut driven = Driven::new(taken(&settings).0);
    let ballast = fill(data, 500_000);
    let deadline = Instant::now() + Duration::from_secs(30);
    let ids = |token: Token| [Change::IdsBelow(token.0)];
    let mut unknown = false;
    loop {
        assert!(Instant::now() < deadline, "it is never full: {}", server.log());
        let token = Token(driven.token.0 + 1);
        match driven.store.commit(&ids(token), token) {
            Committed::Done => {
                driven.expected.apply(Change::IdsBelow(token.0));
                driven.token = token;
            }
            Committed::NotWritten(error) => {
                assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
                break;
            }
            Committed::Unknown(_) => {
                unknown = true;
                break;
            }
        }
        // Goes on to the next segment of the log, for which there is no room in the end.
        let _ = server.psql("SELECT pg_switch_wal()");
    }
    assert!(server.log().contains("No space left on device"), "{}", server.log());
    fs::remove_file(ballast).unwrap();
    let _ = server.stop(Stop::Immediate);
    server.start_again().unwrap();
    // As the driver does: the batch whose end nobody knows first of all.
    let next = Token(driven.token.0 + 1);
    let last = loop {
        match driven.store.last_token() {
            Ok(token) => break token,
            Err(error) => assert!(Instant::now() < deadline && !error.is_fatal(), "{error}"),
        }
        thread::sleep(Duration::from_millis(50));
    };
    println!("unknown: {unknown}, last {last:?}, told {:?}", driven.token);
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
