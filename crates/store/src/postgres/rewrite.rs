//! The write-back: a leader whose database has failed over and lacks batches takes the leadership on
//! the new timeline and replaces the rows by its own state, in one transaction (B6.62).

use std::sync::atomic::Ordering;

use keeper::change::{Exactness, Snapshot};
use tokio_postgres::Error;

use super::batch::BatchRows;
use super::leadership::{self, Acquisition, Candidate, ExpectedLeader, Leadership};
use super::session::{CLEAR_MAX, DELETE_ALL, Session};
use super::trust::Holder;
use super::{IntactRow, Postgres};
use crate::error::StoreError;
use crate::store::{CommitOutcome, Token};

impl Postgres {
    pub(super) fn write_back(&mut self, saved: &Snapshot, token: Token) -> CommitOutcome {
        let (nonce, expected) = match self.prepare_write_back() {
            Ok(prepared) => prepared,
            Err(error) => return CommitOutcome::NotWritten(error),
        };
        let (node, lease) = (self.settings.node.clone(), self.settings.lease);
        let after = self.writer.as_ref().map_or(0, |writer| writer.number);
        let candidate = Candidate { node: &node, lease, nonce, after };
        let rows = BatchRows::of_snapshot(saved);
        let promises = self.promises();
        let limit = CLEAR_MAX + rows.time_limit();
        let written = self.try_run_within(limit, async |session: &Session| {
            session.rewrite(&candidate, &expected, &rows, token, promises).await
        });
        match written {
            Ok(Some(acquisition)) => {
                let exact = !saved.in_grace || saved.exactness.is_exact();
                if let Err(error) = self.adopt(&acquisition, exact, token, saved.exactness) {
                    return CommitOutcome::Unknown(error);
                }
                CommitOutcome::Done
            }
            Ok(None) => CommitOutcome::NotWritten(self.explain_refusal()),
            Err(failure) => {
                // The transaction may be open, and ends with its connection; or it is committed.
                self.abandon_session();
                if let Some(writer) = self.writer.as_mut().filter(|_| !failure.aborted) {
                    writer.unsettled = Some(token);
                    return CommitOutcome::Unknown(failure.error);
                }
                CommitOutcome::NotWritten(failure.error)
            }
        }
    }

    /// Opens a connection, and checks that the leadership is no other server's.
    fn prepare_write_back(&mut self) -> Result<(i64, ExpectedLeader), StoreError> {
        let writer = self.writer.as_ref().ok_or(StoreError::NotLeader)?;
        if let Some((by, since)) = &writer.replaced {
            return Err(StoreError::Replaced { by: by.clone(), since: since.clone() });
        }
        let (own, number) = (writer.nonces(), writer.number);
        self.open_session()?;
        let connection = self.connections_opened;
        let leadership = self.run(async |session: &Session| {
            Leadership::read(&session.connection, connection).await
        })?;
        let holder = leadership::holder(&leadership, &own, number);
        if !matches!(holder, Holder::Own | Holder::Former) || !self.is_undisputed() {
            return Err(match holder {
                Holder::Own | Holder::Former => {
                    self.distrust_as(Exactness::Open)?;
                    let what = "and its last lease has run out".to_owned();
                    StoreError::LostCommits { location: self.database.location.clone(), what }
                }
                Holder::Successor | Holder::Predecessor => self.explain_refusal(),
            });
        }
        let leader = leadership.leader.as_ref();
        let expected = ExpectedLeader {
            nonce: leader.map_or(0, |leader| leader.nonce.cast_signed()),
            heartbeat: (holder != Holder::Own)
                .then(|| leader.map_or(0, |leader| leader.heartbeat.cast_signed())),
            has_exited: leader.is_some_and(|leader| leader.node == self.settings.node),
        };
        let writer = self.writer.as_ref().ok_or(StoreError::NotLeader)?;
        Ok((writer.draw_candidate()?, expected))
    }

    fn adopt(
        &mut self,
        acquisition: &Acquisition,
        exact: bool,
        token: Token,
        exactness: Exactness,
    ) -> Result<(), StoreError> {
        let Acquisition { fencing, writer: number } = acquisition;
        self.adopt_fencing(*fencing, IntactRow::Written)?;
        if let Some(writer) = &mut self.writer {
            (writer.nonce, writer.number) = (fencing.nonce, *number);
            (writer.done, writer.unsettled) = (token, None);
            writer.intact = if exact { IntactRow::Written } else { IntactRow::Withheld };
            writer.exactness = if exact { Exactness::Exact } else { exactness };
        }
        self.acknowledge(token);
        self.renew_mark();
        self.start_heartbeat()?;
        // After the end of the former heartbeat, which may have suspended the lease.
        if let Some(writer) = &self.writer {
            writer.candidate.store(0, Ordering::Release);
            writer.lease.set_suspended(false);
        }
        Ok(())
    }
}

impl Session {
    /// `None` if the leader is not as `expected`; then nothing was written.
    async fn rewrite(
        &self,
        candidate: &Candidate<'_>,
        expected: &ExpectedLeader,
        rows: &BatchRows<'_>,
        token: Token,
        promises: bool,
    ) -> Result<Option<Acquisition>, Error> {
        let client = &self.connection.client;
        let synchronous = self.server_durability.synchronous_commit(true);
        client.batch_execute("BEGIN; SET LOCAL statement_timeout = 0").await?;
        let acquired =
            leadership::acquire(&self.connection, candidate, synchronous, Some(expected)).await?;
        let Some(acquisition) = acquired else {
            client.batch_execute("ROLLBACK").await?;
            return Ok(None);
        };
        let fencing = acquisition.fencing;
        let seek = "SET LOCAL enable_seqscan = on";
        client
            .batch_execute(&format!("{seek}; {DELETE_ALL}; SET LOCAL enable_seqscan = off"))
            .await?;
        rows.write(self, fencing, token, true).await?;
        self.vouch(fencing, promises).await?;
        client.batch_execute("COMMIT").await?;
        Ok(Some(acquisition))
    }
}
