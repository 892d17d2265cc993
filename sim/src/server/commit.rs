//! One commit at a time, by a disk that is slow, that fails, and that loses its outcome; only then is
//! anybody told (I2).

use server::driver::core::Next;
use store::{Committed, Store, Token};

use crate::disk::Fault;
use crate::driver::Decided;
use crate::queue::{Ms, SECOND};
use crate::world::{Event, World};

#[derive(Clone, Copy, Debug)]
pub enum CommitFault {
    Slow(Ms),
    NotWritten,
    Unknown { written: bool },
}

impl World {
    pub fn begin_commit(&mut self, decided: Decided) {
        let Some(driver) = &mut self.server.driver else { return };
        if decided.batch.changes.is_empty() {
            let stops = decided.batch.stops;
            self.tell_all(decided, false);
            return self.committed(stops);
        }
        driver.committing = Some(decided);
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
        let Some(committing) = self.server.driver.as_ref().and_then(|d| d.committing.as_ref())
        else {
            return;
        };
        let batch = &committing.batch;
        let outcome = self.disk.commit(&batch.changes, batch.token);
        if self.disk.written_token() == batch.token {
            let changes = batch.changes.clone();
            self.check_ids(&changes);
            self.model.durable = self.model.table.clone();
            self.model.accepted_durably = self.model.accepted.clone();
            self.check_disk();
        }
        let life = self.server.life;
        let pause = self.random.below(4);
        self.later(pause, Event::Written { life, outcome });
    }

    pub fn written(&mut self, outcome: Committed) {
        let life = self.server.life;
        let Some(committing) = self.server.driver.as_ref().and_then(|d| d.committing.as_ref())
        else {
            return;
        };
        match committing.batch.after(&outcome) {
            Next::Tell => self.tell_committed(),
            Next::CommitAgain => {
                self.tell(|_| "the commit was not written; again".to_owned());
                let pause = self.random.between(200, 8 * SECOND);
                self.later(pause, Event::Write { life });
            }
            Next::Settle => {
                self.tell(|_| "the outcome of the commit is lost".to_owned());
                let pause = self.random.between(200, 8 * SECOND);
                self.later(pause, Event::Settle { life });
            }
        }
    }

    /// Reads the token back.
    pub fn settle(&mut self) {
        let token = self.disk.last_token().unwrap_or(Token(0));
        let Some(committing) = self.server.driver.as_ref().and_then(|d| d.committing.as_ref())
        else {
            return;
        };
        match committing.batch.settled(token) {
            Next::Tell => self.tell_committed(),
            Next::CommitAgain | Next::Settle => {
                let life = self.server.life;
                self.later(1, Event::Write { life });
            }
        }
    }

    fn tell_committed(&mut self) {
        let Some(committed) = self.server.driver.as_mut().and_then(|d| d.committing.take()) else {
            return;
        };
        let stops = committed.batch.stops;
        if !self.server.open && !stops {
            self.server.open = true;
            self.model.epoch_told = self.model.epoch;
        }
        self.tell_all(committed, true);
        self.committed(stops);
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
        self.wake_driver();
    }
}
