//! A batch as one statement: one round trip, one commit.
//!
//! The statement updates the state row first, if its fencing token is current, and everything else
//! if that row was updated (I12): a leader that was replaced, and a late statement of an abandoned
//! connection, change nothing.

use std::collections::HashMap;
use std::time::Duration;

use keeper::change::{Change, Client, Exactness, Lock, Share, Snapshot};
use tokio_postgres::{Error, Statement};

use super::columns::{ClientColumns, Columns, LockColumns, Parameters, ShareColumns};
use super::connection::{Connection, Database, SESSION_SETTINGS, STATEMENT_MAX, StatementFailure};
use super::rows::{CLIENTS, LOCKS, SHARES, Table, signed};
use super::session::Session;
use super::vouch::trust_name;
use crate::store::Token;

/// With more rows the database's own timeout is lifted.
const BIG_ROWS: usize = 10_000;
/// The time that a row may take on a slow database.
const ROW_MAX: Duration = Duration::from_micros(100);

/// The condition of every write: the nonce of this leadership, and the number of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FencingToken {
    pub(super) nonce: i64,
    pub(super) session: i64,
}

/// The prepared statements of one connection. Most batches have only locks; theirs leaves the other
/// tables out.
pub(super) struct Statements {
    locks: Statement,
    all: Statement,
}

impl Statements {
    pub(super) async fn prepare(
        database: &Database,
        connection: &Connection,
    ) -> Result<Self, StatementFailure> {
        let client = &connection.client;
        let (locks, all) = (sql(&[LOCKS]), sql(&[LOCKS, CLIENTS, SHARES]));
        let prepared = async {
            Ok(Self { locks: client.prepare(&locks).await?, all: client.prepare(&all).await? })
        };
        database.within(STATEMENT_MAX, prepared).await
    }
}

/// The effect of a batch: the last change of each row (`None` removes it) and of each value.
#[derive(Default)]
pub(super) struct BatchRows<'a> {
    epoch: Option<i64>,
    in_grace: Option<bool>,
    stopped_cleanly: Option<bool>,
    ids_below: Option<i64>,
    trust: Option<&'static str>,
    clients: HashMap<u64, Option<&'a Client>>,
    locks: HashMap<u64, Option<&'a Lock>>,
    shares: HashMap<u64, Option<&'a Share>>,
}

impl<'a> BatchRows<'a> {
    pub(super) fn of(changes: &'a [Change]) -> Self {
        let mut rows = Self::default();
        for change in changes {
            match change {
                Change::Started { epoch, grace } => {
                    rows.epoch = Some(signed(epoch.0));
                    rows.in_grace = Some(grace.is_some());
                    rows.stopped_cleanly = Some(false);
                    rows.trust = Some(trust_name(grace.unwrap_or_default()));
                }
                Change::GraceEnded => {
                    rows.in_grace = Some(false);
                    rows.trust = Some(trust_name(Exactness::Exact));
                }
                Change::Stopped => rows.stopped_cleanly = Some(true),
                Change::IdsBelow(id) => rows.ids_below = Some(signed(*id)),
                Change::Client(client) => drop(rows.clients.insert(client.id.0, Some(client))),
                Change::ClientGone(id) => drop(rows.clients.insert(id.0, None)),
                Change::Lock(lock) => drop(rows.locks.insert(lock.id.0, Some(lock))),
                Change::LockGone(id) => drop(rows.locks.insert(id.0, None)),
                Change::Share(share) => drop(rows.shares.insert(share.id.0, Some(share))),
                Change::ShareGone(id) => drop(rows.shares.insert(id.0, None)),
            }
        }
        rows
    }

    /// All rows and values of a state.
    pub(super) fn of_snapshot(saved: &'a Snapshot) -> Self {
        let trust = if saved.in_grace { saved.exactness } else { Exactness::Exact };
        Self {
            epoch: Some(signed(saved.epoch.0)),
            in_grace: Some(saved.in_grace),
            stopped_cleanly: Some(saved.stopped_cleanly),
            ids_below: Some(signed(saved.ids_below)),
            trust: Some(trust_name(trust)),
            clients: saved.clients.iter().map(|(id, row)| (id.0, Some(&**row))).collect(),
            locks: saved.locks.iter().map(|(id, row)| (id.0, Some(row))).collect(),
            shares: saved.shares.iter().map(|(id, row)| (id.0, Some(row))).collect(),
        }
    }

    fn rows(&self) -> usize {
        self.clients.len() + self.locks.len() + self.shares.len()
    }

    /// The limit for writing it. A batch that ends a grace period may have millions of rows, and
    /// would never succeed under the limit of a small one.
    pub(super) fn time_limit(&self) -> Duration {
        STATEMENT_MAX + ROW_MAX * u32::try_from(self.rows()).unwrap_or(u32::MAX)
    }

    /// False if the fencing token is outdated; then nothing was written.
    pub(super) async fn write(
        &self,
        session: &Session,
        fencing: FencingToken,
        token: Token,
        must_sync: bool,
    ) -> Result<bool, Error> {
        let synchronous = session.server_durability.synchronous_commit(must_sync);
        let token = signed(token.0);
        let mut parameters: Parameters<'_> = vec![
            &fencing.nonce,
            &fencing.session,
            &token,
            &self.epoch,
            &self.in_grace,
            &self.stopped_cleanly,
            &self.ids_below,
            &synchronous,
            &self.trust,
        ];
        let locks: LockColumns<'_> = columns(&self.locks);
        locks.add_to(&mut parameters);
        let clients: ClientColumns<'_> = columns(&self.clients);
        let shares: ShareColumns<'_> = columns(&self.shares);
        let statement = if self.clients.is_empty() && self.shares.is_empty() {
            &session.statements.locks
        } else {
            clients.add_to(&mut parameters);
            shares.add_to(&mut parameters);
            &session.statements.all
        };
        let client = &session.connection.client;
        let big = self.rows() > BIG_ROWS;
        if big {
            client.batch_execute("SET statement_timeout = 0").await?;
        }
        let row = client.query_one(statement, &parameters).await?;
        if big {
            client.batch_execute(SESSION_SETTINGS).await?;
        }
        Ok(row.try_get::<_, i64>(0)? == 1)
    }
}

fn columns<'a, R: 'a, C: Columns<'a, R>>(rows: &HashMap<u64, Option<&'a R>>) -> C {
    let mut columns = C::default();
    for (id, row) in rows {
        match row {
            Some(row) => columns.push(row),
            None => columns.remove(*id),
        }
    }
    columns
}

/// The statement for these tables. Its first nine parameters belong to the state row; each table
/// adds the ids to remove, and then its columns.
///
/// `set_config(..., true)` lasts until the end of the transaction, which is this statement.
fn sql(tables: &[Table]) -> String {
    let mut sql = "WITH me AS (\
         UPDATE state SET token = $3, epoch = coalesce($4, epoch), \
             in_grace = coalesce($5, in_grace), \
             stopped_cleanly = coalesce($6, stopped_cleanly), \
             ids_below = coalesce($7, ids_below), trust = coalesce($9::text, trust) \
         WHERE nonce = $1 AND session = $2 \
             AND set_config('synchronous_commit', $8::text, true) <> '' \
         RETURNING 1)"
        .to_owned();
    let mut next = 10;
    for Table { name, columns } in tables {
        let gone = next;
        let names: Vec<&str> = columns.iter().map(|(name, ..)| *name).collect();
        let arrays: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(index, (_, element, _))| format!("${}::{element}[]", gone + 1 + index))
            .collect();
        let values: Vec<String> = columns
            .iter()
            .map(|(name, _, stored)| format!("new.{name}::{}", type_name(stored)))
            .collect();
        let updates: Vec<String> =
            names[1..].iter().map(|name| format!("{name} = excluded.{name}")).collect();
        next += 1 + columns.len();
        let (list, arrays) = (names.join(", "), arrays.join(", "));
        let (values, updates) = (values.join(", "), updates.join(", "));
        sql += &format!(
            ", gone_{name} AS (\
                 DELETE FROM {name} WHERE id = ANY(${gone}::bigint[]) AND EXISTS (SELECT FROM me)), \
             new_{name} AS (\
                 INSERT INTO {name} ({list}) SELECT {values} FROM unnest({arrays}) AS new ({list}) \
                 WHERE EXISTS (SELECT FROM me) \
                 ON CONFLICT (id) DO UPDATE SET {updates})"
        );
    }
    sql + " SELECT count(*) FROM me"
}

fn type_name(stored: &tokio_postgres::types::Type) -> String {
    match stored.name().strip_prefix('_') {
        Some(element) => format!("{element}[]"),
        None => stored.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use keeper::identity::{ClientId, Epoch, LockId};

    use super::*;
    use crate::conformance::{client, lock};

    #[test]
    fn the_last_change_of_a_row_counts() {
        let changes = [
            lock(1, 1),
            Change::LockGone(LockId(1)),
            Change::LockGone(LockId(2)),
            lock(2, 7),
            client(3),
            Change::ClientGone(ClientId(3)),
            Change::GraceEnded,
            Change::Started { epoch: Epoch(4), grace: Some(Exactness::Exact) },
        ];
        let rows = BatchRows::of(&changes);
        assert!(rows.locks[&1].is_none() && rows.clients[&3].is_none());
        assert_eq!(rows.locks[&2].unwrap().owner.host, ClientId(7));
        assert_eq!((rows.epoch, rows.in_grace), (Some(4), Some(true)));
    }

    #[test]
    fn every_write_depends_on_the_fencing_token() {
        let sql = sql(&[LOCKS, CLIENTS, SHARES]);
        assert_eq!(sql.matches("EXISTS (SELECT FROM me)").count(), 6, "{sql}");
        assert!(sql.contains("WHERE nonce = $1 AND session = $2"), "{sql}");
    }
}
