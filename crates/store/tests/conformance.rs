//! The suite for stores, applied to a store as an embedding program may write one, and to stores that
//! each break one rule: the suite must find every one of them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Mutex, MutexGuard};

use keeper::change::{Change, Exactness, Snapshot};
use lockkeeper_store::conformance::{
    self, KILL, NOT_WRITTEN, ONE_WRITER, POWER_LOSS, QUICK, TestBed, UNKNOWN,
};
use lockkeeper_store::store::{cleared, may_clear};
use lockkeeper_store::{CommitOutcome, Durability, Store, StoreError, Token};

/// The rule that a store breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    Correct,
    /// Keeps only whether locks may be missing.
    OpenBecomesRoster,
    /// A start makes it exact.
    JudgementIsForgotten,
    /// A failed commit leaves the rows that were written before the failure.
    HalfABatch,
    /// The batch is stored although it says that it is not.
    NotWrittenIsWritten,
    /// A later commit is accepted while an earlier one is unknown.
    UnknownIsIgnored,
    /// An unknown commit takes effect after it was settled.
    LateEffect,
    /// The token is not part of the batch.
    TokenIsLost,
    /// Two processes write.
    TwoWriters,
    /// The writer that was replaced may try again.
    ReplacedIsTransient,
    /// A network thread waits for the disk.
    QuickThoughItSyncs,
    /// A registration is not synced.
    RegistrationIsNotSynced,
    /// A power loss is not noticed.
    ExactAfterPowerLoss,
    /// A batch is applied row by row, in no order.
    RowsWithoutOrder,
    /// Clearing starts the epochs anew.
    ClearForgetsEpoch,
}

use Mistake::*;

/// What is shared by the processes that open one store.
#[derive(Default)]
struct Medium {
    written: Snapshot,
    written_token: Token,
    synced: Snapshot,
    synced_token: Token,
    /// Of the process that may write.
    writer: u64,
    waits: u64,
    fails: bool,
    /// The next reply is lost, and the batch is stored or not.
    lost_reply: Option<bool>,
    late: Option<(Vec<Change>, Token)>,
}

/// Writes at once, syncs what clients cannot reclaim; a new process replaces the one before.
struct Shelf {
    medium: Arc<Mutex<Medium>>,
    writer: u64,
    is_unsettled: bool,
    mistake: Mistake,
}

impl Shelf {
    fn open(medium: Arc<Mutex<Medium>>, mistake: Mistake) -> Self {
        let writer = {
            let mut medium = medium.lock().unwrap();
            medium.writer += 1;
            medium.writer
        };
        Self { medium, writer, is_unsettled: false, mistake }
    }

    fn medium(&self) -> MutexGuard<'_, Medium> {
        self.medium.lock().unwrap()
    }

    fn settle(&mut self) {
        self.is_unsettled = false;
    }

    fn must_sync(&self, changes: &[Change]) -> bool {
        let registers = changes.iter().any(|change| matches!(change, Change::Client(_)));
        let forgets = self.mistake == RegistrationIsNotSynced && registers;
        Durability::Process.must_sync(changes) && !forgets
    }
}

impl Medium {
    fn write(&mut self, changes: &[Change], token: Token, mistake: Mistake) {
        let before = self.written.exactness;
        let mut changes = changes.to_vec();
        if mistake == RowsWithoutOrder {
            changes.reverse();
        }
        changes.into_iter().for_each(|change| self.written.apply(change));
        let exactness = &mut self.written.exactness;
        *exactness = match (mistake, *exactness) {
            (OpenBecomesRoster, Exactness::Open) => Exactness::Roster,
            (JudgementIsForgotten, after) if after > before => Exactness::Exact,
            (_, after) => after,
        };
        self.written_token = token;
    }

    fn sync(&mut self) {
        self.waits += 1;
        (self.synced, self.synced_token) = (self.written.clone(), self.written_token);
    }
}

impl Store for Shelf {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.settle();
        Ok(self.medium().written.clone())
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        let full = || StoreError::Unwritable("the shelf is full".to_owned());
        if self.is_unsettled && self.mistake != UnknownIsIgnored {
            return CommitOutcome::NotWritten(full());
        }
        let (mistake, must_sync) = (self.mistake, self.must_sync(changes));
        let mut medium = self.medium();
        if medium.writer != self.writer && mistake != TwoWriters {
            let replaced = StoreError::Replaced { by: "another".into(), since: "now".into() };
            let transient = mistake == ReplacedIsTransient;
            return CommitOutcome::NotWritten(if transient { full() } else { replaced });
        }
        if medium.fails {
            let token_before = medium.written_token;
            match mistake {
                HalfABatch => medium.write(&changes[..changes.len() / 2], token_before, mistake),
                NotWrittenIsWritten => medium.write(changes, token, mistake),
                _ => {}
            }
            return CommitOutcome::NotWritten(full());
        }
        let lost = medium.lost_reply.take();
        if lost == Some(false) && mistake == LateEffect {
            medium.late = Some((changes.to_vec(), token));
        } else if let Some((changes, token)) = medium.late.take() {
            medium.write(&changes, token, mistake);
        }
        if lost != Some(false) {
            let recorded = if mistake == TokenIsLost { medium.written_token } else { token };
            medium.write(changes, recorded, mistake);
            if must_sync {
                medium.sync();
            }
        }
        drop(medium);
        if lost.is_some() {
            self.is_unsettled = true;
            return CommitOutcome::Unknown(full());
        }
        CommitOutcome::Done
    }

    fn is_quick(&self, changes: &[Change]) -> bool {
        self.mistake == QuickThoughItSyncs || !Durability::Process.must_sync(changes)
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.settle();
        Ok(self.medium().written_token)
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        let mut medium = self.medium();
        may_clear(&medium.written, force)?;
        medium.written = match self.mistake {
            ClearForgetsEpoch => Snapshot::default(),
            _ => cleared(&medium.written),
        };
        medium.sync();
        Ok(())
    }
}

struct ShelfBed(Mistake);

impl TestBed for ShelfBed {
    type Store = Shelf;

    fn fresh(&mut self) -> Shelf {
        Shelf::open(Arc::default(), self.0)
    }

    fn reopen_after_kill(&mut self, store: Shelf) -> Shelf {
        Shelf::open(store.medium, self.0)
    }

    fn reopen_after_power_loss(&mut self, store: Shelf) -> Result<Shelf, Shelf> {
        {
            let mut medium = store.medium();
            let lost = medium.written_token != medium.synced_token;
            (medium.written, medium.written_token) = (medium.synced.clone(), medium.synced_token);
            if lost && self.0 != ExactAfterPowerLoss {
                medium.written.exactness = medium.written.exactness.max(Exactness::Roster);
            }
        }
        Ok(Shelf::open(store.medium, self.0))
    }

    fn fail_writes(&mut self, store: &mut Shelf) -> bool {
        store.medium().fails = true;
        true
    }

    fn repair(&mut self, store: &mut Shelf) {
        store.medium().fails = false;
    }

    fn lose_next_reply(&mut self, store: &mut Shelf, stored: bool) -> bool {
        store.medium().lost_reply = Some(stored);
        true
    }

    fn second_writer(&mut self, first: &mut Shelf) -> Option<Result<Shelf, StoreError>> {
        Some(Ok(Shelf::open(Arc::clone(&first.medium), self.0)))
    }

    fn waits(&mut self, store: &Shelf) -> Option<u64> {
        Some(store.medium().waits)
    }
}

#[test]
fn a_store_of_an_embedding_program_conforms() {
    let unchecked = conformance::check(&mut ShelfBed(Mistake::Correct)).unwrap();
    assert_eq!(unchecked.0, [""; 0]);
}

#[test]
fn every_broken_store_is_convicted_by_the_rule_that_it_breaks() {
    for (mistake, rule) in [
        (OpenBecomesRoster, "what a start records is kept"),
        (JudgementIsForgotten, "what a start records is kept"),
        (HalfABatch, NOT_WRITTEN),
        (NotWrittenIsWritten, NOT_WRITTEN),
        (UnknownIsIgnored, UNKNOWN),
        (LateEffect, UNKNOWN),
        (TokenIsLost, "every change comes back"),
        (TwoWriters, ONE_WRITER),
        (ReplacedIsTransient, ONE_WRITER),
        (QuickThoughItSyncs, QUICK),
        (RegistrationIsNotSynced, POWER_LOSS),
        (ExactAfterPowerLoss, POWER_LOSS),
        (RowsWithoutOrder, "any sequence of batches comes back"),
        (ClearForgetsEpoch, "clearing keeps epoch and ids"),
    ] {
        match conformance::check(&mut ShelfBed(mistake)) {
            Ok(_) => panic!("{mistake:?} was not found"),
            Err(broken) => {
                let found = broken.to_string();
                assert!(found.starts_with(rule), "{mistake:?} was found by: {found:.300}");
            }
        }
    }
}

/// Stores half of a batch whose reply is lost, and rolls it back when that is settled: only a kill in
/// between shows it.
struct Torn {
    shelf: Shelf,
    before: Option<Snapshot>,
}

struct TornBed;

impl Torn {
    fn roll_back(&mut self) {
        if let Some(before) = self.before.take() {
            self.shelf.medium().written = before;
        }
    }
}

impl Store for Torn {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.roll_back();
        self.shelf.load()
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        let lost = self.shelf.medium().lost_reply;
        if lost.is_some() {
            let mut medium = self.shelf.medium();
            let (written, before) = (medium.written.clone(), medium.written_token);
            medium.write(&changes[..changes.len() / 2], before, Mistake::Correct);
            medium.lost_reply = Some(false);
            drop(medium);
            self.before = Some(written);
        }
        self.shelf.commit(changes, token)
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.roll_back();
        self.shelf.last_token()
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        self.shelf.clear(force)
    }
}

impl TestBed for TornBed {
    type Store = Torn;

    fn fresh(&mut self) -> Torn {
        Torn { shelf: ShelfBed(Mistake::Correct).fresh(), before: None }
    }

    fn reopen_after_kill(&mut self, store: Torn) -> Torn {
        let shelf = ShelfBed(Mistake::Correct).reopen_after_kill(store.shelf);
        Torn { shelf, before: None }
    }

    fn lose_next_reply(&mut self, store: &mut Torn, stored: bool) -> bool {
        store.shelf.medium().lost_reply = Some(stored);
        true
    }
}

#[test]
fn a_store_that_is_torn_by_a_kill_is_convicted() {
    let broken = conformance::check(&mut TornBed).unwrap_err().to_string();
    assert!(broken.starts_with(KILL), "{broken:.300}");
}
