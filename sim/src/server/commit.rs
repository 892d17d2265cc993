//! One commit at a time, by a disk that is slow, that fails, and that loses its outcome; only then is
//! anybody told (I2).

use std::time::Duration;

use server::engine::batch::Progress;
use server::engine::request::STALL_MAX;

use crate::disk::Fault;
use crate::engine::{Decided, Stage};
use crate::queue::{Ms, SECOND};
use crate::world::{Event, World};

#[derive(Clone, Copy, Debug)]
pub enum CommitFault {
    Slow(Ms),
    NotWritten,
    Unknown { written: bool },
}

impl World {
    pub fn begin_commit(&mut self, Decided { batch, background }: Decided) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let is_empty = batch.changes().is_empty();
        let decided = engine.mono(now);
        self.model.commit_began = now;
        engine.stage = Some((Stage::Committing(batch.commit(decided)), background));
        if is_empty {
            self.attempt_commit();
            return self.written();
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
        self.later(pause, Event::Write { life });
    }

    pub fn write(&mut self) {
        self.attempt_commit();
        let life = self.server.life;
        let pause = self.random.below(4);
        self.later(pause, Event::Written { life });
    }

    fn attempt_commit(&mut self) {
        let Some(engine) = &mut self.server.engine else { return };
        let Some((Stage::Committing(committing), background)) = engine.stage.take() else { return };
        let changes = committing.batch().changes().to_vec();
        let token = committing.batch().token();
        let stage = match committing.attempt(&mut self.disk) {
            Progress::Durable(durable) => Stage::Durable(durable),
            Progress::Failed(again, _) => Stage::Committing(again),
        };
        engine.stage = Some((stage, background));
        let is_new = self.model.token != token;
        if !changes.is_empty() && self.disk.written_token() == token && is_new {
            // A batch whose outcome was lost is attempted again, and looked at once.
            self.model.token = token;
            self.check_ids(&changes);
            self.model.durable = self.model.table.clone();
            self.model.accepted_durably = self.model.accepted.clone();
            self.check_disk();
        }
    }

    /// The store has answered.
    pub fn written(&mut self) {
        let (life, now) = (self.server.life, self.now);
        let Some(engine) = &mut self.server.engine else { return };
        match engine.stage.take() {
            Some((Stage::Durable(durable), background)) => {
                let mono = engine.mono(now);
                engine.decider.committed(&durable, mono);
                self.note_stall(now - self.model.commit_began);
                let stops = durable.batch().stops();
                // Sockets need the epoch that only the first batch has (I3).
                if durable.epoch().is_some() && !stops {
                    self.server.open = true;
                    self.model.epoch_told = self.model.epoch;
                    self.later(20, Event::Connections { life });
                    self.clients_reconnect();
                }
                self.tell_all(durable, background);
                self.committed(stops);
            }
            Some(failed) => {
                engine.stage = Some(failed);
                self.tell(|_| "the commit failed, or its outcome is lost; again".to_owned());
                let pause = self.random.between(200, 8 * SECOND);
                self.later(pause, Event::Write { life });
            }
            None => {}
        }
    }

    /// The lease on the store is not renewed for a while: nothing may be decided.
    pub fn lose_lease(&mut self) {
        let (now, life) = (self.now, self.server.life);
        let pause = self.random.between(300, 20 * SECOND);
        let Some(engine) = &mut self.server.engine else { return };
        if engine.unfresh_since.is_none() {
            engine.unfresh_since = Some(now);
            self.fault("lease not fresh");
            self.later(STALL_MAX.as_millis() as Ms, Event::Expire { life });
            self.later(pause, Event::LeaseFresh { life });
        }
    }

    pub fn renew_lease(&mut self) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let Some(since) = engine.unfresh_since.take() else { return };
        let lasted = now - since;
        engine.decider.stalled(Duration::from_millis(lasted));
        self.note_pause(lasted);
        self.set_timer();
        self.wake_engine();
    }

    pub fn committed(&mut self, stops: bool) {
        if stops {
            self.check_clean_stop();
            self.tell(|_| "the server has stopped cleanly".to_owned());
            self.tally.reach("clean stop");
            if self.random.percent(30) {
                // The machine is switched off afterwards.
                self.disk.lose_power(&mut self.random);
            }
            return self.server_is_down();
        }
        self.check_snapshot();
        self.set_timer();
        self.wake_engine();
    }
}
