//! Copies the state of one store into another, of the same kind or not; clears and distrusts stores.

use keeper::change::{Change, Exactness, Snapshot};
use keeper::identity::Epoch;

use crate::error::StoreError;
use crate::store::{CommitOutcome, Store, Token};

const ROWS_PER_BATCH: usize = 5_000;
/// Set in `ids_below` until the copy is complete, so that no server starts with half of one. No
/// server hands out that many ids.
const UNFINISHED: u64 = 1 << 63;

/// Why a copy was refused or did not finish.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The source is a roster: locks may be missing.
    #[error(
        "locks may be missing from the first store, because the machine lost power. Start the \
         server with it, let the grace period end, stop it, and copy again"
    )]
    Inexact,
    /// The target is in use.
    #[error(
        "the second store is not empty: it has {clients} clients and {locks} locks and shares. \
         Clear it first, if they are not needed: lockkeeper store clear URL"
    )]
    NotEmpty {
        /// Clients in the target.
        clients: usize,
        /// Locks and shares in the target.
        locks: usize,
    },
    /// The target failed, and is [`is_unfinished`] until it is cleared.
    #[error("after {after} of {of} rows: {error}. Clear the second store and copy again")]
    Interrupted {
        /// Rows that were written.
        after: usize,
        /// Rows in the source.
        of: usize,
        /// What failed.
        error: StoreError,
    },
    /// One of the stores could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whether a copy into this store was begun and not finished.
pub fn is_unfinished(saved: &Snapshot) -> bool {
    saved.ids_below & UNFINISHED != 0
}

/// Clears a store (B5.7), including one with half of a copy.
pub fn clear(store: &mut dyn Store, force: bool) -> Result<(), StoreError> {
    store.clear(force)?;
    let cleared = store.load()?;
    if !is_unfinished(&cleared) {
        return Ok(());
    }
    let token = Token(store.last_token()?.0 + 1);
    match store.commit(&[Change::IdsBelow(cleared.ids_below & !UNFINISHED)], token) {
        CommitOutcome::Done => Ok(()),
        CommitOutcome::NotWritten(error) | CommitOutcome::Unknown(error) => Err(error),
    }
}

/// Records that `store` can be trusted no further than `degree`: the next start begins a grace period of
/// full length. Works for every store, by the contract of [`Change::Started`]; the epoch stays, and a
/// clean stop stays one.
pub fn distrust(store: &mut dyn Store, degree: Exactness) -> Result<(), StoreError> {
    let saved = store.load()?;
    let token = Token(store.last_token()?.0 + 1);
    let grace = Some(saved.exactness.max(degree));
    let mut changes = vec![Change::Started { epoch: saved.epoch, grace }];
    changes.extend(saved.stopped_cleanly.then_some(Change::Stopped));
    match store.commit(&changes, token) {
        CommitOutcome::Done => Ok(()),
        CommitOutcome::NotWritten(error) | CommitOutcome::Unknown(error) => Err(error),
    }
}

/// Copies everything from an exact store into an empty one and returns what was copied; `progress`
/// is called with the rows written so far and their total. The target continues with the greater
/// epoch, ids and token, so that none is used twice. The token of an empty target becomes that of the source:
/// it looks neither older, nor newer once the source has gone on (B4.106). The source does not change.
pub fn copy(
    from: &mut dyn Store,
    to: &mut dyn Store,
    mut progress: impl FnMut(usize, usize),
) -> Result<Snapshot, CopyError> {
    let saved = from.load()?;
    let before = to.load()?;
    if !saved.exactness.is_exact() {
        return Err(CopyError::Inexact);
    }
    if is_unfinished(&saved) {
        return Err(StoreError::Unfinished.into());
    }
    let held = before.locks.len() + before.shares.len();
    if held + before.clients.len() > 0 {
        return Err(CopyError::NotEmpty { clients: before.clients.len(), locks: held });
    }
    let ids_below = saved.ids_below.max(before.ids_below & !UNFINISHED);
    let epoch = Epoch(saved.epoch.0.max(before.epoch.0));

    let rows = saved.clients.values().cloned().map(Change::Client);
    let rows = rows.chain(saved.locks.values().cloned().map(Change::Lock));
    let rows = rows.chain(saved.shares.values().cloned().map(Change::Share));
    let rows: Vec<Change> = rows.collect();
    let mut target = CopyTarget { to, token: Token(0), after: 0, of: rows.len() };
    let batches = 2 + rows.len().div_ceil(ROWS_PER_BATCH) as u64;
    let first = Token(from.last_token()?.0.saturating_sub(batches));
    target.token = target.to.last_token()?.max(first);
    target.write(&[Change::IdsBelow(ids_below | UNFINISHED)])?;
    for batch in rows.chunks(ROWS_PER_BATCH) {
        target.write(batch)?;
        target.after += batch.len();
        progress(target.after, target.of);
    }
    let mut last =
        vec![Change::Started { epoch, grace: saved.in_grace.then_some(saved.exactness) }];
    last.extend(saved.stopped_cleanly.then_some(Change::Stopped));
    last.push(Change::IdsBelow(ids_below));
    target.write(&last)?;
    Ok(saved)
}

/// The target, and how far the copy has come.
struct CopyTarget<'a> {
    to: &'a mut dyn Store,
    token: Token,
    after: usize,
    of: usize,
}

impl CopyTarget<'_> {
    fn write(&mut self, changes: &[Change]) -> Result<(), CopyError> {
        self.token.0 += 1;
        match self.to.commit(changes, self.token) {
            CommitOutcome::Done => Ok(()),
            CommitOutcome::NotWritten(error) | CommitOutcome::Unknown(error) => {
                Err(CopyError::Interrupted { after: self.after, of: self.of, error })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{client, lock, share};
    use crate::memory::Memory;

    fn filled(locks: u64) -> Memory {
        let mut store = Memory::new();
        let mut changes = vec![
            Change::Started { epoch: Epoch(70), grace: None },
            Change::IdsBelow(1_000_000),
            client(1),
            share(500_000, 1),
        ];
        changes.extend((0..locks).map(|id| lock(id, 1)));
        changes.push(Change::Stopped);
        assert!(matches!(store.commit(&changes, Token(9)), CommitOutcome::Done));
        store
    }

    #[test]
    fn a_copy_is_the_same_with_the_greater_epoch_and_ids() {
        let mut to = Memory::new();
        let used = [
            Change::Started { epoch: Epoch(99), grace: Some(Exactness::Exact) },
            Change::IdsBelow(2_000_000),
        ];
        assert!(matches!(to.commit(&used, Token(3)), CommitOutcome::Done));
        let mut reported = Vec::new();
        copy(&mut filled(12_000), &mut to, |after, of| reported.push((after, of))).unwrap();
        assert_eq!(reported.last(), Some(&(12_002, 12_002)));
        let expected =
            Snapshot { epoch: Epoch(99), ids_below: 2_000_000, ..filled(12_000).load().unwrap() };
        assert_eq!(to.load().unwrap(), expected);
        assert_eq!(to.last_token().unwrap(), Token(9), "that of the source (B4.106)");
    }

    #[test]
    fn a_store_with_locks_is_not_overwritten() {
        let error = copy(&mut filled(1), &mut filled(2), |_, _| ()).unwrap_err();
        assert!(matches!(error, CopyError::NotEmpty { clients: 1, locks: 3 }), "{error}");
    }

    #[test]
    fn a_store_that_knows_a_client_is_not_empty() {
        let mut to = Memory::new();
        assert!(matches!(to.commit(&[client(1)], Token(1)), CommitOutcome::Done));
        let error = copy(&mut filled(1), &mut to, |_, _| ()).unwrap_err();
        assert!(matches!(error, CopyError::NotEmpty { clients: 1, locks: 0 }), "{error}");
    }

    /// Accepts only so many batches.
    struct Short(Memory, usize);

    impl Store for Short {
        fn load(&mut self) -> Result<Snapshot, StoreError> {
            self.0.load()
        }
        fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
            match self.1.checked_sub(1) {
                Some(left) => {
                    self.1 = left;
                    self.0.commit(changes, token)
                }
                None => CommitOutcome::NotWritten(StoreError::Unwritable("full".into())),
            }
        }
        fn last_token(&mut self) -> Result<Token, StoreError> {
            self.0.last_token()
        }
        fn clear(&mut self, force: bool) -> Result<(), StoreError> {
            self.0.clear(force)
        }
    }

    #[test]
    fn half_a_copy_is_detected_and_can_be_cleared_and_repeated() {
        let mut to = Short(Memory::new(), 3);
        let error = copy(&mut filled(12_000), &mut to, |_, _| ()).unwrap_err();
        assert!(matches!(error, CopyError::Interrupted { after: 10_000, .. }), "{error}");
        assert!(is_unfinished(&to.load().unwrap()));
        to.1 = 100;
        clear(&mut to, true).unwrap();
        assert!(!is_unfinished(&to.load().unwrap()));
        copy(&mut filled(12_000), &mut to, |_, _| ()).unwrap();
        assert_eq!(to.load().unwrap(), filled(12_000).load().unwrap());
    }

    /// A copy of the epoch and token outside the store must not call the target older than the source.
    #[test]
    fn a_store_is_never_trusted_further_than_before() {
        let mut store = filled(3);
        let before = store.load().unwrap();
        distrust(&mut store, Exactness::Open).unwrap();
        distrust(&mut store, Exactness::Roster).unwrap();
        let expected = Snapshot { exactness: Exactness::Open, in_grace: true, ..before };
        assert_eq!(store.load().unwrap(), expected);
        assert_eq!(store.last_token().unwrap(), Token(11));
    }
}
