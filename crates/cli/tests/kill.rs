//! `kill -9` under load, again and again: afterwards the store has what clients were told, and
//! every client gets it back. Twenty times for each durability; LOCKKEEPER_KILLS says how often.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use keeper::change::Exactness;
use store::{Durability, Embedded, EmbeddedSettings, Store};
use support::{PROGRAM, recorder};
use testbed::ports::free_port;
use testbed::random::Random;
use testbed::server::{Server, serve};

fn kills() -> usize {
    std::env::var("LOCKKEEPER_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

fn start(home: &Path, export: &Path, durability: &str, at: SocketAddr) -> Server {
    let mut command = serve(PROGRAM, home, at);
    command.args(["--window", "60s", "--durability", durability]).arg(export);
    Server::start(command.env("LOCKKEEPER_LOG", "warn"), &home.join("log")).unwrap()
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
    let at: SocketAddr = ([127, 0, 0, 1], free_port().unwrap()).into();
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("export");
    recorder::export(&export);
    let mut server = start(dir.path(), &export, word, at);
    let handles = recorder::files(at, &export).await;
    let beliefs = recorder::no_beliefs();
    let mut random = Random::new(7);
    let (mut told, mut slowest) = (0, Duration::ZERO);
    for kill in 0..kills() {
        let tasks = recorder::work(at, &beliefs, &handles, kill).await;
        tokio::time::sleep(Duration::from_millis(20 + random.below(150))).await;
        server.kill();
        for task in tasks {
            task.await.unwrap();
        }

        let settings =
            EmbeddedSettings::new(dir.path().join("state/store"), run_directory(), durability)
                .unwrap();
        let saved = Embedded::open(settings).unwrap().load().unwrap();
        assert_eq!(saved.exactness, Exactness::Exact, "kill {kill}");
        let found = recorder::stored(&saved, &handles);
        told += recorder::compare(&beliefs, &found, kill);

        let begun = Instant::now();
        server = start(dir.path(), &export, word, at);
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
