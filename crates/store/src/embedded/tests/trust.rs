//! How far a store can be trusted: what a start records is kept (B5.60), and evidence that belongs to
//! another journal or another directory proves nothing (B5.61, B5.62).

use super::*;

fn started(grace: Option<Exactness>) -> Change {
    Change::Started { epoch: Epoch(1), grace }
}

fn exactness(settings: &EmbeddedSettings) -> Exactness {
    Embedded::open(settings.clone()).unwrap().load().unwrap().exactness
}

/// Over kills, journals that are followed by others, snapshots, clean stops and changes of durability,
/// until grace has ended.
#[test]
fn what_a_start_records_is_kept_until_grace_has_ended() {
    for durability in DURABILITIES {
        for degree in [Exactness::Roster, Exactness::Open] {
            let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
            let settings = simulated(&disk, &run, 1, durability);
            let mut store = Embedded::open(settings.clone()).unwrap();
            done(store.commit(&[started(Some(degree)), client(1)], Token(1)));
            assert_eq!(store.load().unwrap().exactness, degree);
            for token in 2..60 {
                done(store.commit(&[lock(token, 1)], Token(token)));
            }
            store.running.compactor.wait();
            assert!(!disk.names().unwrap().contains(&"snapshot.1".to_owned()));
            drop(store);
            assert_eq!(exactness(&settings), degree, "{durability:?}");
            let (disk, run) = (disk.after_kill(), run.after_kill());
            let settings = simulated(&disk, &run, 1, Durability::Power);
            let mut store = Embedded::open(settings.clone()).unwrap();
            assert_eq!(store.load().unwrap().exactness, degree, "{durability:?}");
            done(store.commit(&[started(Some(degree)), Change::Stopped], Token(60)));
            drop(store);
            assert_eq!(exactness(&settings), degree, "after a clean stop");
            let mut store = Embedded::open(settings.clone()).unwrap();
            done(store.commit(&[started(Some(degree))], Token(61)));
            done(store.commit(&[Change::GraceEnded], Token(62)));
            assert_eq!(store.load().unwrap().exactness, Exactness::Exact);
            drop(store);
            assert_eq!(exactness(&settings), Exactness::Exact, "after the end of grace");
        }
    }
}

/// Host A serves and stops; B takes the volume over and loses power with batches that were not synced;
/// A, which was never rebooted, opens it with the mark of its own run.
#[test]
fn the_mark_of_another_journal_proves_nothing() {
    let mut lost = 0;
    for seed in 0..40 {
        let (disk, run_of_a) = (SimulatedDisk::default(), SimulatedDisk::default());
        let mut a = Embedded::open(simulated(&disk, &run_of_a, 1, Durability::Process)).unwrap();
        done(a.commit(&[started(None), client(1)], Token(1)));
        done(a.commit(&[lock(5, 1)], Token(2)));
        done(a.commit(&[Change::Stopped], Token(3)));
        drop(a);

        let run_of_b = SimulatedDisk::default();
        let mut b = Embedded::open(simulated(&disk, &run_of_b, 2, Durability::Process)).unwrap();
        assert_eq!(b.load().unwrap().exactness, Exactness::Exact);
        done(b.commit(&[started(None)], Token(4)));
        for token in 5..9 {
            done(b.commit(&[lock(token + 10, 1)], Token(token)));
        }
        let disk_after = disk.after_power_loss(&mut Random::new(seed));
        disk.fail_in(0, DiskFault::Crash);
        drop(b);

        let settings = simulated(&disk_after, &run_of_a, 1, Durability::Process);
        let mut a = Embedded::open(settings).unwrap();
        let saved = a.load().unwrap();
        lost += u64::from(saved.locks.len() < 5);
        assert_eq!(saved.exactness, Exactness::Roster, "{} locks", saved.locks.len());
    }
    assert!(lost > 10, "{lost}");
}

/// A directory that was copied, and runs beside the original on one machine (B5.62).
#[test]
fn a_copy_of_a_store_neither_uses_nor_replaces_the_mark_of_the_original() {
    let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
    let settings = simulated(&disk, &run, 1, Durability::Process);
    let mut original = Embedded::open(settings).unwrap();
    done(original.commit(&[started(None), client(1)], Token(1)));
    done(original.commit(&[lock(5, 1)], Token(2)));

    let copied = simulated(&disk.copied(), &run, 1, Durability::Process);
    let mut copy = Embedded::open(copied).unwrap();
    assert_eq!(copy.load().unwrap().exactness, Exactness::Roster);
    for token in 3..9 {
        done(copy.commit(&[lock(token + 10, 1)], Token(token)));
    }
    assert_eq!(run.names().unwrap().len(), 2);

    run.crashes_with(&disk);
    disk.fail_in(0, DiskFault::Crash);
    drop(original);
    let again = simulated(&disk.after_kill(), &run.after_kill(), 1, Durability::Process);
    assert_eq!(exactness(&again), Exactness::Exact);
}

/// Files of an older copy were put into the directory while the machine ran (B5.61).
#[test]
fn an_older_copy_that_was_put_back_is_open() {
    for durability in DURABILITIES {
        let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
        let settings = simulated(&disk, &run, 1, durability);
        let mut store = Embedded::open(settings.clone()).unwrap();
        done(store.commit(&[started(None), client(1)], Token(1)));
        done(store.commit(&[Change::Stopped], Token(2)));
        drop(store);
        let backup = disk.after_kill();
        let mut store = Embedded::open(settings).unwrap();
        done(store.commit(&[started(None), client(2)], Token(3)));
        done(store.commit(&[client(3)], Token(4)));
        drop(store);
        let restored = simulated(&backup, &run, 1, durability);
        assert_eq!(exactness(&restored), Exactness::Open);
        assert_eq!(exactness(&restored), Exactness::Open, "also at the next start");
    }
}

/// What the mark names is on the disk before anything is acknowledged with it (B5.61).
#[test]
fn the_journal_of_a_start_survives_a_power_loss_once_a_batch_is_acknowledged() {
    for seed in 0..50 {
        let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
        let settings = simulated(&disk, &run, 1, Durability::Process);
        let mut store = Embedded::open(settings).unwrap();
        done(store.commit(&[lock(5, 1)], Token(1)));
        let before = disk.bytes("journal.2");
        let after = disk.after_power_loss(&mut Random::new(seed));
        assert_eq!(after.bytes("journal.2"), before);
    }
}

#[test]
fn marks_of_other_boots_are_removed_and_those_in_use_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let open = |name: &str, boot: u8| {
        let place = directory.path().join(name);
        let run = directory.path().join("run");
        let settings = EmbeddedSettings::new(place, run, Durability::Process).unwrap();
        Embedded::open(EmbeddedSettings { boot: BootId([boot; 16]), ..settings }).unwrap()
    };
    let marks = || std::fs::read_dir(directory.path().join("run")).unwrap().count();
    let in_use = open("a", 1);
    drop(open("b", 1));
    drop(open("c", 1));
    assert_eq!(marks(), 3);
    drop(open("d", 2));
    assert_eq!(marks(), 2, "that of `a`, which is in use, and that of `d`");
    drop(in_use);
    drop(open("d", 2));
    assert_eq!(marks(), 1);
}
