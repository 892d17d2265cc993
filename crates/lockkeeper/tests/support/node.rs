//! One of the servers that share a PostgreSQL store, as a process with a log.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use client::{Connection, Options};
use rustix::process::{Pid, Signal, kill_process};
use wire::nfs3::Null;

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Node {
    pub at: SocketAddr,
    child: Child,
    log: PathBuf,
}

impl Node {
    /// `lockkeeper serve` on this port, with the options given; its state and log go to `home`.
    pub fn start(home: &Path, port: u16, options: &[&str]) -> Self {
        fs::create_dir_all(home).unwrap();
        let log = home.join("log");
        let said = File::create(&log).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
            .args(["serve", "--rpcbind", "off", "--ports", "any", "--window", "60s"])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(options)
            .args(["--admin", "off", "--admin-socket"])
            .arg(home.join("admin.sock"))
            .arg("--state")
            .arg(home.join("state"))
            .env_remove("NOTIFY_SOCKET")
            .stdout(said.try_clone().unwrap())
            .stderr(said)
            .spawn()
            .unwrap();
        Self { at: SocketAddr::new([127, 0, 0, 1].into(), port), child, log }
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until its log contains this.
    pub async fn says(&mut self, text: &str) {
        let start = Instant::now();
        while !self.said().contains(text) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended, without {text:?}: {}", self.said());
            assert!(start.elapsed() < PATIENCE, "no {text:?} in: {}", self.said());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until it answers clients.
    pub async fn serves(&mut self) {
        let start = Instant::now();
        while !self.is_heard().await {
            assert!(start.elapsed() < PATIENCE, "it does not serve: {}", self.said());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn is_heard(&self) -> bool {
        let quick = Options { timeout: Duration::from_millis(500), ..Options::default() };
        match Connection::connect(self.at, &quick).await {
            Ok(connection) => connection.call::<Null>(&()).await.is_ok(),
            Err(_) => false,
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end: {}", self.said());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
