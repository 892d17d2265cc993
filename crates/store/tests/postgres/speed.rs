//! Measurements without expectations: printed by `cargo test --release --test postgres -- --ignored speed
//! --nocapture`, on a database that syncs.

use std::time::Instant;

use keeper::change::Change;
use keeper::identity::LockId;
use lockkeeper_store::conformance::{client, lock};
use lockkeeper_store::{CommitOutcome, Store, Token};
use testbed::postgres::{Options, Server};

use crate::driver::{settings, taken};

#[test]
#[ignore = "a measurement, for a release build"]
fn speed() {
    let server = Server::start_with(&Options { fsync: true, ..Options::default() }).unwrap();
    let (mut store, _) = taken(&settings(&server, "a"));
    let mut token = Token(0);
    let mut commit = |store: &mut dyn Store, changes: &[Change]| {
        token.0 += 1;
        assert!(matches!(store.commit(changes, token), CommitOutcome::Done));
    };

    // Half of each batch takes locks, the other half releases those of the batch before.
    for (clients, held) in [(0, 0), (0, 1_000_000), (1, 1_000_000)] {
        let before = store.load().unwrap().locks.len() as u64;
        let began = Instant::now();
        for first in (before..held).step_by(10_000) {
            let locks: Vec<Change> = (first..first + 10_000).map(|id| lock(id, id % 50)).collect();
            commit(&mut store, &locks);
        }
        if held > before {
            println!("{} locks stored in {:?}", held - before, began.elapsed());
        }
        let (batches, half) = (2_000, 64);
        let base = 2_000_000_000;
        let began = Instant::now();
        for batch in 0..batches {
            let taken = (base + batch * half)..(base + (batch + 1) * half);
            let mut changes: Vec<Change> = taken.clone().map(|id| lock(id, id % 50)).collect();
            changes.extend(taken.map(|id| Change::LockGone(LockId(id.wrapping_sub(half)))));
            changes.extend((0..clients).map(client));
            commit(&mut store, &changes);
        }
        let rate = (batches * half * 2) as f64 / began.elapsed().as_secs_f64();
        let each = began.elapsed() / batches as u32;
        println!(
            "{held} held, {clients} clients in each: {rate:.0} operations/s, {each:?} a batch"
        );
    }
    let began = Instant::now();
    let saved = store.load().unwrap();
    println!("{} locks loaded in {:?}", saved.locks.len(), began.elapsed());
    let began = Instant::now();
    for _ in 0..500 {
        commit(&mut store, &[]);
    }
    println!("an empty batch: {:?}", began.elapsed() / 500);
    let began = Instant::now();
    store.clear(true).unwrap();
    println!("cleared in {:?}", began.elapsed());
}
