//! `lockkeeper store`: the state of a server moved from one kind of store to another and back, looked
//! at, and emptied.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::process::Command;

use rustix::process::Signal;
use support::node::Node;
use support::recorder;
use testbed::ports::free_port;
use testbed::postgres::{Options, Server};
use wire::nlm::{Range, Status};

/// Runs `lockkeeper store ...`; whether it succeeded, and all that it said.
fn store(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(support::PROGRAM)
        .arg("store")
        .args(arguments)
        .env("LOCKKEEPER_LOG", "warn")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn epoch(said: &str) -> u64 {
    let line = said.lines().find(|line| line.starts_with("epoch")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_move_to_postgresql_and_back_and_no_epoch_comes_again() {
    let database = Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap();
    let shared = database.tcp_url().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("export");
    recorder::export(&export);
    // The file system has no identity of its own here.
    let config = dir.path().join("lockkeeper.toml");
    let text = format!("[[export]]\npath = {export:?}\nfilesystem_id = 7\n");
    std::fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let home = dir.path().join("server");
    let own = format!("embedded:{}", home.join("state/store").display());
    let range = Range { offset: 3, length: 5 };

    // A server with locks is killed; while it runs, its store is its own.
    let mut server = Node::start(&home, free_port().unwrap(), &["-c", config]);
    server.wait_until_serving().await;
    let handles = recorder::files(server.at, &export).await;
    let lockers = recorder::lockers(server.at).await;
    assert_eq!(lockers[0].lock(&handles[0], range).await.unwrap(), Status::Granted);
    for command in ["distrust", "check", "clear"] {
        let (done, said) = store(&[command, &own]);
        assert!(!done && said.contains("another server has opened this store"), "{said}");
    }
    // A copy of it is a backup, which any client may add to.
    let backup = format!("embedded:{}", dir.path().join("backup/store").display());
    let (done, said) = store(&["copy", &own, &backup]);
    assert!(done && said.contains("1 locks and 0 shares"), "{said}");
    assert!(said.contains(&format!("lockkeeper store distrust --open {backup}")), "{said}");
    let (done, said) = store(&["distrust", "--open", &backup]);
    assert!(done && said.contains("any client may reclaim"), "{said}");
    let (done, said) = store(&["check", &backup]);
    assert!(done && said.contains("locks      1\n"), "{said}");
    assert!(said.contains("clients and locks may be missing; any client may reclaim"), "{said}");
    server.signal(Signal::KILL);
    server.exit_status().await;

    let (done, said) = store(&["check", &own]);
    assert!(done && said.contains("locks      1\n") && said.contains("sound"), "{said}");
    let first = epoch(&said);
    let (done, said) = store(&["copy", &own, &shared]);
    assert!(done && said.contains("1 locks and 0 shares"), "{said}");
    assert!(said.contains("copied the file handle key"), "{said}");
    let (done, said) = store(&["copy", &own, &shared]);
    assert!(!done && said.contains("not empty"), "{said}");

    // It goes on from PostgreSQL, on another machine: the lock is there, handles are good, and the
    // owner gets its lock back.
    let elsewhere = dir.path().join("elsewhere");
    let mut server =
        Node::start(&elsewhere, free_port().unwrap(), &["--store", &shared, "-c", config]);
    server.wait_until_serving().await;
    let lockers = recorder::lockers(server.at).await;
    assert_eq!(lockers[5].lock(&handles[0], range).await.unwrap(), Status::DeniedGracePeriod);
    assert_eq!(lockers[0].reclaim(&handles[0], range).await.unwrap(), Status::Granted);
    assert_eq!(lockers[5].lock(&handles[0], range).await.unwrap(), Status::Denied);
    let back = format!("embedded:{}", dir.path().join("back/store").display());
    let (done, said) = store(&["copy", &shared, &back]);
    assert!(!done && said.contains("in use by"), "{said}");
    let (done, said) = store(&["check", &shared]);
    assert!(done && said.contains("serves     ") && epoch(&said) > first, "{said}");
    server.signal(Signal::TERM);
    assert!(server.exit_status().await.success());

    let (done, said) = store(&["copy", &shared, &back]);
    assert!(done, "{said}");
    let key = |home: &std::path::Path| std::fs::read(home.join("handle.key")).unwrap();
    assert_eq!(key(&dir.path().join("back")), key(&home.join("state")));
    let (done, said) = store(&["check", &back]);
    assert!(
        done && said.contains("locks      1\n") && said.contains("last stop  clean\n"),
        "{said}"
    );
    assert!(said.contains("next start a grace period, for 1 client to reclaim"), "{said}");
    let second = epoch(&said);
    assert!(second > first);

    let (done, said) = store(&["distrust", &shared]);
    assert!(done, "{said}");
    let (done, said) = store(&["check", &shared]);
    assert!(done && said.contains("locks may be missing"), "{said}");
    assert!(said.contains("next start a grace period of full length, for 1 client"), "{said}");
    let (done, said) = store(&["distrust", "--open", &shared]);
    assert!(done && said.contains("any client may reclaim"), "{said}");
    let (done, said) = store(&["check", &shared]);
    assert!(done && said.contains("clients and locks may be missing"), "{said}");
    let (done, said) = store(&["distrust", &back]);
    assert!(done && said.contains("clients will reclaim"), "{said}");
    let (done, said) = store(&["check", &back]);
    assert!(done && said.contains("all clients known; locks may be missing"), "{said}");
    let (done, said) = store(&["clear", &back]);
    assert!(!done && said.contains("1 locks and shares are held"), "{said}");
    let (done, said) = store(&["clear", &back, "--force"]);
    assert!(done, "{said}");
    let (done, said) = store(&["check", &back]);
    assert!(done && said.contains("locks      0\n") && epoch(&said) == second, "{said}");
    assert!(said.contains("next start no grace period: there is nothing to reclaim"), "{said}");
}

#[test]
fn a_store_that_is_none_is_named_with_what_to_write() {
    let (done, said) = store(&["check", "redis://somewhere"]);
    assert!(!done && said.contains("embedded:/PATH"), "{said}");
    let (done, said) = store(&["check", "embedded:/nowhere/at/all"]);
    assert!(!done && said.contains("no store in /nowhere/at/all"), "{said}");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "no store").unwrap();
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    let none = format!("embedded:{}", dir.path().display());
    let state = format!("no store in {}", dir.path().display());
    let elsewhere = format!("embedded:{}/elsewhere", dir.path().display());
    for command in [
        &["check", &none] as &[&str],
        &["clear", &none],
        &["distrust", &none],
        &["copy", &none, &elsewhere],
    ] {
        let (done, said) = store(command);
        assert!(!done && said.contains(&state), "{command:?}: {said}");
        assert_eq!(files(), 1, "{command:?} creates nothing");
    }
    let (done, said) = store(&["check", "postgres://me:secret@127.0.0.1:1/locks"]);
    assert!(!done && said.contains("127.0.0.1") && !said.contains("secret"), "{said}");
}
