//! Crashes and failures at every operation of the disk, many times over one store: what was
//! acknowledged is recovered, or the store says that locks may be missing.

use super::*;

/// A store, and what it has acknowledged.
struct CrashTest {
    durability: Durability,
    disk: SimulatedDisk,
    run: SimulatedDisk,
    boot: u8,
    random: Random,
    /// Every batch that is stored, and the one in flight.
    history: Vec<Vec<Change>>,
    /// How far the store can be trusted after each of them.
    exactness: Vec<Exactness>,
    done: usize,
    synced: usize,
    /// At the last start.
    opened_at: usize,
    opened_as: Exactness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kill,
    PowerLoss,
}

impl CrashTest {
    fn new(seed: u64, durability: Durability) -> Self {
        Self {
            durability,
            disk: SimulatedDisk::default(),
            run: SimulatedDisk::default(),
            boot: 0,
            random: Random::new(seed),
            history: Vec::new(),
            exactness: Vec::new(),
            done: 0,
            synced: 0,
            opened_at: 0,
            opened_as: Exactness::Exact,
        }
    }

    /// With a reserve, which is made before the first fault.
    fn settings(&self) -> EmbeddedSettings {
        let settings = simulated(&self.disk, &self.run, self.boot, self.durability);
        EmbeddedSettings { reserve_bytes: 500, ..settings }
    }

    fn batch(&mut self) -> Vec<Change> {
        let random = &mut self.random;
        let size = random.below(4) + 1;
        let one = |random: &mut Random| match random.below(24) {
            0 => client(random.below(6)),
            1 => Change::ClientGone(ClientId(random.below(6))),
            2 => Change::IdsBelow(random.below(1000)),
            3 => Change::GraceEnded,
            4 => Change::Started {
                epoch: Epoch(random.below(9)),
                grace: match random.below(4) {
                    0 => None,
                    1 => Some(Exactness::Exact),
                    2 => Some(Exactness::Roster),
                    _ => Some(Exactness::Open),
                },
            },
            5 => Change::Stopped,
            6..14 => Change::LockGone(LockId(random.below(30))),
            14..16 => share(random.below(9), 1),
            _ => lock(random.below(30), random.below(6)),
        };
        (0..size).map(|_| one(random)).collect()
    }

    /// Commits one batch. False if the process or the store has ended.
    fn commit(&mut self, store: &mut Embedded, first: bool) -> bool {
        let batch = self.batch();
        let before = self.exactness.last().filter(|_| self.history.len() > self.opened_at);
        let before = before.copied().unwrap_or(self.opened_as);
        let exactness = batch.iter().fold(before, exactness_after);
        self.history.push(batch.clone());
        self.exactness.push(exactness);
        let token = Token(self.history.len() as u64);
        for _ in 0..5 {
            match store.commit(&batch, token) {
                CommitOutcome::Done => return self.acknowledge(first, &batch),
                CommitOutcome::NotWritten(error) if error.is_fatal() => return false,
                CommitOutcome::NotWritten(_) => {}
                CommitOutcome::Unknown(_) => match store.last_token() {
                    Ok(last) if last == token => return self.acknowledge(first, &batch),
                    Ok(last) => assert_eq!(last.0 + 1, token.0),
                    Err(_) => return false,
                },
            }
        }
        false
    }

    fn acknowledge(&mut self, first: bool, batch: &[Change]) -> bool {
        self.done = self.history.len();
        if first || self.durability.must_sync(batch) {
            self.synced = self.done;
        }
        true
    }

    /// Commits until a commit fails for good, or a number of batches; returns whether a sync may have
    /// failed.
    fn run(&mut self, store: &mut Embedded, fault: DiskFault) -> bool {
        let on_the_mark = fault == DiskFault::Once && self.random.below(4) == 0;
        let faulty = if on_the_mark { self.run.clone() } else { self.disk.clone() };
        faulty.fail_in(self.random.below(120) + 1, fault);
        for number in 0..60 {
            if !self.commit(store, number == 0) {
                break;
            }
        }
        fault == DiskFault::Once && !on_the_mark && faulty.operations().1 > 0
    }

    fn end(&mut self, store: Embedded, end: End) {
        self.disk.fail_in(0, DiskFault::Crash);
        drop(store);
        match end {
            End::Kill => (self.disk, self.run) = (self.disk.after_kill(), self.run.after_kill()),
            End::PowerLoss => {
                self.disk = self.disk.after_power_loss(&mut self.random);
                self.run = SimulatedDisk::default();
                self.boot += 1;
            }
        }
    }

    /// Opens the store again and compares. `sync_may_have_failed` before.
    fn reopen(&mut self, end: End, sync_may_have_failed: bool) -> Embedded {
        let mut store = Embedded::open(self.settings()).unwrap();
        let last = store.last_token().unwrap().0 as usize;
        let lossy = end == End::PowerLoss && self.durability == Durability::Process;
        let least = if lossy || sync_may_have_failed { self.synced } else { self.done };
        assert!(last >= least, "batch {last} is the last, {least} was durable");
        assert!(last <= self.history.len() && last <= self.done + 1);
        self.history.truncate(last);
        self.exactness.truncate(last);

        let mut expected = Snapshot::default();
        self.history.iter().flatten().for_each(|change| expected.apply(change.clone()));
        let found = store.load().unwrap();
        expected.exactness = found.exactness;
        assert_eq!(found, expected);

        let at_rest = self.history.last().and_then(|batch| batch.last()) == Some(&Change::Stopped);
        let known = if last > self.opened_at { self.exactness[last - 1] } else { self.opened_as };
        let lost = lossy && last > 0 && !at_rest;
        let expected = if lost { known.max(Exactness::Roster) } else { known };
        let found = found.exactness;
        if !(sync_may_have_failed && self.durability == Durability::Process) {
            assert_eq!(found, expected);
        }
        assert!(found >= expected);
        (self.opened_at, self.opened_as) = (last, found);
        (self.done, self.synced) = (last, last);
        store
    }
}

fn crash_again_and_again(seed: u64, durability: Durability, fault: DiskFault) {
    let mut test = CrashTest::new(seed, durability);
    let mut store = Embedded::open(test.settings()).unwrap();
    for _ in 0..8 {
        reserve::replenish(&test.disk, 500).unwrap();
        let sync_may_have_failed = test.run(&mut store, fault);
        let end = if test.random.below(2) == 0 { End::Kill } else { End::PowerLoss };
        test.end(store, end);
        store = test.reopen(end, sync_may_have_failed);
    }
}

fn seeds() -> u64 {
    std::env::var("LOCKKEEPER_STORE_SEEDS").map_or(150, |text| text.parse().unwrap())
}

#[test]
fn a_crash_at_any_operation_loses_no_durable_batch() {
    for seed in 0..seeds() {
        for durability in DURABILITIES {
            crash_again_and_again(seed, durability, DiskFault::Crash);
        }
    }
}

#[test]
fn a_full_or_failing_disk_at_any_operation_loses_no_durable_batch() {
    for seed in 0..seeds() {
        for durability in DURABILITIES {
            crash_again_and_again(seed, durability, DiskFault::Once);
        }
    }
}

/// A crash at each operation of a start, from the first start on.
#[test]
fn a_start_that_crashed_can_be_repeated() {
    for durability in DURABILITIES {
        for end in [End::Kill, End::PowerLoss] {
            for operation in 1..60 {
                let mut test = CrashTest::new(operation, durability);
                test.disk.fail_in(operation, DiskFault::Crash);
                for _ in 0..2 {
                    if let Ok(mut store) = Embedded::open(test.settings()) {
                        let mut first = true;
                        while test.history.len() < 20 && test.commit(&mut store, first) {
                            first = false;
                        }
                        test.end(store, end);
                    } else if end == End::Kill {
                        test.disk = test.disk.after_kill();
                    } else {
                        test.disk = test.disk.after_power_loss(&mut test.random);
                        (test.run, test.boot) = (SimulatedDisk::default(), test.boot + 1);
                    }
                    test.disk.fail_in(operation, DiskFault::Crash);
                }
                test.disk = test.disk.after_kill();
                let store = Embedded::open(test.settings()).unwrap();
                drop(store);
            }
        }
    }
}

/// A journal ends where the next begins: if the next one may exist, nothing more is appended to it.
#[test]
fn a_failed_rotation_loses_no_batch() {
    for operation in 1..12 {
        let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
        let settings = simulated(&disk, &run, 1, Durability::Power);
        let mut store = Embedded::open(settings.clone()).unwrap();
        let mut token = 0;
        while store.running.log.bytes() < settings.journal_bytes {
            token += 1;
            done(store.commit(&[lock(token, 1)], Token(token)));
        }
        disk.fail_in(operation, DiskFault::Once);
        let committed = store.commit(&[lock(token + 1, 1)], Token(token + 1));
        token += u64::from(matches!(committed, CommitOutcome::Done));
        disk.fail_in(0, DiskFault::Crash);
        drop(store);
        let again = simulated(&disk.after_kill(), &run.after_kill(), 1, Durability::Power);
        let last = Embedded::open(again).unwrap().last_token().unwrap();
        assert!(last >= Token(token), "{operation}: {last:?} is the last, {token} was done");
    }
}

/// A full disk takes no new bytes; what the reserve has allocated can be written.
#[test]
fn a_start_on_a_full_disk_uses_the_reserve() {
    for durability in DURABILITIES {
        let (disk, run) = (SimulatedDisk::default(), SimulatedDisk::default());
        let settings = simulated(&disk, &run, 1, durability);
        let mut store = Embedded::open(settings.clone()).unwrap();
        done(store.commit(&[client(1), lock(5, 1)], Token(1)));
        reserve::replenish(&disk, 2000).unwrap();
        drop(store);
        disk.set_full(true);
        for token in 2..8 {
            let mut store = Embedded::open(settings.clone()).unwrap();
            let started = Change::Started { epoch: Epoch(token), grace: None };
            done(store.commit(&[started], Token(token)));
            assert_eq!(store.load().unwrap().epoch, Epoch(token));
        }
        let reserve = disk.names().unwrap().iter().filter(|name| name.starts_with("res")).count();
        assert_eq!(reserve, 2);
    }
}
