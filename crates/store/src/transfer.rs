//! The state of one store put into another, whatever they are made of.

use keeper::change::{Change, Exactness, Snapshot};
use keeper::identity::Epoch;

use crate::error::StoreError;
use crate::store::{Committed, Store, Token};

/// So many rows in one batch.
const ROWS: usize = 5_000;
/// Set in `ids_below` while a store is being filled, so that no server starts with half of a copy.
/// No server ever gives that many ids.
const UNFINISHED: u64 = 1 << 63;

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(
        "the first store cannot say that all its locks are there, because the machine was switched \
         off. Start the server with it, let the grace period end, stop it, and copy again"
    )]
    Inexact,
    #[error(
        "the second store is not empty: it has {clients} clients and {locks} locks and shares. \
         Clear it first, if nobody needs them: lockkeeper store clear URL"
    )]
    NotEmpty { clients: usize, locks: usize },
    #[error("after {after} of {of} rows: {error}. Clear the second store and copy again")]
    Interrupted { after: usize, of: usize, error: StoreError },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whether a copy into this store was begun and not finished.
pub fn is_unfinished(saved: &Snapshot) -> bool {
    saved.ids_below & UNFINISHED != 0
}

/// Empties a store (R5.3), also one with half of a copy.
pub fn clear(store: &mut dyn Store, force: bool) -> Result<(), StoreError> {
    store.clear(force)?;
    let left = store.load()?;
    if !is_unfinished(&left) {
        return Ok(());
    }
    let token = Token(store.last_token()?.0 + 1);
    match store.commit(&[Change::IdsBelow(left.ids_below & !UNFINISHED)], token) {
        Committed::Done => Ok(()),
        Committed::NotWritten(error) | Committed::Unknown(error) => Err(error),
    }
}

/// Copies everything; `progress` hears how many of how many rows are there. No epoch and no id that
/// either store has used comes again. The first store is left as it is.
pub fn copy(
    from: &mut dyn Store,
    to: &mut dyn Store,
    mut progress: impl FnMut(usize, usize),
) -> Result<Snapshot, CopyError> {
    let saved = from.load()?;
    let there = to.load()?;
    if saved.exactness == Exactness::Roster {
        return Err(CopyError::Inexact);
    }
    if is_unfinished(&saved) {
        return Err(StoreError::Unfinished.into());
    }
    let held = there.locks.len() + there.shares.len();
    if held + there.clients.len() > 0 {
        return Err(CopyError::NotEmpty { clients: there.clients.len(), locks: held });
    }
    let ids_below = saved.ids_below.max(there.ids_below & !UNFINISHED);
    let epoch = Epoch(saved.epoch.0.max(there.epoch.0));

    let rows = saved.clients.values().cloned().map(Change::Client);
    let rows = rows.chain(saved.locks.values().cloned().map(Change::Lock));
    let rows = rows.chain(saved.shares.values().cloned().map(Change::Share));
    let rows: Vec<Change> = rows.collect();
    let mut writer = Writer { to, token: Token(0), after: 0, of: rows.len() };
    writer.token = writer.to.last_token()?;
    writer.write(&[Change::IdsBelow(ids_below | UNFINISHED)])?;
    for batch in rows.chunks(ROWS) {
        writer.write(batch)?;
        writer.after += batch.len();
        progress(writer.after, writer.of);
    }
    let mut last = vec![Change::Started { epoch, grace: saved.in_grace }];
    last.extend(saved.stopped_cleanly.then_some(Change::Stopped));
    last.push(Change::IdsBelow(ids_below));
    writer.write(&last)?;
    Ok(saved)
}

struct Writer<'a> {
    to: &'a mut dyn Store,
    token: Token,
    after: usize,
    of: usize,
}

impl Writer<'_> {
    fn write(&mut self, changes: &[Change]) -> Result<(), CopyError> {
        self.token.0 += 1;
        match self.to.commit(changes, self.token) {
            Committed::Done => Ok(()),
            Committed::NotWritten(error) | Committed::Unknown(error) => {
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
            Change::Started { epoch: Epoch(70), grace: false },
            Change::IdsBelow(1_000_000),
            client(1),
            share(500_000, 1),
        ];
        changes.extend((0..locks).map(|id| lock(id, 1)));
        changes.push(Change::Stopped);
        assert!(matches!(store.commit(&changes, Token(9)), Committed::Done));
        store
    }

    #[test]
    fn a_copy_is_the_same_and_goes_on_with_the_greater_epoch_and_ids() {
        let mut to = Memory::new();
        let used = [Change::Started { epoch: Epoch(99), grace: true }, Change::IdsBelow(2_000_000)];
        assert!(matches!(to.commit(&used, Token(3)), Committed::Done));
        let mut heard = Vec::new();
        copy(&mut filled(12_000), &mut to, |after, of| heard.push((after, of))).unwrap();
        assert_eq!(heard.last(), Some(&(12_002, 12_002)));
        let expected =
            Snapshot { epoch: Epoch(99), ids_below: 2_000_000, ..filled(12_000).load().unwrap() };
        assert_eq!(to.load().unwrap(), expected);
        assert!(to.last_token().unwrap() > Token(3));
    }

    #[test]
    fn a_store_that_is_used_is_not_written_over() {
        let error = copy(&mut filled(1), &mut filled(2), |_, _| ()).unwrap_err();
        assert!(matches!(error, CopyError::NotEmpty { clients: 1, locks: 3 }), "{error}");
    }

    #[test]
    fn a_store_that_knows_a_client_is_not_empty() {
        let mut to = Memory::new();
        assert!(matches!(to.commit(&[client(1)], Token(1)), Committed::Done));
        let error = copy(&mut filled(1), &mut to, |_, _| ()).unwrap_err();
        assert!(matches!(error, CopyError::NotEmpty { clients: 1, locks: 0 }), "{error}");
    }

    /// Takes only so many batches.
    struct Short(Memory, usize);

    impl Store for Short {
        fn load(&mut self) -> Result<Snapshot, StoreError> {
            self.0.load()
        }
        fn commit(&mut self, changes: &[Change], token: Token) -> Committed {
            match self.1.checked_sub(1) {
                Some(left) => {
                    self.1 = left;
                    self.0.commit(changes, token)
                }
                None => Committed::NotWritten(StoreError::Unwritable("full".into())),
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
    fn half_a_copy_is_known_as_such_and_can_be_cleared_and_made_again() {
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
}
