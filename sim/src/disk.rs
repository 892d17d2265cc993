//! The simulated store, behind the production [`Store`] trait. It distinguishes written (page cache)
//! from synced data and injects faults. After a power loss it is a roster, and open after it has lost
//! committed batches, until the following grace period has ended durably.

use std::collections::VecDeque;

use keeper::change::{Change, Exactness, Snapshot};
use keeper::identity::Epoch;
use store::store::{cleared, may_clear};
use store::{CommitOutcome, Durability, Store, StoreError, Token};

use crate::queue::{Ms, SECOND};
use crate::random::Random;

/// How many of the last batches a failover can lose.
const HISTORY_MAX: usize = 60;
/// The least age of a backup: the copy of the roster has a token that is younger.
const BACKUP_AGE: Ms = 75 * SECOND;

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
    /// The last batches, synced or not, and the state before them.
    history: VecDeque<(Ms, Vec<Change>, Token)>,
    base: Snapshot,
    base_token: Token,
    base_at: Ms,
    /// It has failed over under the server, which must write its own state back.
    behind: bool,
    /// The operator declares it lost at the next start.
    declared_lost: bool,
    now: Ms,
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
            history: VecDeque::new(),
            base: Snapshot::default(),
            base_token: Token(0),
            base_at: 0,
            behind: false,
            declared_lost: false,
            now: 0,
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
            self.distrust(Exactness::Roster);
        }
        self.history.truncate(self.history.len() - lost.min(self.history.len()));
        self.is_unsettled = false;
        lost
    }

    /// A failover to a replica that lags: a random suffix of the last batches is gone, whatever was
    /// acknowledged, and the store knows it. Returns how many are lost.
    pub(crate) fn lose_suffix(&mut self, random: &mut Random) -> usize {
        let kept = random.index(self.history.len() + 1);
        let lost = self.rewind(kept);
        if lost > 0 {
            self.distrust(Exactness::Open);
        }
        lost
    }

    /// The same while the server lives. Returns how many are lost.
    pub(crate) fn fail_over(&mut self, random: &mut Random) -> usize {
        let lost = self.lose_suffix(random);
        self.behind |= lost > 0;
        lost
    }

    /// Whether it lacks batches that the living server has.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind
    }

    /// The server has ended; what it had in memory is gone.
    pub(crate) fn forget_server(&mut self) {
        self.behind = false;
    }

    /// A backup is put back. The store itself does not know; one that has all that the copy of the
    /// roster knows of, `copied`, cannot be noticed, and is not put back.
    pub(crate) fn restore_backup(&mut self, now: Ms, copied: Token) -> usize {
        if self.base_at + BACKUP_AGE > now {
            return 0;
        }
        let old = |(at, ..): &&(Ms, Vec<Change>, Token)| *at + BACKUP_AGE <= now;
        let kept = self.history.iter().take_while(old).count();
        let last = kept.checked_sub(1).and_then(|last| self.history.get(last));
        let token = last.map_or(self.base_token, |(.., token)| *token);
        if token < copied { self.rewind(kept) } else { 0 }
    }

    /// The store is gone, and a new one is created. Returns how many batches are lost.
    pub(crate) fn lose_everything(&mut self) -> usize {
        let lost = self.history.len();
        *self = Self { declared_lost: true, now: self.now, ..Self::new(self.durability) };
        lost
    }

    /// Whether the operator says that acknowledged locks are lost; only until the start is durable.
    pub(crate) fn is_declared_lost(&self) -> bool {
        self.declared_lost
    }

    pub(crate) fn set_time(&mut self, now: Ms) {
        self.now = now;
    }

    /// Returns to the state after the first `kept` batches of the history.
    fn rewind(&mut self, kept: usize) -> usize {
        let lost = self.history.split_off(kept).len();
        if lost > 0 {
            (self.written, self.written_token) = (self.base.clone(), self.base_token);
            for (_, changes, token) in &self.history {
                changes.iter().for_each(|change| self.written.apply(change.clone()));
                self.written_token = *token;
            }
            (self.synced, self.synced_token) = (self.written.clone(), self.written_token);
            self.unsynced.clear();
            self.is_unsettled = false;
            // A server refuses to start with an empty store until its operator agrees.
            self.declared_lost = self.written.epoch == Epoch::default();
        }
        lost
    }

    /// The store knows that it has lost something.
    fn distrust(&mut self, exactness: Exactness) {
        self.written.exactness = self.written.exactness.max(exactness);
        (self.synced, self.synced_token) = (self.written.clone(), self.written_token);
        self.unsynced.clear();
    }

    fn write(&mut self, changes: &[Change], token: Token) {
        for change in changes {
            self.written.apply(change.clone());
        }
        self.written_token = token;
        self.unsynced.push((changes.to_vec(), token));
        self.declared_lost = false;
        self.history.push_back((self.now, changes.to_vec(), token));
        if self.history.len() > HISTORY_MAX
            && let Some((at, changes, token)) = self.history.pop_front()
        {
            changes.into_iter().for_each(|change| self.base.apply(change));
            (self.base_token, self.base_at) = (token, at);
        }
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
        if self.behind {
            return CommitOutcome::NotWritten(StoreError::Behind {
                location: "the store".to_owned(),
                what: "a failover".to_owned(),
            });
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

    fn rewrite(&mut self, saved: &Snapshot, token: Token) -> CommitOutcome {
        if let Some(Fault::NotWritten) = self.next_fault.take() {
            return CommitOutcome::NotWritten(StoreError::Unwritable("simulated".to_owned()));
        }
        let durability = self.durability;
        let written = || (saved.clone(), token);
        *self = Self { now: self.now, base_at: self.now, ..Self::new(durability) };
        (self.written, self.written_token) = written();
        (self.synced, self.synced_token) = written();
        (self.base, self.base_token) = written();
        CommitOutcome::Done
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        if self.behind {
            let (location, what) = ("the store".to_owned(), "a failover".to_owned());
            return Err(StoreError::Behind { location, what });
        }
        self.is_unsettled = false;
        Ok(self.written_token)
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        may_clear(&self.written, force)?;
        self.written = cleared(&self.written);
        self.synced = self.written.clone();
        self.synced_token = self.written_token;
        self.unsynced.clear();
        self.history.clear();
        (self.base, self.base_token) = (self.written.clone(), self.written_token);
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
