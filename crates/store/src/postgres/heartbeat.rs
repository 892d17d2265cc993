//! The heartbeat: counts up in the database while this server lives, and learns in the same round
//! trip whether it still leads and whether a standby waits. It has its own thread, runtime and
//! connection, so that neither a big batch nor a long load delays it.

use std::collections::HashMap;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_postgres::{Error, Statement};

use super::connection::{Connection, Database, StatementFailure};
use super::leadership::{Leadership, distrust, explain_loss};
use super::rows::unsigned;
use crate::error::StoreError;
use crate::lease::{Lease, boottime};

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The heartbeat thread. Dropping it stops the thread; the lease then expires.
pub(super) struct Heartbeat {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(super) fn start(database: Database, writer: i64, lease: Lease) -> io::Result<Self> {
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
                let mut task = HeartbeatTask { database, writer, lease, standbys };
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

struct HeartbeatTask {
    database: Database,
    writer: i64,
    lease: Lease,
    standbys: StandbyCounters,
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
        let query = async { connection.client.query(statement, &[&self.writer]).await };
        let rows = self.database.within(term / 2, query).await.map_err(error_of)?;
        if !rows.first().is_some_and(|row| row.get::<_, bool>(0)) {
            let leadership = Leadership::read(connection, 0);
            let leadership = self.database.within(term / 2, leadership).await.map_err(error_of)?;
            let error = explain_loss(&leadership, self.writer, &self.database.location);
            if let StoreError::LostCommits { .. } = &error {
                self.database.within(term, distrust(connection)).await.map_err(error_of)?;
            }
            return Err(error);
        }
        let counters = rows.iter().filter_map(|row| {
            let (name, counter): (Option<String>, Option<i64>) = (row.get(1), row.get(2));
            Some((name?, unsigned(counter?)))
        });
        let standby = self.standbys.any_alive(counters, sent, term);
        self.lease.renew(sent, standby);
        Ok(())
    }
}

/// Not synced: the next heartbeat makes up for one that a crash of the database loses, and a slow
/// disk or replica must not cost the leadership.
async fn prepare(connection: &Connection) -> Result<Statement, Error> {
    connection.client.batch_execute("SET synchronous_commit = off").await?;
    let sql = "WITH me AS (UPDATE seat SET heartbeat = heartbeat + 1 WHERE writer = $1 RETURNING 1) \
         SELECT EXISTS (SELECT FROM me), nodes.name, nodes.counter \
         FROM (VALUES (1)) AS one LEFT JOIN nodes ON true \
         ORDER BY nodes.refreshed DESC NULLS LAST LIMIT 64";
    connection.client.prepare(sql).await
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
