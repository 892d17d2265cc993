//! Vouching: a leader records that the rows are those that it acknowledged, and a start reads what
//! became of that record. The tables `vouched` and `intact`, and `state.trust`.

use keeper::change::Exactness;
use tokio_postgres::{Error, Row};

use super::batch::FencingToken;
use super::connection::Connection;
use super::rows::unsigned;
use super::trust::Evidence;
use crate::store::Token;

/// The timeline of the database. An error on a replica. Unlike `pg_control_checkpoint()` it changes
/// with the promotion itself.
pub(super) const TIMELINE: &str = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)";

/// The words of `state.trust`.
pub(super) fn trust_name(exactness: Exactness) -> &'static str {
    match exactness {
        Exactness::Exact => "exact",
        Exactness::Roster => "roster",
        Exactness::Open => "open",
    }
}

fn trust(name: &str) -> Exactness {
    match name {
        "exact" => Exactness::Exact,
        "roster" => Exactness::Roster,
        _ => Exactness::Open,
    }
}

/// The columns that [`evidence`] decodes, in its order, from `state, seat LEFT JOIN vouched`.
pub(super) fn evidence_columns() -> String {
    format!(
        "state.trust, state.weak AND NOT EXISTS (SELECT FROM intact), \
         coalesce(vouched.xact % 4294967296 <> vouched.xmin::text::bigint \
             OR vouched.relation <> 'vouched'::regclass::oid, false), \
         vouched.timeline, {TIMELINE}, state.token, seat.promised"
    )
}

/// `first` is the index of the first of these columns. What is known outside the database is not in
/// it.
pub(super) fn evidence(row: &Row, first: usize, promises: bool) -> Evidence {
    Evidence {
        recorded: trust(row.get(first)),
        crashed: row.get(first + 1),
        restored: row.get(first + 2),
        vouched: row.get(first + 3),
        timeline: row.get(first + 4),
        token: Token(unsigned(row.get(first + 5))),
        known: None,
        promised: promises && row.get::<_, bool>(first + 6),
    }
}

/// What a new leader finds, with the store's id and the nonce of the leader before it.
pub(super) struct Found {
    pub(super) evidence: Evidence,
    pub(super) store: String,
    pub(super) former: i64,
    /// Another node has led, or waits.
    pub(super) pair: bool,
}

pub(super) async fn find(connection: &Connection, promises: bool) -> Result<Found, Error> {
    let sql = format!(
        "SELECT {}, state.id, seat.former, \
             EXISTS (SELECT FROM nodes) OR NOT seat.unfenced <@ ARRAY[seat.node] \
         FROM state CROSS JOIN seat LEFT JOIN vouched ON true",
        evidence_columns()
    );
    let row = connection.client.query_one(&sql, &[]).await?;
    Ok(Found {
        evidence: evidence(&row, 0, promises),
        store: row.get(7),
        former: row.get(8),
        pair: row.get(9),
    })
}

/// Records that the rows are complete, on this timeline: from here on a crash of a database that
/// acknowledges before it syncs (`weak`) makes them a roster, a failover makes them open unless
/// `promises` and synchronous replicas are configured until then. Synced, before the first batch that
/// depends on it. False if the fencing token is outdated.
pub(super) async fn vouch(
    connection: &Connection,
    fencing: FencingToken,
    weak: bool,
    promises: bool,
    synchronous: &str,
) -> Result<bool, Error> {
    let sql = format!(
        "WITH me AS (UPDATE state SET weak = $3 WHERE nonce = $1 AND session = $2 \
             AND set_config('synchronous_commit', $4::text, true) <> '' RETURNING 1), \
         whole AS (INSERT INTO intact SELECT true WHERE EXISTS (SELECT FROM me) \
             ON CONFLICT DO NOTHING), \
         seal AS (INSERT INTO vouched (timeline, xact, relation) \
             SELECT {TIMELINE}, txid_current(), 'vouched'::regclass::oid \
             WHERE EXISTS (SELECT FROM me) \
             ON CONFLICT (one) DO UPDATE SET timeline = excluded.timeline, \
                 xact = excluded.xact, relation = excluded.relation), \
         promise AS (UPDATE seat \
             SET promised = $5 AND current_setting('synchronous_standby_names') <> '' \
             WHERE EXISTS (SELECT FROM me)) \
         SELECT count(*) FROM me"
    );
    let client = &connection.client;
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
        [&fencing.nonce, &fencing.session, &weak, &synchronous, &promises];
    let row = client.query_one(&sql, &parameters).await?;
    Ok(row.try_get::<_, i64>(0)? == 1)
}

/// The opposite, regardless of who leads: the next load treats the rows as a roster, or as open.
pub(super) async fn distrust(connection: &Connection, as_what: Exactness) -> Result<(), Error> {
    let sql = "WITH gone AS (DELETE FROM intact) UPDATE state SET weak = true, \
             trust = CASE WHEN trust = 'open' THEN trust ELSE $1::text END \
         WHERE set_config('synchronous_commit', 'on', true) <> ''";
    connection.client.execute(sql, &[&trust_name(as_what)]).await.map(|_| ())
}
