//! A reply that is lost, and a statement that comes late: what is read afterwards stays true,
//! whatever a former connection still delivers.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_store::conformance::lock;
use lockkeeper_store::{Committed, Postgres, PostgresSettings, Store, StoreError, Token};
use testbed::postgres::{Options, Server};

use crate::proxy::Proxy;
use crate::world::settings;

/// A server of which the store may not end sessions, so that nothing but the session's number
/// guards it; and the way there through a proxy.
fn world() -> (Server, Proxy, PostgresSettings) {
    let server = Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap();
    let powerless = "CREATE ROLE keeper LOGIN; CREATE SCHEMA lockkeeper AUTHORIZATION keeper; \
         REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM PUBLIC";
    server.psql(powerless).unwrap();
    let proxy = Proxy::to(server.port().unwrap());
    let url = format!("postgres://keeper@127.0.0.1:{}/postgres", proxy.port);
    let settings = PostgresSettings { url, ..settings(&server, "a") };
    (server, proxy, settings)
}

/// A lease so long that its heartbeats do not get between the proxy and the batch.
fn taken(settings: &PostgresSettings) -> Postgres {
    let lease = Duration::from_secs(120);
    let (store, held) = crate::world::taken(&PostgresSettings { lease, ..settings.clone() });
    while held.has_standby() {
        thread::sleep(Duration::from_millis(5));
    }
    store
}

/// Somebody else's transaction, open until dropped.
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
fn a_statement_that_comes_after_it_was_settled_changes_nothing() {
    let (server, proxy, settings) = world();
    let mut store = taken(&settings);
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), Committed::Done));

    proxy.keep_the_next();
    let committed = store.commit(&[lock(2, 1)], Token(2));
    assert!(matches!(committed, Committed::Unknown(_)), "{committed:?}");
    let again = store.commit(&[lock(3, 1)], Token(3));
    assert!(matches!(again, Committed::NotWritten(_)), "nobody has asked: {again:?}");
    assert_eq!(store.last_token().unwrap(), Token(1));

    let answer = proxy.deliver();
    assert!(!answer.is_empty(), "the server never got the statement");
    assert_eq!(store.last_token().unwrap(), Token(1));
    assert_eq!(store.load().unwrap().locks.len(), 1);
    assert!(matches!(store.commit(&[lock(2, 1)], Token(2)), Committed::Done));
    assert_eq!(server.psql("SELECT count(*) FROM lockkeeper.locks").unwrap(), "2");
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for_without_end() {
    let (_server, proxy, settings) = world();
    let mut store = taken(&settings);
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), Committed::Done));
    proxy.hush_at_the_next();
    let began = Instant::now();
    let committed = store.commit(&[lock(2, 1)], Token(2));
    assert!(matches!(committed, Committed::Unknown(_)), "{committed:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // Over another connection, not after the one that may never answer.
    assert_eq!(store.last_token().unwrap(), Token(1));
    assert!(!proxy.deliver().is_empty());
    assert_eq!(store.load().unwrap().locks.len(), 1);
    assert!(matches!(store.commit(&[lock(2, 1)], Token(2)), Committed::Done));
}

#[test]
fn a_statement_that_is_being_committed_is_waited_for() {
    let (server, proxy, settings) = world();
    let mut store = taken(&settings);
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), Committed::Done));

    // It has the state row, and waits for the row that somebody else is about to insert.
    let blocker = Blocker::insert(&server, 2);
    proxy.cut_after_the_next();
    let committed = store.commit(&[lock(2, 1)], Token(2));
    assert!(matches!(committed, Committed::Unknown(_)), "{committed:?}");
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
fn a_statement_of_a_former_writer_that_comes_late_changes_nothing() {
    let (server, proxy, settings) = world();
    let mut former = taken(&settings);
    assert!(matches!(former.commit(&[lock(1, 1)], Token(1)), Committed::Done));
    proxy.keep_the_next();
    let committed = former.commit(&[lock(2, 1)], Token(2));
    assert!(matches!(committed, Committed::Unknown(_)), "{committed:?}");

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
fn what_the_former_writer_is_committing_is_seen_by_the_next() {
    let (server, proxy, settings) = world();
    let mut former = taken(&settings);
    assert!(matches!(former.commit(&[lock(1, 1)], Token(1)), Committed::Done));
    let blocker = Blocker::insert(&server, 2);
    proxy.cut_after_the_next();
    assert!(matches!(former.commit(&[lock(2, 1)], Token(2)), Committed::Unknown(_)));
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
