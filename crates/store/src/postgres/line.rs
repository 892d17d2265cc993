//! The committer's connection: opened anew when it broke, and then with a session of its own.

use std::time::Duration;

use keeper::change::Change;
use tokio::time::timeout;
use tokio_postgres::Error;

use super::batch::{Pen, Statements};
use super::connection::{Address, Backend, CONNECT_MAX, Connection, Failure, STATEMENT_MAX};
use super::load::{self, Loaded};
use super::promises::Promises;
use super::rows::unsigned;
use super::seat::{self, Seat};
use super::{Postgres, Title, Vouched};
use crate::durability::Durability;
use crate::error::StoreError;
use crate::store::Token;

/// Clearing deletes row by row, and there may be millions.
const CLEAR_MAX: Duration = Duration::from_secs(300);
/// Former connections that are remembered: more are shut out as well, and end by themselves.
const FORMER_MAX: usize = 8;
/// How often whoever blocks the seat is sent away.
const UNBLOCK_MAX: u32 = 3;

pub struct Line {
    pub connection: Connection,
    pub statements: Statements,
    pub promises: Promises,
    /// None while we are not the writer.
    pub pen: Option<Pen>,
}

impl Line {
    async fn open(address: &Address, durability: Durability) -> Result<Self, StoreError> {
        let connection = address.open(CONNECT_MAX).await?;
        let found = address.within(STATEMENT_MAX, Promises::look(&connection.client)).await;
        let promises = Promises::judge(found.map_err(|f| f.error)?, durability, address)?;
        let statements = Statements::prepare(address, &connection).await.map_err(|f| f.error)?;
        Ok(Self { connection, statements, promises, pen: None })
    }

    pub async fn last_token(&self) -> Result<(Token, i64), Error> {
        let row = self.connection.client.query_one("SELECT token, writer FROM state", &[]).await?;
        Ok((Token(unsigned(row.get(0))), row.get(1)))
    }

    /// Ends what a former connection of ours left behind, so that nobody waits for it long. Nothing
    /// depends on it: the new session shuts it out anyway.
    async fn end_former(&self, former: &[Backend]) {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE pid = $1 AND extract(epoch FROM backend_start)::text = $2";
        for Backend { pid, started } in former {
            let _ = self.connection.client.query(sql, &[pid, started]).await;
        }
    }

    /// False if the pen is no longer ours.
    async fn clear(&self, force: bool) -> Result<Result<bool, u64>, Error> {
        let client = &self.connection.client;
        let Some(pen) = self.pen else { return Ok(Ok(false)) };
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on; \
             SET LOCAL synchronous_commit = {}",
            self.promises.synchronous(true)
        );
        client.batch_execute(&begin).await?;
        let mine = "UPDATE state SET in_grace = false, stopped_cleanly = false \
             WHERE writer = $1 AND session = $2";
        if client.execute(mine, &[&pen.writer, &pen.session]).await? == 0 {
            client.batch_execute("ROLLBACK").await?;
            return Ok(Ok(false));
        }
        let held = "SELECT (SELECT count(*) FROM locks) + (SELECT count(*) FROM shares)";
        let held = unsigned(client.query_one(held, &[]).await?.get(0));
        if held > 0 && !force {
            client.batch_execute("ROLLBACK").await?;
            return Ok(Err(held));
        }
        // Of nothing, nothing can be missing.
        let clear = "DELETE FROM locks; DELETE FROM shares; DELETE FROM clients; \
             INSERT INTO intact VALUES (true) ON CONFLICT DO NOTHING; COMMIT";
        client.batch_execute(clear).await.map(|()| Ok(true))
    }
}

impl Postgres {
    /// Makes sure that there is a connection, and that it is the writer's if we are the writer.
    pub(super) fn line(&mut self) -> Result<(), StoreError> {
        if self.line.as_ref().is_some_and(|line| !line.connection.client.is_closed()) {
            return Ok(());
        }
        self.lose();
        let line = self.engine.wait(Line::open(&self.address, self.settings.durability))?;
        self.opened += 1;
        self.remarks.clone_from(&line.promises.remarks);
        self.line = Some(line);
        let resumed = self.resume();
        if resumed.is_err() {
            self.lose();
        }
        resumed
    }

    fn resume(&mut self) -> Result<(), StoreError> {
        let Some(title) = &self.title else { return Ok(()) };
        if title.replaced.is_some() {
            return Ok(());
        }
        let (writer, former) = (title.writer, std::mem::take(&mut self.former));
        let resumed = self.ask(async |line: &Line| {
            // However it goes: within a second, so that there is time for what counts.
            let _ = timeout(Duration::from_secs(1), line.end_former(&former)).await;
            seat::resume(&line.connection, writer, line.promises.synchronous(true)).await
        });
        let resumed = match resumed {
            Ok(resumed) => resumed,
            Err(error) => {
                self.former.extend(former);
                return Err(error);
            }
        };
        let Some((pen, token)) = resumed else { return Err(self.refused()) };
        // The token is looked at here already, because a database that has lost batches must not
        // get new ones; whoever asks for it settles it.
        let Some(title) = &self.title else { return Ok(()) };
        let exact = title.vouched != Vouched::Withheld;
        self.expects(token)?;
        self.write_with(pen, if exact { Vouched::Due } else { Vouched::Withheld })
    }

    /// Any other batch than the last that we know and the one that we ask about means that the
    /// database has lost some.
    pub(super) fn expects(&mut self, found: Token) -> Result<(), StoreError> {
        let Some(Title { done, unsettled, .. }) = &self.title else { return Ok(()) };
        if found == *done || Some(found) == *unsettled {
            return Ok(());
        }
        let what = format!("batch {} was the last one, and now {} is", done.0, found.0);
        self.distrust()?;
        Err(StoreError::Forgot { place: self.address.place.clone(), what })
    }

    /// Whoever loads it next takes the locks for incomplete. Comes before an error that ends us: who
    /// starts next must know.
    pub fn distrust(&mut self) -> Result<(), StoreError> {
        self.ask(async |line: &Line| seat::distrust(&line.connection).await)
    }

    /// Takes the pen up, and vouches for the store first if that is due: the server may have crashed
    /// and lost nothing, or may promise less than before.
    pub(super) fn write_with(&mut self, pen: Pen, vouched: Vouched) -> Result<(), StoreError> {
        if vouched == Vouched::Due {
            self.ask(async |line: &Line| {
                let Promises { weak, .. } = line.promises;
                let synchronous = line.promises.synchronous(true);
                seat::vouch(&line.connection, pen, weak, synchronous).await
            })?;
        }
        if let Some(line) = &mut self.line {
            line.pen = Some(pen);
        }
        Ok(())
    }

    /// After a batch that is there. If it ended a roster, the store is exact from here on; should
    /// saying so fail, it is said with the next batch.
    pub(super) fn committed(&mut self, changes: &[Change], token: Token) {
        let Some(title) = &mut self.title else { return };
        title.done = token;
        let ends = |change: &Change| {
            matches!(change, Change::GraceEnded | Change::Started { grace: false, .. })
        };
        if title.vouched == Vouched::Withheld && changes.iter().any(ends) {
            title.vouched = Vouched::Due;
        }
        let due = title.vouched == Vouched::Due;
        let Some(pen) = self.line.as_ref().and_then(|line| line.pen) else { return };
        if due
            && self.write_with(pen, Vouched::Due).is_ok()
            && let Some(title) = &mut self.title
        {
            title.vouched = Vouched::Given;
        }
    }

    /// Gives the connection up, and remembers who served it over there.
    pub(super) fn lose(&mut self) {
        if let Some(line) = self.line.take() {
            self.former.push(line.connection.backend.clone());
            let spare = self.former.len().saturating_sub(FORMER_MAX);
            self.former.drain(..spare);
        }
    }

    /// Something on the connection that is there. What ends uncertainly ends the connection.
    pub(super) fn try_ask<T>(
        &mut self,
        work: impl AsyncFnOnce(&Line) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        self.try_ask_for(STATEMENT_MAX, work)
    }

    pub(super) fn try_ask_for<T>(
        &mut self,
        limit: Duration,
        work: impl AsyncFnOnce(&Line) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let Some(line) = &self.line else {
            let error = self.address.unreachable("the connection is closed".into());
            return Err(Failure { error, aborted: true, blocked: false });
        };
        let outcome = self.engine.wait(self.address.within(limit, work(line)));
        if outcome.as_ref().is_err_and(|failure| !failure.aborted) {
            self.lose();
        }
        outcome
    }

    pub(super) fn ask<T>(
        &mut self,
        work: impl AsyncFnOnce(&Line) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.try_ask(work).map_err(|failure| failure.error)
    }

    /// The same, for what may not be kept waiting by the remains of another.
    pub(super) fn ask_even_if_blocked<T>(
        &mut self,
        work: impl AsyncFn(&Line) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.try_ask(&work) {
                Err(failure) if failure.blocked && attempt <= UNBLOCK_MAX => {
                    self.ask(async |line: &Line| seat::unblock(&line.connection).await)?;
                }
                outcome => return outcome.map_err(|failure| failure.error),
            }
        }
    }

    /// Whether a write may be tried at all.
    pub(super) fn may_write(&self) -> Result<(), StoreError> {
        let title = self.title.as_ref().ok_or(StoreError::NoSeat)?;
        if let Some((by, since)) = &title.replaced {
            return Err(StoreError::Replaced { by: by.clone(), since: since.clone() });
        }
        if title.unsettled.is_some() {
            let why = "what became of the last batch has not been asked";
            return Err(StoreError::Unwritable(why.into()));
        }
        Ok(())
    }

    /// Why the database did not take a write of ours.
    pub(super) fn refused(&mut self) -> StoreError {
        let Some(writer) = self.title.as_ref().map(|title| title.writer) else {
            return StoreError::NoSeat;
        };
        let number = self.opened;
        let seat = match self.ask(async |line: &Line| Seat::read(&line.connection, number).await) {
            Ok(seat) => seat,
            Err(error) => return error,
        };
        if seat.holder.as_ref().is_some_and(|holder| holder.writer == unsigned(writer)) {
            // The seat is ours, the session is not: a late packet of a former connection began one.
            self.lose();
            let why = "a former connection of this server was still at work".to_owned();
            return self.address.unreachable(why);
        }
        let error = seat::replaced(&seat, writer, &self.address.place);
        if let StoreError::Forgot { .. } = &error
            && let Err(failed) = self.distrust()
        {
            return failed;
        }
        if let (StoreError::Replaced { by, since }, Some(title)) = (&error, &mut self.title) {
            title.lease.replaced(&format!("{by} since {since}"));
            title.replaced = Some((by.clone(), since.clone()));
        }
        error
    }

    pub(super) fn load_all(&mut self) -> Result<Loaded, StoreError> {
        self.line()?;
        let Some(line) = &self.line else { return Err(StoreError::NoSeat) };
        let loaded = self.engine.wait(load::load(&self.address, &line.connection));
        if loaded.is_err() {
            self.lose();
        }
        loaded
    }

    /// False if the seat is another's.
    pub(super) fn clear_all(&mut self, force: bool) -> Result<bool, StoreError> {
        let cleared = self.try_ask_for(CLEAR_MAX, async |line: &Line| line.clear(force).await);
        match cleared {
            Ok(Ok(ours)) => {
                if let Some(title) = self.title.as_mut().filter(|_| ours) {
                    title.vouched = Vouched::Given;
                }
                Ok(ours)
            }
            Ok(Err(held)) => Err(StoreError::LocksHeld(held)),
            Err(failure) => {
                // Perhaps in the middle of a transaction: that ends with its connection.
                self.lose();
                Err(failure.error)
            }
        }
    }
}
