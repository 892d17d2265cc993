//! The seat: who serves, who waits for it, and how it changes hands. There is one, and it has one
//! row in the database.

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::batch::Pen;
use super::connection::Connection;
use super::process::Process;
use super::rows::{signed, unsigned};
use crate::embedded::mark::BootId;
use crate::error::StoreError;
use crate::store::Token;

/// Times are the database's own clock, as text, for people; nothing is decided by them.
const TIME: &str = "YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"";
/// More nodes than this are not asked about.
const NODES_MAX: i64 = 64;

/// One look at the seat.
#[derive(Clone, Debug)]
pub struct Seat {
    /// None if nobody ever had it.
    pub holder: Option<Holder>,
    /// Those that said that they wait. One that died without a word stays in the list, and its
    /// counter stands still.
    pub standbys: Vec<Standby>,
    /// Who was taken to be dead, and nobody has made sure since.
    pub unfenced: Vec<String>,
    /// Counts our connections: two looks over one connection had the database there in between.
    pub connection: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub node: String,
    pub since: String,
    /// How often the seat was taken.
    pub writer: u64,
    pub heartbeat: u64,
    pub lease: Duration,
    /// It stopped cleanly: the seat is free.
    pub left: bool,
    pub process: Option<Process>,
}

impl Holder {
    /// Whether it, or another in its place, has done anything since it was seen so.
    pub fn shows_life_since(&self, then: &Holder) -> bool {
        (self.writer, self.heartbeat) != (then.writer, then.heartbeat)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    pub node: String,
    pub since: String,
    pub counter: u64,
    /// How long ago it was last heard of, by the database's clock.
    pub heard: Duration,
}

impl Seat {
    /// `since` and names come as text, so that no clock of ours is compared with the database's.
    pub async fn read(connection: &Connection, number: u64) -> Result<Self, Error> {
        let client = &connection.client;
        let sql = format!(
            "SELECT node, to_char(since AT TIME ZONE 'UTC', '{TIME}'), writer, heartbeat, \
                 lease_ms, has_left, boot, namespaces, pid, started, unfenced FROM seat"
        );
        let nodes = format!(
            "SELECT name, to_char(since AT TIME ZONE 'UTC', '{TIME}'), counter, \
                 greatest(0, extract(epoch FROM clock_timestamp() - refreshed) * 1000)::bigint \
             FROM nodes ORDER BY refreshed DESC LIMIT {NODES_MAX}"
        );
        let row = client.query_one(&sql, &[]).await?;
        let nodes = client.query(&nodes, &[]).await?;
        let standbys = nodes.iter().map(|row| Standby {
            node: row.get(0),
            since: row.get(1),
            counter: unsigned(row.get(2)),
            heard: Duration::from_millis(unsigned(row.get(3))),
        });
        let standbys = standbys.collect();
        Ok(Self { holder: holder(&row), standbys, unfenced: row.get(10), connection: number })
    }
}

fn holder(row: &Row) -> Option<Holder> {
    let node: Option<String> = row.get(0);
    let since: Option<String> = row.get(1);
    Some(Holder {
        node: node?,
        since: since.unwrap_or_default(),
        writer: unsigned(row.get(2)),
        heartbeat: unsigned(row.get(3)),
        lease: Duration::from_millis(unsigned(row.get(4))),
        left: row.get(5),
        process: process(row),
    })
}

fn process(row: &Row) -> Option<Process> {
    let boot: Option<&[u8]> = row.get(6);
    let (namespaces, pid, started): (Option<String>, Option<i64>, Option<i64>) =
        (row.get(7), row.get(8), row.get(9));
    Some(Process {
        boot: BootId(boot?.try_into().ok()?),
        namespaces: namespaces?,
        pid: u32::try_from(pid?).ok()?,
        started: unsigned(started?),
    })
}

/// What comes with the seat.
pub struct Taken {
    pub pen: Pen,
    pub token: Token,
    /// The locks may not be all.
    pub roster: bool,
}

/// A look at the seat, by which it is to be taken: only if nothing has happened since.
pub struct Seen {
    pub writer: i64,
    pub heartbeat: i64,
    /// Whoever had it certainly runs no more.
    pub is_gone: bool,
}

/// A command that has the seat for a moment serves nobody, and is nobody to be fenced.
pub const COMMAND: &str = "(store command)";

/// Takes the seat from whoever has it; `None` if it is not as it was seen. Both rows change at once, so that no batch of the former
/// writer can come after this, and the row lock waits for one that is being committed. Durable
/// whatever the session's setting: if the database forgot it, there would be two writers.
pub async fn take(
    connection: &Connection,
    node: &str,
    lease: Duration,
    synchronous: &str,
    seen: Option<&Seen>,
) -> Result<Option<Taken>, Error> {
    let sql = "WITH gone AS (DELETE FROM nodes WHERE name = $1), \
         me AS (UPDATE seat SET writer = writer + 1, node = $1, since = clock_timestamp(), \
                 heartbeat = heartbeat + 1, lease_ms = $2, has_left = false, boot = $3, \
                 namespaces = $4, pid = $5, started = $6, \
                 unfenced = CASE WHEN has_left OR node IS NULL OR $10 OR node = ANY(unfenced) \
                     OR right(node, length($11)) = $11 THEN unfenced ELSE unfenced || node END \
             WHERE set_config('synchronous_commit', $7::text, true) <> '' \
                 AND ($8::bigint IS NULL OR writer = $8 AND (has_left OR heartbeat = $9)) \
             RETURNING writer) \
         UPDATE state SET writer = me.writer, session = session + 1 FROM me \
         RETURNING state.writer, state.session, state.token, \
             state.weak AND NOT EXISTS (SELECT FROM intact)";
    let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    let own = Process::own();
    let boot = own.as_ref().map(|process| process.boot.0.as_slice());
    let namespaces = own.as_ref().map(|process| process.namespaces.as_str());
    let pid = own.as_ref().map(|process| i64::from(process.pid));
    let started = own.as_ref().map(|process| signed(process.started));
    let (writer, heartbeat) = seen.map(|seen| (seen.writer, seen.heartbeat)).unzip();
    let is_gone = seen.is_some_and(|seen| seen.is_gone);
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &node,
        &lease_ms,
        &boot,
        &namespaces,
        &pid,
        &started,
        &synchronous,
        &writer,
        &heartbeat,
        &is_gone,
        &COMMAND,
    ];
    let row = connection.client.query_opt(sql, &parameters).await?;
    Ok(row.map(|row| Taken {
        pen: Pen { writer: row.get(0), session: row.get(1) },
        token: Token(unsigned(row.get(2))),
        roster: row.get(3),
    }))
}

/// All who were taken to be dead have been made harmless.
pub async fn fenced(connection: &Connection, writer: i64) -> Result<(), Error> {
    let sql = "UPDATE seat SET unfenced = '{}' WHERE writer = $1";
    connection.client.execute(sql, &[&writer]).await.map(|_| ())
}

/// Takes up the pen again over a new connection. The session that counts up shuts out what former
/// connections may still deliver; a statement that is being committed holds the row, is waited for,
/// and is in the token that comes back. None if the seat is another's.
pub async fn resume(
    connection: &Connection,
    writer: i64,
    synchronous: &str,
) -> Result<Option<(Pen, Token)>, Error> {
    let sql = "UPDATE state SET session = session + 1 \
         WHERE writer = $1 AND set_config('synchronous_commit', $2::text, true) <> '' \
         RETURNING session, token";
    let row = connection.client.query_opt(sql, &[&writer, &synchronous]).await?;
    Ok(row.map(|row| (Pen { writer, session: row.get(0) }, Token(unsigned(row.get(1))))))
}

/// Vouches for all that is in the store: from here on only a crash of the database under weak
/// promises makes it a roster. Synced, as the promises that it speaks of come after it. False if the
/// pen is not ours.
pub async fn vouch(
    connection: &Connection,
    pen: Pen,
    weak: bool,
    synchronous: &str,
) -> Result<bool, Error> {
    let sql = "WITH me AS (UPDATE state SET weak = $3 WHERE writer = $1 AND session = $2 \
             AND set_config('synchronous_commit', $4::text, true) <> '' RETURNING 1), \
         mark AS (INSERT INTO intact SELECT true WHERE EXISTS (SELECT FROM me) \
             ON CONFLICT DO NOTHING) \
         SELECT count(*) FROM me";
    let row =
        connection.client.query_one(sql, &[&pen.writer, &pen.session, &weak, &synchronous]).await?;
    Ok(row.try_get::<_, i64>(0)? == 1)
}

/// The opposite, whoever has the seat: a database that has lost what it acknowledged is a roster to
/// whoever loads it next.
pub async fn distrust(connection: &Connection) -> Result<(), Error> {
    let sql = "WITH gone AS (DELETE FROM intact) UPDATE state SET weak = true \
         WHERE set_config('synchronous_commit', 'on', true) <> ''";
    connection.client.execute(sql, &[]).await.map(|_| ())
}

/// A clean stop. False if the seat is another's already.
pub async fn release(connection: &Connection, writer: i64) -> Result<bool, Error> {
    let sql = "UPDATE seat SET has_left = true WHERE writer = $1";
    Ok(connection.client.execute(sql, &[&writer]).await? == 1)
}

/// Says that this node waits. Not synced: it is said again in a moment.
pub async fn stand_by(connection: &Connection, node: &str) -> Result<(), Error> {
    let sql = "WITH old AS (DELETE FROM nodes \
             WHERE refreshed < clock_timestamp() - interval '1 day' AND name <> $1) \
         INSERT INTO nodes (name, counter, since, refreshed) \
         SELECT $1, 1, clock_timestamp(), clock_timestamp() \
         WHERE set_config('synchronous_commit', 'off', true) <> '' \
         ON CONFLICT (name) DO UPDATE SET counter = nodes.counter + 1, \
             refreshed = clock_timestamp()";
    connection.client.execute(sql, &[&node]).await.map(|_| ())
}

pub async fn stop_standing_by(connection: &Connection, node: &str) -> Result<(), Error> {
    connection.client.execute("DELETE FROM nodes WHERE name = $1", &[&node]).await.map(|_| ())
}

/// Ends sessions that keep the rows locked: the machine of a former holder may have died between two
/// packets of one statement, and the server waits long for the rest.
pub async fn unblock(connection: &Connection) -> Result<(), Error> {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_locks \
         WHERE relation IN ('state'::regclass, 'seat'::regclass) AND granted \
             AND mode = 'RowExclusiveLock' AND pid <> pg_backend_pid() \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    connection.client.query(sql, &[]).await.map(|_| ())
}

/// What to say to a writer that is none any more: the seat as it is now.
pub fn replaced(seat: &Seat, writer: i64, place: &str) -> StoreError {
    match &seat.holder {
        Some(holder) if holder.writer > unsigned(writer) => {
            StoreError::Replaced { by: holder.node.clone(), since: holder.since.clone() }
        }
        _ => {
            let what = "that this server took the seat".to_owned();
            StoreError::Forgot { place: place.to_owned(), what }
        }
    }
}
