//! The seat changes hands: nobody writes without it, and nobody waits for it longer than needed.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_store::Lease;
use lockkeeper_store::conformance::{client, lock};
use lockkeeper_store::postgres::{Verdict, Watch};
use lockkeeper_store::{Committed, Postgres, PostgresSettings, Store, StoreError, Token};
use testbed::postgres::{Server, Stop};

use crate::world::{settings, taken};

const LEASE: Duration = Duration::from_secs(1);

fn short(server: &Server, node: &str) -> PostgresSettings {
    PostgresSettings { lease: LEASE, ..settings(server, node) }
}

fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Looks as a standby does until the seat may be taken.
fn wait_for_seat(store: &mut Postgres, watch: &mut Watch) -> Verdict {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        store.stand_by().unwrap();
        match store.watch(watch).unwrap().1 {
            Verdict::Wait => assert!(Instant::now() < deadline, "it is never free"),
            verdict => return verdict,
        }
        thread::sleep(LEASE / 6);
    }
}

#[test]
fn the_former_writer_is_refused_and_changes_nothing() {
    let server = Server::start().unwrap();
    let (mut a, lease) = taken(&short(&server, "a"));
    assert!(matches!(a.commit(&[client(1), lock(2, 1)], Token(1)), Committed::Done));
    let (mut b, _) = taken(&short(&server, "b"));
    let before = b.load().unwrap();
    for _ in 0..2 {
        let committed = a.commit(&[lock(3, 1), client(4)], Token(2));
        let Committed::NotWritten(error) = committed else { panic!("{committed:?}") };
        assert!(error.is_fatal(), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("another server took over: b since 2"), "{text}");
    }
    assert!(matches!(a.clear(true), Err(StoreError::Replaced { .. })));
    assert!(matches!(a.load(), Err(StoreError::Replaced { .. })));
    assert!(!lease.is_held());
    assert!(lease.replaced_by().unwrap().starts_with("b since 2"));
    assert_eq!(b.load().unwrap(), before);
    assert_eq!(b.last_token().unwrap(), Token(1));
    // Its clean stop is none of the new one's.
    a.release().unwrap();
    assert!(!b.seat().unwrap().holder.unwrap().left);
}

#[test]
fn a_heartbeat_alone_finds_out_who_took_over() {
    let server = Server::start().unwrap();
    let (_a, lease) = taken(&short(&server, "a"));
    let (_b, _) = taken(&short(&server, "b"));
    soon("a knows", || lease.replaced_by().is_some());
    assert!(!lease.is_held());
}

#[test]
fn a_commit_in_the_midst_of_a_takeover_is_whole_or_nothing() {
    let server = Server::start().unwrap();
    let (mut a, _) = taken(&short(&server, "a"));
    for round in 0..10 {
        let (mut b, _) = thread::scope(|scope| {
            let other = scope.spawn(|| taken(&short(&server, "b")));
            let mut last = Token(a.last_token().map_or(round * 1_000_000, |token| token.0));
            loop {
                let next = Token(last.0 + 1);
                match a.commit(&[lock(next.0, 1), client(next.0)], next) {
                    Committed::Done => last = next,
                    Committed::NotWritten(StoreError::Replaced { by, .. }) => {
                        assert_eq!(by, "b");
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            let mut b = other.join().unwrap();
            assert_eq!(b.0.last_token().unwrap(), last);
            b
        });
        let saved = b.load().unwrap();
        assert_eq!(saved.locks.len(), saved.clients.len());
        a = b;
        // Under the name of the former one, so that the next round is like this.
        drop(a);
        a = taken(&short(&server, "a")).0;
    }
}

#[test]
fn a_look_that_is_old_takes_nothing() {
    let server = Server::start().unwrap();
    let (mut a, lease) = taken(&short(&server, "a"));
    let mut b = Postgres::connect(short(&server, "b")).unwrap();
    let seen = b.seat().unwrap();
    let beat = seen.holder.as_ref().unwrap().heartbeat;
    soon("a shows life", || b.seat().unwrap().holder.unwrap().heartbeat > beat);
    assert!(b.take_as_seen(&seen).unwrap().is_none(), "from one that lives");
    assert!(lease.is_held());
    a.release().unwrap();
    let seen = b.seat().unwrap();
    let mut c = Postgres::connect(short(&server, "c")).unwrap();
    assert!(b.take_as_seen(&seen).unwrap().is_some());
    assert!(c.take_as_seen(&seen).unwrap().is_none(), "from one that was faster");
}

#[test]
fn who_was_not_certain_to_be_dead_stays_known_until_it_is_fenced() {
    let server = Server::start().unwrap();
    let (_a, _) = taken(&short(&server, "a"));
    let (mut b, _) = taken(&short(&server, "b"));
    assert_eq!(b.seat().unwrap().unfenced, ["a"]);
    b.release().unwrap();
    let (mut c, _) = taken(&short(&server, "c"));
    assert_eq!(c.seat().unwrap().unfenced, ["a"], "whoever fails to fence it");
    c.fenced().unwrap();
    assert!(c.seat().unwrap().unfenced.is_empty());
}

#[test]
fn a_clean_stop_frees_the_seat_at_once() {
    let server = Server::start().unwrap();
    let mut b = Postgres::connect(settings(&server, "b")).unwrap();
    let mut watch = Watch::default();
    assert_eq!(b.watch(&mut watch).unwrap().1, Verdict::Free);
    let (mut a, lease) = taken(&settings(&server, "a"));
    assert_eq!(b.watch(&mut watch).unwrap().1, Verdict::Wait);
    a.release().unwrap();
    assert!(!lease.is_held());
    assert_eq!(b.watch(&mut watch).unwrap().1, Verdict::Free);
    b.stand_by().unwrap();
    b.take().unwrap();
    let seat = b.seat().unwrap();
    assert_eq!(seat.holder.unwrap().node, "b");
    assert!(seat.standbys.is_empty());
}

#[test]
fn a_standby_is_seen_while_it_says_so() {
    let server = Server::start().unwrap();
    let (mut a, lease) = taken(&short(&server, "a"));
    soon("nobody is there", || !lease.has_standby());
    let mut b = Postgres::connect(short(&server, "b")).unwrap();
    let seen = |b: &mut Postgres, lease: &Lease| {
        b.stand_by().unwrap();
        lease.has_standby()
    };
    soon("b is there", || seen(&mut b, &lease));
    assert_eq!(a.seat().unwrap().standbys[0].node, "b");
    assert!(lease.is_held());
    b.stop_standing_by().unwrap();
    soon("b has gone", || !lease.has_standby());
    soon("b is there again", || seen(&mut b, &lease));
    // And now without a word.
    let began = Instant::now();
    soon("b is dead", || !lease.has_standby());
    assert!(began.elapsed() > LEASE / 2, "{:?}", began.elapsed());
}

#[test]
fn an_outage_ends_the_service_of_a_pair_and_no_life() {
    let server = Server::start().unwrap();
    let (_a, lease) = taken(&short(&server, "a"));
    let mut b = Postgres::connect(short(&server, "b")).unwrap();
    let mut watch = Watch::default();
    soon("b is there", || {
        b.stand_by().unwrap();
        assert_eq!(b.watch(&mut watch).unwrap().1, Verdict::Wait);
        lease.has_standby()
    });
    assert!(lease.is_held());
    server.stop(Stop::Fast).unwrap();
    thread::sleep(LEASE * 3 / 4);
    assert!(!lease.is_held(), "renewed {:?} ago", lease.renewed_ago());
    let until = Instant::now() + 2 * LEASE;
    while Instant::now() < until {
        assert!(b.watch(&mut watch).is_err());
        thread::sleep(LEASE / 6);
    }
    server.start_again().unwrap();
    soon("a serves again", || {
        assert_eq!(b.watch(&mut watch).unwrap().1, Verdict::Wait);
        thread::sleep(LEASE / 6);
        lease.is_held()
    });
}

#[test]
fn a_session_that_blocks_the_seat_is_sent_away() {
    let server = Server::start().unwrap();
    drop(Postgres::connect(settings(&server, "a")).unwrap());
    let sql = "BEGIN; UPDATE lockkeeper.state SET token = token; SELECT pg_sleep(100)";
    let mut blocker = std::process::Command::new("psql")
        .args(["-X", "-q", "-d", &server.url(), "-c", sql])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    soon("it blocks", || {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        server.psql(waits).unwrap() == "1"
    });
    let began = Instant::now();
    let (mut store, _) = taken(&settings(&server, "a"));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), Committed::Done));
    blocker.wait().unwrap();
}

/// Used by whoever plays a standby.
pub fn take_when_free(settings: &PostgresSettings) -> (Postgres, Lease, Verdict, Duration) {
    let mut store = Postgres::connect(settings.clone()).unwrap();
    let began = Instant::now();
    let verdict = wait_for_seat(&mut store, &mut Watch::default());
    let lease = store.take().unwrap();
    (store, lease, verdict, began.elapsed())
}
