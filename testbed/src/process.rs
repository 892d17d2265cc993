//! Child processes that end with the value that owns them, always by their own id.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
pub use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

/// Lines of the log that an error quotes.
const QUOTED_LINES: usize = 20;
const POLL: Duration = Duration::from_millis(5);

/// A running program whose standard output and error are appended to one log file. Killed when
/// dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
    /// Length of the log before this process wrote to it.
    log_start: usize,
}

impl Process {
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        Self::start_with_stderr(command, log, open_log(log)?)
    }

    /// With standard error elsewhere than in the log.
    pub fn start_with_stderr(
        command: &mut Command,
        log: &Path,
        stderr: impl Into<Stdio>,
    ) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let out = open_log(log)?;
        let log_start = out.metadata()?.len() as usize;
        command.stdin(Stdio::null()).stdout(out).stderr(stderr);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, name, log: log.to_path_buf(), log_start })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything that this process has written.
    pub fn output(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(text.get(self.log_start..).unwrap_or_default()).into_owned()
    }

    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// An error with the end of the log if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.exit_status()? {
            bail!("{} ended with {status}:\n{}", self.name, tail(&self.log, QUOTED_LINES));
        }
        Ok(())
    }

    /// Waits until the output satisfies `condition`; an error if the process ends before.
    pub fn wait_for_output(&mut self, condition: impl Fn(&str) -> bool) -> Result<()> {
        let wait = wait::try_until("the expected output", || {
            if condition(&self.output()) {
                return Ok(Some(()));
            }
            self.check().map(|()| None)
        });
        wait.with_context(|| format!("{}:\n{}", self.name, tail(&self.log, QUOTED_LINES)))
    }

    /// Waits for the end without asking for it.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.wait_at_most(wait::LIMIT)
    }

    fn wait_at_most(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            let log = || tail(&self.log, QUOTED_LINES);
            ensure!(start.elapsed() < limit, "{} runs on after {limit:?}:\n{}", self.name, log());
            std::thread::sleep(POLL);
        }
    }

    /// Nothing if the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // Not reaped yet, so that the id cannot belong to another process.
        if self.is_running() {
            kill_process(Pid::from_child(&self.child), signal)?;
        }
        Ok(())
    }

    /// SIGTERM; an error if the process then runs longer than `limit`.
    pub fn stop(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait_at_most(limit).context("after SIGTERM")
    }

    /// SIGKILL. On return the process is gone and its ports are free.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn open_log(log: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(log);
    file.with_context(|| format!("cannot write {}", log.display()))
}

/// Runs a command to its end and returns its standard output; an error if it fails.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {}", output.status, errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Copies a program to where other users may run it: the build directory may be closed to them.
///
/// `install` copies, not this process: a descriptor open for writing, inherited by a child started
/// meanwhile, would make the copy impossible to run.
pub fn install_program(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("install").args(["-m", "755"]).arg(from).arg(to)).map(drop)
}

/// The last lines of a log.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Resident memory of this process.
pub fn own_resident_kilobytes() -> Result<usize> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line.context("no VmRSS")?.trim().trim_end_matches(" kB").parse()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_process_ends_when_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut sleep = Command::new("sleep");
        let mut process = Process::start(sleep.arg("60"), &dir.path().join("log")).unwrap();
        process.check().unwrap();
        let entry = format!("/proc/{}/stat", process.id());
        assert!(fs::exists(&entry).unwrap());
        drop(process);
        assert!(!fs::exists(&entry).unwrap());
    }

    #[test]
    fn an_early_end_is_reported_with_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", "echo no such export; exit 3"]);
        let mut process = Process::start(shell, &dir.path().join("log")).unwrap();
        let error = process.wait_for_output(|text| text.contains("mount ")).unwrap_err();
        assert!(format!("{error:#}").contains("no such export"), "{error:#}");
        assert_eq!(process.wait().unwrap().code(), Some(3));
    }
}
