//! `kill -9` under load, again and again: afterwards the store has what clients were told, and
//! every client gets it back. Twenty times for each durability; LOCKKEEPER_KILLS says how often.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

#[path = "support/recorder.rs"]
mod recorder;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use keeper::change::Exactness;
use recorder::{Random, free_port};
use store::{Durability, Embedded, Settings, Store};

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

fn run_directory() -> PathBuf {
    let root = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if root.is_root() => "/run/lockkeeper".into(),
        Some(dir) => PathBuf::from(dir).join(format!("lockkeeper-{}", root.as_raw())),
        None => format!("/dev/shm/lockkeeper-{}", root.as_raw()).into(),
    }
}

async fn kill_again_and_again(word: &str, durability: Durability) {
    let port = free_port();
    let dir = tempfile::tempdir().unwrap();
    let (export, state) = (dir.path().join("export"), dir.path().join("state"));
    recorder::export(&export);
    let at: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    let mut server = Server::start(&export, &state, word, port);
    let handles = recorder::files(at, &export).await;
    let beliefs = recorder::no_beliefs();
    let mut random = Random(7);
    let (mut told, mut slowest) = (0, Duration::ZERO);
    for kill in 0..kills() {
        let tasks = recorder::work(at, &beliefs, &handles, kill).await;
        tokio::time::sleep(Duration::from_millis(20 + random.below(150))).await;
        server.kill();
        for task in tasks {
            task.await.unwrap();
        }

        let settings = Settings::new(state.join("store"), run_directory(), durability).unwrap();
        let saved = Embedded::open(settings).unwrap().load().unwrap();
        assert_eq!(saved.exactness, Exactness::Exact, "kill {kill}");
        let found = recorder::stored(&saved, &handles);
        told += recorder::compare(&beliefs, &found, kill);

        let begun = Instant::now();
        server = Server::start(&export, &state, word, port);
        recorder::reclaim(&recorder::lockers(at).await, &found, &handles).await;
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
