//! The heartbeat: counts up in the database that this server lives, and learns in the same round
//! trip whether it is still the holder and whether anybody waits. It has a thread, a runtime and a
//! connection of its own, so that neither a big batch nor a long load holds it up.

use std::collections::HashMap;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_postgres::{Error, Statement};

use super::connection::{Address, Connection, Failure};
use super::rows::unsigned;
use super::seat::{Seat, distrust, replaced};
use crate::error::StoreError;
use crate::lease::{Lease, boottime};

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub struct Heartbeat {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub fn start(address: Address, writer: i64, lease: Lease) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let work = move || {
            runtime.block_on(async {
                // A task of its own: it must run while the heartbeat waits for an answer.
                let ticking = lease.clone();
                tokio::spawn(async move {
                    loop {
                        ticking.tick();
                        sleep(ticking.term() / 6).await;
                    }
                });
                let mut heart = Heart { address, writer, lease, nodes: Nodes::default() };
                tokio::select! {
                    _ = stopped => {}
                    () = heart.beat() => {}
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

struct Heart {
    address: Address,
    writer: i64,
    lease: Lease,
    nodes: Nodes,
}

impl Heart {
    /// Ends when the seat is another's.
    async fn beat(&mut self) {
        let term = self.lease.term();
        let mut pause = PAUSE_MIN;
        loop {
            match self.beat_over_one_connection(&mut pause).await {
                StoreError::Replaced { by, since } => {
                    self.lease.replaced(&format!("{by} since {since}"));
                    return;
                }
                error if error.is_fatal() => {
                    self.lease.fail(Some(error.to_string()));
                    self.lease.lost(error.to_string());
                    return;
                }
                error => self.lease.fail(Some(error.to_string())),
            }
            sleep(pause).await;
            // A standby gives us a lease after an outage of the database: be back well before.
            pause = (pause * 2).min(PAUSE_MAX).min(term / 3);
        }
    }

    async fn beat_over_one_connection(&mut self, pause: &mut Duration) -> StoreError {
        let term = self.lease.term();
        let connection = match self.address.open(term).await {
            Ok(connection) => connection,
            Err(error) => return error,
        };
        let prepared = self.address.within(term / 2, prepare(&connection)).await;
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
        let said = |failure: Failure| failure.error;
        let sent = boottime();
        let asked = async { connection.client.query(statement, &[&self.writer]).await };
        let rows = self.address.within(term / 2, asked).await.map_err(said)?;
        if !rows.first().is_some_and(|row| row.get::<_, bool>(0)) {
            let seat = Seat::read(connection, 0);
            let seat = self.address.within(term / 2, seat).await.map_err(said)?;
            let error = replaced(&seat, self.writer, &self.address.place);
            if let StoreError::Forgot { .. } = &error {
                self.address.within(term, distrust(connection)).await.map_err(said)?;
            }
            return Err(error);
        }
        let counters = rows.iter().filter_map(|row| {
            let (name, counter): (Option<String>, Option<i64>) = (row.get(1), row.get(2));
            Some((name?, unsigned(counter?)))
        });
        let standby = self.nodes.any_alive(counters, sent, term);
        self.lease.renew(sent, standby);
        Ok(())
    }
}

/// Not synced: a beat that a crash of the database takes back is made good by the next, and a disk
/// or a replica that is slow must not cost us the seat.
async fn prepare(connection: &Connection) -> Result<Statement, Error> {
    connection.client.batch_execute("SET synchronous_commit = off").await?;
    let sql = "WITH me AS (UPDATE seat SET heartbeat = heartbeat + 1 WHERE writer = $1 RETURNING 1) \
         SELECT EXISTS (SELECT FROM me), nodes.name, nodes.counter \
         FROM (VALUES (1)) AS one LEFT JOIN nodes ON true \
         ORDER BY nodes.refreshed DESC NULLS LAST LIMIT 64";
    connection.client.prepare(sql).await
}

/// Who waits, as this machine's clock saw it.
#[derive(Default)]
struct Nodes(HashMap<String, Seen>);

struct Seen {
    counter: u64,
    moved: Duration,
}

impl Nodes {
    /// Whether one of them moved its counter within the last lease. One that is seen for the first
    /// time is believed to live.
    fn any_alive(
        &mut self,
        counters: impl Iterator<Item = (String, u64)>,
        now: Duration,
        term: Duration,
    ) -> bool {
        let mut before = std::mem::take(&mut self.0);
        for (name, counter) in counters {
            let moved = match before.remove(&name) {
                Some(seen) if seen.counter == counter => seen.moved,
                _ => now,
            };
            self.0.insert(name, Seen { counter, moved });
        }
        self.0.values().any(|seen| now.saturating_sub(seen.moved) <= term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_is_one_whose_counter_moves() {
        let term = Duration::from_secs(3);
        let mut nodes = Nodes::default();
        let mut look = |counter: Option<u64>, at| {
            let counters = counter.map(|counter| ("b".to_owned(), counter)).into_iter();
            nodes.any_alive(counters, Duration::from_secs(at), term)
        };
        assert!(!look(None, 100));
        assert!(look(Some(1), 101));
        assert!(look(Some(1), 104));
        assert!(!look(Some(1), 105));
        assert!(look(Some(2), 106));
        assert!(!look(None, 107));
    }
}
