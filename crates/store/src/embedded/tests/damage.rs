//! Damage is detected: a store with a changed byte is refused, or complete nevertheless.

use super::*;

/// A store with a snapshot and journals, closed; its disk, its run directory and its contents.
fn a_store(durability: Durability) -> (SimulatedDisk, SimulatedDisk, Snapshot) {
    let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
    let mut settings = simulated(&disk, &run, 1, durability);
    settings.journal_bytes = 1500;
    for round in 0..2 {
        let mut store = Embedded::open(settings.clone()).unwrap();
        for token in 1..9 {
            let changes = [client(token), lock(token + 10 * round, token), share(token, 1)];
            done(store.commit(&changes, Token(10 * round + token)));
            store.running.compactor.wait();
        }
    }
    // Read from a copy: a start on the store itself would begin a journal, whose header says where the
    // one before ends; here only the seal does.
    let copy = simulated(&disk.after_kill(), &run.after_kill(), 1, durability);
    let expected = Embedded::open(copy).unwrap().load().unwrap();
    (disk, run, expected)
}

#[test]
fn a_flipped_byte_anywhere_is_detected() {
    for durability in DURABILITIES {
        let (disk, run, expected) = a_store(durability);
        for name in disk.names().unwrap() {
            let (mut refused, mut harmless) = (0, 0);
            for at in 0..disk.bytes(&name).len() {
                let damaged = disk.after_kill();
                damaged.damage(&name, |bytes| bytes[at] ^= 1 << (at % 8));
                for (run, boot) in [(run.after_kill(), 1), (SimulatedDisk::default(), 2)] {
                    match Embedded::open(simulated(&damaged.after_kill(), &run, boot, durability)) {
                        Err(StoreError::Damaged { location, .. }) => {
                            assert!(location.contains("simulated/"), "{location}");
                            refused += 1;
                        }
                        Err(error) => panic!("{name} at {at}: {error}"),
                        Ok(mut store) => {
                            let found = store.load().unwrap();
                            let exactness = found.exactness;
                            assert_eq!(found, Snapshot { exactness, ..expected.clone() });
                            harmless += 1;
                        }
                    }
                }
            }
            // Only preallocated zeros and the seal carry no data.
            assert!(
                refused >= 2 * frame::FILE_HEADER_BYTES,
                "{name}: {refused} refused, {harmless} not"
            );
            if name.starts_with("snapshot") {
                assert_eq!(harmless, 0, "{name}");
            }
        }
    }
}

/// Killed before the seal: the mark says how far the journal went.
#[test]
fn a_damaged_last_batch_does_not_pass_for_a_torn_end() {
    for (durability, last) in [
        (Durability::Process, lock(9, 1)),
        (Durability::Process, client(9)),
        (Durability::Power, lock(9, 1)),
    ] {
        let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
        let mut store = Embedded::open(simulated(&disk, &run, 1, durability)).unwrap();
        done(store.commit(&[client(1)], Token(1)));
        done(store.commit(&[lock(8, 1)], Token(2)));
        let before = store.running.log.bytes() as usize;
        done(store.commit(std::slice::from_ref(&last), Token(3)));
        let after = store.running.log.bytes() as usize;
        disk.fail_in(0, DiskFault::Crash);
        drop(store);
        for at in before..after {
            let damaged = disk.after_kill();
            damaged.damage("journal.2", |bytes| bytes[at] ^= 1);
            let again = Embedded::open(simulated(&damaged, &run.after_kill(), 1, durability));
            match again.map(|mut store| store.load().unwrap()) {
                Err(StoreError::Damaged { .. }) => {}
                Ok(found) if matches!(last, Change::Lock(_)) => {
                    assert_eq!(
                        (found.exactness, durability),
                        (Exactness::Roster, Durability::Process)
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_truncated_or_missing_file_is_detected() {
    for durability in DURABILITIES {
        let (disk, run, _) = a_store(durability);
        for name in disk.names().unwrap() {
            let missing = disk.after_kill();
            missing.remove(&name).unwrap();
            let opened = Embedded::open(simulated(&missing, &run.after_kill(), 1, durability));
            assert!(matches!(opened, Err(StoreError::Damaged { .. })), "{name}");
        }
        for name in disk.names().unwrap().iter().filter(|name| name.starts_with("snapshot")) {
            let cut = disk.after_kill();
            cut.damage(name, |bytes| bytes.truncate(bytes.len() - 1));
            let opened = Embedded::open(simulated(&cut, &run.after_kill(), 1, durability));
            assert!(matches!(opened, Err(StoreError::Damaged { .. })), "{name}");
        }
    }
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let (disk, run, _) = a_store(Durability::Process);
    let name = disk.names().unwrap().into_iter().find(|name| name.starts_with("snap")).unwrap();
    disk.damage(&name, |bytes| {
        bytes[8] = 2;
        let checksum = frame::checksum(&[0; 16], &bytes[..64]).to_le_bytes();
        bytes[64..72].copy_from_slice(&checksum);
    });
    let error = Embedded::open(simulated(&disk, &run, 1, Durability::Process)).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, StoreError::Newer { found: 2, known: 1, .. }), "{text}");
    assert!(text.contains(&name) && text.contains("newer version"), "{text}");
}

/// Peers choose names and tags: they must not be able to forge a frame.
#[test]
fn bytes_of_a_peer_cannot_forge_a_frame() {
    let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
    let mut store = Embedded::open(simulated(&disk, &run, 1, Durability::Power)).unwrap();
    let fields = frame::FrameFields { number: 9, synced: 8, ..frame::FrameFields::default() };
    let mut forged = Vec::new();
    frame::encode_frame(fields, b"", &[0; 16], &mut forged);
    let Change::Client(row) = client(1) else { panic!() };
    let name = keeper::bytes::Name::new(&forged);
    let row = keeper::change::Client { name, ..(*row).clone() };
    done(store.commit(&[lock(1, 1)], Token(1)));
    let end = store.running.log.bytes() as usize;
    done(store.commit(&[Change::Client(Arc::new(row))], Token(2)));
    disk.fail_in(0, DiskFault::Crash);
    drop(store);
    let torn = disk.after_kill();
    torn.damage("journal.2", |bytes| bytes[end] ^= 1);
    let run = SimulatedDisk::default();
    let mut store = Embedded::open(simulated(&torn, &run, 2, Durability::Power)).unwrap();
    assert_eq!(store.last_token().unwrap(), Token(1));
}
