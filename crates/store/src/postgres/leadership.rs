//! Which server leads, which stand by, and how the leadership changes hands: the tables `seat`,
//! `nodes` and `fencings`.

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::batch::FencingToken;
use super::connection::Connection;
use super::process::ProcessIdentity;
use super::rows::{signed, unsigned};
use super::trust::Holder;
use super::vouch::TIMELINE;
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
    /// The timeline of the database.
    pub timeline: String,
}

/// A row of the leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The node's name.
    pub node: String,
    /// When it took the leadership, by the database's clock.
    pub since: String,
    /// How often the leadership was taken so far, as far as the database knows.
    pub writer: u64,
    /// Drawn at random when it took the leadership; fences the writes of earlier leaders.
    pub nonce: u64,
    /// The timeline of the database at that time: after a failover it leads no more (B6.62).
    pub timeline: Option<String>,
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
        (self.nonce, self.heartbeat) != (earlier.nonce, earlier.heartbeat)
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
                 lease_ms, has_left, boot, namespaces, pid, started, unfenced, nonce, timeline, \
                 {TIMELINE} FROM seat"
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
        Ok(Self {
            leader: leader(&row),
            standbys,
            unfenced: row.get(10),
            connection: number,
            timeline: row.get(13),
        })
    }
}

fn leader(row: &Row) -> Option<Leader> {
    let node: Option<String> = row.get(0);
    let since: Option<String> = row.get(1);
    Some(Leader {
        node: node?,
        since: since.unwrap_or_default(),
        writer: unsigned(row.get(2)),
        nonce: unsigned(row.get(11)),
        timeline: row.get(12),
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
    pub(super) writer: i64,
}

/// A leader as it appears in the table.
pub(super) struct Candidate<'a> {
    pub(super) node: &'a str,
    pub(super) lease: Duration,
    /// Its fencing token.
    pub(super) nonce: i64,
    /// The number of its leadership is greater than this one.
    pub(super) after: i64,
}

/// The leader that is to be replaced, as it was read. If the row has changed, it is not replaced.
pub(super) struct ExpectedLeader {
    pub(super) nonce: i64,
    /// `None` for this server itself, whose heartbeat goes on meanwhile.
    pub(super) heartbeat: Option<i64>,
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
    candidate: &Candidate<'_>,
    synchronous: &str,
    expected: Option<&ExpectedLeader>,
) -> Result<Option<Acquisition>, Error> {
    let sql = format!(
        "WITH gone AS (DELETE FROM nodes WHERE name = $1), \
         me AS (UPDATE seat SET writer = greatest(writer, $13) + 1, node = $1, \
                 since = clock_timestamp(), former = nonce, nonce = $12, timeline = {TIMELINE}, \
                 heartbeat = heartbeat + 1, lease_ms = $2, has_left = false, boot = $3, \
                 namespaces = $4, pid = $5, started = $6, \
                 unfenced = CASE WHEN has_left OR node IS NULL OR $10 OR node = ANY(unfenced) \
                     OR right(node, length($11)) = $11 THEN unfenced ELSE unfenced || node END \
             WHERE set_config('synchronous_commit', $7::text, true) <> '' \
                 AND ($8::bigint IS NULL OR nonce = $8 AND (has_left OR heartbeat = coalesce($9::bigint, heartbeat))) \
             RETURNING writer, nonce) \
         UPDATE state SET writer = me.writer, nonce = me.nonce, session = session + 1 FROM me \
         RETURNING state.nonce, state.session, state.writer"
    );
    let lease_ms = i64::try_from(candidate.lease.as_millis()).unwrap_or(i64::MAX);
    let own = ProcessIdentity::current();
    let boot = own.as_ref().map(|process| process.boot.0.as_slice());
    let namespaces = own.as_ref().map(|process| process.namespaces.as_str());
    let pid = own.as_ref().map(|process| i64::from(process.pid));
    let started = own.as_ref().map(|process| signed(process.started));
    let nonce = expected.map(|expected| expected.nonce);
    let heartbeat = expected.and_then(|expected| expected.heartbeat);
    let has_exited = expected.is_some_and(|expected| expected.has_exited);
    let parameters: [&(dyn ToSql + Sync); 13] = [
        &candidate.node,
        &lease_ms,
        &boot,
        &namespaces,
        &pid,
        &started,
        &synchronous,
        &nonce,
        &heartbeat,
        &has_exited,
        &COMMAND_SUFFIX,
        &candidate.nonce,
        &candidate.after,
    ];
    let row = connection.client.query_opt(&sql, &parameters).await?;
    Ok(row.map(|row| Acquisition {
        fencing: FencingToken { nonce: row.get(0), session: row.get(1) },
        writer: row.get(2),
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

/// What a leader finds that begins a new session.
pub(super) struct Resumption {
    pub(super) fencing: FencingToken,
    pub(super) token: Token,
    pub(super) writer: i64,
    /// The timeline of the database.
    pub(super) timeline: String,
    /// Its timeline when the leadership was taken.
    pub(super) taken_on: Option<String>,
    pub(super) heartbeat: i64,
    pub(super) promised: bool,
}

/// Begins a new session of the leader after a reconnect; `None` if the nonce is none of `nonces`. The
/// new session number fences statements that abandoned connections may still deliver; one that is
/// being committed holds the row lock, is waited for, and is covered by the token that is returned.
pub(super) async fn resume(
    connection: &Connection,
    nonces: &[i64],
    synchronous: &str,
) -> Result<Option<Resumption>, Error> {
    let sql = format!(
        "UPDATE state SET session = session + 1 FROM seat \
         WHERE state.nonce = ANY($1) AND set_config('synchronous_commit', $2::text, true) <> '' \
         RETURNING state.nonce, state.session, state.token, {TIMELINE}, seat.heartbeat, \
             seat.promised, state.writer, seat.timeline"
    );
    let row = connection.client.query_opt(&sql, &[&nonces, &synchronous]).await?;
    Ok(row.map(|row| Resumption {
        fencing: FencingToken { nonce: row.get(0), session: row.get(1) },
        token: Token(unsigned(row.get(2))),
        timeline: row.get(3),
        heartbeat: row.get(4),
        promised: row.get(5),
        writer: row.get(6),
        taken_on: row.get(7),
    }))
}

/// Records a clean stop. False if another node leads already.
pub(super) async fn release(connection: &Connection, nonce: i64) -> Result<bool, Error> {
    let sql = "UPDATE seat SET has_left = true WHERE nonce = $1";
    Ok(connection.client.execute(sql, &[&nonce]).await? == 1)
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

/// How the recorded leader stands to the one with these nonces, that took the leadership as `writer`.
pub(super) fn holder(leadership: &Leadership, nonces: &[i64], writer: i64) -> Holder {
    match &leadership.leader {
        Some(leader) if nonces.contains(&signed(leader.nonce)) => Holder::Own,
        Some(leader) if leader.timeline.as_ref() == Some(&leadership.timeline) => {
            if leader.writer >= unsigned(writer) { Holder::Successor } else { Holder::Predecessor }
        }
        _ => Holder::Former,
    }
}

/// The error of a server that `leadership` shows to be replaced.
pub(super) fn replaced(leadership: &Leadership) -> StoreError {
    let (by, since) = leadership
        .leader
        .as_ref()
        .map(|leader| (leader.node.clone(), leader.since.clone()))
        .unwrap_or_default();
    StoreError::Replaced { by, since }
}
