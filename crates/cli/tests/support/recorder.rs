//! Processes on hosts that lock and unlock until their server is gone, and what each of them was told:
//! afterwards it is compared with what the store has.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use keeper::change::Snapshot;
use testbed::random::Random;
use tokio::task::JoinHandle;
use wire::nfs3::NewAttributes;
use wire::nlm::{Range, Status};

pub const HOSTS: usize = 4;
pub const PROCESSES: usize = 4;
pub const FILES: usize = 3;
/// Files are so many bytes long, as far as locks are concerned: one bit each.
const BYTES: u64 = 32;

/// What one process was told that it holds, a bit for each byte of each file.
#[derive(Debug, Clone, Default)]
pub struct Belief {
    pub held: [u32; FILES],
    /// Asked, and not answered when the server died: file, bytes, and whether it was a LOCK.
    pub open: Option<(usize, u32, bool)>,
    /// When it was last answered.
    pub answered: Option<Instant>,
}

impl Belief {
    pub fn agrees(&self, stored: &[u32; FILES]) -> bool {
        let mut done = self.held;
        if let Some((file, mask, lock)) = self.open {
            done[file] = if lock { done[file] | mask } else { done[file] & !mask };
        }
        *stored == self.held || *stored == done
    }
}

pub type Beliefs = Arc<Vec<Mutex<Belief>>>;

/// Locks and unlocks until the server dies.
pub async fn load(
    locker: Locker,
    beliefs: Beliefs,
    index: usize,
    handles: Arc<Vec<Vec<u8>>>,
    seed: u64,
) {
    let mut random = Random::new(seed);
    loop {
        let file = random.below(FILES as u64) as usize;
        let first = random.below(BYTES);
        let length = 1 + random.below(BYTES - first);
        let mask = (((1u64 << length) - 1) << first) as u32;
        let range = Range { offset: first, length };
        let lock = random.below(2) == 0;
        beliefs[index].lock().unwrap().open = Some((file, mask, lock));
        let answer = match lock {
            true => locker.lock(&handles[file], range).await,
            false => locker.unlock(&handles[file], range).await,
        };
        let Ok(status) = answer else { return };
        let mut belief = beliefs[index].lock().unwrap();
        belief.open = None;
        belief.answered = Some(Instant::now());
        match (status, lock) {
            (Status::Granted, true) => belief.held[file] |= mask,
            (Status::Granted, false) => belief.held[file] &= !mask,
            // The store cannot be written for a while.
            (Status::Denied | Status::DeniedNoLocks, true) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// What the store has, for each process.
pub fn stored(saved: &Snapshot, handles: &[Vec<u8>]) -> Vec<[u32; FILES]> {
    let mut found = vec![[0; FILES]; HOSTS * PROCESSES];
    let mut taken = [0u32; FILES];
    let keys: BTreeMap<Vec<u8>, usize> = handles
        .iter()
        .enumerate()
        .map(|(file, handle)| {
            let object = usize::from(handle[13]);
            ([&handle[5..13], &handle[14..14 + object]].concat(), file)
        })
        .collect();
    for lock in saved.locks.values() {
        let file = keys[lock.file.bytes()];
        let host = &saved.clients[&lock.owner.host];
        let host: usize = host.name.to_string().strip_prefix("host").unwrap().parse().unwrap();
        let index = host * PROCESSES + lock.owner.number as usize;
        let mask = (lock.range.first()..=lock.range.last()).fold(0, |mask, byte| mask | 1 << byte);
        assert_eq!(taken[file] & mask, 0, "two hold one byte: {lock:?}");
        taken[file] |= mask;
        found[index][file] |= mask;
    }
    found
}

/// The runs of bits in a mask.
pub fn runs(mask: u32) -> Vec<Range> {
    let mut runs: Vec<Range> = Vec::new();
    for byte in (0..BYTES).filter(|byte| mask & (1 << byte) != 0) {
        match runs.last_mut() {
            Some(last) if last.offset + last.length == byte => last.length += 1,
            _ => runs.push(Range { offset: byte, length: 1 }),
        }
    }
    runs
}

pub async fn lockers(at: SocketAddr) -> Vec<Locker> {
    let mut lockers = Vec::new();
    for host in 0..HOSTS {
        let options = Options::default().user(0, 0, &[]);
        let one = Locker::connect(at, &format!("host{host}"), 0, &options).await.unwrap();
        lockers.extend((0..PROCESSES).map(|process| one.process(process as i32)));
    }
    lockers
}

/// Every process reclaims what the store has for it; then new locks are granted again.
pub async fn reclaim(lockers: &[Locker], held: &[[u32; FILES]], handles: &[Vec<u8>]) {
    for (locker, held) in lockers.iter().zip(held) {
        for (mask, handle) in held.iter().zip(handles) {
            for run in runs(*mask) {
                assert_eq!(locker.reclaim(handle, run).await.unwrap(), Status::Granted);
            }
        }
    }
    let beyond = Range { offset: 1000, length: 1 };
    assert_eq!(lockers[0].lock(&handles[0], beyond).await.unwrap(), Status::Granted);
    assert_eq!(lockers[0].unlock(&handles[0], beyond).await.unwrap(), Status::Granted);
}

/// Files to lock, in a directory that is served at `at`: their handles.
pub async fn files(at: SocketAddr, export: &Path) -> Arc<Vec<Vec<u8>>> {
    let connection = Connection::connect(at, &Options::default().user(1, 1, &[])).await.unwrap();
    let root = mount::mount(&connection, export.to_str().unwrap()).await.unwrap();
    let nfs = Nfs(connection);
    let mut handles = Vec::new();
    for file in 0..FILES {
        let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
        let handle = nfs.create(&root, format!("file{file}").as_bytes(), new).await.unwrap();
        handles.push(handle.0.to_vec());
    }
    Arc::new(handles)
}

/// A world-writable directory.
pub fn export(path: &Path) {
    std::fs::create_dir(path).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
}

pub fn no_beliefs() -> Beliefs {
    Arc::new((0..HOSTS * PROCESSES).map(|_| Mutex::default()).collect())
}

/// Starts the load of every process.
pub async fn work(
    at: SocketAddr,
    beliefs: &Beliefs,
    handles: &Arc<Vec<Vec<u8>>>,
    round: usize,
) -> Vec<JoinHandle<()>> {
    let lockers = lockers(at).await.into_iter().enumerate();
    let tasks = lockers.map(|(index, locker)| {
        let seed = (round * 1000 + index) as u64 * 7919 + 1;
        tokio::spawn(load(locker, beliefs.clone(), index, handles.clone(), seed))
    });
    tasks.collect()
}

/// Checks that the store has what the replies said, except for unanswered requests, and sets the
/// beliefs to the contents of the store. Returns the number of held bytes.
pub fn compare(beliefs: &Beliefs, found: &[[u32; FILES]], round: usize) -> u32 {
    let mut held = 0;
    for (index, (belief, found)) in beliefs.iter().zip(found).enumerate() {
        let mut belief = belief.lock().unwrap();
        assert!(belief.agrees(found), "round {round}, process {index}: {belief:?} {found:?}");
        *belief = Belief { held: *found, ..Belief::default() };
        held += found.iter().map(|mask| mask.count_ones()).sum::<u32>();
    }
    held
}
