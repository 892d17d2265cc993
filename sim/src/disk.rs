//! The simulated store, behind the production [`Store`] trait. It distinguishes written (page cache)
//! from synced data, injects faults, and after a power loss reports its locks as a roster until the
//! following grace period has ended durably.

use keeper::change::{Change, Exactness, Snapshot};
use store::store::{cleared, may_clear};
use store::{CommitOutcome, Durability, Store, StoreError, Token};

use crate::random::Random;

/// The fault of the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    NotWritten,
    /// The outcome is lost; `written` says what really happened.
    Unknown {
        written: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Disk {
    durability: Durability,
    /// Survives a kill.
    written: Snapshot,
    written_token: Token,
    /// Survives a power loss.
    synced: Snapshot,
    synced_token: Token,
    /// Batches in `written` that are not in `synced`, oldest first.
    unsynced: Vec<(Vec<Change>, Token)>,
    /// The last commit is unknown, and `last_token` or `load` has not settled it.
    is_unsettled: bool,
    pub next_fault: Option<Fault>,
}

impl Disk {
    pub(crate) fn new(durability: Durability) -> Self {
        Self {
            durability,
            written: Snapshot::default(),
            written_token: Token(0),
            synced: Snapshot::default(),
            synced_token: Token(0),
            unsynced: Vec::new(),
            is_unsettled: false,
            next_fault: None,
        }
    }

    /// The state that committed batches have produced.
    pub(crate) fn written(&self) -> &Snapshot {
        &self.written
    }

    pub(crate) fn written_token(&self) -> Token {
        self.written_token
    }

    /// The background sync.
    pub(crate) fn sync(&mut self) {
        for (changes, token) in self.unsynced.drain(..) {
            for change in changes {
                self.synced.apply(change);
            }
            self.synced_token = token;
        }
    }

    /// Power loss: a random prefix of the unsynced batches survives. Returns how many are lost.
    pub(crate) fn lose_power(&mut self, random: &mut Random) -> usize {
        let kept = random.index(self.unsynced.len() + 1);
        let lost = self.unsynced.split_off(kept).len();
        self.sync();
        self.written = self.synced.clone();
        self.written_token = self.synced_token;
        if self.durability == Durability::Process && !self.written.stopped_cleanly {
            // Sticky: what was judged here stays until a start records another judgement.
            for state in [&mut self.written, &mut self.synced] {
                state.exactness = state.exactness.max(Exactness::Roster);
            }
        }
        self.is_unsettled = false;
        lost
    }

    fn write(&mut self, changes: &[Change], token: Token) {
        for change in changes {
            self.written.apply(change.clone());
        }
        self.written_token = token;
        self.unsynced.push((changes.to_vec(), token));
        if self.durability.must_sync(changes) {
            self.sync();
        }
    }
}

impl Store for Disk {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.is_unsettled = false;
        Ok(self.written.clone())
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        if self.is_unsettled {
            let why = "the last commit is not settled".to_owned();
            return CommitOutcome::NotWritten(StoreError::Unwritable(why));
        }
        match self.next_fault.take() {
            None => {
                self.write(changes, token);
                CommitOutcome::Done
            }
            Some(Fault::NotWritten) => {
                CommitOutcome::NotWritten(StoreError::Unwritable("simulated".to_owned()))
            }
            Some(Fault::Unknown { written }) => {
                if written {
                    self.write(changes, token);
                }
                self.is_unsettled = true;
                CommitOutcome::Unknown(StoreError::Unwritable("simulated".to_owned()))
            }
        }
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.is_unsettled = false;
        Ok(self.written_token)
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        may_clear(&self.written, force)?;
        self.written = cleared(&self.written);
        self.synced = self.written.clone();
        self.synced_token = self.written_token;
        self.unsynced.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::conformance::{self, ONE_WRITER, TestBed};

    struct DiskBed(Durability, Random);

    impl TestBed for DiskBed {
        type Store = Disk;

        fn fresh(&mut self) -> Disk {
            Disk::new(self.0)
        }

        fn reopen_after_kill(&mut self, mut disk: Disk) -> Disk {
            disk.next_fault = None;
            disk
        }

        fn reopen_after_power_loss(&mut self, mut disk: Disk) -> Result<Disk, Disk> {
            disk.lose_power(&mut self.1);
            Ok(disk)
        }

        fn fail_writes(&mut self, disk: &mut Disk) -> bool {
            disk.next_fault = Some(Fault::NotWritten);
            true
        }

        fn repair(&mut self, disk: &mut Disk) {
            disk.next_fault = None;
        }

        fn lose_next_reply(&mut self, disk: &mut Disk, written: bool) -> bool {
            disk.next_fault = Some(Fault::Unknown { written });
            true
        }
    }

    #[test]
    fn the_simulated_disk_conforms() {
        for durability in [Durability::Process, Durability::Power] {
            let unchecked = conformance::check(&mut DiskBed(durability, Random::new(1))).unwrap();
            assert_eq!(unchecked.0, [ONE_WRITER]);
        }
    }
}
