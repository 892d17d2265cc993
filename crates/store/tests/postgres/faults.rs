//! A database that stops, restarts, loses batches, or guarantees too little. Afterwards the store has
//! what was acknowledged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use keeper::change::{Change, Exactness};
use keeper::identity::Epoch;
use lockkeeper_store::conformance::{batch, lock};
use lockkeeper_store::{
    CommitOutcome, Durability, Postgres, PostgresSettings, Store, StoreError, Token,
};
use testbed::postgres::{Options, Server, Stop};
use testbed::wait;

use crate::driver::{DrivenStore, long, settings, taken};

/// What the trouble has done to commits so far.
#[derive(Default)]
struct Progress {
    committed: AtomicU64,
    unknown: AtomicU64,
}

/// Commits while `trouble` runs on another thread, and for a while after it.
fn commit_during(driven: &mut DrivenStore, trouble: impl FnOnce(&Progress) + Send) -> u64 {
    let progress = Progress::default();
    let Progress { committed, unknown } = &progress;
    thread::scope(|scope| {
        let trouble = scope.spawn(|| trouble(&progress));
        let mut after = 0;
        while after < 20 {
            after += u64::from(trouble.is_finished());
            driven.commit(&batch(committed.load(Ordering::Relaxed) + 1));
            unknown.store(driven.unknown, Ordering::Release);
            committed.fetch_add(1, Ordering::Release);
        }
    });
    progress.committed.into_inner()
}

#[test]
fn restarts_under_commits_lose_nothing() {
    let server = Server::start_with(&Options { fsync: true, ..Options::default() }).unwrap();
    let settings = settings(&server, "a");
    let mut driven = DrivenStore::new(taken(&settings).0);
    let rounds = if long() { 20 } else { 3 };
    // Each stop breaks a connection over which batches are being committed.
    let batches = commit_during(&mut driven, |Progress { committed, .. }| {
        for stop in (0..rounds).flat_map(|_| [Stop::Fast, Stop::Immediate]) {
            let before = committed.load(Ordering::Acquire);
            wait::until_blocking("commits", || committed.load(Ordering::Acquire) > before + 1);
            thread::sleep(Duration::from_millis(200));
            server.stop(stop).unwrap();
            server.start_again().unwrap();
        }
    });
    println!("{batches} batches, {} not written, {} unknown", driven.not_written, driven.unknown);
    assert!(driven.not_written + driven.unknown >= 2 * rounds, "a restart met no commit");
    driven.compare(&settings);
}

/// How much longer terminations may go on if too few of them met a commit.
const TERMINATIONS_MAX: Duration = Duration::from_secs(60);

#[test]
fn backends_that_are_terminated_during_commits_lose_nothing() {
    let server = Server::start().unwrap();
    let settings = settings(&server, "a");
    let mut driven = DrivenStore::new(taken(&settings).0);
    let time = Duration::from_secs(if long() { 120 } else { 4 });
    // Terminations are slow on a busy machine, and some hit no commit: they go on until enough did.
    // Each waits for a commit since the one before: on a busy machine a connection could otherwise be
    // terminated again and again before it is of use.
    let batches = commit_during(&mut driven, |Progress { committed, unknown }| {
        let began = Instant::now();
        let enough = || began.elapsed() >= time && unknown.load(Ordering::Acquire) > 5;
        while !enough() && began.elapsed() < time + TERMINATIONS_MAX {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE application_name LIKE 'lockkeeper%' AND pid <> pg_backend_pid()";
            let before = committed.load(Ordering::Acquire);
            server.psql(end).unwrap();
            wait::until_blocking("a commit", || committed.load(Ordering::Acquire) > before);
        }
    });
    let DrivenStore { not_written, unknown, stored, .. } = driven;
    println!(
        "{batches} batches, {not_written} not written, {unknown} unknown, {stored} of them stored"
    );
    assert!(batches > 100 && unknown > 5, "{batches} batches, {unknown} unknown");
    driven.compare(&settings);
}

#[test]
fn an_outage_stalls_commits_until_it_ends() {
    let server = Server::start().unwrap();
    let settings = settings(&server, "a");
    let (store, lease) = taken(&settings);
    let mut driven = DrivenStore::new(store);
    driven.commit(&batch(1));
    // Until the first heartbeat a standby is assumed.
    while lease.has_standby() {
        thread::sleep(Duration::from_millis(5));
    }
    server.stop(Stop::Fast).unwrap();
    let outage = Duration::from_secs(if long() { 30 } else { 3 });
    let began = Instant::now();
    let committed = driven.store.commit(&batch(2), Token(2));
    let CommitOutcome::NotWritten(error) = committed else { panic!("{committed:?}") };
    assert!(matches!(error, StoreError::Unreachable { .. }) && !error.is_fatal(), "{error}");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(outage);
            server.start_again().unwrap();
        });
        driven.commit(&batch(2));
    });
    assert!(began.elapsed() >= outage);
    // There is no standby, so the lease stays held, and the heartbeat reconnects.
    assert!(lease.is_held());
    let deadline = Instant::now() + 2 * outage + Duration::from_secs(5);
    while lease.renewed_ago() > Duration::from_secs(1) {
        assert!(Instant::now() < deadline, "{:?}", lease.last_error());
        thread::sleep(Duration::from_millis(50));
    }
    driven.compare(&settings);
}

/// A batch must wait for a replica that is away, and its backend is terminated: it has committed
/// without an answer.
#[test]
fn a_batch_that_committed_without_an_answer_is_found() {
    let server = Server::start().unwrap();
    let (mut store, lease) = taken(&settings(&server, "a"));
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), CommitOutcome::Done));
    let replicas = |names: &str| {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
        server.psql(&format!("{set}; SELECT pg_reload_conf()")).unwrap();
    };
    replicas("nobody");
    thread::scope(|scope| {
        scope.spawn(|| {
            let wait = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            let waits = (0..100).any(|_| {
                thread::sleep(Duration::from_millis(50));
                server.psql(&format!("SELECT count(*) > 0 {wait}")).unwrap() == "t"
            });
            assert!(waits, "no commit ever waited for the replica");
            // Heartbeats do not wait for the replica.
            thread::sleep(Duration::from_millis(2500));
            assert!(lease.renewed_ago() < Duration::from_secs(2), "{:?}", lease.last_error());
            server.psql(&format!("SELECT pg_terminate_backend(pid) {wait}")).unwrap();
        });
        // The reload takes effect after a moment.
        let unknown = (2..50).find(|token| {
            thread::sleep(Duration::from_millis(20));
            match store.commit(&[lock(*token, 1)], Token(*token)) {
                CommitOutcome::Done => false,
                CommitOutcome::Unknown(_) => true,
                other => panic!("{other:?}"),
            }
        });
        replicas("");
        assert_eq!(store.last_token().unwrap(), Token(unknown.unwrap()));
    });
}

#[test]
fn a_database_that_has_lost_batches_gets_no_new_ones() {
    let server = Server::start().unwrap();
    let settings = settings(&server, "a");
    let (mut store, lease) = taken(&settings);
    assert!(matches!(store.commit(&[lock(1, 1)], Token(7)), CommitOutcome::Done));
    let expected = store.load().unwrap();
    server.psql("DELETE FROM lockkeeper.locks; UPDATE lockkeeper.state SET token = 6").unwrap();
    // The heartbeat alone notices.
    wait::until_blocking("the lease is suspended", || lease.is_suspended());
    assert!(!lease.is_fresh());
    let committed = store.commit(&[lock(2, 1)], Token(8));
    let CommitOutcome::NotWritten(error) = committed else { panic!("{committed:?}") };
    assert!(matches!(error, StoreError::Behind { .. }) && !error.is_fatal(), "{error}");
    assert_eq!(server.psql("SELECT count(*) FROM lockkeeper.locks").unwrap(), "0");
    // What was lost is in the memory of the leader.
    assert!(matches!(store.rewrite(&expected, Token(7)), CommitOutcome::Done));
    assert_eq!(store.load().unwrap(), expected);
    wait::until_blocking("the lease is renewed", || lease.is_fresh());

    // The same when the tables are those of an earlier leader, who may have acknowledged more.
    let replace = "UPDATE lockkeeper.state SET writer = 0, nonce = 0; \
         UPDATE lockkeeper.seat SET writer = 0, nonce = 0";
    server.psql(replace).unwrap();
    let committed = store.commit(&[lock(2, 1)], Token(8));
    assert!(
        matches!(committed, CommitOutcome::NotWritten(StoreError::LostCommits { .. })),
        "{committed:?}"
    );
    wait::until_blocking("the heartbeat notices", || !lease.is_held());
    drop(store);
    assert_eq!(taken(&settings).0.load().unwrap().exactness, Exactness::Open);
}

/// A crash of a database that acknowledges before it syncs may have lost batches, so the store is a
/// roster until a whole grace period has passed.
#[test]
fn after_a_crash_with_weak_settings_the_locks_are_a_roster() {
    let config = vec!["synchronous_commit = off".to_owned(), "wal_writer_delay = 10s".to_owned()];
    let server =
        Server::start_with(&Options { fsync: true, config, ..Options::default() }).unwrap();
    let settings = settings(&server, "a");
    let exactness = || {
        let (mut store, _) = taken(&settings);
        store.load().unwrap().exactness
    };
    let (mut store, _) = taken(&settings);
    for token in 1..5 {
        assert!(matches!(store.commit(&[lock(token, 1)], Token(token)), CommitOutcome::Done));
    }
    drop(store);
    assert_eq!(exactness(), Exactness::Exact, "after the end of this process");
    server.stop(Stop::Fast).unwrap();
    server.start_again().unwrap();
    assert_eq!(exactness(), Exactness::Exact, "after a clean restart");

    server.stop(Stop::Immediate).unwrap();
    server.start_again().unwrap();
    assert_eq!(exactness(), Exactness::Roster, "after a crash");
    // Neither better settings nor another start restore what was lost.
    server.psql("ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf()").unwrap();
    let (mut store, _) = taken(&settings);
    assert_eq!(store.load().unwrap().exactness, Exactness::Roster);
    let token = store.last_token().unwrap().0;
    let started = [Change::Started { epoch: Epoch(2), grace: Some(Exactness::Exact) }];
    assert!(matches!(store.commit(&started, Token(token + 1)), CommitOutcome::Done));
    drop(store);
    assert_eq!(exactness(), Exactness::Roster, "inside the grace");
    let (mut store, _) = taken(&settings);
    assert!(matches!(store.commit(&[Change::GraceEnded], Token(token + 2)), CommitOutcome::Done));
    drop(store);
    assert_eq!(exactness(), Exactness::Exact, "after the grace");
    server.stop(Stop::Immediate).unwrap();
    server.start_again().unwrap();
    assert_eq!(exactness(), Exactness::Exact, "a crash with strong settings loses nothing");
}

#[test]
fn a_database_that_guarantees_too_little_is_refused_or_warned_about() {
    let config = vec!["synchronous_commit = off".to_owned()];
    let server =
        Server::start_with(&Options { fsync: true, config, ..Options::default() }).unwrap();
    let power = PostgresSettings { durability: Durability::Power, ..settings(&server, "a") };
    let Some(error) = Postgres::connect(power.clone()).err() else { panic!("it was accepted") };
    let StoreError::WeakDurability { setting, fix, .. } = &error else { panic!("{error}") };
    assert_eq!(setting, "synchronous_commit");

    let (store, _) = taken(&settings(&server, "a"));
    let warnings = store.warnings();
    assert!(
        warnings.len() == 1 && warnings[0].contains("synchronous_commit = off"),
        "{warnings:?}"
    );
    drop(store);

    // The suggested SQL works; and a database that restarts with weaker settings is noticed.
    server.psql(fix).unwrap();
    let (mut store, _) = taken(&power);
    assert!(store.warnings().is_empty());
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), CommitOutcome::Done));
    server.psql("ALTER SYSTEM SET fsync = off").unwrap();
    server.stop(Stop::Fast).unwrap();
    server.start_again().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let error = loop {
        match store.commit(&[lock(2, 1)], Token(2)) {
            CommitOutcome::NotWritten(error @ StoreError::WeakDurability { .. }) => break error,
            // Only a commit may notice that the connection has ended.
            CommitOutcome::Unknown(_) => drop(store.last_token()),
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
    };
    assert!(error.to_string().contains("fsync = off"), "{error}");
}
