//! PostgreSQL fails over to a replica, with and without a loss, or comes back from a backup. The store
//! is exact only if every acknowledged batch is there.

use std::thread;
use std::time::{Duration, Instant};

use keeper::change::{Change, Exactness, Snapshot};
use keeper::identity::{Epoch, LockId};
use lockkeeper_store::conformance::{client, lock};
use lockkeeper_store::postgres::Failover;
use lockkeeper_store::{
    CommitOutcome, Durability, Postgres, PostgresSettings, Store, StoreError, Token,
};
use testbed::postgres::{Options, Server, Stop};

use crate::driver::taken;

const LEASE: Duration = Duration::from_secs(1);

/// A primary and its replica, under one URL.
struct Pair {
    primary: Server,
    replica: Server,
}

impl Pair {
    fn start() -> Self {
        // Synced: only the failover can lose anything.
        let options = Options { fsync: true, ..Options::default() };
        let primary = Server::start_with(&options).unwrap();
        let replica = primary.replica(&[]).unwrap();
        Self { primary, replica }
    }

    fn settings(&self, node: &str) -> PostgresSettings {
        let directories =
            [&self.primary, &self.replica].map(|one| one.socket_directory().display());
        let [first, second] = directories;
        let url = format!("host={first},{second} user=postgres dbname=postgres");
        PostgresSettings { lease: LEASE, ..PostgresSettings::new(&url, node, Durability::Process) }
    }

    /// The replica has everything so far, and nothing that follows.
    fn cut(&self) {
        let at = self.primary.psql("SELECT pg_current_wal_insert_lsn()").unwrap();
        let has = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'");
        soon("the replica has replayed", || self.replica.psql(&has).unwrap() == "t");
        self.replica.stop_streaming().unwrap();
    }

    fn fail_over(&self) {
        self.primary.stop(Stop::Immediate).unwrap();
        self.replica.promote().unwrap();
    }
}

fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn done(outcome: CommitOutcome) {
    assert!(matches!(outcome, CommitOutcome::Done), "{outcome:?}");
}

fn exactness(settings: &PostgresSettings) -> Exactness {
    taken(settings).0.load().unwrap().exactness
}

/// The node and the primary die together; another node takes over on a replica that lags.
#[test]
fn a_takeover_on_a_replica_that_lacks_batches_is_open() {
    let pair = Pair::start();
    let (mut a, _) = taken(&pair.settings("a"));
    done(a.commit(&[client(1), lock(2, 1)], Token(1)));
    pair.cut();
    done(a.commit(&[client(3), lock(4, 3)], Token(2)));
    pair.primary.stop(Stop::Immediate).unwrap();
    drop(a);
    pair.replica.promote().unwrap();
    let (mut b, _) = taken(&pair.settings("b"));
    let saved = b.load().unwrap();
    assert_eq!((saved.locks.len(), saved.exactness), (1, Exactness::Open));
    // Until the grace has ended durably.
    done(b.commit(&[Change::Started { epoch: Epoch(9), grace: Some(Exactness::Open) }], Token(2)));
    assert_eq!(b.load().unwrap().exactness, Exactness::Open);
    drop(b);
    assert_eq!(exactness(&pair.settings("b")), Exactness::Open, "inside the grace");
    let (mut b, _) = taken(&pair.settings("b"));
    done(b.commit(&[Change::GraceEnded], Token(3)));
    assert_eq!(b.load().unwrap().exactness, Exactness::Exact);
    drop(b);
    assert_eq!(exactness(&pair.settings("b")), Exactness::Exact, "after the grace");
}

/// A server without lock traffic does not renew its lease on the promoted replica before it has
/// compared what the replica has.
#[test]
fn an_idle_leader_does_not_renew_its_lease_on_a_replica_that_lacks_batches() {
    let pair = Pair::start();
    let (mut a, lease) = taken(&pair.settings("a"));
    done(a.commit(&[client(1), lock(2, 1)], Token(1)));
    pair.cut();
    done(a.commit(&[client(3), lock(4, 3)], Token(2)));
    let before = pair.replica.psql("SELECT heartbeat FROM lockkeeper.seat").unwrap();
    pair.fail_over();
    thread::sleep(2 * LEASE);
    assert_eq!(pair.replica.psql("SELECT heartbeat FROM lockkeeper.seat").unwrap(), before);
    assert!(!lease.is_fresh());
    // Killed before its next batch: the next start is not exact.
    std::mem::forget(a);
    assert_eq!(exactness(&pair.settings("b")), Exactness::Open);
}

fn store_of(settings: &PostgresSettings) -> Snapshot {
    Postgres::connect(settings.clone()).unwrap().load().unwrap()
}

/// Asks for the last token until the database answers.
fn settled(store: &mut Postgres) -> Result<Token, StoreError> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match store.last_token() {
            Err(error) if error.is_transient() => assert!(Instant::now() < deadline, "{error}"),
            other => return other,
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Retries as the engine does.
fn rewritten(store: &mut Postgres, saved: &Snapshot, token: Token) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match store.rewrite(saved, token) {
            CommitOutcome::Done => return,
            CommitOutcome::NotWritten(error) if error.is_transient() => {
                assert!(Instant::now() < deadline, "{error}");
            }
            other => panic!("{other:?}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The leader has the truth in memory: it writes it back, takes the leadership on the new timeline, and
/// what a start finds then is exact.
#[test]
fn a_leader_that_lives_writes_back_what_the_replica_lacks() {
    let pair = Pair::start();
    let settings = pair.settings("a");
    let (mut a, lease) = taken(&settings);
    done(a.commit(&[client(1), lock(2, 1)], Token(1)));
    pair.cut();
    done(a.commit(&[client(3), lock(4, 3), Change::LockGone(LockId(2))], Token(2)));
    let mut expected = a.load().unwrap();
    pair.fail_over();
    let error = settled(&mut a).unwrap_err();
    assert!(error.is_behind() && !error.is_fatal(), "{error}");
    // With the batch that was being committed.
    let refused = a.commit(&[lock(5, 1)], Token(3));
    assert!(
        matches!(&refused, CommitOutcome::NotWritten(error) if error.is_behind()),
        "{refused:?}"
    );
    expected.apply(lock(5, 1));
    rewritten(&mut a, &expected, Token(3));
    assert_eq!(store_of(&settings), expected);
    soon("the lease is renewed on the new timeline", || lease.is_fresh());
    done(a.commit(&[lock(6, 1)], Token(4)));
    assert_eq!(settled(&mut a).unwrap(), Token(4));
    expected.apply(lock(6, 1));
    drop(a);
    assert_eq!(taken(&settings).0.load().unwrap(), expected);
}

/// The failover loses that b took over. Nonces are never equal, so b does not mistake a's leadership
/// for its own, nor a b's; and a, which was replaced, does not lead again.
#[test]
fn a_failover_that_loses_a_takeover_gives_nobody_the_lease() {
    let pair = Pair::start();
    let (mut a, a_lease) = taken(&pair.settings("a"));
    done(a.commit(&[client(1), lock(2, 1)], Token(1)));
    pair.cut();
    let (mut b, b_lease) = taken(&pair.settings("b"));
    done(b.commit(&[client(3), lock(4, 3)], Token(2)));
    let expected = b.load().unwrap();
    let replaced = a.commit(&[lock(9, 1)], Token(2));
    assert!(matches!(replaced, CommitOutcome::NotWritten(StoreError::Replaced { .. })));
    pair.fail_over();
    // On the replica a leads, as far as the tables show.
    assert_eq!(pair.replica.psql("SELECT node FROM lockkeeper.seat").unwrap(), "a");
    let error = settled(&mut b).unwrap_err();
    assert!(error.is_behind(), "{error}");
    rewritten(&mut b, &expected, Token(2));
    soon("b leads", || b_lease.is_fresh());
    assert_eq!(store_of(&pair.settings("b")), expected);
    assert!(!a_lease.is_held());
}

/// The lease had run out before the failover was noticed: another server of the pair may have led
/// meanwhile, so the memory of this one is not the truth.
#[test]
fn a_leader_of_a_pair_whose_lease_ran_out_writes_nothing_back() {
    let pair = Pair::start();
    let settings = PostgresSettings { pair: true, ..pair.settings("a") };
    let (mut a, lease) = taken(&settings);
    done(a.commit(&[client(1), lock(2, 1)], Token(1)));
    pair.cut();
    done(a.commit(&[client(3), lock(4, 3)], Token(2)));
    pair.primary.stop(Stop::Immediate).unwrap();
    soon("the lease runs out", || lease.renewed_ago() > LEASE);
    pair.replica.promote().unwrap();
    let error = settled(&mut a).unwrap_err();
    assert!(matches!(error, StoreError::LostCommits { .. }) && error.is_fatal(), "{error}");
    drop(a);
    assert_eq!(exactness(&settings), Exactness::Open);
}

/// Nothing was lost: the leader goes on without a grace, and so does one that was killed, by its mark.
#[test]
fn a_failover_that_loses_nothing_is_exact_for_a_leader_that_knows_its_last_batch() {
    let run = tempfile::tempdir().unwrap();
    let pair = Pair::start();
    let run_directory = Some(run.path().to_owned());
    let settings = PostgresSettings { run_directory, ..pair.settings("a") };
    let (mut a, lease) = taken(&settings);
    soon("there is no standby", || !lease.has_standby());
    done(a.commit(&[client(1), lock(2, 1)], Token(1)));
    pair.cut();
    pair.fail_over();
    soon("the heartbeat asks for a comparison", || lease.is_suspended());
    assert_eq!(settled(&mut a).unwrap(), Token(1));
    soon("the lease is renewed on the new timeline", || lease.is_fresh());
    done(a.commit(&[lock(3, 1)], Token(2)));
    drop(a);
    assert_eq!(
        exactness(&PostgresSettings { run_directory: None, ..settings.clone() }),
        Exactness::Exact
    );
    // A second failover; this time the server was killed before.
    let (mut a, lease) = taken(&settings);
    soon("there is no standby", || !lease.has_standby());
    done(a.commit(&[lock(4, 1)], Token(3)));
    let next = pair.replica.replica(&[]).unwrap();
    std::mem::forget(a);
    pair.replica.stop(Stop::Immediate).unwrap();
    next.promote().unwrap();
    let after = PostgresSettings { url: next.url(), ..settings };
    let unmarked = PostgresSettings { run_directory: None, ..after.clone() };
    assert_eq!(store_of(&unmarked).exactness, Exactness::Open, "without the mark");
    assert_eq!(exactness(&after), Exactness::Exact, "with it");
}

fn wait_for_replica(server: &Server, names: &str) {
    let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
    server.psql(&format!("{set}; SELECT pg_reload_conf()")).unwrap();
    let shown = "SELECT current_setting('synchronous_standby_names')";
    soon("the setting", || server.psql(shown).unwrap() == names);
}

/// With synchronous replicas, and the operator's promise that only they are promoted, a takeover after
/// a failover is exact; not if the replicas were taken away meanwhile (B6.63).
#[test]
fn a_promised_synchronous_failover_is_exact() {
    for kept in [true, false] {
        let pair = Pair::start();
        wait_for_replica(&pair.primary, "*");
        let promised =
            |node| PostgresSettings { failover: Failover::Synchronous, ..pair.settings(node) };
        let (mut a, lease) = taken(&promised("a"));
        done(a.commit(&[client(1), lock(2, 1)], Token(1)));
        if !kept {
            wait_for_replica(&pair.primary, "");
            let seen = "SELECT promised FROM lockkeeper.seat";
            soon("the heartbeat has seen it", || pair.replica.psql(seen).unwrap() == "f");
        }
        pair.fail_over();
        std::mem::forget((a, lease));
        let unpromised = store_of(&pair.settings("b"));
        assert_eq!((unpromised.locks.len(), unpromised.exactness), (1, Exactness::Open));
        let expected = if kept { Exactness::Exact } else { Exactness::Open };
        assert_eq!(exactness(&promised("b")), expected, "kept: {kept}");
    }
}

/// A batch whose wait for the replica is cancelled succeeds with a warning: it may be on the primary
/// only, and is not acknowledged before a later transaction has waited for the replica.
#[test]
fn a_cancelled_wait_for_a_replica_is_an_unknown_commit() {
    let server = Server::start().unwrap();
    let (mut store, _) = taken(&PostgresSettings::new(&server.url(), "a", Durability::Process));
    done(store.commit(&[lock(1, 1)], Token(1)));
    wait_for_replica(&server, "absent");
    let waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                let count = format!("SELECT count(*) > 0 {waiting}");
                soon("a commit waits", || server.psql(&count).unwrap() == "t");
                server.psql(&format!("SELECT pg_cancel_backend(pid) {waiting}")).unwrap();
            }
        });
        // The reload reaches each connection after a moment.
        let token = (2..).find_map(|token| match store.commit(&[lock(token, 1)], Token(token)) {
            CommitOutcome::Done => None,
            CommitOutcome::Unknown(_) => Some(Token(token)),
            other => panic!("{other:?}"),
        });
        let token = token.unwrap();
        let unsettled = store.last_token();
        assert!(unsettled.as_ref().is_err_and(StoreError::is_transient), "{unsettled:?}");
        wait_for_replica(&server, "");
        assert_eq!(settled(&mut store).unwrap(), token);
        done(store.commit(&[lock(token.0 + 1, 1)], Token(token.0 + 1)));
    });
}

/// A dump has the same epoch as a server that has been up for months, and carries the row of an
/// unlogged table along.
#[test]
fn a_restored_dump_is_open() {
    let server = Server::start().unwrap();
    let settings = PostgresSettings::new(&server.url(), "a", Durability::Process);
    let (mut a, _) = taken(&settings);
    done(a.commit(&[client(1), lock(2, 1)], Token(1)));
    let dump = server.dump("lockkeeper").unwrap();
    done(a.commit(&[client(3), lock(4, 3)], Token(2)));
    drop(a);
    server.psql("VACUUM FREEZE").unwrap();
    assert_eq!(exactness(&settings), Exactness::Exact, "VACUUM FREEZE is no restoration");
    server.psql("DROP SCHEMA lockkeeper CASCADE").unwrap();
    server.psql(&dump).unwrap();
    assert_eq!(
        Postgres::connect(settings.clone()).unwrap().load().unwrap().exactness,
        Exactness::Open
    );
    let (mut a, _) = taken(&settings);
    assert_eq!(a.load().unwrap().exactness, Exactness::Open);
    done(a.commit(&[Change::Started { epoch: Epoch(9), grace: Some(Exactness::Open) }], Token(2)));
    done(a.commit(&[Change::GraceEnded], Token(3)));
    drop(a);
    assert_eq!(exactness(&settings), Exactness::Exact);
}
