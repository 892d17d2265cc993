//! A process in a guest that takes and releases locks on one file on command of a step.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::context::StepDir;
use crate::agent::Task;
use crate::guest::Guest;

/// For calls that should return at once but may find the client waiting for the server.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Locker {
    task: Task,
    name: String,
}

/// A lock is `[posix|ofd|flock] read|write START LENGTH`, a range `[posix|ofd|flock] START LENGTH`.
impl Locker {
    pub fn open(guest: &Guest, path: &str) -> Result<Self> {
        let mut task = guest.spawn(&format!("exec lockkeeper-guest locker {path}"))?;
        let line = task.line(TIMEOUT)?;
        ensure!(line == "open", "it said {line:?}");
        Ok(Self { task, name: format!("{}:{path}", guest.name()) })
    }

    /// F_SETLK that must succeed.
    pub fn takes(&mut self, lock: &str) -> Result<Instant> {
        self.tries(lock)?;
        self.granted(TIMEOUT)
    }

    /// F_SETLK that must fail.
    pub fn is_refused(&mut self, lock: &str) -> Result<()> {
        self.tries(lock)?;
        self.denied(TIMEOUT)
    }

    /// F_GETLK: `free`, or mode, start, length and process of the holder.
    pub fn holder(&mut self, lock: &str) -> Result<String> {
        self.send("get", lock)?;
        Ok(self.answer(TIMEOUT)?.0)
    }

    /// Begins F_SETLK without waiting for its result.
    pub fn tries(&mut self, lock: &str) -> Result<()> {
        self.send("try", lock)
    }

    /// Begins F_SETLKW.
    pub fn waits(&mut self, lock: &str) -> Result<()> {
        self.send("wait", lock)
    }

    /// Unlocks a range; returns when the command was sent.
    pub fn unlocks(&mut self, range: &str) -> Result<Instant> {
        let start = Instant::now();
        self.send("unlock", range)?;
        let answer = self.answer(TIMEOUT)?.0;
        ensure!(answer == "unlocked", "{}: unlock {range}: {answer}", self.name);
        Ok(start)
    }

    /// Waits until the pending call is granted; returns when.
    pub fn granted(&mut self, timeout: Duration) -> Result<Instant> {
        let (answer, at) = self.answer(timeout)?;
        ensure!(answer == "granted", "{}: not granted but {answer}", self.name);
        Ok(at)
    }

    pub fn denied(&mut self, timeout: Duration) -> Result<()> {
        let answer = self.answer(timeout)?.0;
        ensure!(answer == "denied", "{}: not denied but {answer}", self.name);
        Ok(())
    }

    /// The result of the pending call, and when it arrived here.
    pub fn answer(&mut self, timeout: Duration) -> Result<(String, Instant)> {
        self.task.timed_line(timeout)
    }

    /// Checks that the pending call does not return for this long.
    pub fn still_waits(&mut self, time: Duration) -> Result<()> {
        thread::sleep(time);
        match self.task.timed_line(Duration::ZERO) {
            Ok((answer, _)) => bail!("{}: it should still wait, and was {answer}", self.name),
            Err(_) if self.task.is_running() => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub fn signal(&self, number: i32) -> Result<()> {
        self.task.signal(number)
    }

    fn send(&self, action: &str, what: &str) -> Result<()> {
        let has_kind = what.starts_with(|first: char| "pof".contains(first));
        let kind = if has_kind { "" } else { "posix " };
        self.task.send(&format!("{action} {kind}{what}"))
    }
}

impl StepDir {
    /// A locker of a file in this directory.
    pub fn locker(&self, guest: &Guest, name: &str) -> Result<Locker> {
        Locker::open(guest, &format!("{}/{name}", self.guest))
    }
}
