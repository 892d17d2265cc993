//! The leadership changes hands: only the leader writes, and a standby waits no longer than it must.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_store::Lease;
use lockkeeper_store::conformance::{client, lock};
use lockkeeper_store::postgres::{LeaderWatch, TakeoverDecision};
use lockkeeper_store::{CommitOutcome, Postgres, PostgresSettings, Store, StoreError, Token};
use testbed::postgres::{Server, Stop};

use crate::driver::{settings, taken};

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

/// Stands by until the leadership may be taken.
fn wait_for_leadership(store: &mut Postgres, watch: &mut LeaderWatch) -> TakeoverDecision {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        store.stand_by().unwrap();
        match store.observe_leader(watch).unwrap().1 {
            TakeoverDecision::Wait => {
                assert!(Instant::now() < deadline, "the leadership never becomes vacant")
            }
            decision => return decision,
        }
        thread::sleep(LEASE / 6);
    }
}

#[test]
fn a_former_leader_is_refused_and_changes_nothing() {
    let server = Server::start().unwrap();
    let (mut a, lease) = taken(&short(&server, "a"));
    assert!(matches!(a.commit(&[client(1), lock(2, 1)], Token(1)), CommitOutcome::Done));
    let (mut b, _) = taken(&short(&server, "b"));
    let before = b.load().unwrap();
    for _ in 0..2 {
        let committed = a.commit(&[lock(3, 1), client(4)], Token(2));
        let CommitOutcome::NotWritten(error) = committed else { panic!("{committed:?}") };
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
    // Its release does not affect the new leader.
    a.release_leadership().unwrap();
    assert!(!b.leadership().unwrap().leader.unwrap().has_released);
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
fn a_commit_during_a_takeover_is_applied_whole_or_not_at_all() {
    let server = Server::start().unwrap();
    let (mut a, _) = taken(&short(&server, "a"));
    for _ in 0..10 {
        let mut last = a.last_token().unwrap();
        let (mut b, _) = thread::scope(|scope| {
            let other = scope.spawn(|| taken(&short(&server, "b")));
            loop {
                let next = Token(last.0 + 1);
                match a.commit(&[lock(next.0, 1), client(next.0)], next) {
                    CommitOutcome::Done => last = next,
                    CommitOutcome::NotWritten(StoreError::Replaced { by, .. }) => {
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
        // Under the name of the former leader, so that all rounds are alike.
        drop(a);
        a = taken(&short(&server, "a")).0;
    }
}

#[test]
fn an_outdated_read_takes_no_leadership() {
    let server = Server::start().unwrap();
    let (mut a, lease) = taken(&short(&server, "a"));
    let mut b = Postgres::connect(short(&server, "b")).unwrap();
    let observed = b.leadership().unwrap();
    let beat = observed.leader.as_ref().unwrap().heartbeat;
    soon("a makes progress", || b.leadership().unwrap().leader.unwrap().heartbeat > beat);
    assert!(
        b.take_leadership_if_unchanged(&observed).unwrap().is_none(),
        "from a leader that lives"
    );
    assert!(lease.is_held());
    a.release_leadership().unwrap();
    let observed = b.leadership().unwrap();
    let mut c = Postgres::connect(short(&server, "c")).unwrap();
    assert!(b.take_leadership_if_unchanged(&observed).unwrap().is_some());
    assert!(
        c.take_leadership_if_unchanged(&observed).unwrap().is_none(),
        "from a node that was faster"
    );
}

#[test]
fn a_leader_that_may_still_run_is_listed_until_it_is_fenced() {
    let server = Server::start().unwrap();
    let (_a, _) = taken(&short(&server, "a"));
    let (mut b, _) = taken(&short(&server, "b"));
    assert_eq!(b.leadership().unwrap().unfenced, ["a"]);
    b.release_leadership().unwrap();
    let (mut c, _) = taken(&short(&server, "c"));
    assert_eq!(c.leadership().unwrap().unfenced, ["a"], "after a leader that did not fence it");
    c.release_leadership().unwrap();
    // A command does not lead.
    let mut command = Postgres::connect(short(&server, "command")).unwrap();
    assert!(!command.set_fenced("b", "uid 0 on x").unwrap(), "it was not listed");
    assert!(command.set_fenced("a", "uid 0 on x").unwrap());
    assert!(command.leadership().unwrap().unfenced.is_empty());
    let fencings = command.fencings().unwrap();
    let told: Vec<(&str, &str)> =
        fencings.iter().map(|one| (one.node.as_str(), one.author.as_str())).collect();
    assert_eq!(told, [("a", "uid 0 on x")]);
}

#[test]
fn a_clean_stop_vacates_the_leadership_at_once() {
    let server = Server::start().unwrap();
    let mut b = Postgres::connect(settings(&server, "b")).unwrap();
    let mut watch = LeaderWatch::default();
    assert_eq!(b.observe_leader(&mut watch).unwrap().1, TakeoverDecision::Vacant);
    let (mut a, lease) = taken(&settings(&server, "a"));
    assert_eq!(b.observe_leader(&mut watch).unwrap().1, TakeoverDecision::Wait);
    a.release_leadership().unwrap();
    assert!(!lease.is_held());
    assert_eq!(b.observe_leader(&mut watch).unwrap().1, TakeoverDecision::Vacant);
    b.stand_by().unwrap();
    b.take_leadership().unwrap();
    let leadership = b.leadership().unwrap();
    assert_eq!(leadership.leader.unwrap().node, "b");
    assert!(leadership.standbys.is_empty());
}

#[test]
fn a_standby_counts_while_its_counter_moves() {
    let server = Server::start().unwrap();
    let (mut a, lease) = taken(&short(&server, "a"));
    soon("there is no standby", || !lease.has_standby());
    let mut b = Postgres::connect(short(&server, "b")).unwrap();
    let stands_by = |b: &mut Postgres, lease: &Lease| {
        b.stand_by().unwrap();
        lease.has_standby()
    };
    soon("b stands by", || stands_by(&mut b, &lease));
    assert_eq!(a.leadership().unwrap().standbys[0].node, "b");
    assert!(lease.is_held());
    b.stop_standing_by().unwrap();
    soon("b has stopped", || !lease.has_standby());
    soon("b stands by again", || stands_by(&mut b, &lease));
    // Now without removing itself.
    let began = Instant::now();
    soon("b is dead", || !lease.has_standby());
    assert!(began.elapsed() > LEASE / 2, "{:?}", began.elapsed());
}

#[test]
fn an_outage_suspends_the_lease_of_a_pair_without_a_takeover() {
    let server = Server::start().unwrap();
    let (_a, lease) = taken(&short(&server, "a"));
    let mut b = Postgres::connect(short(&server, "b")).unwrap();
    let mut watch = LeaderWatch::default();
    soon("b stands by", || {
        b.stand_by().unwrap();
        assert_eq!(b.observe_leader(&mut watch).unwrap().1, TakeoverDecision::Wait);
        lease.has_standby()
    });
    assert!(lease.is_held());
    server.stop(Stop::Fast).unwrap();
    thread::sleep(LEASE * 3 / 4);
    assert!(!lease.is_held(), "renewed {:?} ago", lease.renewed_ago());
    let until = Instant::now() + 2 * LEASE;
    while Instant::now() < until {
        assert!(b.observe_leader(&mut watch).is_err());
        thread::sleep(LEASE / 6);
    }
    server.start_again().unwrap();
    soon("a serves again", || {
        assert_eq!(b.observe_leader(&mut watch).unwrap().1, TakeoverDecision::Wait);
        thread::sleep(LEASE / 6);
        lease.is_held()
    });
}

#[test]
fn a_backend_that_blocks_a_takeover_is_terminated() {
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
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), CommitOutcome::Done));
    blocker.wait().unwrap();
}

/// B6.67
#[test]
fn a_transaction_that_was_forgotten_is_warned_of() {
    let server = Server::start().unwrap();
    let sql = "BEGIN; CREATE TABLE forgotten (); SELECT pg_sleep(100)";
    let mut forgotten = std::process::Command::new("psql")
        .args(["-X", "-q", "-d", &format!("{} application_name=cron", server.url()), "-c", sql])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let old = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' \
         AND xact_start < clock_timestamp() - interval '1 second'";
    soon("it is old", || server.psql(old).unwrap() == "1");
    let (_a, usual) = taken(&short(&server, "a"));
    let (_b, lease) =
        taken(&PostgresSettings { slow_after: Duration::from_secs(1), ..short(&server, "b") });
    soon("it is warned of", || lease.warning().is_some());
    let warning = lease.warning().unwrap();
    assert!(warning.contains("(cron)") && warning.contains("pg_terminate_backend("), "{warning}");
    assert_eq!(usual.warning(), None, "for five minutes");
    server
        .psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
        .unwrap();
    forgotten.wait().unwrap();
}

/// Stands by and takes over.
pub fn take_when_free(
    settings: &PostgresSettings,
) -> (Postgres, Lease, TakeoverDecision, Duration) {
    let mut store = Postgres::connect(settings.clone()).unwrap();
    let began = Instant::now();
    let decision = wait_for_leadership(&mut store, &mut LeaderWatch::default());
    let lease = store.take_leadership().unwrap();
    (store, lease, decision, began.elapsed())
}
