//! Two servers, one PostgreSQL: whoever serves is killed, stopped or told to end, again and again,
//! under load. The other takes over with every lock in place, and the former one never speaks again.
//! Six times; LOCKKEEPER_TAKEOVERS says how often.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

#[path = "support/node.rs"]
mod node;
#[path = "support/recorder.rs"]
mod recorder;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use node::Node;
use recorder::{Random, free_port};
use rustix::process::Signal;
use store::{Durability, Postgres, PostgresSettings, Store};
use testbed::postgres::{Options, Server, Stop};
use wire::nlm::{Range, Status};

fn takeovers() -> usize {
    std::env::var("LOCKKEEPER_TAKEOVERS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

fn database() -> (Server, String) {
    let server = Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap();
    let url = server.tcp_url().unwrap();
    (server, url)
}

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Kill,
    /// SIGSTOP, and SIGCONT when the other serves: a machine that paused.
    Stop,
    Leave,
}

#[tokio::test(flavor = "multi_thread")]
async fn takeovers_lose_nothing_and_steal_nothing() {
    let (_database, url) = database();
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("export");
    recorder::export(&export);
    let config = dir.path().join("lockkeeper.toml");
    // Both must make the same handles of the same files.
    fs::write(&config, format!("[[export]]\npath = {export:?}\nfilesystem_id = 7\n")).unwrap();
    let config = config.to_str().unwrap();
    let names = ["a", "b"];
    let ports = [free_port(), free_port()];
    let node = |which: usize| {
        let options = ["--store", &url, "--node", names[which], "--standby", "-c", config];
        Node::start(&dir.path().join(names[which]), ports[which], &options)
    };
    let mut serving = 0;
    let mut server = node(0);
    server.serves().await;
    let mut standby = node(1);
    standby.says("standing by: a serves").await;
    let handles = recorder::files(server.at, &export).await;
    let beliefs = recorder::no_beliefs();
    let mut random = Random(11);
    let mut held = 0;
    let mut slowest: BTreeMap<End, Duration> = BTreeMap::new();
    for round in 0..takeovers() {
        let end = match round % 3 {
            0 => End::Kill,
            1 => End::Stop,
            _ => End::Leave,
        };
        let tasks = recorder::work(server.at, &beliefs, &handles, round).await;
        tokio::time::sleep(Duration::from_millis(20 + random.below(150))).await;
        let begun = Instant::now();
        server.signal(match end {
            End::Kill => Signal::KILL,
            End::Stop => Signal::STOP,
            End::Leave => Signal::TERM,
        });
        standby.serves().await;
        let took = begun.elapsed();
        slowest.entry(end).and_modify(|slowest| *slowest = took.max(*slowest)).or_insert(took);
        assert!(took < Duration::from_secs(25), "{end:?} took {took:?}");
        if end == End::Stop {
            let continued = Instant::now();
            server.signal(Signal::CONT);
            let status = server.ended().await;
            assert_eq!(status.code(), Some(1), "{}", server.said());
            let by = format!("{} ", names[1 - serving]);
            let said = server.said();
            assert!(said.contains("took over") || said.contains("has taken over"), "{said}");
            assert!(said.contains(&by), "{said}");
            for belief in beliefs.iter() {
                let answered = belief.lock().unwrap().answered;
                assert!(answered.is_none_or(|at| at < continued), "a stale reply in round {round}");
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        let status = server.ended().await;
        assert!(end != End::Leave || status.success(), "{}", server.said());

        let reader = PostgresSettings::new(&url, "reader", Durability::Process);
        let saved = Postgres::connect(reader).unwrap().load().unwrap();
        let found = recorder::stored(&saved, &handles);
        held += recorder::compare(&beliefs, &found, round);
        recorder::reclaim(&recorder::lockers(standby.at).await, &found, &handles).await;
        let fresh = node(serving);
        server = std::mem::replace(&mut standby, fresh);
        serving = 1 - serving;
        standby.says(&format!("standing by: {} serves", names[serving])).await;
    }
    assert!(held > takeovers() as u32, "there was hardly a lock to lose");
    println!("{} takeovers, {held} bytes were held at them; slowest: {slowest:?}", takeovers());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_is_refused_and_told_of_the_standby() {
    let (_database, url) = database();
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("export");
    recorder::export(&export);
    let start = |name: &str, more: &[&str]| {
        let mut options = vec!["--store", &url, "--node", name, export.to_str().unwrap()];
        options.extend(more);
        Node::start(&dir.path().join(name), free_port(), &options)
    };
    let mut first = start("first", &[]);
    first.serves().await;
    let mut second = start("second", &[]);
    assert_eq!(second.ended().await.code(), Some(1));
    let said = second.said();
    assert!(said.contains("first serves from this store") && said.contains("--standby"), "{said}");
    // Killed, it finds its seat at once: on its own machine one can look.
    first.signal(Signal::KILL);
    first.ended().await;
    let begun = Instant::now();
    let mut again = start("first", &[]);
    again.serves().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // A standby that is told to end does.
    let mut standby = start("second", &["--standby"]);
    standby.says("standing by").await;
    standby.signal(Signal::TERM);
    assert!(standby.ended().await.success());
    assert!(again.is_heard().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_database_makes_locks_wait_and_files_go_on() {
    let (database, url) = database();
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("export");
    recorder::export(&export);
    let options = ["--store", &url, "--node", "alone", export.to_str().unwrap()];
    let mut server = Node::start(&dir.path().join("alone"), free_port(), &options);
    server.serves().await;
    let handles = recorder::files(server.at, &export).await;
    let lockers = recorder::lockers(server.at).await;
    let range = Range { offset: 0, length: 8 };
    assert_eq!(lockers[0].lock(&handles[0], range).await.unwrap(), Status::Granted);
    // Until it has been seen that nobody waits, one is assumed to.
    tokio::time::sleep(Duration::from_secs(2)).await;

    database.stop(Stop::Immediate).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        assert!(server.is_heard().await, "{}", server.said());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The first is with the store, and nobody knows; the next is told that there is trouble.
    let (first, handle) = (lockers[3].clone(), handles[2].clone());
    let first = tokio::spawn(async move { first.lock(&handle, range).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(lockers[1].lock(&handles[1], range).await.unwrap(), Status::DeniedNoLocks);
    assert!(!first.is_finished() || first.await.unwrap().is_err());
    database.start_again().unwrap();
    let begun = Instant::now();
    while lockers[1].lock(&handles[1], range).await.unwrap() != Status::Granted {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", server.said());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let said = server.said();
    assert!(said.contains("locks wait") && said.contains("the store works again"), "{said}");
    assert_eq!(lockers[2].lock(&handles[0], range).await.unwrap(), Status::Denied);
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_before_the_hook_has_succeeded() {
    let (_database, url) = database();
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("export");
    recorder::export(&export);
    let (hook, heard) = (dir.path().join("hook"), dir.path().join("heard"));
    let config = dir.path().join("lockkeeper.toml");
    fs::write(&config, format!("[standby]\non_takeover = {hook:?}\n")).unwrap();
    let configuration = config.to_str().unwrap();
    let start = |name: &str, more: &[&str]| {
        let mut options = vec!["--store", &url, "--node", name, export.to_str().unwrap()];
        options.extend(more);
        Node::start(&dir.path().join(name), free_port(), &options)
    };
    let mut first = start("first", &[]);
    first.serves().await;

    script(&hook, "echo no fence agent >&2; exit 3");
    let mut failing = start("failing", &["--standby", "-c", configuration]);
    failing.says("standing by").await;
    first.signal(Signal::TERM);
    assert!(first.ended().await.success());
    assert_eq!(failing.ended().await.code(), Some(1));
    let said = failing.said();
    assert!(said.contains("no client was let in") && said.contains("no fence agent"), "{said}");
    assert!(!said.contains("\nmount "), "{said}");

    let heard = heard.display();
    script(&hook, &format!("env | grep LOCKKEEPER_ | sort > {heard}; sleep 1"));
    let begun = Instant::now();
    let mut second = start("second", &["--standby", "-c", configuration]);
    second.serves().await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "it did not wait for the hook");
    let heard = fs::read_to_string(heard.to_string()).unwrap();
    let expected = "LOCKKEEPER_FORMER_NODE=failing\nLOCKKEEPER_FORMER_STATE=left\n\
                    LOCKKEEPER_NODE=second\n";
    assert!(heard.contains(expected), "{heard}");
}
