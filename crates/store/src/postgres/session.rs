//! The connection for commits. When it breaks it is opened again, and a leader then begins a new
//! session, which fences the abandoned connection.

use std::time::Duration;

use keeper::change::Change;
use tokio::time::timeout;
use tokio_postgres::Error;

use super::batch::{FencingToken, Statements};
use super::connection::{
    Backend, CONNECT_MAX, Connection, Database, STATEMENT_MAX, StatementFailure,
};
use super::leadership::{self, Leadership};
use super::load::{self, LoadedState};
use super::rows::unsigned;
use super::server_durability::ServerDurability;
use super::{IntactRow, Postgres, Writer};
use crate::durability::Durability;
use crate::error::StoreError;
use crate::store::Token;

/// Clearing deletes row by row, and there may be millions.
const CLEAR_MAX: Duration = Duration::from_secs(300);
/// Abandoned backends that are terminated; older ones are fenced as well, and end by themselves.
const ABANDONED_MAX: usize = 8;
/// How often the backends that block a takeover are terminated.
const UNBLOCK_MAX: u32 = 3;

pub(super) struct Session {
    pub(super) connection: Connection,
    pub(super) statements: Statements,
    pub(super) server_durability: ServerDurability,
    /// `None` while this server does not lead.
    pub(super) fencing: Option<FencingToken>,
}

impl Session {
    async fn open(database: &Database, durability: Durability) -> Result<Self, StoreError> {
        let connection = database.open(CONNECT_MAX).await?;
        let settings = ServerDurability::read(&connection.client);
        let settings = database.within(STATEMENT_MAX, settings).await.map_err(|f| f.error)?;
        let server_durability = ServerDurability::check(settings, durability, database)?;
        let statements = Statements::prepare(database, &connection).await.map_err(|f| f.error)?;
        Ok(Self { connection, statements, server_durability, fencing: None })
    }

    pub(super) async fn last_token(&self) -> Result<(Token, i64), Error> {
        let row = self.connection.client.query_one("SELECT token, writer FROM state", &[]).await?;
        Ok((Token(unsigned(row.get(0))), row.get(1)))
    }

    /// Terminates abandoned backends, which may hold locks. An optimisation: the new session fences
    /// them anyway.
    async fn terminate(&self, abandoned: &[Backend]) {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE pid = $1 AND extract(epoch FROM backend_start)::text = $2";
        for Backend { pid, started } in abandoned {
            let _ = self.connection.client.query(sql, &[pid, started]).await;
        }
    }

    /// `Ok(false)` if the fencing token is outdated, `Err` with the number of locks and shares if
    /// they prevent the clearing.
    async fn clear(&self, force: bool) -> Result<Result<bool, u64>, Error> {
        let client = &self.connection.client;
        let Some(fencing) = self.fencing else { return Ok(Ok(false)) };
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on; \
             SET LOCAL synchronous_commit = {}",
            self.server_durability.synchronous_commit(true)
        );
        client.batch_execute(&begin).await?;
        let fenced_update = "UPDATE state SET in_grace = false, stopped_cleanly = false \
             WHERE writer = $1 AND session = $2";
        if client.execute(fenced_update, &[&fencing.writer, &fencing.session]).await? == 0 {
            client.batch_execute("ROLLBACK").await?;
            return Ok(Ok(false));
        }
        let held = "SELECT (SELECT count(*) FROM locks) + (SELECT count(*) FROM shares)";
        let held = unsigned(client.query_one(held, &[]).await?.get(0));
        if held > 0 && !force {
            client.batch_execute("ROLLBACK").await?;
            return Ok(Err(held));
        }
        // An empty store is exact.
        let clear = "DELETE FROM locks; DELETE FROM shares; DELETE FROM clients; \
             INSERT INTO intact VALUES (true) ON CONFLICT DO NOTHING; COMMIT";
        client.batch_execute(clear).await.map(|()| Ok(true))
    }
}

impl Postgres {
    /// Opens a connection if there is none; for a leader, begins a new session on it.
    pub(super) fn ensure_session(&mut self) -> Result<(), StoreError> {
        if self.session.as_ref().is_some_and(|session| !session.connection.client.is_closed()) {
            return Ok(());
        }
        self.abandon_session();
        let opened = Session::open(&self.database, self.settings.durability);
        let session = self.runtime.block_on(opened)?;
        self.connections_opened += 1;
        self.warnings.clone_from(&session.server_durability.warnings);
        self.session = Some(session);
        let resumed = self.resume();
        if resumed.is_err() {
            self.abandon_session();
        }
        resumed
    }

    fn resume(&mut self) -> Result<(), StoreError> {
        let Some(writer) = &self.writer else { return Ok(()) };
        if writer.replaced.is_some() {
            return Ok(());
        }
        let (number, abandoned) = (writer.number, std::mem::take(&mut self.abandoned));
        let resumed = self.run(async |session: &Session| {
            // At most a second, to leave time for the statement that counts.
            let _ = timeout(Duration::from_secs(1), session.terminate(&abandoned)).await;
            let synchronous = session.server_durability.synchronous_commit(true);
            leadership::resume(&session.connection, number, synchronous).await
        });
        let resumed = match resumed {
            Ok(resumed) => resumed,
            Err(error) => {
                self.abandoned.extend(abandoned);
                return Err(error);
            }
        };
        let Some((fencing, token)) = resumed else { return Err(self.explain_refusal()) };
        // Checked before the first write: a database that has lost batches must not get new ones.
        // An unknown commit is settled by `last_token` only.
        let Some(writer) = &self.writer else { return Ok(()) };
        let exact = writer.intact != IntactRow::Withheld;
        self.check_last_token(token)?;
        self.adopt_fencing(fencing, if exact { IntactRow::Due } else { IntactRow::Withheld })
    }

    /// Any token but those of the last known and the unsettled batch means that the database has
    /// lost batches.
    pub(super) fn check_last_token(&mut self, found: Token) -> Result<(), StoreError> {
        let Some(Writer { done, unsettled, .. }) = &self.writer else { return Ok(()) };
        if found == *done || Some(found) == *unsettled {
            return Ok(());
        }
        let what = format!("batch {} was the last one, and now {} is", done.0, found.0);
        self.distrust()?;
        Err(StoreError::LostCommits { location: self.database.location.clone(), what })
    }

    /// Records, durably, that locks may be missing: the next load treats them as a roster. Done
    /// before an error that ends this process, because the next one must know.
    pub fn distrust(&mut self) -> Result<(), StoreError> {
        self.run(async |session: &Session| leadership::distrust(&session.connection).await)
    }

    /// Commits with this fencing token from now on. Writes the intact row first if it is due: the
    /// database may have crashed without a loss, or guarantee less than before.
    pub(super) fn adopt_fencing(
        &mut self,
        fencing: FencingToken,
        intact: IntactRow,
    ) -> Result<(), StoreError> {
        if intact == IntactRow::Due {
            self.run(async |session: &Session| {
                let ServerDurability { weak, .. } = session.server_durability;
                let synchronous = session.server_durability.synchronous_commit(true);
                leadership::set_intact(&session.connection, fencing, weak, synchronous).await
            })?;
        }
        if let Some(session) = &mut self.session {
            session.fencing = Some(fencing);
        }
        Ok(())
    }

    /// Called after each batch that is stored. A batch that ends a roster makes the store exact; if
    /// that cannot be recorded now, the next batch tries again.
    pub(super) fn committed(&mut self, changes: &[Change], token: Token) {
        let Some(writer) = &mut self.writer else { return };
        writer.done = token;
        let ends_roster = |change: &Change| {
            matches!(change, Change::GraceEnded | Change::Started { grace: None, .. })
        };
        if writer.intact == IntactRow::Withheld && changes.iter().any(ends_roster) {
            writer.intact = IntactRow::Due;
        }
        let due = writer.intact == IntactRow::Due;
        let Some(fencing) = self.session.as_ref().and_then(|session| session.fencing) else {
            return;
        };
        if due
            && self.adopt_fencing(fencing, IntactRow::Due).is_ok()
            && let Some(writer) = &mut self.writer
        {
            writer.intact = IntactRow::Written;
        }
    }

    /// Closes the connection, and remembers its backend.
    pub(super) fn abandon_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.abandoned.push(session.connection.backend.clone());
            let excess = self.abandoned.len().saturating_sub(ABANDONED_MAX);
            self.abandoned.drain(..excess);
        }
    }

    /// Runs `work` on the open connection. A failure with an uncertain outcome abandons the
    /// connection.
    fn try_run<T>(
        &mut self,
        work: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, StatementFailure> {
        self.try_run_within(STATEMENT_MAX, work)
    }

    pub(super) fn try_run_within<T>(
        &mut self,
        limit: Duration,
        work: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, StatementFailure> {
        let Some(session) = &self.session else {
            let error = self.database.unreachable("the connection is closed".into());
            return Err(StatementFailure { error, aborted: true, blocked: false });
        };
        let outcome = self.runtime.block_on(self.database.within(limit, work(session)));
        if outcome.as_ref().is_err_and(|failure| !failure.aborted) {
            self.abandon_session();
        }
        outcome
    }

    pub(super) fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.try_run(work).map_err(|failure| failure.error)
    }

    /// Runs `work`; if another backend's row locks block it, terminates that backend and repeats.
    pub(super) fn run_unblocking<T>(
        &mut self,
        work: impl AsyncFn(&Session) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.try_run(&work) {
                Err(failure) if failure.blocked && attempt <= UNBLOCK_MAX => {
                    self.run(async |session: &Session| {
                        leadership::terminate_blockers(&session.connection).await
                    })?;
                }
                outcome => return outcome.map_err(|failure| failure.error),
            }
        }
    }

    /// Whether a write may be attempted at all.
    pub(super) fn may_write(&self) -> Result<(), StoreError> {
        let writer = self.writer.as_ref().ok_or(StoreError::NotLeader)?;
        if let Some((by, since)) = &writer.replaced {
            return Err(StoreError::Replaced { by: by.clone(), since: since.clone() });
        }
        if writer.unsettled.is_some() {
            let why = "the outcome of the last batch is unknown and must be settled first";
            return Err(StoreError::Unwritable(why.into()));
        }
        Ok(())
    }

    /// Why the database refused a write with this server's fencing token.
    pub(super) fn explain_refusal(&mut self) -> StoreError {
        let Some(number) = self.writer.as_ref().map(|writer| writer.number) else {
            return StoreError::NotLeader;
        };
        let connection = self.connections_opened;
        let read =
            async |session: &Session| Leadership::read(&session.connection, connection).await;
        let leadership = match self.run(read) {
            Ok(leadership) => leadership,
            Err(error) => return error,
        };
        if leadership.leader.as_ref().is_some_and(|leader| leader.writer == unsigned(number)) {
            // This server leads, but a late packet of an abandoned connection began a session.
            self.abandon_session();
            let why = "an abandoned connection of this server was still active".to_owned();
            return self.database.unreachable(why);
        }
        let error = leadership::explain_loss(&leadership, number, &self.database.location);
        if let StoreError::LostCommits { .. } = &error
            && let Err(failed) = self.distrust()
        {
            return failed;
        }
        if let (StoreError::Replaced { by, since }, Some(writer)) = (&error, &mut self.writer) {
            writer.lease.set_replaced_by(&format!("{by} since {since}"));
            writer.replaced = Some((by.clone(), since.clone()));
        }
        error
    }

    pub(super) fn load_all(&mut self) -> Result<LoadedState, StoreError> {
        self.ensure_session()?;
        let Some(session) = &self.session else { return Err(StoreError::NotLeader) };
        let loaded = self.runtime.block_on(load::load(&self.database, &session.connection));
        if loaded.is_err() {
            self.abandon_session();
        }
        loaded
    }

    /// False if the fencing token is outdated.
    pub(super) fn clear_all(&mut self, force: bool) -> Result<bool, StoreError> {
        let cleared =
            self.try_run_within(CLEAR_MAX, async |session: &Session| session.clear(force).await);
        match cleared {
            Ok(Ok(done)) => {
                if let Some(writer) = self.writer.as_mut().filter(|_| done) {
                    writer.intact = IntactRow::Written;
                }
                Ok(done)
            }
            Ok(Err(held)) => Err(StoreError::LocksHeld(held)),
            Err(failure) => {
                // A transaction may be open; it ends with its connection.
                self.abandon_session();
                Err(failure.error)
            }
        }
    }
}
