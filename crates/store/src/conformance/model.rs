//! A store and a model of what it should contain.

use keeper::change::{Change, Snapshot};

use super::Nonconformance;
use super::bed::TestBed;
use crate::store::{CommitOutcome, Store, Token};

pub(super) struct StoreAndModel<'a, B: TestBed> {
    pub(super) bed: &'a mut B,
    pub(super) store: B::Store,
    pub(super) expected: Snapshot,
    pub(super) token: Token,
}

impl<'a, B: TestBed> StoreAndModel<'a, B> {
    pub(super) fn fresh(bed: &'a mut B) -> Self {
        let store = bed.fresh();
        Self { bed, store, expected: Snapshot::default(), token: Token(0) }
    }

    /// Commits a batch that must succeed.
    pub(super) fn commit(&mut self, changes: &[Change]) -> Result<(), Nonconformance> {
        let next = Token(self.token.0 + 1);
        match self.store.commit(changes, next) {
            CommitOutcome::Done => self.note(changes),
            CommitOutcome::NotWritten(error) | CommitOutcome::Unknown(error) => {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Records that a batch is stored.
    pub(super) fn note(&mut self, changes: &[Change]) {
        self.token.0 += 1;
        for change in changes {
            self.expected.apply(change.clone());
        }
    }

    /// Ends the process and compares.
    pub(super) fn reopen(self) -> Result<Self, Nonconformance> {
        let mut again = self.killed();
        again.compare("after a kill")?;
        Ok(again)
    }

    pub(super) fn killed(self) -> Self {
        let Self { bed, store, expected, token } = self;
        let store = bed.reopen_after_kill(store);
        Self { bed, store, expected, token }
    }

    pub(super) fn compare(&mut self, when: &str) -> Result<(), Nonconformance> {
        same(when, &self.store.load()?, &self.expected)?;
        let last = self.store.last_token()?;
        holds(last == self.token, &format!("{when}, the last token is that of the last batch"))
    }
}

pub(super) fn same(
    when: &str,
    found: &Snapshot,
    expected: &Snapshot,
) -> Result<(), Nonconformance> {
    if found == expected {
        return Ok(());
    }
    Err(Nonconformance(format!("{when}: load gave {found:?}, expected {expected:?}")))
}

pub(super) fn holds(truth: bool, sentence: &str) -> Result<(), Nonconformance> {
    if truth { Ok(()) } else { Err(Nonconformance(format!("this does not hold: {sentence}"))) }
}
