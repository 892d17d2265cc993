//! Rules of failure: full disks, lost replies, ends of the process and of the machine, second writers.
//! Each rule returns whether the bed could produce what it needs.

use keeper::change::{Change, Exactness, Snapshot};
use keeper::identity::{Epoch, LockId};

use super::Nonconformance;
use super::bed::{TestBed, contents};
use super::model::{StoreAndModel, holds, same};
use super::rows::{client, lock, share};
use crate::durability::Durability;
use crate::error::StoreError;
use crate::store::{CommitOutcome, Store, Token};

fn started() -> Change {
    Change::Started { epoch: Epoch(1), grace: None }
}

/// Two batches, the second with rows of every kind: a store has prepared whatever it prepares.
fn begin<B: TestBed>(checked: &mut StoreAndModel<'_, B>) -> Result<(), Nonconformance> {
    checked.commit(&[started()])?;
    checked.commit(&[client(1), lock(10, 1), share(12, 1)])
}

/// Enough rows that a store which writes them one by one is caught in the middle.
fn several_rows() -> Vec<Change> {
    let mut changes: Vec<Change> = (20..40).map(|id| lock(id, 1)).collect();
    changes.extend([client(2), share(50, 2), Change::LockGone(LockId(10))]);
    changes
}

/// `NotWritten`: nothing of the batch is stored, and the same batch may be committed again.
pub(super) fn a_batch_that_is_not_written_has_no_effect<B: TestBed>(
    bed: &mut B,
) -> Result<bool, Nonconformance> {
    let mut checked = StoreAndModel::fresh(bed);
    checked.commit(&[started(), client(1), lock(10, 1)])?;
    for round in 0..2 {
        if !checked.bed.fail_writes(&mut checked.store) {
            return Ok(false);
        }
        let mut changes = several_rows();
        changes.push(client(60 + round));
        let next = Token(checked.token.0 + 1);
        match checked.store.commit(&changes, next) {
            CommitOutcome::NotWritten(error) => {
                holds(!error.is_fatal(), "a write that fails without an effect can be repeated")?;
            }
            other => return Err(Nonconformance(format!("a failed write was {other:?}"))),
        }
        checked.bed.repair(&mut checked.store);
        checked.compare("after a batch that was not written")?;
        if round == 1 {
            checked = checked.reopen()?;
        }
        checked.commit(&changes)?;
        checked.compare("after it was committed again")?;
    }
    checked.reopen().map(|_| true)
}

/// `Unknown`: commits are refused until `last_token` or `load` has settled it, and then it is settled.
pub(super) fn an_unknown_batch_is_settled_by_the_last_token<B: TestBed>(
    bed: &mut B,
) -> Result<bool, Nonconformance> {
    let mut produced = false;
    for (stored, by_load) in [(true, false), (false, true)] {
        let mut checked = StoreAndModel::fresh(bed);
        begin(&mut checked)?;
        if !lose(&mut checked, stored)? {
            continue;
        }
        produced = true;
        let early = checked.store.commit(&[lock(11, 1)], Token(checked.token.0 + 2));
        holds(
            matches!(&early, CommitOutcome::NotWritten(error) if !error.is_fatal()),
            "a commit is refused while an earlier one is unknown",
        )?;
        if by_load {
            checked.store.load()?;
        }
        settle(&mut checked)?;
        checked.commit(&[lock(11, 1)])?;
        checked.reopen()?;
    }
    Ok(produced)
}

/// Commits `several_rows` with a lost reply. False if the bed cannot produce that.
fn lose<B: TestBed>(
    checked: &mut StoreAndModel<'_, B>,
    stored: bool,
) -> Result<bool, Nonconformance> {
    if !checked.bed.lose_next_reply(&mut checked.store, stored) {
        return Ok(false);
    }
    match checked.store.commit(&several_rows(), Token(checked.token.0 + 1)) {
        CommitOutcome::Unknown(error) if !error.is_fatal() => Ok(true),
        other => Err(Nonconformance(format!("a commit whose reply was lost was {other:?}"))),
    }
}

/// The batch of `lose` is stored, or it is not and is committed again.
fn settle<B: TestBed>(checked: &mut StoreAndModel<'_, B>) -> Result<(), Nonconformance> {
    let last = checked.store.last_token()?;
    if last == Token(checked.token.0 + 1) {
        checked.note(&several_rows());
    }
    checked.compare("after an unknown commit was settled")?;
    if last < checked.token {
        checked.commit(&several_rows())?;
    }
    Ok(())
}

/// All of a batch or nothing, and the token says which.
pub(super) fn a_kill_leaves_no_half_batch<B: TestBed>(bed: &mut B) -> Result<bool, Nonconformance> {
    let mut produced = false;
    for stored in [true, false] {
        let mut checked = StoreAndModel::fresh(bed);
        begin(&mut checked)?;
        if !lose(&mut checked, stored)? {
            continue;
        }
        produced = true;
        checked = checked.killed();
        let last = checked.store.last_token()?;
        if last == Token(checked.token.0 + 1) {
            checked.note(&several_rows());
        }
        let found = checked.store.load()?;
        same("after a kill", &contents(&found), &contents(&checked.expected))?;
        holds(last == checked.token, "after a kill, the last token is that of the last batch")?;
    }
    Ok(produced)
}

/// What a power loss may take is no more than the promise of [`Durability::Process`], and a store that
/// has lost something says so.
pub(super) fn a_power_loss_takes_only_locks_and_is_noticed<B: TestBed>(
    bed: &mut B,
) -> Result<bool, Nonconformance> {
    let batches: [&[Change]; 9] = [
        &[started(), Change::IdsBelow(1000)],
        &[client(1), lock(10, 1)],
        &[lock(11, 1)],
        &[lock(12, 1), share(13, 1)],
        &[client(2)],
        &[lock(14, 2)],
        &[Change::LockGone(LockId(10))],
        &[lock(15, 2)],
        &[Change::LockGone(LockId(11)), lock(16, 1)],
    ];
    for length in 1..=batches.len() {
        let mut checked = StoreAndModel::fresh(bed);
        let mut states = vec![Snapshot::default()];
        let mut synced = 0;
        for changes in &batches[..length] {
            checked.commit(changes)?;
            states.push(checked.expected.clone());
            if Durability::Process.must_sync(changes) {
                synced = checked.token.0;
            }
        }
        let StoreAndModel { bed, store, token, .. } = checked;
        let Ok(mut store) = bed.reopen_after_power_loss(store) else { return Ok(false) };
        let last = store.last_token()?;
        holds(
            (synced..=token.0).contains(&last.0),
            "a power loss takes nothing but locks and shares, from the end",
        )?;
        let found = store.load()?;
        let state = states.get(last.0 as usize).map(contents).unwrap_or_default();
        same("after a power loss", &contents(&found), &state)?;
        holds(
            last == token || found.exactness >= Exactness::Roster,
            "a store that has lost acknowledged locks is not exact",
        )?;
    }
    Ok(true)
}

/// I12: the second writer is refused, or the first can commit no more.
pub(super) fn a_store_has_one_writer<B: TestBed>(bed: &mut B) -> Result<bool, Nonconformance> {
    let mut checked = StoreAndModel::fresh(bed);
    checked.commit(&[started(), client(1), lock(10, 1)])?;
    let mut second = match checked.bed.second_writer(&mut checked.store) {
        None => return Ok(false),
        Some(Err(StoreError::InUse)) => {
            checked.commit(&[lock(11, 1)])?;
            return checked.reopen().map(|_| true);
        }
        Some(Err(error)) => return Err(error.into()),
        Some(Ok(second)) => second,
    };
    same("of the second writer", &second.load()?, &checked.expected)?;
    let next = Token(checked.token.0 + 1);
    match second.commit(&[lock(12, 1)], next) {
        CommitOutcome::Done => checked.note(&[lock(12, 1)]),
        other => return Err(Nonconformance(format!("the second writer's commit was {other:?}"))),
    }
    match checked.store.commit(&[lock(13, 1)], Token(next.0 + 1)) {
        CommitOutcome::NotWritten(error) | CommitOutcome::Unknown(error) => {
            holds(error.is_fatal(), "a writer that was replaced ends")?;
        }
        CommitOutcome::Done => {
            let what =
                "a commit of the first writer was done after the second had opened the store";
            return Err(Nonconformance(what.to_owned()));
        }
    }
    same("after the first writer's attempt", &second.load()?, &checked.expected)?;
    Ok(true)
}

/// A batch that is called quick waits for neither disk nor network.
pub(super) fn a_quick_batch_waits_for_nothing<B: TestBed>(
    bed: &mut B,
) -> Result<bool, Nonconformance> {
    let mut checked = StoreAndModel::fresh(bed);
    let locks: Vec<Change> = (100..160).map(|id| lock(id, 1)).collect();
    let batches: [&[Change]; 9] = [
        &[started()],
        &[lock(10, 1)],
        &[lock(11, 1), Change::LockGone(LockId(10))],
        &[client(1)],
        &[lock(12, 1), client(2)],
        &locks,
        &[Change::IdsBelow(500)],
        &[share(13, 1)],
        &[Change::Stopped],
    ];
    let mut could_count = true;
    for round in 0..20 {
        for changes in batches {
            let quick = checked.store.is_quick(changes);
            let can_be_lost = !Durability::Process.must_sync(changes);
            holds(
                !(quick && B::OUTLIVES_PROCESS) || can_be_lost,
                "a batch that must survive a power loss is not quick",
            )?;
            let before = checked.bed.waits(&checked.store);
            checked.commit(changes)?;
            let after = checked.bed.waits(&checked.store);
            holds(!quick || before == after, "a batch that is quick waits for nothing")?;
            could_count &= !quick || before.is_some() || !B::OUTLIVES_PROCESS;
        }
        if round == 10 {
            checked = checked.reopen()?;
        }
    }
    Ok(could_count)
}
