//! Which server leads, which stand by, and how the leadership changes hands: the tables `seat`,
//! `nodes`, `fencings` and `intact`.

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::batch::FencingToken;
use super::connection::Connection;
use super::process::ProcessIdentity;
use super::rows::{signed, unsigned};
use crate::boot_id::BootId;
use crate::error::StoreError;
use crate::store::Token;

/// Times are text of the database's clock, for display only; nothing is decided by them.
const TIME: &str = "YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"";
/// The most nodes that are listed.
const NODES_MAX: i64 = 64;
/// The most records of fenced nodes that are listed.
const FENCINGS_MAX: i64 = 5;

/// The leader and the standbys, read at one moment.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// The present or the last leader; `None` if there never was one.
    pub leader: Option<Leader>,
    /// Nodes that registered as standbys. One that died stays in the list, and its counter stands
    /// still.
    pub standbys: Vec<Standby>,
    /// Former leaders that were presumed dead and may still run, as they were not fenced since.
    pub unfenced: Vec<String>,
    /// The number of the connection that read this. Two reads with the same number had the database
    /// available in between.
    pub connection: u64,
}

/// A row of the leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The node's name.
    pub node: String,
    /// When it took the leadership, by the database's clock.
    pub since: String,
    /// How often the leadership was taken so far; fences the writes of earlier leaders.
    pub writer: u64,
    /// Counts up while the leader lives.
    pub heartbeat: u64,
    /// Its lease, which another node may configure differently.
    pub lease: Duration,
    /// It stopped cleanly and leads no more.
    pub has_released: bool,
    /// Its process, if `/proc` was readable.
    pub process: Option<ProcessIdentity>,
}

impl Leader {
    /// Whether the leader, or one that replaced it, has made progress since `earlier` was read.
    pub fn made_progress_since(&self, earlier: &Leader) -> bool {
        (self.writer, self.heartbeat) != (earlier.writer, earlier.heartbeat)
    }
}

/// A node that waits for the leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    /// The node's name.
    pub node: String,
    /// When it registered, by the database's clock.
    pub since: String,
    /// Counts up while the standby lives.
    pub counter: u64,
    /// The time since it counted up, by the database's clock.
    pub last_seen_ago: Duration,
}

impl Leadership {
    pub(super) async fn read(connection: &Connection, number: u64) -> Result<Self, Error> {
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
            last_seen_ago: Duration::from_millis(unsigned(row.get(3))),
        });
        let standbys = standbys.collect();
        Ok(Self { leader: leader(&row), standbys, unfenced: row.get(10), connection: number })
    }
}

fn leader(row: &Row) -> Option<Leader> {
    let node: Option<String> = row.get(0);
    let since: Option<String> = row.get(1);
    Some(Leader {
        node: node?,
        since: since.unwrap_or_default(),
        writer: unsigned(row.get(2)),
        heartbeat: unsigned(row.get(3)),
        lease: Duration::from_millis(unsigned(row.get(4))),
        has_released: row.get(5),
        process: process(row),
    })
}

fn process(row: &Row) -> Option<ProcessIdentity> {
    let boot: Option<&[u8]> = row.get(6);
    let (namespaces, pid, started): (Option<String>, Option<i64>, Option<i64>) =
        (row.get(7), row.get(8), row.get(9));
    Some(ProcessIdentity {
        boot: BootId(boot?.try_into().ok()?),
        namespaces: namespaces?,
        pid: u32::try_from(pid?).ok()?,
        started: unsigned(started?),
    })
}

/// What a new leader gets.
pub(super) struct Acquisition {
    pub(super) fencing: FencingToken,
    pub(super) token: Token,
    /// Locks may be missing.
    pub(super) roster: bool,
}

/// The leader that is to be replaced, as it was read. If the row has changed, it is not replaced.
pub(super) struct ExpectedLeader {
    pub(super) writer: i64,
    pub(super) heartbeat: i64,
    /// Its process has certainly ended, so it need not be fenced.
    pub(super) has_exited: bool,
}

/// Ends the node name of a command such as `lockkeeper store clear`. It leads for a moment, serves
/// no clients, and is never listed as unfenced.
pub const COMMAND_SUFFIX: &str = "(store command)";

/// Takes the leadership; `None` if the leader is not as `expected`. `seat` and `state` change in one
/// statement, so that no batch of the previous leader can follow; the row lock waits for one that is
/// being committed. Synced regardless of the session's setting: a database that lost this would
/// accept two writers.
pub(super) async fn acquire(
    connection: &Connection,
    node: &str,
    lease: Duration,
    synchronous: &str,
    expected: Option<&ExpectedLeader>,
) -> Result<Option<Acquisition>, Error> {
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
    let own = ProcessIdentity::current();
    let boot = own.as_ref().map(|process| process.boot.0.as_slice());
    let namespaces = own.as_ref().map(|process| process.namespaces.as_str());
    let pid = own.as_ref().map(|process| i64::from(process.pid));
    let started = own.as_ref().map(|process| signed(process.started));
    let (writer, heartbeat) =
        expected.map(|expected| (expected.writer, expected.heartbeat)).unzip();
    let has_exited = expected.is_some_and(|expected| expected.has_exited);
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
        &has_exited,
        &COMMAND_SUFFIX,
    ];
    let row = connection.client.query_opt(sql, &parameters).await?;
    Ok(row.map(|row| Acquisition {
        fencing: FencingToken { writer: row.get(0), session: row.get(1) },
        token: Token(unsigned(row.get(2))),
        roster: row.get(3),
    }))
}

/// A record that a node was fenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fencing {
    /// The node.
    pub node: String,
    /// Who said so.
    pub author: String,
    /// When, by the database's clock.
    pub at: String,
}

/// Removes a node from `unfenced`, synced, and records who said that it was fenced. False if it was
/// not listed. Records are kept for a year.
pub(super) async fn set_fenced(
    connection: &Connection,
    node: &str,
    author: &str,
) -> Result<bool, Error> {
    let sql = "WITH old AS (DELETE FROM fencings WHERE at < clock_timestamp() - interval '1 year'), \
         me AS (UPDATE seat SET unfenced = array_remove(unfenced, $1) \
             WHERE $1 = ANY(unfenced) AND set_config('synchronous_commit', 'on', true) <> '' \
             RETURNING 1) \
         INSERT INTO fencings SELECT $1, $2, clock_timestamp() FROM me";
    Ok(connection.client.execute(sql, &[&node, &author]).await? > 0)
}

/// The newest records, the oldest of them first.
pub(super) async fn fencings(connection: &Connection) -> Result<Vec<Fencing>, Error> {
    let sql = format!(
        "SELECT node, author, to_char(at AT TIME ZONE 'UTC', '{TIME}') \
         FROM fencings ORDER BY at DESC LIMIT {FENCINGS_MAX}"
    );
    let rows = connection.client.query(&sql, &[]).await?;
    let fencing = |row: &Row| Fencing { node: row.get(0), author: row.get(1), at: row.get(2) };
    Ok(rows.iter().rev().map(fencing).collect())
}

/// Begins a new session of the leader after a reconnect; `None` if another node leads. The new
/// session number fences statements that abandoned connections may still deliver; one that is being
/// committed holds the row lock, is waited for, and is covered by the token that is returned.
pub(super) async fn resume(
    connection: &Connection,
    writer: i64,
    synchronous: &str,
) -> Result<Option<(FencingToken, Token)>, Error> {
    let sql = "UPDATE state SET session = session + 1 \
         WHERE writer = $1 AND set_config('synchronous_commit', $2::text, true) <> '' \
         RETURNING session, token";
    let row = connection.client.query_opt(sql, &[&writer, &synchronous]).await?;
    Ok(row.map(|row| (FencingToken { writer, session: row.get(0) }, Token(unsigned(row.get(1))))))
}

/// Records that the locks are exact: from here on only a crash of the database that loses
/// acknowledged batches (`weak`) makes them a roster. Synced, before the first batch that depends on
/// it. False if the fencing token is outdated.
pub(super) async fn set_intact(
    connection: &Connection,
    fencing: FencingToken,
    weak: bool,
    synchronous: &str,
) -> Result<bool, Error> {
    let sql = "WITH me AS (UPDATE state SET weak = $3 WHERE writer = $1 AND session = $2 \
             AND set_config('synchronous_commit', $4::text, true) <> '' RETURNING 1), \
         mark AS (INSERT INTO intact SELECT true WHERE EXISTS (SELECT FROM me) \
             ON CONFLICT DO NOTHING) \
         SELECT count(*) FROM me";
    let row = connection
        .client
        .query_one(sql, &[&fencing.writer, &fencing.session, &weak, &synchronous])
        .await?;
    Ok(row.try_get::<_, i64>(0)? == 1)
}

/// The opposite, regardless of who leads: the next load treats the locks as a roster.
pub(super) async fn distrust(connection: &Connection) -> Result<(), Error> {
    let sql = "WITH gone AS (DELETE FROM intact) UPDATE state SET weak = true \
         WHERE set_config('synchronous_commit', 'on', true) <> ''";
    connection.client.execute(sql, &[]).await.map(|_| ())
}

/// Records a clean stop. False if another node leads already.
pub(super) async fn release(connection: &Connection, writer: i64) -> Result<bool, Error> {
    let sql = "UPDATE seat SET has_left = true WHERE writer = $1";
    Ok(connection.client.execute(sql, &[&writer]).await? == 1)
}

/// Counts up this standby's counter. Not synced: it is repeated in a moment.
pub(super) async fn stand_by(connection: &Connection, node: &str) -> Result<(), Error> {
    let sql = "WITH old AS (DELETE FROM nodes \
             WHERE refreshed < clock_timestamp() - interval '1 day' AND name <> $1) \
         INSERT INTO nodes (name, counter, since, refreshed) \
         SELECT $1, 1, clock_timestamp(), clock_timestamp() \
         WHERE set_config('synchronous_commit', 'off', true) <> '' \
         ON CONFLICT (name) DO UPDATE SET counter = nodes.counter + 1, \
             refreshed = clock_timestamp()";
    connection.client.execute(sql, &[&node]).await.map(|_| ())
}

pub(super) async fn stop_standing_by(connection: &Connection, node: &str) -> Result<(), Error> {
    connection.client.execute("DELETE FROM nodes WHERE name = $1", &[&node]).await.map(|_| ())
}

/// Terminates backends that hold the row locks of `state` or `seat`: the machine of a former leader
/// may have died between two packets of one statement, and the database waits long for the rest.
pub(super) async fn terminate_blockers(connection: &Connection) -> Result<(), Error> {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_locks \
         WHERE relation IN ('state'::regclass, 'seat'::regclass) AND granted \
             AND mode = 'RowExclusiveLock' AND pid <> pg_backend_pid() \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    connection.client.query(sql, &[]).await.map(|_| ())
}

/// Why the writes of `writer` are refused, given the present leadership.
pub(super) fn explain_loss(leadership: &Leadership, writer: i64, location: &str) -> StoreError {
    match &leadership.leader {
        Some(leader) if leader.writer > unsigned(writer) => {
            StoreError::Replaced { by: leader.node.clone(), since: leader.since.clone() }
        }
        _ => {
            let what = "that this server took the leadership".to_owned();
            StoreError::LostCommits { location: location.to_owned(), what }
        }
    }
}
