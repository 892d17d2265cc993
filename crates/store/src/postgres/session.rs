//! The connection for commits. When it breaks it is opened again, and a leader then begins a new
//! session, which fences the abandoned connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keeper::change::{Change, Exactness};
use tokio::time::timeout;
use tokio_postgres::Error;

use super::batch::{FencingToken, Statements};
use super::connection::{
    Backend, CONNECT_MAX, Connection, Database, STATEMENT_MAX, StatementFailure,
};
use super::heartbeat::{Heartbeat, LeaderIdentity};
use super::leadership::{self, Acquisition, Candidate, ExpectedLeader, Leadership, Resumption};
use super::load::{self, LoadedState};
use super::mark::MarkFile;
use super::rows::unsigned;
use super::server_durability::ServerDurability;
use super::trust::{Course, Found, Holder, Reconnected};
use super::{Failover, IntactRow, Postgres, Writer, fresh_nonce, vouch};
use crate::durability::Durability;
use crate::error::StoreError;
use crate::store::Token;

/// Clearing deletes row by row, and there may be millions.
pub(super) const CLEAR_MAX: Duration = Duration::from_secs(300);
/// The keeper's rows.
pub(super) const DELETE_ALL: &str = "DELETE FROM locks; DELETE FROM shares; DELETE FROM clients";
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
    async fn open(
        database: &Database,
        durability: Durability,
        failover: Failover,
    ) -> Result<Self, StoreError> {
        let connection = database.open(CONNECT_MAX).await?;
        let settings = ServerDurability::read(&connection.client);
        let settings = database.within(STATEMENT_MAX, settings).await.map_err(|f| f.error)?;
        let server_durability = ServerDurability::check(settings, durability, failover, database)?;
        let statements = Statements::prepare(database, &connection).await.map_err(|f| f.error)?;
        Ok(Self { connection, statements, server_durability, fencing: None })
    }

    pub(super) async fn last_token(&self) -> Result<(Token, i64), Error> {
        let row = self.connection.client.query_one("SELECT token, nonce FROM state", &[]).await?;
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
    async fn clear(&self, force: bool, promises: bool) -> Result<Result<bool, u64>, Error> {
        let client = &self.connection.client;
        let Some(fencing) = self.fencing else { return Ok(Ok(false)) };
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on; \
             SET LOCAL synchronous_commit = {}",
            self.server_durability.synchronous_commit(true)
        );
        client.batch_execute(&begin).await?;
        let fenced_update = "UPDATE state SET in_grace = false, stopped_cleanly = false, \
             trust = 'exact' WHERE nonce = $1 AND session = $2";
        if client.execute(fenced_update, &[&fencing.nonce, &fencing.session]).await? == 0 {
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
        client.batch_execute(DELETE_ALL).await?;
        self.vouch(fencing, promises).await?;
        client.batch_execute("COMMIT").await.map(|()| Ok(true))
    }

    /// Records that the rows are complete. False if the fencing token is outdated.
    pub(super) async fn vouch(&self, fencing: FencingToken, promises: bool) -> Result<bool, Error> {
        let durability = &self.server_durability;
        let promises = promises && durability.waits_for_replicas();
        let synchronous = durability.synchronous_commit(true);
        vouch::vouch(&self.connection, fencing, durability.weak, promises, synchronous).await
    }
}

impl Writer {
    /// Those under which this server may lead.
    pub(super) fn nonces(&self) -> [i64; 2] {
        let candidate = self.candidate.load(Ordering::Acquire);
        [self.nonce, if candidate == 0 { self.nonce } else { candidate }]
    }

    /// The nonce for retaking the leadership. The same until that is settled: if an answer is lost,
    /// the database has either this one or the former.
    pub(super) fn draw_candidate(&self) -> Result<i64, StoreError> {
        let [_, drawn] = self.nonces();
        let nonce = if drawn == self.nonce { fresh_nonce()? } else { drawn };
        self.candidate.store(nonce, Ordering::Release);
        Ok(nonce)
    }
}

impl Postgres {
    /// Opens a connection if there is none; for a leader, begins a new session on it. A suspended
    /// lease requires a new one: the heartbeat has reached a database that the present connection may
    /// not be to.
    pub(super) fn ensure_session(&mut self) -> Result<(), StoreError> {
        if self.writer.as_ref().is_some_and(|writer| writer.lease.is_suspended()) {
            self.abandon_session();
        }
        if self.open_session()? {
            return Ok(());
        }
        let resumed = self.resume();
        if resumed.is_err() {
            self.abandon_session();
        }
        resumed
    }

    /// Opens a connection if there is none. True if there was one.
    pub(super) fn open_session(&mut self) -> Result<bool, StoreError> {
        if self.session.as_ref().is_some_and(|session| !session.connection.client.is_closed()) {
            return Ok(true);
        }
        self.abandon_session();
        let opened =
            Session::open(&self.database, self.settings.durability, self.settings.failover);
        let session = self.runtime.block_on(opened)?;
        self.connections_opened += 1;
        self.warnings.clone_from(&session.server_durability.warnings);
        self.session = Some(session);
        Ok(false)
    }

    /// Whether the operator promises that a failover loses nothing.
    pub(super) fn promises(&self) -> bool {
        self.settings.failover == Failover::Synchronous
    }

    fn resume(&mut self) -> Result<(), StoreError> {
        let Some(writer) = &self.writer else { return Ok(()) };
        if writer.replaced.is_some() {
            return Ok(());
        }
        let nonces = writer.nonces();
        let abandoned = std::mem::take(&mut self.abandoned);
        let resumed = self.run(async |session: &Session| {
            // At most a second, to leave time for the statement that counts.
            let _ = timeout(Duration::from_secs(1), session.terminate(&abandoned)).await;
            let synchronous = session.server_durability.synchronous_commit(true);
            leadership::resume(&session.connection, &nonces, synchronous).await
        });
        let resumed = match resumed {
            Ok(resumed) => resumed,
            Err(error) => {
                self.abandoned.extend(abandoned);
                return Err(error);
            }
        };
        let Some(resumption) = resumed else { return Err(self.explain_refusal()) };
        // Compared before the first write: a database that has lost batches must not get new ones. An
        // unknown commit is settled by `last_token` only.
        let found = self.compare(resumption.token);
        let moved = resumption.taken_on.as_ref() != Some(&resumption.timeline);
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let retaken = writer.nonce != resumption.fencing.nonce;
        (writer.nonce, writer.number) = (resumption.fencing.nonce, resumption.writer);
        let exact = writer.intact != IntactRow::Withheld;
        let due = if exact { IntactRow::Due } else { IntactRow::Withheld };
        let course = Reconnected {
            holder: Holder::Own,
            found,
            moved,
            undisputed: self.is_undisputed(),
            promised: self.promises() && resumption.promised,
        };
        match course.course() {
            Course::Continue => {
                self.adopt_fencing(resumption.fencing, due)?;
                if retaken {
                    self.renew_mark();
                    self.start_heartbeat()?;
                }
            }
            Course::Retake => self.retake(&resumption, due)?,
            Course::WriteBack => return Err(self.behind(resumption.token)),
            Course::Replaced | Course::Restart => return Err(self.lost(resumption.token)),
        }
        if let Some(writer) = &self.writer {
            writer.candidate.store(0, Ordering::Release);
            writer.lease.set_suspended(false);
        }
        Ok(())
    }

    /// Takes the leadership on the new timeline of a database that has everything.
    fn retake(&mut self, former: &Resumption, due: IntactRow) -> Result<(), StoreError> {
        let Some(writer) = &self.writer else { return Ok(()) };
        let nonce = writer.draw_candidate()?;
        let (node, lease) = (self.settings.node.clone(), self.settings.lease);
        let candidate = Candidate { node: &node, lease, nonce, after: writer.number };
        let expected = ExpectedLeader {
            nonce: former.fencing.nonce,
            heartbeat: Some(former.heartbeat),
            has_exited: true,
        };
        let acquired = self.run(async |session: &Session| {
            let synchronous = session.server_durability.synchronous_commit(true);
            leadership::acquire(&session.connection, &candidate, synchronous, Some(&expected)).await
        })?;
        let Some(Acquisition { fencing, writer: number }) = acquired else {
            return Err(self.explain_refusal());
        };
        if let Some(writer) = &mut self.writer {
            (writer.nonce, writer.number) = (fencing.nonce, number);
        }
        self.adopt_fencing(fencing, due)?;
        self.renew_mark();
        self.start_heartbeat()
    }

    /// Renews the present leadership from here on.
    pub(super) fn start_heartbeat(&mut self) -> Result<(), StoreError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.heartbeat = None;
        let candidate = Arc::clone(&writer.candidate);
        let leader = LeaderIdentity { nonce: writer.nonce, candidate, writer: writer.number };
        let acknowledged = Arc::clone(&writer.acknowledged);
        let (database, lease) = (self.database.clone(), writer.lease.clone());
        let slow_after = self.settings.slow_after;
        let heartbeat = Heartbeat::start(database, leader, lease, acknowledged, slow_after)
            .map_err(|error| {
                StoreError::Unwritable(format!("cannot start the heartbeat: {error}"))
            })?;
        writer.heartbeat = Some(heartbeat);
        Ok(())
    }

    /// Whether no other server can have led since the last renewal: that is younger than a lease, or
    /// this server is not one of a pair.
    pub(super) fn is_undisputed(&self) -> bool {
        let Some(Writer { lease, .. }) = &self.writer else { return false };
        let pair = self.settings.pair || lease.has_standby();
        !pair || lease.renewed_ago() < lease.term()
    }

    /// A token of the database, compared with those of the last known and the unsettled batch.
    fn compare(&self, token: Token) -> Found {
        match &self.writer {
            Some(Writer { done, unsettled, .. }) if token != *done && Some(token) != *unsettled => {
                if token < *done {
                    Found::Earlier
                } else {
                    Found::Later
                }
            }
            _ => Found::Same,
        }
    }

    /// An error unless the token is that of the last known or of the unsettled batch.
    pub(super) fn check_last_token(&mut self, token: Token) -> Result<(), StoreError> {
        let error = match self.compare(token) {
            Found::Same => return Ok(()),
            Found::Earlier if self.is_undisputed() => self.behind(token),
            Found::Earlier | Found::Later => self.lost(token),
        };
        self.abandon_session();
        Err(error)
    }

    /// The error of a database whose last batch is this one, while this server has more in memory.
    fn behind(&self, found: Token) -> StoreError {
        StoreError::Behind { location: self.database.location.clone(), what: self.missing(found) }
    }

    fn missing(&self, found: Token) -> String {
        match self.writer.as_ref().map_or(0, |writer| writer.done.0) {
            done if done == found.0 => "the lease had run out before it failed over".to_owned(),
            done => format!("batch {done} was the last one, and now {} is", found.0),
        }
    }

    /// The same, if another server may have led meanwhile. Recorded durably before the error ends this
    /// process, because the next one must know.
    fn lost(&mut self, found: Token) -> StoreError {
        let what = self.missing(found);
        match self.distrust_as(Exactness::Open) {
            Ok(()) => StoreError::LostCommits { location: self.database.location.clone(), what },
            Err(failed) => failed,
        }
    }

    /// Records, durably, that locks may be missing: the next load treats them as a roster.
    pub fn distrust(&mut self) -> Result<(), StoreError> {
        self.distrust_as(Exactness::Roster)
    }

    /// Records, durably, that hosts and locks may be missing: the next load is open.
    pub fn distrust_open(&mut self) -> Result<(), StoreError> {
        self.distrust_as(Exactness::Open)
    }

    pub(super) fn distrust_as(&mut self, what: Exactness) -> Result<(), StoreError> {
        self.run(async |session: &Session| vouch::distrust(&session.connection, what).await)
    }

    /// Commits with this fencing token from now on. Vouches for the rows first if that is due: the
    /// database may have crashed or failed over without a loss, or guarantee less than before.
    pub(super) fn adopt_fencing(
        &mut self,
        fencing: FencingToken,
        intact: IntactRow,
    ) -> Result<(), StoreError> {
        if intact == IntactRow::Due {
            let promises = self.promises();
            self.run(async |session: &Session| session.vouch(fencing, promises).await)?;
        }
        if let Some(session) = &mut self.session {
            session.fencing = Some(fencing);
        }
        Ok(())
    }

    /// Called after each batch that is stored. A batch that ends a grace period makes the store
    /// exact; if that cannot be recorded now, the next batch tries again.
    pub(super) fn committed(&mut self, changes: &[Change], token: Token) {
        self.acknowledge(token);
        let Some(writer) = &mut self.writer else { return };
        let ends_grace = |change: &Change| {
            matches!(change, Change::GraceEnded | Change::Started { grace: None, .. })
        };
        if writer.intact == IntactRow::Withheld && changes.iter().any(ends_grace) {
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
            (writer.intact, writer.exactness) = (IntactRow::Written, Exactness::Exact);
        }
    }

    /// Records that this batch is stored, where the heartbeat and a later start find it.
    pub(super) fn acknowledge(&mut self, token: Token) {
        let Some(writer) = &mut self.writer else { return };
        (writer.done, writer.unsettled) = (token, None);
        writer.acknowledged.store(token.0, Ordering::Release);
        let written = writer.mark.as_ref().map(|mark| mark.write(token));
        let pair = self.settings.pair || writer.lease.has_standby();
        if pair != writer.mark.is_none() || written.is_some_and(|written| written.is_err()) {
            self.renew_mark();
        }
    }

    /// Replaces the mark by one of this leadership; one of a pair has none.
    pub(super) fn renew_mark(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        if let Some(mark) = writer.mark.take() {
            mark.remove();
        }
        let pair = self.settings.pair || writer.lease.has_standby();
        if let Some(directory) = self.settings.run_directory.as_ref().filter(|_| !pair) {
            // Without one the next start after a failover is open: the safe side.
            let mark = MarkFile::create(directory, &writer.store, writer.nonce, writer.done);
            writer.mark = mark.ok();
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
        session.connection.take_cancelled_wait();
        let outcome = self.runtime.block_on(self.database.within(limit, work(session)));
        // Committed, but perhaps on the primary only: nothing is known until a later transaction has
        // waited for the replica (B6.63).
        let outcome = match outcome {
            Ok(_) if session.connection.take_cancelled_wait() => {
                let why = "its wait for a synchronous replica was cancelled".to_owned();
                let error = self.database.unreachable(why);
                Err(StatementFailure { error, aborted: false, blocked: false })
            }
            outcome => outcome,
        };
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
        let Some(writer) = &self.writer else { return StoreError::NotLeader };
        let (nonces, number) = (writer.nonces(), writer.number);
        let connection = self.connections_opened;
        let read =
            async |session: &Session| Leadership::read(&session.connection, connection).await;
        let leadership = match self.run(read) {
            Ok(leadership) => leadership,
            Err(error) => return error,
        };
        let holder = leadership::holder(&leadership, &nonces, number);
        if holder == Holder::Own {
            // This server leads, but a late packet of an abandoned connection began a session.
            self.abandon_session();
            let why = "an abandoned connection of this server was still active".to_owned();
            return self.database.unreachable(why);
        }
        let course = Reconnected {
            holder,
            found: Found::Earlier,
            moved: true,
            undisputed: self.is_undisputed(),
            promised: false,
        };
        let location = self.database.location.clone();
        let what = "that this server took the leadership".to_owned();
        match course.course() {
            Course::WriteBack => {
                self.abandon_session();
                StoreError::Behind { location, what }
            }
            Course::Replaced => {
                let error = leadership::replaced(&leadership);
                if let (StoreError::Replaced { by, since }, Some(writer)) =
                    (&error, &mut self.writer)
                {
                    writer.lease.set_replaced_by(&format!("{by} since {since}"));
                    writer.replaced = Some((by.clone(), since.clone()));
                }
                error
            }
            Course::Continue | Course::Retake | Course::Restart => {
                match self.distrust_as(Exactness::Open) {
                    Ok(()) => StoreError::LostCommits { location, what },
                    Err(failed) => failed,
                }
            }
        }
    }

    pub(super) fn load_all(&mut self) -> Result<LoadedState, StoreError> {
        self.ensure_session()?;
        let Some(session) = &self.session else { return Err(StoreError::NotLeader) };
        let load = load::load(&self.database, &session.connection, self.promises());
        let loaded = self.runtime.block_on(load);
        if loaded.is_err() {
            self.abandon_session();
        }
        loaded
    }

    /// False if the fencing token is outdated.
    pub(super) fn clear_all(&mut self, force: bool) -> Result<bool, StoreError> {
        let promises = self.promises();
        let cleared = self.try_run_within(CLEAR_MAX, async |session: &Session| {
            session.clear(force, promises).await
        });
        match cleared {
            Ok(Ok(done)) => {
                if let Some(writer) = self.writer.as_mut().filter(|_| done) {
                    (writer.intact, writer.exactness) = (IntactRow::Written, Exactness::Exact);
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
