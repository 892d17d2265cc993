//! The speed of the embedded store: batches of 1, 16 and 64 locks with both durabilities, compared with
//! a bare append and fdatasync of as many bytes; loading a million locks; bytes per lock.
//!
//! `cargo bench -p lockkeeper-store [-- --seconds N] [--directory D] [--run-directory D]`

// A bench ends at the first error.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keeper::bytes::{FileKey, OwnerTag};
use keeper::change::{Change, Lock};
use keeper::identity::{ClientId, Epoch, Incarnation, LockId, Owner, OwnerNamespace, Transport};
use keeper::range::Range;
use keeper::request::Mode;
use lockkeeper_store::{CommitOutcome, Durability, Embedded, EmbeddedSettings, Store, Token};

const MILLION: u64 = 1_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let seconds = value("--seconds").map_or(2, |text| text.parse().unwrap());
    let directory =
        tempfile::tempdir_in(value("--directory").map_or(PathBuf::from("."), PathBuf::from));
    let directory = directory.unwrap();
    let run = value("--run-directory").map_or(PathBuf::from("/dev/shm"), PathBuf::from);
    let run = tempfile::tempdir_in(run).unwrap();
    let length = Duration::from_secs(seconds);

    println!("{:<28} {:>10} {:>10} {:>9} {:>9}", "", "changes/s", "batches/s", "p50 us", "p99 us");
    for durability in [Durability::Process, Durability::Power] {
        for size in [1, 16, 64] {
            let place = directory.path().join(format!("{durability:?}-{size}"));
            let settings = EmbeddedSettings::new(&place, run.path(), durability).unwrap();
            let mut store = Embedded::open(settings).unwrap();
            let mut worker = Worker::new(&mut store);
            let times = measure(length, || worker.batch(size));
            report(&format!("{durability:?}, batches of {size}"), size, &times);
            drop(store);
            fs::remove_dir_all(&place).unwrap();
        }
    }
    for size in [1, 16, 64] {
        let times = bare_log(&directory.path().join("bare"), size, length);
        report(&format!("bare log, synced, {size}"), size, &times);
    }
    load_a_million(directory.path(), run.path());
}

/// Takes and releases locks in turns.
struct Worker<'a> {
    store: &'a mut Embedded,
    token: u64,
    next: u64,
}

impl<'a> Worker<'a> {
    fn new(store: &'a mut Embedded) -> Self {
        let mut worker = Self { store, token: 0, next: 0 };
        worker.commit(&[Change::Started { epoch: Epoch(1), grace: None }]);
        worker
    }

    fn batch(&mut self, size: u64) {
        let changes: Vec<Change> = (self.next..self.next + size)
            .map(|step| match step % 2 {
                0 => lock(step / 2),
                _ => Change::LockGone(LockId(step / 2)),
            })
            .collect();
        self.next += size;
        self.commit(&changes);
    }

    fn commit(&mut self, changes: &[Change]) {
        self.token += 1;
        match self.store.commit(changes, Token(self.token)) {
            CommitOutcome::Done => {}
            other => panic!("{other:?}"),
        }
    }
}

fn measure(length: Duration, mut batch: impl FnMut()) -> Vec<Duration> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while begin.elapsed() < length {
        let before = Instant::now();
        batch();
        times.push(before.elapsed());
    }
    times
}

fn report(what: &str, size: u64, times: &[Duration]) {
    let mut sorted = times.to_vec();
    sorted.sort();
    let total: Duration = times.iter().sum();
    let batches = times.len() as f64 / total.as_secs_f64();
    let at = |part: usize| sorted[(sorted.len() - 1) * part / 100].as_secs_f64() * 1e6;
    let changes = batches * size as f64;
    println!("{what:<28} {changes:>10.0} {batches:>10.0} {:>9.1} {:>9.1}", at(50), at(99));
}

/// The lower bound: as many bytes, appended and synced.
fn bare_log(path: &Path, size: u64, length: Duration) -> Vec<Duration> {
    let file = File::create(path).unwrap();
    let bytes = vec![7; 56 + 60 * size as usize];
    let mut at = 0;
    measure(length, || {
        file.write_all_at(&bytes, at).unwrap();
        file.sync_data().unwrap();
        at += bytes.len() as u64;
    })
}

fn load_a_million(directory: &Path, run: &Path) {
    let place = directory.join("million");
    let settings = EmbeddedSettings::new(&place, run, Durability::Process).unwrap();
    let mut store = Embedded::open(settings.clone()).unwrap();
    let mut worker = Worker::new(&mut store);
    for first in (0..MILLION).step_by(64) {
        let changes: Vec<Change> = (first..first + 64).map(lock).collect();
        worker.commit(&changes);
    }
    drop(store);
    let time_to_load = |what: &str| {
        let bytes: u64 = fs::read_dir(&place)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        let begin = Instant::now();
        let mut store = Embedded::open(settings.clone()).unwrap();
        let opened = begin.elapsed();
        let saved = store.load().unwrap();
        println!(
            "{} locks {what}: open {:.2} s, load {:.2} s, {:.0} bytes per lock",
            saved.locks.len(),
            opened.as_secs_f64(),
            (begin.elapsed() - opened).as_secs_f64(),
            bytes as f64 / MILLION as f64,
        );
    };
    time_to_load("from journals");
    time_to_load("again");
    fs::remove_dir_all(run).unwrap();
    fs::create_dir(run).unwrap();
    time_to_load("without a mark");
    time_to_load("from a snapshot");
}

fn lock(id: u64) -> Change {
    let owner = Owner {
        host: ClientId(id % 1000),
        namespace: OwnerNamespace::new(IpAddr::from([192, 0, 2, 1]), Transport::Tcp, 4),
        number: id as u32 % 50_000,
        tag: OwnerTag::new(b"12345@alice.example.com"),
    };
    let mut file = [0; 28];
    file[..8].copy_from_slice(&(id / 4).to_le_bytes());
    Change::Lock(Lock {
        id: LockId(id),
        file: FileKey::new(&file),
        owner: Arc::new(owner),
        range: Range::ALL,
        mode: Mode::Exclusive,
        incarnation: Incarnation(3),
        monitored: true,
        since_ms: 1_700_000_000_000,
    })
}
