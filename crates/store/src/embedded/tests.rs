use keeper::identity::{ClientId, Epoch, LockId};
use testbed::random::Random;

use super::simulated_disk::{DiskFault, SimulatedDisk};
use super::*;
use crate::conformance::{client, lock, share};

mod conforms;
mod crashes;
mod damage;
mod reading;
mod trust;

const DURABILITIES: [Durability; 2] = [Durability::Process, Durability::Power];

fn on(directory: &std::path::Path, durability: Durability) -> EmbeddedSettings {
    EmbeddedSettings::new(directory.join("store"), directory.join("run"), durability).unwrap()
}

/// On simulated disks, with many short journals, and without background syncs.
fn simulated(
    disk: &SimulatedDisk,
    run: &SimulatedDisk,
    boot: u8,
    durability: Durability,
) -> EmbeddedSettings {
    run.crashes_with(disk);
    EmbeddedSettings {
        durability,
        disk: Arc::new(disk.clone()),
        run: Arc::new(run.clone()),
        boot: BootId([boot; 16]),
        sync_delay: Duration::from_secs(3600),
        journal_bytes: 3000,
        reserve_bytes: 0,
    }
}

fn done(committed: CommitOutcome) {
    assert!(matches!(committed, CommitOutcome::Done), "{committed:?}");
}

/// A network thread commits only what does not wait for the disk.
#[test]
fn only_a_lock_that_need_not_be_synced_is_quick() {
    for durability in DURABILITIES {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Embedded::open(on(directory.path(), durability)).unwrap();
        assert!(!store.is_quick(&[lock(1, 1)]), "the first batch begins a journal");
        done(store.commit(&[Change::Started { epoch: Epoch(1), grace: None }], Token(1)));
        assert_eq!(store.is_quick(&[lock(1, 1)]), durability == Durability::Process);
        assert!(!store.is_quick(&[client(1)]));
        assert!(!store.is_quick(&[lock(1, 1), client(1)]));
    }
}

/// Written by another program, or by a later version that did not raise the format.
#[test]
fn a_header_with_unknown_flags_is_refused() {
    let header = frame::FileHeader {
        kind: frame::FileKind::Journal,
        store_id: [1; 16],
        generation: 2,
        first: 3,
        durability: Durability::Process,
        exactness: Exactness::Roster,
        key: [4; 16],
    };
    let decode = |at: usize, byte: u8| {
        let mut bytes = header.encode();
        bytes[at] = byte;
        let checksum = frame::checksum(&[0; 16], &bytes[..64]);
        bytes[64..].copy_from_slice(&checksum.to_le_bytes());
        frame::FileHeader::decode(frame::FileKind::Journal, &bytes)
    };
    assert!(decode(10, 3).is_ok());
    assert_eq!(decode(10, 7).unwrap().exactness, Exactness::Open);
    for (at, byte) in [(10, 4), (10, 8), (11, 1), (15, 1)] {
        assert!(matches!(decode(at, byte), Err(frame::HeaderError::Damaged)), "byte {at}");
    }
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(on(directory.path(), Durability::Process)).unwrap();
    let second = Embedded::open(on(directory.path(), Durability::Process));
    assert!(matches!(second, Err(StoreError::InUse)));
    drop(store);
    Embedded::open(on(directory.path(), Durability::Process)).unwrap();
}

#[test]
fn an_unsynced_batch_is_synced_within_the_delay() {
    let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
    let mut settings = simulated(&disk, &run, 1, Durability::Process);
    settings.sync_delay = Duration::from_millis(20);
    let mut store = Embedded::open(settings).unwrap();
    done(store.commit(&[client(1)], Token(1)));
    done(store.commit(&[lock(5, 1)], Token(2)));
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while store.running.log.has_unsynced() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    let after = disk.after_power_loss(&mut Random::new(1));
    let settings = simulated(&after, &SimulatedDisk::default(), 2, Durability::Process);
    let saved = Embedded::open(settings).unwrap().load().unwrap();
    assert_eq!(saved.locks.len(), 1);
    assert_eq!(saved.exactness, Exactness::Roster);
}

#[test]
fn a_failed_background_sync_is_fatal_and_makes_a_roster() {
    let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
    let mut settings = simulated(&disk, &run, 1, Durability::Process);
    settings.sync_delay = Duration::from_millis(20);
    let mut store = Embedded::open(settings.clone()).unwrap();
    done(store.commit(&[client(1)], Token(1)));
    disk.fail_in(2, DiskFault::Once);
    let mut token = 1;
    let error = loop {
        token += 1;
        match store.commit(&[lock(5, 1)], Token(token)) {
            CommitOutcome::Done => disk.fail_in(1, DiskFault::Once),
            CommitOutcome::NotWritten(error) if error.is_fatal() => break error,
            // The fault hit the batch instead of the sync.
            CommitOutcome::NotWritten(_) => {}
            CommitOutcome::Unknown(error) => break error,
        }
        std::thread::sleep(Duration::from_millis(30));
    };
    assert!(matches!(error, StoreError::SyncFailed(_)), "{error}");
    assert!(store.last_token().unwrap_err().is_fatal());
    disk.repair();
    drop(store);
    let saved = Embedded::open(settings).unwrap().load().unwrap();
    assert_eq!(saved.exactness, Exactness::Roster);
}

#[test]
fn exactness_is_decided_at_the_start_and_a_roster_stays_one_until_grace_has_ended() {
    let (mut disk, mut run) = (SimulatedDisk::default(), SimulatedDisk::default());
    let mut token = 0;
    let mut step = |disk: &SimulatedDisk, run: &SimulatedDisk, boot: u8, batches: &[&[Change]]| {
        let mut store = Embedded::open(simulated(disk, run, boot, Durability::Process)).unwrap();
        let exactness = store.load().unwrap().exactness;
        for batch in batches {
            token += 1;
            let mut batch = batch.to_vec();
            for change in &mut batch {
                if let Change::Started { grace: Some(grace), .. } = change {
                    // As the keeper does: what was loaded.
                    *grace = exactness;
                }
            }
            done(store.commit(&batch, Token(token)));
        }
        exactness
    };
    let started = |grace: bool| {
        let grace = grace.then_some(Exactness::Exact);
        Change::Started { epoch: Epoch(1), grace }
    };
    use Exactness::{Exact, Roster};
    // New; killed; stopped; the machine started again.
    assert_eq!(step(&disk, &run, 1, &[&[started(false)], &[client(1)], &[lock(5, 1)]]), Exact);
    assert_eq!(step(&disk, &run, 1, &[&[started(true)], &[Change::Stopped]]), Exact);
    run = SimulatedDisk::default();
    assert_eq!(step(&disk, &run, 2, &[&[started(true)], &[Change::GraceEnded]]), Exact);
    // The machine crashes: a roster, also at the next start, and after a clean stop.
    run = SimulatedDisk::default();
    assert_eq!(step(&disk, &run, 3, &[]), Roster);
    assert_eq!(step(&disk, &run, 3, &[&[started(true)]]), Roster);
    assert_eq!(step(&disk, &run, 3, &[&[started(true)], &[Change::Stopped]]), Roster);
    assert_eq!(step(&disk, &run, 3, &[&[started(true)], &[Change::GraceEnded]]), Roster);
    // Grace has ended: exact again.
    assert_eq!(step(&disk, &run, 3, &[&[started(true)]]), Exact);
    // The mark of another boot does not count.
    assert_eq!(step(&disk, &run, 4, &[&[started(false)]]), Roster);
    assert_eq!(step(&disk, &run, 4, &[]), Exact);
    // A change of durability does not restore what was lost before.
    (disk, run) = (disk.after_kill(), SimulatedDisk::default());
    let power = |boot| {
        let settings = simulated(&disk, &run, boot, Durability::Power);
        Embedded::open(settings).unwrap().load().unwrap().exactness
    };
    assert_eq!(power(5), Roster);
    assert_eq!(power(5), Roster);
}

#[test]
fn a_batch_whose_mark_could_not_be_written_is_settled_by_last_token() {
    for durability in DURABILITIES {
        let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
        let mut store = Embedded::open(simulated(&disk, &run, 1, durability)).unwrap();
        done(store.commit(&[client(1)], Token(1)));
        run.fail_in(1, DiskFault::Once);
        let unknown = store.commit(&[lock(5, 1)], Token(2));
        assert!(matches!(unknown, CommitOutcome::Unknown(_)), "{unknown:?}");
        let early = store.commit(&[lock(6, 1)], Token(3));
        assert!(matches!(early, CommitOutcome::NotWritten(_)), "{early:?}");
        assert_eq!(store.last_token().unwrap(), Token(2));
        done(store.commit(&[lock(6, 1)], Token(3)));
        let saved = store.load().unwrap();
        assert_eq!((saved.locks.len(), saved.exactness), (2, Exactness::Exact));
    }
}

#[test]
fn a_store_does_not_grow_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = on(directory.path(), Durability::Process);
    settings.journal_bytes = 20_000;
    let mut store = Embedded::open(settings).unwrap();
    for token in 1..5000 {
        done(store.commit(&[lock(token, 1), Change::LockGone(LockId(token))], Token(token)));
    }
    store.running.compactor.wait();
    assert!(store.health().warnings().is_empty());
    let names = store.settings.disk.names().unwrap();
    assert!(names.len() < 20, "{names:?}");
    assert!(store.load().unwrap().locks.is_empty());
}

/// Directories where the unfinished snapshots would be.
#[test]
fn a_snapshot_that_fails_is_a_warning_until_one_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = on(directory.path(), Durability::Process);
    settings.journal_bytes = 20_000;
    let mut store = Embedded::open(settings).unwrap();
    let obstacles: Vec<_> = (2..9)
        .map(|generation| directory.path().join(format!("store/snapshot.{generation}.unfinished")))
        .collect();
    obstacles.iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let health = store.health();
    let mut token = 0;
    let mut commit_until = |reached: &dyn Fn() -> bool| {
        while !reached() {
            token += 1;
            assert!(token < 100_000);
            done(store.commit(&[lock(token, 1), Change::LockGone(LockId(token))], Token(token)));
            store.running.compactor.wait();
        }
    };
    commit_until(&|| !health.warnings().is_empty());
    let [warning] = &health.warnings()[..] else { panic!() };
    assert!(warning.contains("no snapshot can be written, so journals grow"), "{warning}");
    obstacles.iter().for_each(|path| std::fs::remove_dir(path).unwrap());
    commit_until(&|| health.warnings().is_empty());
    assert!(store.load().unwrap().locks.is_empty());
}
