//! The suite for all stores, on real directories and on simulated disks that fail.

use super::*;
use crate::conformance::{self, KILL, NOT_WRITTEN, POWER_LOSS, QUICK, TestBed, UNKNOWN};

/// Stores in directories; a process ends by closing them.
struct DirectoryBed {
    durability: Durability,
    directories: Vec<tempfile::TempDir>,
}

impl TestBed for DirectoryBed {
    type Store = Embedded;

    fn fresh(&mut self) -> Embedded {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(on(directory.path(), self.durability)).unwrap();
        self.directories.push(directory);
        store
    }

    fn reopen_after_kill(&mut self, store: Embedded) -> Embedded {
        let settings = store.settings.clone();
        drop(store);
        Embedded::open(settings).unwrap()
    }

    fn second_writer(&mut self, first: &mut Embedded) -> Option<Result<Embedded, StoreError>> {
        Some(Embedded::open(first.settings.clone()))
    }
}

#[test]
fn the_embedded_store_conforms() {
    for durability in DURABILITIES {
        let mut bed = DirectoryBed { durability, directories: Vec::new() };
        let unchecked = conformance::check(&mut bed).unwrap();
        // With `power` no batch is quick.
        let all = [NOT_WRITTEN, UNKNOWN, KILL, POWER_LOSS, QUICK];
        let expected = if durability == Durability::Power { &all[..4] } else { &all };
        assert_eq!(unchecked.0, expected);
    }
}

/// Stores with many short journals, on disks that fail.
struct SimulatedBed {
    durability: Durability,
    disk: SimulatedDisk,
    run: SimulatedDisk,
    boot: u8,
    random: Random,
}

impl SimulatedBed {
    fn open(&self) -> Embedded {
        let settings = simulated(&self.disk, &self.run, self.boot, self.durability);
        Embedded::open(EmbeddedSettings { journal_bytes: 9000, ..settings }).unwrap()
    }

    fn end(&self, store: Embedded) {
        self.disk.fail_in(0, DiskFault::Crash);
        drop(store);
    }
}

impl TestBed for SimulatedBed {
    type Store = Embedded;

    fn fresh(&mut self) -> Embedded {
        (self.disk, self.run) = (SimulatedDisk::default(), SimulatedDisk::default());
        self.open()
    }

    fn reopen_after_kill(&mut self, store: Embedded) -> Embedded {
        self.end(store);
        (self.disk, self.run) = (self.disk.after_kill(), self.run.after_kill());
        self.open()
    }

    fn reopen_after_power_loss(&mut self, store: Embedded) -> Result<Embedded, Embedded> {
        self.end(store);
        self.disk = self.disk.after_power_loss(&mut self.random);
        (self.run, self.boot) = (SimulatedDisk::default(), self.boot.wrapping_add(1));
        Ok(self.open())
    }

    fn fail_writes(&mut self, _: &mut Embedded) -> bool {
        self.disk.refuse_writes(true);
        true
    }

    fn repair(&mut self, _: &mut Embedded) {
        self.disk.refuse_writes(false);
    }

    /// The mark cannot be written after the batch was.
    fn lose_next_reply(&mut self, _: &mut Embedded, stored: bool) -> bool {
        if stored {
            self.run.fail_in(1, DiskFault::Once);
        }
        stored
    }

    fn second_writer(&mut self, first: &mut Embedded) -> Option<Result<Embedded, StoreError>> {
        Some(Embedded::open(first.settings.clone()))
    }

    fn waits(&mut self, _: &Embedded) -> Option<u64> {
        Some(SimulatedDisk::syncs())
    }
}

#[test]
fn it_conforms_on_disks_that_fail() {
    let seeds = if std::env::var_os("LOCKKEEPER_LONG").is_some() { 50 } else { 1 };
    for durability in DURABILITIES {
        for seed in 0..seeds {
            let mut bed = SimulatedBed {
                durability,
                disk: SimulatedDisk::default(),
                run: SimulatedDisk::default(),
                boot: 1,
                random: Random::new(seed),
            };
            let unchecked = conformance::check(&mut bed).unwrap();
            assert_eq!(unchecked.0, [""; 0]);
        }
    }
}
