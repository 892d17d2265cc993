//! The heartbeat: counts up in the database while this server lives, and learns in the same round
//! trip whether it still leads and whether a standby waits. It has its own thread, runtime and
//! connection, so that neither a big batch nor a long load delays it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use keeper::change::Exactness;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_postgres::{Client, Error, Statement};

use super::connection::{Connection, Database, StatementFailure};
use super::leadership::{Leadership, holder, replaced};
use super::rows::unsigned;
use super::trust::Holder;
use super::vouch::{TIMELINE, distrust};
use crate::error::StoreError;
use crate::lease::{Lease, boottime};

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often the database is searched for what slows it down.
const SLOWED_EVERY: Duration = Duration::from_secs(60);

/// The heartbeat thread. Dropping it stops the thread; the lease then expires.
pub(super) struct Heartbeat {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(super) fn start(
        database: Database,
        leader: LeaderIdentity,
        lease: Lease,
        acknowledged: Arc<AtomicU64>,
        slow_after: Duration,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let work = move || {
            runtime.block_on(async {
                // A separate task: it must run while the heartbeat waits for an answer.
                let ticking = lease.clone();
                tokio::spawn(async move {
                    loop {
                        ticking.tick();
                        sleep(ticking.term() / 6).await;
                    }
                });
                let standbys = StandbyCounters::default();
                let mut task = HeartbeatTask {
                    database,
                    leader,
                    lease,
                    acknowledged,
                    slow_after,
                    standbys,
                    checked: None,
                };
                tokio::select! {
                    _ = stopped => {}
                    () = task.run() => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("lockkeeper-lease".to_owned()).spawn(work)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The leadership that is renewed.
pub(super) struct LeaderIdentity {
    pub(super) nonce: i64,
    /// The nonce with which it is being retaken, if not 0.
    pub(super) candidate: Arc<AtomicI64>,
    pub(super) writer: i64,
}

struct HeartbeatTask {
    database: Database,
    leader: LeaderIdentity,
    lease: Lease,
    /// The last batch that was acknowledged.
    acknowledged: Arc<AtomicU64>,
    slow_after: Duration,
    standbys: StandbyCounters,
    /// When the database was last searched for what slows it down.
    checked: Option<Duration>,
}

impl HeartbeatTask {
    /// Returns when this server leads no more.
    async fn run(&mut self) {
        let term = self.lease.term();
        let mut pause = PAUSE_MIN;
        loop {
            match self.run_on_one_connection(&mut pause).await {
                StoreError::Replaced { by, since } => {
                    self.lease.set_replaced_by(&format!("{by} since {since}"));
                    return;
                }
                // The committer compares, and retakes the leadership.
                error @ StoreError::Behind { .. } => {
                    self.lease.set_suspended(true);
                    self.lease.set_last_error(Some(error.to_string()));
                }
                error if error.is_fatal() => {
                    self.lease.set_last_error(Some(error.to_string()));
                    self.lease.set_lost(error.to_string());
                    return;
                }
                error => self.lease.set_last_error(Some(error.to_string())),
            }
            sleep(pause).await;
            // After an outage of the database a standby waits for one lease: reconnect well before.
            pause = (pause * 2).min(PAUSE_MAX).min(term / 3);
        }
    }

    async fn run_on_one_connection(&mut self, pause: &mut Duration) -> StoreError {
        let term = self.lease.term();
        let connection = match self.database.open(term).await {
            Ok(connection) => connection,
            Err(error) => return error,
        };
        let prepared = self.database.within(term / 2, prepare(&connection)).await;
        let statement = match prepared {
            Ok(statement) => statement,
            Err(failure) => return failure.error,
        };
        loop {
            match self.beat_once(&connection, &statement).await {
                Ok(()) => *pause = PAUSE_MIN,
                Err(error) => return error,
            }
            sleep(term / 6).await;
        }
    }

    async fn beat_once(
        &mut self,
        connection: &Connection,
        statement: &Statement,
    ) -> Result<(), StoreError> {
        let term = self.lease.term();
        let error_of = |failure: StatementFailure| failure.error;
        let sent = boottime();
        // Read before the statement is sent: what it finds is not older.
        let acknowledged = self.acknowledged.load(Ordering::Acquire);
        let nonce = self.leader.nonce;
        let query = async { connection.client.query(statement, &[&nonce]).await };
        let rows = self.database.within(term / 2, query).await.map_err(error_of)?;
        if !rows.first().is_some_and(|row| row.get::<_, bool>(0)) {
            return Err(self.explain(connection).await);
        }
        let token = rows.first().map_or(0, |row| unsigned(row.get(1)));
        if token < acknowledged {
            let what =
                format!("batch {acknowledged} was acknowledged, and {token} is the last one");
            return Err(StoreError::Behind { location: self.database.location.clone(), what });
        }
        if self.checked.is_none_or(|then| sent.saturating_sub(then) > SLOWED_EVERY) {
            self.checked = Some(sent);
            let slowed = slowed(&connection.client, self.slow_after);
            let slowed = self.database.within(term / 2, slowed).await.map_err(error_of)?;
            self.lease.set_warning(slowed);
        }
        let counters = rows.iter().filter_map(|row| {
            let (name, counter): (Option<String>, Option<i64>) = (row.get(2), row.get(3));
            Some((name?, unsigned(counter?)))
        });
        let standby = self.standbys.any_alive(counters, sent, term);
        self.lease.renew(sent, standby);
        Ok(())
    }

    /// Why the lease was not renewed.
    async fn explain(&self, connection: &Connection) -> StoreError {
        let limit = self.lease.term() / 2;
        let location = self.database.location.clone();
        let leadership = self.database.within(limit, Leadership::read(connection, 0)).await;
        let leadership = match leadership {
            Ok(leadership) => leadership,
            Err(failure) => return failure.error,
        };
        let LeaderIdentity { nonce, candidate, writer } = &self.leader;
        let drawn = candidate.load(Ordering::Acquire);
        let nonces = [*nonce, if drawn == 0 { *nonce } else { drawn }];
        match holder(&leadership, &nonces, *writer) {
            Holder::Successor => replaced(&leadership),
            Holder::Own | Holder::Former => {
                self.lease.set_suspended(true);
                let timeline = &leadership.timeline;
                self.database.unreachable(format!(
                    "it has failed over (timeline {timeline}), and is compared with what this \
                     server has acknowledged"
                ))
            }
            Holder::Predecessor => {
                let open = distrust(connection, Exactness::Open);
                match self.database.within(limit, open).await {
                    Ok(()) => {
                        let what = "that this server took the leadership".to_owned();
                        StoreError::LostCommits { location, what }
                    }
                    Err(failure) => failure.error,
                }
            }
        }
    }
}

/// Not synced: the next heartbeat makes up for one that a crash of the database loses, and a slow
/// disk or replica must not cost the leadership.
async fn prepare(connection: &Connection) -> Result<Statement, Error> {
    connection.client.batch_execute("SET synchronous_commit = off").await?;
    let sql = format!(
        "WITH me AS (UPDATE seat SET heartbeat = heartbeat + 1, \
                 promised = promised AND current_setting('synchronous_standby_names') <> '' \
             WHERE nonce = $1 AND timeline = {TIMELINE} RETURNING 1) \
         SELECT EXISTS (SELECT FROM me), (SELECT token FROM state), nodes.name, nodes.counter \
         FROM (VALUES (1)) AS one LEFT JOIN nodes ON true \
         ORDER BY nodes.refreshed DESC NULLS LAST LIMIT 64"
    );
    connection.client.prepare(&sql).await
}

/// What keeps the database from clearing away old rows, which slows every batch down: a transaction
/// that was forgotten, or a replication slot without its replica. `None` if there is none, or none that
/// the role may see.
async fn slowed(client: &Client, after: Duration) -> Result<Option<String>, Error> {
    let sql = "SELECT 'process ' || pid || ' (' || coalesce(nullif(application_name, ''), 'no name') \
             || ') has had a transaction open for ' \
             || extract(epoch FROM clock_timestamp() - xact_start)::bigint / 60 || ' min: end it with \
             SELECT pg_terminate_backend(' || pid || ')' \
         FROM pg_stat_activity WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL \
             AND pid <> pg_backend_pid() AND backend_type = 'client backend' \
             AND xact_start < clock_timestamp() - $1 * interval '1 second' \
         UNION ALL \
         SELECT 'replication slot ' || slot_name || ' has no replica: start its replica, or drop it \
             with SELECT pg_drop_replication_slot(' || quote_literal(slot_name) || ')' \
         FROM pg_replication_slots WHERE NOT active \
             AND greatest(age(xmin), age(catalog_xmin)) > 100000 LIMIT 1";
    let row = client.query_opt(sql, &[&after.as_secs_f64()]).await?;
    row.map(|row| row.try_get(0)).transpose()
}

/// The standbys by name, timed by this machine's clock.
#[derive(Default)]
struct StandbyCounters(HashMap<String, StandbyCounter>);

struct StandbyCounter {
    counter: u64,
    moved_at: Duration,
}

impl StandbyCounters {
    /// Whether a counter has moved within the last term. One that is new counts as moved.
    fn any_alive(
        &mut self,
        counters: impl Iterator<Item = (String, u64)>,
        now: Duration,
        term: Duration,
    ) -> bool {
        let mut before = std::mem::take(&mut self.0);
        for (name, counter) in counters {
            let moved_at = match before.remove(&name) {
                Some(last) if last.counter == counter => last.moved_at,
                _ => now,
            };
            self.0.insert(name, StandbyCounter { counter, moved_at });
        }
        self.0.values().any(|standby| now.saturating_sub(standby.moved_at) <= term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_is_one_whose_counter_moves() {
        let term = Duration::from_secs(3);
        let mut standbys = StandbyCounters::default();
        let mut observe = |counter: Option<u64>, at| {
            let counters = counter.map(|counter| ("b".to_owned(), counter)).into_iter();
            standbys.any_alive(counters, Duration::from_secs(at), term)
        };
        assert!(!observe(None, 100));
        assert!(observe(Some(1), 101));
        assert!(observe(Some(1), 104));
        assert!(!observe(Some(1), 105));
        assert!(observe(Some(2), 106));
        assert!(!observe(None, 107));
    }
}
