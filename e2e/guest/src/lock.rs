//! Byte-range locks as a program takes them: POSIX (`fcntl`), open file description (`OFD`) and
//! `flock`. `get` asks for the holder, `try` tries to lock and exits, `hold` tries to lock and keeps
//! the lock, `wait` waits for the lock and keeps it. A lock is kept until standard input ends;
//! meanwhile a line `unlock START LENGTH` unlocks that range.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Error, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Posix,
    Ofd,
    Flock,
}

impl Kind {
    pub(crate) fn parse(word: &str) -> Result<Self> {
        Ok(match word {
            "posix" => Self::Posix,
            "ofd" => Self::Ofd,
            "flock" => Self::Flock,
            _ => bail!("unknown kind of lock {word:?}"),
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) start: i64,
    /// 0: to the end of the file, wherever that is.
    pub(crate) length: i64,
}

/// The result of an attempt to lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    /// Held by another owner.
    Denied,
    /// Interrupted by a signal while waiting.
    Interrupted,
    /// Waiting would have caused a deadlock.
    Deadlock,
}

impl Outcome {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::Interrupted => "interrupted",
            Self::Deadlock => "deadlock",
        }
    }
}

/// `read`, `write` or, to unlock, `none`.
pub(crate) fn parse_mode(word: &str) -> Result<libc::c_int> {
    Ok(match word {
        "read" => libc::F_RDLCK,
        "write" => libc::F_WRLCK,
        "none" => libc::F_UNLCK,
        _ => bail!("a lock is for read or write, not {word:?}"),
    })
}

pub fn run(words: &[&str]) -> Result<ExitCode> {
    let &[action, kind, mode, path, ref range @ ..] = words else {
        bail!("lock get|try|wait|hold posix|ofd|flock read|write PATH [START LENGTH]");
    };
    let (kind, mode) = (Kind::parse(kind)?, parse_mode(mode)?);
    let range = match range {
        [] => Range { start: 0, length: 0 },
        [start, length] => Range { start: start.parse()?, length: length.parse()? },
        _ => bail!("a range is START LENGTH"),
    };
    let file = open(path.as_ref())?;
    match action {
        "get" => {
            say(&holder(&file, kind, mode, range)?)?;
            Ok(ExitCode::SUCCESS)
        }
        "try" | "hold" | "wait" => {
            let outcome = set(&file, kind, mode, range, action == "wait")?;
            say(outcome.word())?;
            if outcome != Outcome::Granted {
                return Ok(ExitCode::FAILURE);
            }
            if action != "try" {
                keep(&file, kind)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("unknown action {action:?}"),
    }
}

pub(crate) fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write the answer")
}

fn keep(file: &File, kind: Kind) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let ["unlock", start, length] = words[..] else { bail!("unknown order {line:?}") };
        let range = Range { start: start.parse()?, length: length.parse()? };
        set(file, kind, libc::F_UNLCK, range, false)?;
        say("unlocked")?;
    }
    Ok(())
}

/// Locks or unlocks.
pub(crate) fn set(
    file: &File,
    kind: Kind,
    mode: libc::c_int,
    range: Range,
    wait: bool,
) -> Result<Outcome> {
    let result = match (kind, wait) {
        (Kind::Flock, _) => flock(file, mode, wait),
        (Kind::Posix, false) => fcntl(file, libc::F_SETLK, &mut description(mode, range)),
        (Kind::Posix, true) => fcntl(file, libc::F_SETLKW, &mut description(mode, range)),
        (Kind::Ofd, false) => fcntl(file, libc::F_OFD_SETLK, &mut description(mode, range)),
        (Kind::Ofd, true) => fcntl(file, libc::F_OFD_SETLKW, &mut description(mode, range)),
    };
    match result {
        Ok(()) => Ok(Outcome::Granted),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(Outcome::Denied),
            Some(libc::EINTR) => Ok(Outcome::Interrupted),
            Some(libc::EDEADLK) => Ok(Outcome::Deadlock),
            _ => Err(error).context("lock"),
        },
    }
}

pub(crate) fn holder(file: &File, kind: Kind, mode: libc::c_int, range: Range) -> Result<String> {
    let command = match kind {
        Kind::Posix => libc::F_GETLK,
        Kind::Ofd => libc::F_OFD_GETLK,
        Kind::Flock => bail!("flock cannot ask"),
    };
    let mut lock = description(mode, range);
    fcntl(file, command, &mut lock).context("cannot ask for the lock")?;
    Ok(match i32::from(lock.l_type) {
        libc::F_UNLCK => "free".to_owned(),
        libc::F_RDLCK => format!("read {} {} {}", lock.l_start, lock.l_len, lock.l_pid),
        _ => format!("write {} {} {}", lock.l_start, lock.l_len, lock.l_pid),
    })
}

fn description(mode: libc::c_int, range: Range) -> libc::flock {
    libc::flock {
        l_type: mode as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start,
        l_len: range.length,
        l_pid: 0,
    }
}

#[allow(unsafe_code)]
fn fcntl(file: &File, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Error> {
    // SAFETY: an open descriptor, and a flock structure that outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

#[allow(unsafe_code)]
fn flock(file: &File, mode: libc::c_int, wait: bool) -> Result<(), Error> {
    let operation = match mode {
        libc::F_RDLCK => libc::LOCK_SH,
        libc::F_WRLCK => libc::LOCK_EX,
        _ => libc::LOCK_UN,
    };
    let flags = if wait { 0 } else { libc::LOCK_NB };
    // SAFETY: an open descriptor and a number.
    let result = unsafe { libc::flock(file.as_raw_fd(), operation | flags) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_descriptors() -> (tempfile::NamedTempFile, File) {
        let first = tempfile::NamedTempFile::new().unwrap();
        let second = OpenOptions::new().read(true).write(true).open(first.path()).unwrap();
        (first, second)
    }

    #[test]
    fn ofd_locks_of_two_descriptors_conflict_only_where_they_overlap() {
        let (first, second) = two_descriptors();
        let range = |start, length| Range { start, length };
        let take = |file: &File, range| set(file, Kind::Ofd, libc::F_WRLCK, range, false).unwrap();
        assert_eq!(take(first.as_file(), range(0, 10)), Outcome::Granted);
        assert_eq!(take(&second, range(5, 10)), Outcome::Denied);
        assert_eq!(take(&second, range(10, 10)), Outcome::Granted);
        let told = holder(&second, Kind::Ofd, libc::F_WRLCK, range(5, 2)).unwrap();
        assert_eq!(told, "write 0 10 -1");
        set(first.as_file(), Kind::Ofd, libc::F_UNLCK, range(0, 10), false).unwrap();
        let told = holder(&second, Kind::Ofd, libc::F_WRLCK, range(0, 10)).unwrap();
        assert_eq!(told, "free");
    }

    #[test]
    fn flock_is_shared_by_readers_and_refused_to_a_writer() {
        let (first, second) = two_descriptors();
        let all = Range { start: 0, length: 0 };
        let take = |file: &File, mode| set(file, Kind::Flock, mode, all, false).unwrap();
        assert_eq!(take(first.as_file(), libc::F_RDLCK), Outcome::Granted);
        assert_eq!(take(&second, libc::F_RDLCK), Outcome::Granted);
        assert_eq!(take(&second, libc::F_WRLCK), Outcome::Denied);
    }
}
