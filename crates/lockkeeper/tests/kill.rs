//! `kill -9` under load, again and again: afterwards the store has what clients were told, and
//! every client gets it back. Twenty times for each durability; LOCKKEEPER_KILLS says how often.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use keeper::change::{Exactness, Snapshot};
use store::{Durability, Embedded, Settings, Store};
use wire::nfs3::NewAttributes;
use wire::nlm::{Range, Status};

const HOSTS: usize = 4;
const PROCESSES: usize = 4;
const FILES: usize = 3;
/// Files are so many bytes long, as far as locks are concerned: one bit each.
const BYTES: u64 = 32;

/// What one process was told that it holds, a bit for each byte of each file.
#[derive(Debug, Clone, Default)]
struct Belief {
    held: [u32; FILES],
    /// Asked, and not answered when the server died: file, bytes, and whether it was a LOCK.
    open: Option<(usize, u32, bool)>,
}

impl Belief {
    fn agrees(&self, stored: &[u32; FILES]) -> bool {
        let mut done = self.held;
        if let Some((file, mask, lock)) = self.open {
            done[file] = if lock { done[file] | mask } else { done[file] & !mask };
        }
        *stored == self.held || *stored == done
    }
}

fn kills() -> usize {
    std::env::var("LOCKKEEPER_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

struct Server(Child);

impl Server {
    fn start(export: &Path, state: &Path, durability: &str, port: u16) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
            .args(["serve", "--rpcbind", "off", "--ports", "any", "--window", "60s"])
            .args(["--durability", durability, "--listen", &format!("127.0.0.1:{port}")])
            .arg("--state")
            .arg(state)
            .arg(export)
            .env("LOCKKEEPER_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let started = lines.map_while(Result::ok).any(|line| line.starts_with("mount"));
        assert!(started, "it did not start");
        Self(child)
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A small generator, so that a run can be repeated by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

type Beliefs = Arc<Vec<Mutex<Belief>>>;

/// Locks and unlocks until the server dies.
async fn load(
    locker: Locker,
    beliefs: Beliefs,
    index: usize,
    handles: Arc<Vec<Vec<u8>>>,
    seed: u64,
) {
    let mut random = Random(seed | 1);
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
        match (status, lock) {
            (Status::Granted, true) => belief.held[file] |= mask,
            (Status::Granted, false) => belief.held[file] &= !mask,
            (Status::Denied, true) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// What the store has, for each process.
fn stored(saved: &Snapshot, handles: &[Vec<u8>]) -> Vec<[u32; FILES]> {
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
fn runs(mask: u32) -> Vec<Range> {
    let mut runs: Vec<Range> = Vec::new();
    for byte in (0..BYTES).filter(|byte| mask & (1 << byte) != 0) {
        match runs.last_mut() {
            Some(last) if last.offset + last.length == byte => last.length += 1,
            _ => runs.push(Range { offset: byte, length: 1 }),
        }
    }
    runs
}

async fn lockers(at: SocketAddr) -> Vec<Locker> {
    let mut lockers = Vec::new();
    for host in 0..HOSTS {
        let options = Options::default().user(0, 0, &[]);
        let one = Locker::connect(at, &format!("host{host}"), 0, &options).await.unwrap();
        lockers.extend((0..PROCESSES).map(|process| one.process(process as i32)));
    }
    lockers
}

/// Everybody takes back what the store has for it; then new locks are granted again.
async fn reclaim(lockers: &[Locker], held: &[[u32; FILES]], handles: &[Vec<u8>]) {
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

fn run_directory() -> PathBuf {
    let root = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if root.is_root() => "/run/lockkeeper".into(),
        Some(dir) => PathBuf::from(dir).join(format!("lockkeeper-{}", root.as_raw())),
        None => format!("/dev/shm/lockkeeper-{}", root.as_raw()).into(),
    }
}

/// A port that nobody has at the moment; the server takes it again after each kill.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn kill_again_and_again(word: &str, durability: Durability) {
    let port = free_port();
    let dir = tempfile::tempdir().unwrap();
    let (export, state) = (dir.path().join("export"), dir.path().join("state"));
    std::fs::create_dir(&export).unwrap();
    std::fs::set_permissions(&export, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let at: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    let mut server = Server::start(&export, &state, word, port);
    let connection = Connection::connect(at, &Options::default().user(1, 1, &[])).await.unwrap();
    let root = mount::mount(&connection, export.to_str().unwrap()).await.unwrap();
    let nfs = Nfs(connection);
    let mut handles = Vec::new();
    for file in 0..FILES {
        let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
        let handle = nfs.create(&root, format!("file{file}").as_bytes(), new).await.unwrap();
        handles.push(handle.0.to_vec());
    }
    let handles = Arc::new(handles);
    let beliefs: Beliefs = Arc::new((0..HOSTS * PROCESSES).map(|_| Mutex::default()).collect());
    let mut random = Random(7);
    let (mut told, mut slowest) = (0, Duration::ZERO);
    for kill in 0..kills() {
        let lockers = lockers(at).await;
        let tasks: Vec<_> = lockers
            .into_iter()
            .enumerate()
            .map(|(index, locker)| {
                let seed = (kill * 1000 + index) as u64 * 7919 + 1;
                tokio::spawn(load(locker, beliefs.clone(), index, handles.clone(), seed))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(20 + random.below(150))).await;
        server.kill();
        for task in tasks {
            task.await.unwrap();
        }

        let settings = Settings::new(state.join("store"), run_directory(), durability).unwrap();
        let saved = Embedded::open(settings).unwrap().load().unwrap();
        assert_eq!(saved.exactness, Exactness::Exact, "kill {kill}");
        let found = stored(&saved, &handles);
        for (index, (belief, found)) in beliefs.iter().zip(&found).enumerate() {
            let mut belief = belief.lock().unwrap();
            assert!(belief.agrees(found), "kill {kill}, process {index}: {belief:?} {found:?}");
            *belief = Belief { held: *found, open: None };
            told += found.iter().map(|mask| mask.count_ones()).sum::<u32>();
        }

        let begun = Instant::now();
        server = Server::start(&export, &state, word, port);
        reclaim(&self::lockers(at).await, &found, &handles).await;
        slowest = slowest.max(begun.elapsed());
    }
    assert!(told > kills() as u32, "there was hardly a lock to lose");
    println!(
        "{word}: {} kills, {told} bytes were held at them; slowest start with all reclaims {:.0} ms",
        kills(),
        slowest.as_secs_f64() * 1000.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn with_durability_process_nothing_that_was_told_is_lost() {
    kill_again_and_again("process", Durability::Process).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_durability_power_nothing_that_was_told_is_lost() {
    kill_again_and_again("power", Durability::Power).await;
}
