//! One batch, one statement, one round trip, one commit.
//!
//! The statement writes the state row first, on condition that we are the writer and this is our
//! session, and everything else on condition that it did (I12): a server that was replaced, and a
//! statement that comes late from a connection we gave up, change nothing.

use std::collections::HashMap;
use std::time::Duration;

use keeper::change::{Change, Client, Lock, Share};
use tokio_postgres::{Error, Statement};

use super::columns::{ClientColumns, Columns, LockColumns, Parameters, ShareColumns};
use super::connection::{Address, Connection, Failure, SESSION, STATEMENT_MAX};
use super::line::Line;
use super::rows::{CLIENTS, LOCKS, SHARES, Table, signed};
use crate::store::Token;

/// From so many rows on the database's own limit is lifted.
const BIG: usize = 10_000;
/// What a row may take on a database that is slow.
const SLOW_ROW: Duration = Duration::from_micros(100);

/// Who writes: the count of takers, and the count of our connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pen {
    pub writer: i64,
    pub session: i64,
}

/// The prepared statements of one connection. Most batches have nothing but locks, and need not pay
/// for two tables that they leave alone.
pub struct Statements {
    locks: Statement,
    all: Statement,
}

impl Statements {
    pub async fn prepare(address: &Address, connection: &Connection) -> Result<Self, Failure> {
        let client = &connection.client;
        let (locks, all) = (sql(&[LOCKS]), sql(&[LOCKS, CLIENTS, SHARES]));
        let prepared = async {
            Ok(Self { locks: client.prepare(&locks).await?, all: client.prepare(&all).await? })
        };
        address.within(STATEMENT_MAX, prepared).await
    }
}

/// What a batch comes down to: for each row the last word on it, for each fact its last value.
#[derive(Default)]
pub struct Batch<'a> {
    epoch: Option<i64>,
    in_grace: Option<bool>,
    stopped_cleanly: Option<bool>,
    ids_below: Option<i64>,
    clients: HashMap<u64, Option<&'a Client>>,
    locks: HashMap<u64, Option<&'a Lock>>,
    shares: HashMap<u64, Option<&'a Share>>,
}

impl<'a> Batch<'a> {
    pub fn of(changes: &'a [Change]) -> Self {
        let mut batch = Self::default();
        for change in changes {
            match change {
                Change::Started { epoch, grace } => {
                    batch.epoch = Some(signed(epoch.0));
                    batch.in_grace = Some(*grace);
                    batch.stopped_cleanly = Some(false);
                }
                Change::GraceEnded => batch.in_grace = Some(false),
                Change::Stopped => batch.stopped_cleanly = Some(true),
                Change::IdsBelow(id) => batch.ids_below = Some(signed(*id)),
                Change::Client(client) => drop(batch.clients.insert(client.id.0, Some(client))),
                Change::ClientGone(id) => drop(batch.clients.insert(id.0, None)),
                Change::Lock(lock) => drop(batch.locks.insert(lock.id.0, Some(lock))),
                Change::LockGone(id) => drop(batch.locks.insert(id.0, None)),
                Change::Share(share) => drop(batch.shares.insert(share.id.0, Some(share))),
                Change::ShareGone(id) => drop(batch.shares.insert(id.0, None)),
            }
        }
        batch
    }

    fn rows(&self) -> usize {
        self.clients.len() + self.locks.len() + self.shares.len()
    }

    /// How long it may take. A small one is soon done; one that ends a grace period may have millions
    /// of rows, and would never be done if it were broken off.
    pub fn patience(&self) -> Duration {
        STATEMENT_MAX + SLOW_ROW * u32::try_from(self.rows()).unwrap_or(u32::MAX)
    }

    /// False if we are not the writer, or this is not our session any more; then nothing was
    /// written.
    pub async fn write(&self, line: &Line, token: Token, must_sync: bool) -> Result<bool, Error> {
        let Some(pen) = line.pen else { return Ok(false) };
        let synchronous = line.promises.synchronous(must_sync);
        let token = signed(token.0);
        let mut parameters: Parameters<'_> = vec![
            &pen.writer,
            &pen.session,
            &token,
            &self.epoch,
            &self.in_grace,
            &self.stopped_cleanly,
            &self.ids_below,
            &synchronous,
        ];
        let locks: LockColumns<'_> = columns(&self.locks);
        locks.add_to(&mut parameters);
        let clients: ClientColumns<'_> = columns(&self.clients);
        let shares: ShareColumns<'_> = columns(&self.shares);
        let statement = if self.clients.is_empty() && self.shares.is_empty() {
            &line.statements.locks
        } else {
            clients.add_to(&mut parameters);
            shares.add_to(&mut parameters);
            &line.statements.all
        };
        let client = &line.connection.client;
        let big = self.rows() > BIG;
        if big {
            client.batch_execute("SET statement_timeout = 0").await?;
        }
        let row = client.query_one(statement, &parameters).await?;
        if big {
            client.batch_execute(SESSION).await?;
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

/// The statement for these tables. Its first eight parameters are those of the state row; each table
/// adds the ids that go and then its columns.
///
/// `set_config(..., true)` holds until the end of the transaction, which is this statement.
fn sql(tables: &[Table]) -> String {
    let mut sql = "WITH me AS (\
         UPDATE state SET token = $3, epoch = coalesce($4, epoch), \
             in_grace = coalesce($5, in_grace), \
             stopped_cleanly = coalesce($6, stopped_cleanly), \
             ids_below = coalesce($7, ids_below) \
         WHERE writer = $1 AND session = $2 \
             AND set_config('synchronous_commit', $8::text, true) <> '' \
         RETURNING 1)"
        .to_owned();
    let mut next = 9;
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
    fn the_last_word_on_a_row_is_what_counts() {
        let changes = [
            lock(1, 1),
            Change::LockGone(LockId(1)),
            Change::LockGone(LockId(2)),
            lock(2, 7),
            client(3),
            Change::ClientGone(ClientId(3)),
            Change::GraceEnded,
            Change::Started { epoch: Epoch(4), grace: true },
        ];
        let batch = Batch::of(&changes);
        assert!(batch.locks[&1].is_none() && batch.clients[&3].is_none());
        assert_eq!(batch.locks[&2].unwrap().owner.host, ClientId(7));
        assert_eq!((batch.epoch, batch.in_grace), (Some(4), Some(true)));
    }

    #[test]
    fn every_write_is_on_condition_that_we_are_the_writer() {
        let sql = sql(&[LOCKS, CLIENTS, SHARES]);
        assert_eq!(sql.matches("EXISTS (SELECT FROM me)").count(), 6, "{sql}");
        assert!(sql.contains("WHERE writer = $1 AND session = $2"), "{sql}");
    }
}
