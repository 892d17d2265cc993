//! A server that goes away, comes back, forgets, or promises too little. Afterwards the store is
//! what was told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use keeper::change::{Change, Exactness};
use keeper::identity::Epoch;
use lockkeeper_store::conformance::{batch, lock};
use lockkeeper_store::{
    Committed, Durability, Postgres, PostgresSettings, Store, StoreError, Token,
};
use testbed::postgres::{Options, Server, Stop};

use crate::world::{Driven, long, settings, taken};

/// Commits while `trouble` runs beside it, and some more after it.
fn commit_during(driven: &mut Driven, trouble: impl FnOnce() + Send) -> u64 {
    let over = AtomicBool::new(false);
    let mut batches = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            trouble();
            over.store(true, Ordering::Release);
        });
        let mut after = 0;
        while after < 20 {
            batches += 1;
            after += u64::from(over.load(Ordering::Acquire));
            driven.commit(&batch(batches));
        }
    });
    batches
}

#[test]
fn restarts_under_commits_lose_nothing() {
    let server = Server::start_with(&Options { fsync: true, ..Options::default() }).unwrap();
    let settings = settings(&server, "a");
    let mut driven = Driven::new(taken(&settings).0);
    let rounds = if long() { 20 } else { 2 };
    let batches = commit_during(&mut driven, || {
        for stop in (0..rounds).flat_map(|_| [Stop::Fast, Stop::Immediate]) {
            thread::sleep(Duration::from_millis(200));
            server.stop(stop).unwrap();
            server.start_again().unwrap();
        }
    });
    println!("{batches} batches, {} not written, {} unknown", driven.not_written, driven.unknown);
    assert!(driven.not_written + driven.unknown > 0, "no restart was noticed");
    driven.compare(&settings);
}

#[test]
fn backends_that_are_terminated_during_commits_lose_nothing() {
    let server = Server::start().unwrap();
    let settings = settings(&server, "a");
    let mut driven = Driven::new(taken(&settings).0);
    let time = Duration::from_secs(if long() { 120 } else { 4 });
    let batches = commit_during(&mut driven, || {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE application_name LIKE 'lockkeeper%' AND pid <> pg_backend_pid()";
            server.psql(end).unwrap();
        }
    });
    let Driven { not_written, unknown, there, .. } = driven;
    println!(
        "{batches} batches, {not_written} not written, {unknown} unknown, {there} of them there"
    );
    assert!(batches > 100 && unknown > 5, "{batches} batches, {unknown} unknown");
    driven.compare(&settings);
}

#[test]
fn an_outage_stalls_and_then_goes_on() {
    let server = Server::start().unwrap();
    let settings = settings(&server, "a");
    let (store, lease) = taken(&settings);
    let mut driven = Driven::new(store);
    driven.commit(&batch(1));
    // Until the first heartbeat somebody might wait for the seat.
    while lease.has_standby() {
        thread::sleep(Duration::from_millis(5));
    }
    server.stop(Stop::Fast).unwrap();
    let outage = Duration::from_secs(if long() { 30 } else { 3 });
    let began = Instant::now();
    let committed = driven.store.commit(&batch(2), Token(2));
    let Committed::NotWritten(error) = committed else { panic!("{committed:?}") };
    assert!(matches!(error, StoreError::Unreachable { .. }) && !error.is_fatal(), "{error}");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(outage);
            server.start_again().unwrap();
        });
        driven.commit(&batch(2));
    });
    assert!(began.elapsed() >= outage);
    // Nobody waits for the seat, so the files go on, and the heartbeat finds its way back.
    assert!(lease.is_held());
    let deadline = Instant::now() + 2 * outage + Duration::from_secs(5);
    while lease.renewed_ago() > Duration::from_secs(1) {
        assert!(Instant::now() < deadline, "{:?}", lease.trouble());
        thread::sleep(Duration::from_millis(50));
    }
    driven.compare(&settings);
}

/// A replica that a batch must wait for is away, and the backend is told to end: it has committed,
/// and says nothing.
#[test]
fn a_batch_that_ended_in_silence_is_found_again() {
    let server = Server::start().unwrap();
    let (mut store, lease) = taken(&settings(&server, "a"));
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), Committed::Done));
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
            assert!(waits, "nobody ever waited for the replica");
            // Heartbeats wait for no replica.
            thread::sleep(Duration::from_millis(2500));
            assert!(lease.renewed_ago() < Duration::from_secs(2), "{:?}", lease.trouble());
            server.psql(&format!("SELECT pg_terminate_backend(pid) {wait}")).unwrap();
        });
        // The reload takes a moment to arrive.
        let unknown = (2..50).find(|token| {
            thread::sleep(Duration::from_millis(20));
            match store.commit(&[lock(*token, 1)], Token(*token)) {
                Committed::Done => false,
                Committed::Unknown(_) => true,
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
    let (mut store, _) = taken(&settings);
    assert!(matches!(store.commit(&[lock(1, 1)], Token(7)), Committed::Done));
    let lose = "UPDATE lockkeeper.state SET token = 6; \
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lockkeeper a'";
    server.psql(lose).unwrap();
    thread::sleep(Duration::from_millis(200));
    let committed = store.commit(&[lock(2, 1)], Token(8));
    let Committed::NotWritten(error) = committed else { panic!("{committed:?}") };
    assert!(matches!(error, StoreError::Forgot { .. }) && error.is_fatal(), "{error}");
    assert_eq!(server.psql("SELECT count(*) FROM lockkeeper.locks").unwrap(), "1");
    // Who starts next does not take what is left for all there was.
    let (mut store, lease) = taken(&settings);
    assert_eq!(store.load().unwrap().exactness, Exactness::Roster);

    // The same when it has forgotten who has the seat.
    server
        .psql("UPDATE lockkeeper.state SET writer = 0; UPDATE lockkeeper.seat SET writer = 0")
        .unwrap();
    let committed = store.commit(&[lock(2, 1)], Token(7));
    assert!(matches!(committed, Committed::NotWritten(StoreError::Forgot { .. })), "{committed:?}");
    let deadline = Instant::now() + Duration::from_secs(5);
    while lease.is_held() {
        assert!(Instant::now() < deadline, "the heartbeat never noticed");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A crash of a server that acknowledges before it syncs: whether or not it lost something, nobody
/// can say that it did not, until a whole grace period has passed.
#[test]
fn after_a_crash_under_weak_promises_the_locks_are_a_roster() {
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
        assert!(matches!(store.commit(&[lock(token, 1)], Token(token)), Committed::Done));
    }
    drop(store);
    assert_eq!(exactness(), Exactness::Exact, "after the end of our process");
    server.stop(Stop::Fast).unwrap();
    server.start_again().unwrap();
    assert_eq!(exactness(), Exactness::Exact, "after a clean restart");

    server.stop(Stop::Immediate).unwrap();
    server.start_again().unwrap();
    assert_eq!(exactness(), Exactness::Roster, "after a crash");
    // Better promises now mend nothing of then, nor does a second start.
    server.psql("ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf()").unwrap();
    let (mut store, _) = taken(&settings);
    assert_eq!(store.load().unwrap().exactness, Exactness::Roster);
    let token = store.last_token().unwrap().0;
    let started = [Change::Started { epoch: Epoch(2), grace: true }];
    assert!(matches!(store.commit(&started, Token(token + 1)), Committed::Done));
    drop(store);
    assert_eq!(exactness(), Exactness::Roster, "inside the grace");
    let (mut store, _) = taken(&settings);
    assert!(matches!(store.commit(&[Change::GraceEnded], Token(token + 2)), Committed::Done));
    drop(store);
    assert_eq!(exactness(), Exactness::Exact, "after the grace");
    server.stop(Stop::Immediate).unwrap();
    server.start_again().unwrap();
    assert_eq!(exactness(), Exactness::Exact, "a crash under good promises loses nothing");
}

#[test]
fn a_server_that_promises_too_little_is_refused_or_remarked_on() {
    let config = vec!["synchronous_commit = off".to_owned()];
    let server =
        Server::start_with(&Options { fsync: true, config, ..Options::default() }).unwrap();
    let power = PostgresSettings { durability: Durability::Power, ..settings(&server, "a") };
    let Some(error) = Postgres::connect(power.clone()).err() else { panic!("it was accepted") };
    let StoreError::WeakPromises { setting, fix, .. } = &error else { panic!("{error}") };
    assert_eq!(setting, "synchronous_commit");

    let (store, _) = taken(&settings(&server, "a"));
    let remarks = store.remarks();
    assert!(remarks.len() == 1 && remarks[0].contains("synchronous_commit = off"), "{remarks:?}");
    drop(store);

    // What it says helps does help; and a server that comes back with less is noticed.
    server.psql(fix).unwrap();
    let (mut store, _) = taken(&power);
    assert!(store.remarks().is_empty());
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), Committed::Done));
    server.psql("ALTER SYSTEM SET fsync = off").unwrap();
    server.stop(Stop::Fast).unwrap();
    server.start_again().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let error = loop {
        match store.commit(&[lock(2, 1)], Token(2)) {
            Committed::NotWritten(error @ StoreError::WeakPromises { .. }) => break error,
            // The end of the connection may be noticed only by a commit.
            Committed::Unknown(_) => drop(store.last_token()),
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
    };
    assert!(error.to_string().contains("fsync = off"), "{error}");
}
