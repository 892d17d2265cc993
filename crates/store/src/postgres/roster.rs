//! Reads the clients without the locks, for the copy of the roster that a standby keeps.

use std::sync::Arc;

use keeper::change::{Client, Snapshot};
use keeper::identity::Epoch;

use super::Postgres;
use super::connection::{Connection, Database, STATEMENT_MAX};
use super::load::{BEGIN, each};
use super::rows::unsigned;
use crate::error::StoreError;
use crate::store::Token;

impl Postgres {
    /// The epoch, the last token and all clients, as of one moment; nothing else of the snapshot is
    /// read. For readers: a leader may be writing meanwhile.
    pub fn load_roster(&mut self) -> Result<(Snapshot, Token), StoreError> {
        self.ensure_session()?;
        let Some(session) = &self.session else { return Err(StoreError::NotLeader) };
        let loaded = self.runtime.block_on(load(&self.database, &session.connection));
        if loaded.is_err() {
            self.abandon_session();
        }
        loaded
    }
}

async fn load(
    database: &Database,
    connection: &Connection,
) -> Result<(Snapshot, Token), StoreError> {
    let client = &connection.client;
    let begin = database.within(STATEMENT_MAX, client.batch_execute(BEGIN)).await;
    begin.map_err(|failure| failure.error)?;
    let loaded = load_inside(database, connection).await;
    let end = database.within(STATEMENT_MAX, client.batch_execute("ROLLBACK")).await;
    end.map_err(|failure| failure.error).and(loaded)
}

async fn load_inside(
    database: &Database,
    connection: &Connection,
) -> Result<(Snapshot, Token), StoreError> {
    let sql = "SELECT epoch, token FROM state";
    let row = database.within(STATEMENT_MAX, connection.client.query_one(sql, &[])).await;
    let row = row.map_err(|failure| failure.error)?;
    let mut snapshot = Snapshot { epoch: Epoch(unsigned(row.get(0))), ..Snapshot::default() };
    each(database, connection, |client: Client| {
        snapshot.clients.insert(client.id, Arc::new(client));
    })
    .await?;
    Ok((snapshot, Token(unsigned(row.get(1)))))
}
