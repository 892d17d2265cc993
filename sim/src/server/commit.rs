//! Commits, one at a time, on a disk that can be slow, fail, or lose the outcome; messages are sent
//! only afterwards (I2). Also the lease on the store.

use std::time::Duration;

use keeper::change::Change;
use server::engine::batch::{DurableBatch, Progress};
use server::engine::request::STALL_MAX;
use server::roster_copy::RosterCopy;

use crate::disk::Fault;
use crate::engine::{CommitStage, DecidedBatch};
use crate::queue::{Ms, SECOND};
use crate::world::{Event, World};

#[derive(Clone, Copy, Debug)]
pub(crate) enum CommitFault {
    Slow(Ms),
    NotWritten,
    Unknown { written: bool },
}

impl World {
    pub(crate) fn begin_commit(&mut self, DecidedBatch { batch, truths }: DecidedBatch) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let is_empty = batch.changes().is_empty();
        let decided = engine.mono(now);
        self.model.commit_began = now;
        engine.stage = Some((CommitStage::PendingCommit(batch.commit(decided)), truths));
        if is_empty {
            self.attempt_commit();
            return self.commit_returned();
        }
        let fault = self.commit_fault.take();
        let mut pause = self.random.below(4);
        match fault {
            None => {}
            Some(CommitFault::Slow(ms)) => {
                pause = ms;
                self.fault("slow commit");
            }
            Some(CommitFault::NotWritten) => {
                self.disk.next_fault = Some(Fault::NotWritten);
                self.fault("commit not written");
            }
            Some(CommitFault::Unknown { written }) => {
                self.disk.next_fault = Some(Fault::Unknown { written });
                self.fault("lost COMMIT outcome");
            }
        }
        let life = self.server.life;
        self.later(pause, Event::CommitAttempt { life });
    }

    pub(crate) fn attempt_and_report(&mut self) {
        self.attempt_commit();
        let life = self.server.life;
        let pause = self.random.below(4);
        self.later(pause, Event::CommitReturned { life });
    }

    fn attempt_commit(&mut self) {
        let Some(engine) = &mut self.server.engine else { return };
        let Some((CommitStage::PendingCommit(committing), truths)) = engine.stage.take() else {
            return;
        };
        let changes = committing.batch().changes().to_vec();
        let token = committing.batch().token();
        self.disk.set_time(self.now);
        let stage = match committing.attempt(&mut self.disk, &engine.decider.keeper) {
            Progress::Durable(durable) => CommitStage::Durable(durable),
            Progress::Failed(again, _) => CommitStage::PendingCommit(again),
        };
        engine.stage = Some((stage, truths));
        let is_new = self.model.token != token;
        if !changes.is_empty() && self.disk.written_token() == token && is_new {
            // A batch whose outcome was lost is committed again, but checked only once.
            self.model.token = token;
            self.check_ids(&changes);
            self.model.durable = self.model.table.clone();
            self.model.accepted_durably = self.model.accepted.clone();
            self.check_disk();
        }
    }

    /// The store has returned: sends the messages of a durable batch, or tries again.
    pub(crate) fn commit_returned(&mut self) {
        let (life, now) = (self.server.life, self.now);
        let Some(engine) = &mut self.server.engine else { return };
        match engine.stage.take() {
            Some((CommitStage::Durable(durable), truths)) => {
                let mono = engine.mono(now);
                engine.decider.committed(&durable, mono);
                self.note_stall(now - self.model.commit_began);
                self.copy_registrations(&durable);
                let stops = durable.batch().stops();
                // Sockets open after the first batch, which contains the epoch (I3).
                if durable.epoch().is_some() && !stops {
                    self.server.open = true;
                    self.model.epoch_told = self.model.epoch;
                    self.later(20, Event::ConnectionSweep { life });
                    self.clients_reconnect();
                }
                self.send_messages(durable, truths);
                self.committed(stops);
            }
            Some(failed) => {
                engine.stage = Some(failed);
                self.trace(|_| "the commit failed, or its outcome is lost; retrying".to_owned());
                let pause = self.random.between(200, 8 * SECOND);
                self.later(pause, Event::CommitAttempt { life });
            }
            None => {}
        }
    }

    /// Brings the copy of the roster up to date after a start or a registration.
    fn copy_registrations(&mut self, durable: &DurableBatch) {
        let concerns = |change: &Change| {
            matches!(change, Change::Started { .. } | Change::Client(_) | Change::ClientGone(_))
        };
        if durable.batch().changes().iter().any(concerns) {
            self.copy_roster();
        }
    }

    /// Copies the roster of what is durable; never before the start is, which would replace the
    /// evidence that the store is older.
    pub(crate) fn copy_roster(&mut self) {
        self.copied_at = self.now;
        self.copy = Some(RosterCopy::of(self.disk.written(), self.disk.written_token()));
    }

    /// The lease on the store is not renewed for a while; nothing may be decided.
    pub(crate) fn lose_lease(&mut self) {
        let (now, life) = (self.now, self.server.life);
        let pause = self.random.between(300, 20 * SECOND);
        let Some(engine) = &mut self.server.engine else { return };
        if engine.unfresh_since.is_none() {
            engine.unfresh_since = Some(now);
            self.fault("lease not fresh");
            self.later(STALL_MAX.as_millis() as Ms, Event::ExpireStalled { life });
            self.later(pause, Event::LeaseRenewed { life });
        }
    }

    pub(crate) fn renew_lease(&mut self) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let Some(since) = engine.unfresh_since.take() else { return };
        let lasted = now - since;
        engine.decider.stalled(Duration::from_millis(lasted));
        self.note_pause(lasted);
        self.set_timer();
        self.wake_engine();
    }

    pub(crate) fn committed(&mut self, stops: bool) {
        if stops {
            self.check_clean_stop();
            self.trace(|_| "the server has stopped cleanly".to_owned());
            self.coverage.reach("clean stop");
            if self.random.percent(30) {
                // The machine is switched off after the stop.
                self.disk.lose_power(&mut self.random);
            }
            return self.server_is_down();
        }
        self.check_snapshot();
        self.set_timer();
        self.wake_engine();
    }
}
