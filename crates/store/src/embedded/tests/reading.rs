//! Reading a store while a server writes to it (B5.66).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::conformance::batch;

/// Journals end, and compactions remove files, while they are read.
#[test]
fn a_backup_of_a_store_in_use_has_every_batch_acknowledged_before() {
    for durability in DURABILITIES {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("store");
        let mut settings = on(directory.path(), durability);
        settings.journal_bytes = if durability == Durability::Power { 1000 } else { 20_000 };
        settings.sync_delay = Duration::from_millis(3);
        let mut store = Embedded::open(settings).unwrap();
        done(store.commit(&batch(1), Token(1)));
        let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(1));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for token in 2.. {
                    done(store.commit(&batch(token), Token(token)));
                    acknowledged.store(token, Ordering::SeqCst);
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
            let mut reads = 0;
            while reads < 40 || place.join("snapshot.1").exists() {
                reads += 1;
                assert!(reads < 5000, "{durability:?}: nothing was compacted");
                let before = acknowledged.load(Ordering::SeqCst);
                let mut reader = EmbeddedReader::open(&place).unwrap();
                let token = reader.last_token().unwrap().0;
                assert!(token >= before, "batch {token} of {before}");
                let mut expected = Snapshot::default();
                (1..=token).flat_map(batch).for_each(|change| expected.apply(change));
                assert_eq!(reader.load().unwrap(), expected);
            }
            stop.store(true, Ordering::SeqCst);
            writer.join().unwrap();
        });
    }
}

#[test]
fn damage_is_not_taken_for_a_batch_that_is_being_written() {
    let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
    let mut store = Embedded::open(simulated(&disk, &run, 1, Durability::Power)).unwrap();
    done(store.commit(&[lock(1, 1)], Token(1)));
    done(store.commit(&[lock(2, 1)], Token(2)));
    disk.damage("journal.2", |bytes| bytes[frame::FILE_HEADER_BYTES] ^= 1);
    let error = EmbeddedReader::read(&disk).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}
