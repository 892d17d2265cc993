//! A server that runs as a child of the benchmark, and ends with it.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use client::nfs::Nfs;
use client::{Connection, Options};
use rustix::process::{Pid, Signal, kill_process};

use crate::database::Database;
use load::{Target, usage};

/// How long a server may take until it answers.
const START_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to end.
const STOP_MAX: Duration = Duration::from_secs(30);
/// How long it is left alone before its memory is looked at.
const IDLE: Duration = Duration::from_millis(1500);

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) target: Target,
    /// From the start of the process to its first answer.
    pub(crate) start: Duration,
    pub(crate) idle_rss_bytes: u64,
    command: Command,
    process: Process,
    /// What it cannot do without; they end after it.
    pub(crate) helpers: Vec<Process>,
    /// Where it keeps its locks, if not in files of its own.
    pub(crate) database: Option<Arc<Database>>,
}

impl Server {
    /// Starts a server and waits for the answer to its first call, then for its memory to settle.
    pub(crate) async fn start(name: &str, mut command: Command, target: Target) -> Result<Self> {
        let started = Instant::now();
        let mut process = Process::spawn(&mut command)?;
        while !answers(target.nfs).await {
            process.check()?;
            if started.elapsed() > START_MAX {
                bail!("{name} did not answer within {START_MAX:?}");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let start = started.elapsed();
        tokio::time::sleep(IDLE).await;
        let idle_rss_bytes = usage::rss_bytes(process.child.id())?;
        Ok(Self {
            name: name.to_owned(),
            target,
            start,
            idle_rss_bytes,
            command,
            process,
            helpers: Vec::new(),
            database: None,
        })
    }

    /// Kills the server (SIGKILL) and starts it again. Says when; whether it answers is not waited
    /// for.
    pub(crate) fn kill_and_start(&mut self) -> Result<Instant> {
        self.process.kill();
        let started = Instant::now();
        self.process = Process::spawn(&mut self.command)?;
        Ok(started)
    }

    /// Asks the server to end (SIGTERM) and waits until it has. An error if it fails.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let child = &mut self.process.child;
        kill_process(Pid::from_child(child), Signal::TERM)?;
        let asked = Instant::now();
        while asked.elapsed() < STOP_MAX {
            match child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} ended with {status}", self.name),
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        bail!("{} did not end within {STOP_MAX:?}", self.name)
    }

    /// An error if the server has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    pub(crate) fn rss_bytes(&self) -> Result<u64> {
        usage::rss_bytes(self.process.child.id())
    }

    /// The processor time that the server, its helpers and its database have used.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut sum = usage::cpu(self.process.child.id())?;
        for helper in &self.helpers {
            sum += usage::cpu(helper.child.id())?;
        }
        if let Some(database) = &self.database {
            sum += database.cpu()?;
        }
        Ok(sum)
    }
}

async fn answers(nfs: SocketAddr) -> bool {
    let options = Options { timeout: Duration::from_secs(1), ..Options::default() };
    match Connection::connect(nfs, &options).await {
        Ok(connection) => Nfs(connection).null().await.is_ok(),
        Err(_) => false,
    }
}

/// A child process that is killed, by its id, when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    what: String,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let what = command.get_program().to_string_lossy().into_owned();
        let child =
            command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot start {what}"))?;
        Ok(Self { child, what })
    }

    /// An error if the process has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended with {status}", self.what),
            None => Ok(()),
        }
    }

    /// Once it returns, the process is gone, and its ports are free.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_ends_when_it_is_dropped() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let mut process = Process::spawn(&mut command).unwrap();
        process.check().unwrap();
        let path = format!("/proc/{}/stat", process.child.id());
        assert!(std::fs::exists(&path).unwrap());
        drop(process);
        assert!(!std::fs::exists(&path).unwrap());
    }
}
