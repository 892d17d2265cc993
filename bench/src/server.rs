//! A server that runs as a child of the benchmark, and ends with it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use client::nfs::Nfs;
use client::{Connection, Options};
use testbed::process::{Process, Signal, tail};

use crate::database::Database;
use load::{Target, usage};

/// How long a server may take until it answers.
const START_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to end.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Idle time before its memory is measured.
const IDLE: Duration = Duration::from_millis(1500);

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// Of the program, if it is known.
    pub(crate) version: Option<String>,
    pub(crate) target: Target,
    /// From the start of the process to its first answer.
    pub(crate) start: Duration,
    pub(crate) idle_rss_bytes: u64,
    command: Command,
    log: PathBuf,
    process: Process,
    /// Daemons that it needs; they end after it.
    pub(crate) helpers: Vec<Process>,
    /// Where it keeps its locks, if not in files of its own.
    pub(crate) database: Option<Arc<Database>>,
}

impl Server {
    /// Starts a server and waits for the answer to its first call, then for its memory to settle.
    pub(crate) async fn start(
        name: &str,
        mut command: Command,
        log: &Path,
        target: Target,
    ) -> Result<Self> {
        let started = Instant::now();
        let mut process = Process::start(&mut command, log)?;
        while !answers(target.nfs).await {
            process.check()?;
            if started.elapsed() > START_MAX {
                bail!("{name} did not answer within {START_MAX:?}; {}", log_end(log));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let start = started.elapsed();
        tokio::time::sleep(IDLE).await;
        let idle_rss_bytes = usage::rss_bytes(process.id())?;
        Ok(Self {
            name: name.to_owned(),
            version: None,
            target,
            start,
            idle_rss_bytes,
            command,
            log: log.to_owned(),
            process,
            helpers: Vec::new(),
            database: None,
        })
    }

    /// Kills the server (SIGKILL) and starts it again, without waiting until it answers; when it was
    /// started.
    pub(crate) fn kill_and_start(&mut self) -> Result<Instant> {
        self.process.kill();
        let started = Instant::now();
        self.process = Process::start(&mut self.command, &self.log)?;
        Ok(started)
    }

    /// Asks the server to end (SIGTERM) and waits until it has. An error if it fails.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let asked = Instant::now();
        while asked.elapsed() < STOP_MAX {
            match self.process.exit_status()? {
                Some(status) => {
                    ensure!(status.success(), "{} ended with {status}", self.name);
                    return Ok(());
                }
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        bail!("{} did not end within {STOP_MAX:?}", self.name)
    }

    /// An error if the server has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// An error while it did `what`, with the end of its log.
    pub(crate) fn failed(&self, what: &str, error: impl Into<anyhow::Error>) -> anyhow::Error {
        anyhow!("{} {what}: {:#}; {}", self.name, error.into(), log_end(&self.log))
    }

    pub(crate) fn rss_bytes(&self) -> Result<u64> {
        usage::rss_bytes(self.process.id())
    }

    /// The processor time that the server, its helpers and its database have used.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut sum = usage::cpu(self.process.id())?;
        for helper in &self.helpers {
            sum += usage::cpu(helper.id())?;
        }
        if let Some(database) = &self.database {
            sum += database.cpu()?;
        }
        Ok(sum)
    }
}

fn log_end(log: &Path) -> String {
    format!("its log ends:\n{}", tail(log, 10))
}

async fn answers(nfs: SocketAddr) -> bool {
    let options = Options { timeout: Duration::from_secs(1), ..Options::default() };
    match Connection::connect(nfs, &options).await {
        Ok(connection) => Nfs(connection).null().await.is_ok(),
        Err(_) => false,
    }
}
