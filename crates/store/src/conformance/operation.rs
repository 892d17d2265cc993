//! Rules of normal operation: what was committed is loaded, also after the process has ended.

use keeper::change::{Change, Exactness, Snapshot};
use keeper::identity::{ClientId, Epoch, LockId, ShareId};

use super::Nonconformance;
use super::bed::TestBed;
use super::model::{StoreAndModel, holds, same};
use super::rows::{client, lock, share};
use crate::error::StoreError;
use crate::store::{Store, Token};

pub(super) fn a_new_store_is_empty_and_exact<B: TestBed>(
    bed: &mut B,
) -> Result<(), Nonconformance> {
    let mut store = bed.fresh();
    same("an empty store", &store.load()?, &Snapshot::default())?;
    holds(store.last_token()? == Token(0), "the token of an empty store is 0")
}

pub(super) fn every_change_comes_back<B: TestBed>(bed: &mut B) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::fresh(bed);
    let steps: [&[Change]; 4] = [
        &[
            Change::Started { epoch: Epoch(7), grace: Some(Exactness::Exact) },
            Change::IdsBelow(1000),
        ],
        &[client(1), client(2), lock(10, 1), lock(11, 2), share(12, 2)],
        &[Change::LockGone(LockId(10)), Change::ShareGone(ShareId(12)), lock(13, 1)],
        &[Change::ClientGone(ClientId(2)), Change::LockGone(LockId(11)), Change::GraceEnded],
    ];
    for changes in steps {
        checked.commit(changes)?;
        checked.compare("after a batch")?;
    }
    checked = checked.reopen()?;
    checked.commit(&[Change::Stopped])?;
    checked = checked.reopen()?;
    checked.commit(&[Change::Started { epoch: Epoch(8), grace: None }])?;
    checked.reopen().map(|_| ())
}

pub(super) fn a_token_names_the_last_batch<B: TestBed>(bed: &mut B) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::fresh(bed);
    for _ in 0..3 {
        checked.commit(&[Change::IdsBelow(5)])?;
        checked.compare("after a batch")?;
    }
    checked = checked.reopen()?;
    checked.commit(&[])?;
    checked.compare("after an empty batch")
}

pub(super) fn a_big_batch_is_one_batch<B: TestBed>(bed: &mut B) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::fresh(bed);
    let many: Vec<Change> = (0..20_000).map(|id| lock(id, id % 50)).collect();
    checked.commit(&many)?;
    checked.compare("after 20,000 locks in one batch")?;
    let gone: Vec<Change> = (0..20_000).map(|id| Change::LockGone(LockId(id))).collect();
    checked.commit(&gone)?;
    checked.reopen().map(|_| ())
}

/// Pseudo-random batches that add, change and remove rows in every order.
pub(super) fn any_sequence_of_batches_comes_back<B: TestBed>(
    bed: &mut B,
) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::fresh(bed);
    let mut random = 1u64;
    let mut draw = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    for round in 0..200 {
        let size = draw(12);
        let changes: Vec<Change> = (0..size)
            .map(|_| match draw(8) {
                0 => client(draw(6)),
                1 => Change::ClientGone(ClientId(draw(6))),
                2 | 3 => lock(draw(40), draw(6)),
                4 => Change::LockGone(LockId(draw(40))),
                5 => share(draw(20), draw(6)),
                6 => Change::ShareGone(ShareId(draw(20))),
                _ => Change::IdsBelow(1000 + draw(1000)),
            })
            .collect();
        checked.commit(&changes)?;
        if round % 20 == 0 {
            checked = checked.reopen()?;
        }
    }
    checked.reopen().map(|_| ())
}

/// B5.60: a start's judgement stays until its grace has ended.
pub(super) fn what_a_start_records_is_kept<B: TestBed>(bed: &mut B) -> Result<(), Nonconformance> {
    let started = |epoch, grace| Change::Started { epoch: Epoch(epoch), grace };
    for degree in [Exactness::Roster, Exactness::Open] {
        let mut checked = StoreAndModel::fresh(bed);
        checked.commit(&[started(1, Some(degree)), client(1)])?;
        checked.compare("after a start that is not exact")?;
        checked = checked.reopen()?;
        checked.commit(&[lock(5, 1)])?;
        checked.commit(&[Change::Stopped])?;
        checked = checked.reopen()?;
        checked.commit(&[started(2, Some(degree))])?;
        checked = checked.reopen()?;
        checked.commit(&[Change::GraceEnded])?;
        checked.compare("after the end of grace")?;
        checked = checked.reopen()?;
        checked.commit(&[started(3, Some(degree))])?;
        checked.commit(&[started(4, None)])?;
        checked = checked.reopen()?;
        // A later judgement in one batch replaces an earlier one.
        checked.commit(&[started(5, None), started(6, Some(degree)), lock(6, 1)])?;
        checked.reopen()?;
    }
    Ok(())
}

pub(super) fn clearing_is_refused_while_locks_are_held<B: TestBed>(
    bed: &mut B,
) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::fresh(bed);
    checked.commit(&[client(1), lock(10, 1), share(11, 1)])?;
    holds(
        matches!(checked.store.clear(false), Err(StoreError::LocksHeld(2))),
        "clearing is refused, with the number of locks and shares, while they are held",
    )?;
    checked.compare("after a refused clearing")?;
    checked.store.clear(true)?;
    holds(checked.store.load()?.locks.is_empty(), "a forced clearing clears")
}

pub(super) fn clearing_keeps_the_epoch_and_the_ids<B: TestBed>(
    bed: &mut B,
) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::fresh(bed);
    checked.commit(&[Change::Started { epoch: Epoch(9), grace: None }, Change::IdsBelow(77)])?;
    checked.commit(&[client(1)])?;
    checked.store.clear(false)?;
    checked.expected = Snapshot { epoch: Epoch(9), ids_below: 77, ..Snapshot::default() };
    checked.compare("after clearing")?;
    checked = checked.reopen()?;
    checked.commit(&[client(2), lock(80, 2)])?;
    checked.reopen().map(|_| ())
}
