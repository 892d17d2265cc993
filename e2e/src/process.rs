//! A process that runs in a namespace and dies with the value that owns it. Ended by its id only.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command with both its outputs appended to a log file.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        let errors = file.try_clone().context("cannot share the log")?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, log: log.to_path_buf() })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// An error with the end of its log when the process is no more.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("cannot look at the process")? {
            bail!("it ended with {status}:\n{}", tail(&self.log, 20));
        }
        Ok(())
    }

    /// SIGKILL, and wait for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM; SIGKILL when that does not help in time.
    pub fn stop(&mut self, patience: Duration) -> Result<()> {
        self.signal(libc::SIGTERM);
        let end = Instant::now() + patience;
        while self.is_running() {
            if Instant::now() > end {
                self.kill();
                bail!("it did not end within {patience:?} of SIGTERM");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub fn signal(&mut self, number: i32) {
        // Not yet reaped, so the id is still its own.
        if self.is_running() {
            let _ = signal(self.child.id() as i32, number);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Signals a process by its id.
#[allow(unsafe_code)]
pub fn signal(id: i32, number: i32) -> std::io::Result<()> {
    // SAFETY: kill takes two integers and touches no memory of ours.
    match unsafe { libc::kill(id, number) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The last lines of a log.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
