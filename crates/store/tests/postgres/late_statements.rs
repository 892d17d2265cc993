//! Lost replies and late statements: what is read after an unknown commit stays true, whatever an
//! abandoned connection still delivers.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_store::conformance::lock;
use lockkeeper_store::{CommitOutcome, Postgres, PostgresSettings, Store, StoreError, Token};
use testbed::postgres::{Options, Server};

use crate::driver::settings;
use crate::proxy::Proxy;

/// A database behind a proxy. The store may not terminate its backends, so that only the session
/// number fences them.
fn setup() -> (Server, Proxy, PostgresSettings) {
    let server = Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap();
    let powerless = "CREATE ROLE keeper LOGIN; CREATE SCHEMA lockkeeper AUTHORIZATION keeper; \
         REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM PUBLIC";
    server.psql(powerless).unwrap();
    let proxy = Proxy::to(server.port().unwrap());
    let url = format!("postgres://keeper@127.0.0.1:{}/postgres", proxy.port);
    let settings = PostgresSettings { url, ..settings(&server, "a") };
    (server, proxy, settings)
}

/// A leader with a long lease, so that the proxy sees no heartbeat before the batch.
fn taken(settings: &PostgresSettings) -> Postgres {
    let lease = Duration::from_secs(120);
    let (store, held) = crate::driver::taken(&PostgresSettings { lease, ..settings.clone() });
    while held.has_standby() {
        thread::sleep(Duration::from_millis(5));
    }
    store
}

/// Another transaction, open until dropped.
struct Blocker(Child);

impl Blocker {
    fn insert(server: &Server, id: u64) -> Self {
        let sql = format!(
            "BEGIN; INSERT INTO lockkeeper.locks SELECT {id}, file, host, ours, udp, version, \
             number, tag, first, last, exclusive, incarnation, monitored, since_ms \
             FROM lockkeeper.locks WHERE id = 1; SELECT pg_sleep(100)"
        );
        let child = Command::new("psql")
            .args(["-X", "-q", "-d", &server.url(), "-c", &sql])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let blocker = Self(child);
        wait_for(server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'", "1");
        blocker
    }

    fn end(mut self, server: &Server) {
        server
            .psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
            .unwrap();
        let _ = self.0.wait();
    }
}

fn wait_for(server: &Server, sql: &str, answer: &str) {
    for _ in 0..500 {
        if server.psql(sql).unwrap() == answer {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("never {answer}: {sql}");
}

#[test]
fn a_statement_that_arrives_after_it_was_settled_changes_nothing() {
    let (server, proxy, settings) = setup();
    let mut store = taken(&settings);
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), CommitOutcome::Done));

    proxy.withhold_next();
    let committed = store.commit(&[lock(2, 1)], Token(2));
    assert!(matches!(committed, CommitOutcome::Unknown(_)), "{committed:?}");
    let again = store.commit(&[lock(3, 1)], Token(3));
    assert!(matches!(again, CommitOutcome::NotWritten(_)), "not settled: {again:?}");
    assert_eq!(store.last_token().unwrap(), Token(1));

    let answer = proxy.deliver();
    assert!(!answer.is_empty(), "the server never got the statement");
    assert_eq!(store.last_token().unwrap(), Token(1));
    assert_eq!(store.load().unwrap().locks.len(), 1);
    assert!(matches!(store.commit(&[lock(2, 1)], Token(2)), CommitOutcome::Done));
    assert_eq!(server.psql("SELECT count(*) FROM lockkeeper.locks").unwrap(), "2");
}

#[test]
fn a_database_that_does_not_answer_is_not_waited_for_forever() {
    let (_server, proxy, settings) = setup();
    let mut store = taken(&settings);
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), CommitOutcome::Done));
    proxy.silence_at_next();
    let began = Instant::now();
    let committed = store.commit(&[lock(2, 1)], Token(2));
    assert!(matches!(committed, CommitOutcome::Unknown(_)), "{committed:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // Over another connection: the first one may never answer.
    assert_eq!(store.last_token().unwrap(), Token(1));
    assert!(!proxy.deliver().is_empty());
    assert_eq!(store.load().unwrap().locks.len(), 1);
    assert!(matches!(store.commit(&[lock(2, 1)], Token(2)), CommitOutcome::Done));
}

#[test]
fn a_statement_that_is_being_committed_is_waited_for() {
    let (server, proxy, settings) = setup();
    let mut store = taken(&settings);
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), CommitOutcome::Done));

    // The statement has locked the state row, and waits for the row that the other transaction inserts.
    let blocker = Blocker::insert(&server, 2);
    proxy.disconnect_after_next();
    let committed = store.commit(&[lock(2, 1)], Token(2));
    assert!(matches!(committed, CommitOutcome::Unknown(_)), "{committed:?}");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(500));
            blocker.end(&server);
        });
        assert_eq!(store.last_token().unwrap(), Token(2));
    });
    assert_eq!(store.load().unwrap().locks.len(), 2);
}

#[test]
fn a_late_statement_of_a_former_leader_changes_nothing() {
    let (server, proxy, settings) = setup();
    let mut former = taken(&settings);
    assert!(matches!(former.commit(&[lock(1, 1)], Token(1)), CommitOutcome::Done));
    proxy.withhold_next();
    let committed = former.commit(&[lock(2, 1)], Token(2));
    assert!(matches!(committed, CommitOutcome::Unknown(_)), "{committed:?}");

    let mut next = taken(&PostgresSettings { node: "b".into(), ..settings.clone() });
    assert_eq!(next.load().unwrap().locks.len(), 1);
    assert!(!proxy.deliver().is_empty());
    assert_eq!(next.load().unwrap().locks.len(), 1);
    assert_eq!(next.last_token().unwrap(), Token(1));
    let settled = former.last_token();
    assert!(matches!(&settled, Err(StoreError::Replaced { by, .. }) if by == "b"), "{settled:?}");
    assert_eq!(server.psql("SELECT count(*) FROM lockkeeper.locks").unwrap(), "1");
}

#[test]
fn a_batch_that_the_former_leader_is_committing_is_seen_by_the_next() {
    let (server, proxy, settings) = setup();
    let mut former = taken(&settings);
    assert!(matches!(former.commit(&[lock(1, 1)], Token(1)), CommitOutcome::Done));
    let blocker = Blocker::insert(&server, 2);
    proxy.disconnect_after_next();
    assert!(matches!(former.commit(&[lock(2, 1)], Token(2)), CommitOutcome::Unknown(_)));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(500));
            blocker.end(&server);
        });
        let mut next = taken(&PostgresSettings { node: "b".into(), ..settings.clone() });
        assert_eq!(next.last_token().unwrap(), Token(2));
        assert_eq!(next.load().unwrap().locks.len(), 2);
    });
}
