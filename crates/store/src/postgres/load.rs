//! Loads everything in one read-only transaction, streamed as binary COPY.

use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use keeper::change::{Client, Lock, Share, Snapshot};
use keeper::identity::Epoch;
use tokio_postgres::Error;
use tokio_postgres::binary_copy::{BinaryCopyOutRow, BinaryCopyOutStream};
use tokio_postgres::types::{FromSql, Type};

use super::connection::{Connection, Database, STATEMENT_MAX};
use super::rows::{RowValues, TableRow, unsigned};
use super::vouch;
use crate::error::StoreError;

/// The state of the store, as exact as the database alone shows, and the nonce of its leader.
pub(super) struct LoadedState {
    pub(super) snapshot: Snapshot,
    pub(super) nonce: i64,
}

/// The state row and all three tables as of one moment.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
     SET LOCAL statement_timeout = 0";

pub(super) async fn load(
    database: &Database,
    connection: &Connection,
    promises: bool,
) -> Result<LoadedState, StoreError> {
    let client = &connection.client;
    let begin = database.within(STATEMENT_MAX, client.batch_execute(BEGIN)).await;
    begin.map_err(|failure| failure.error)?;
    let loaded = load_inside(database, connection, promises).await;
    let end = database.within(STATEMENT_MAX, client.batch_execute("ROLLBACK")).await;
    end.map_err(|failure| failure.error).and(loaded)
}

async fn load_inside(
    database: &Database,
    connection: &Connection,
    promises: bool,
) -> Result<LoadedState, StoreError> {
    let sql = format!(
        "SELECT epoch, ids_below, in_grace, stopped_cleanly, state.nonce, {} \
         FROM state CROSS JOIN seat LEFT JOIN vouched ON true",
        vouch::evidence_columns()
    );
    let row = database.within(STATEMENT_MAX, connection.client.query_one(&sql, &[])).await;
    let row = row.map_err(|failure| failure.error)?;
    let mut snapshot = Snapshot {
        epoch: Epoch(unsigned(row.get(0))),
        ids_below: unsigned(row.get(1)),
        in_grace: row.get(2),
        stopped_cleanly: row.get(3),
        exactness: vouch::evidence(&row, 5, promises).exactness(),
        ..Snapshot::default()
    };
    each(database, connection, |client: Client| {
        snapshot.clients.insert(client.id, Arc::new(client));
    })
    .await?;
    each(database, connection, |lock: Lock| {
        snapshot.locks.insert(lock.id, lock);
    })
    .await?;
    each(database, connection, |share: Share| {
        snapshot.shares.insert(share.id, share);
    })
    .await?;
    Ok(LoadedState { snapshot, nonce: row.get(4) })
}

pub(super) async fn each<T: TableRow>(
    database: &Database,
    connection: &Connection,
    mut keep: impl FnMut(T),
) -> Result<(), StoreError> {
    let columns = T::TABLE.columns;
    let names: Vec<&str> = columns.iter().map(|(name, ..)| *name).collect();
    let types: Vec<Type> = columns.iter().map(|(.., stored)| stored.clone()).collect();
    let table = T::TABLE.name;
    let sql = format!("COPY {table} ({}) TO STDOUT (FORMAT binary)", names.join(", "));
    let copy = database.within(STATEMENT_MAX, connection.client.copy_out(&sql)).await;
    let mut rows = pin!(BinaryCopyOutStream::new(copy.map_err(|failure| failure.error)?, &types));
    // The limit is for each row, not for all of them.
    loop {
        let next = async { rows.next().await.transpose() };
        match database.within(STATEMENT_MAX, next).await {
            Ok(Some(row)) => keep(T::from_row(&row).map_err(|what| StoreError::Damaged {
                location: format!("a row of table {table} in {}", database.location),
                what: format!("it has {what}"),
            })?),
            Ok(None) => return Ok(()),
            Err(failure) => return Err(failure.error),
        }
    }
}

impl RowValues for BinaryCopyOutRow {
    fn value<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T, String> {
        self.try_get(column).map_err(|error: Error| format!("a value of the wrong type: {error}"))
    }
}
