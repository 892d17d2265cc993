//! Processes, from /proc: command line, and open file limits.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser as _;
use rustix::process::{Resource, getrlimit};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::cli;

#[derive(Debug)]
pub(super) struct Process {
    pub pid: u32,
    /// The command name.
    pub name: String,
    /// Its command line, if it is `lockkeeper serve`.
    pub serve: Option<cli::Serve>,
    pub descriptors: Descriptors,
}

/// Limit and number of open file descriptors; `None` if unlimited or not readable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Descriptors {
    pub max: Option<u64>,
    pub open: Option<u64>,
}

impl Process {
    /// `None` if there is no such process.
    pub(super) fn read(pid: u32) -> Option<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let name = fs::read_to_string(proc.join("comm")).ok()?.trim().to_owned();
        let limits = fs::read_to_string(proc.join("limits")).unwrap_or_default();
        let open = fs::read_dir(proc.join("fd")).ok().map(|list| list.count() as u64);
        let descriptors = Descriptors { max: open_files_max(&limits), open };
        Some(Self { pid, name, serve: started_as(&proc), descriptors })
    }

    pub(super) fn shown(&self) -> String {
        format!("{} (pid {})", self.name, self.pid)
    }
}

/// The hard limit of this process, which a server would use.
pub(super) fn own_descriptors() -> Descriptors {
    Descriptors { max: getrlimit(Resource::Nofile).maximum, open: None }
}

/// Process id of the listener of a unix socket.
pub(super) async fn peer_pid(socket: &Path) -> Option<u32> {
    let connected = timeout(Duration::from_secs(2), UnixStream::connect(socket)).await;
    let pid = connected.ok()?.ok()?.peer_cred().ok()?.pid()?;
    u32::try_from(pid).ok().filter(|pid| *pid != 0)
}

/// Process id of the holder of a `flock` on the file.
pub(super) fn lock_holder(file: &Path) -> Option<u32> {
    let found = fs::metadata(file).ok()?;
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", found.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let file = fs::canonicalize(file).ok()?;
    // On btrfs /proc/locks shows another device number than stat.
    let is_it = |(pid, at): &(u32, &str)| *at == place || has_open(*pid, &file);
    holders_of(&locks, found.ino()).find(is_it).map(|(pid, _)| pid)
}

/// Parses `1: FLOCK  ADVISORY  WRITE 811 fe:00:5243 0 EOF`; waiters have `->` after the number.
fn holders_of(locks: &str, inode: u64) -> impl Iterator<Item = (u32, &str)> {
    locks.lines().filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, at, ..] = words[..] else { return None };
        let of_it = at.rsplit(':').next()?.parse() == Ok(inode);
        of_it.then_some((pid.parse().ok()?, at))
    })
}

fn has_open(pid: u32, file: &Path) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|open| open == file)
}

/// The command line of a server, with paths made absolute.
fn started_as(proc: &Path) -> Option<cli::Serve> {
    let line = fs::read(proc.join("cmdline")).ok()?;
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    let words = line.split(|byte| *byte == 0).map(std::ffi::OsStr::from_bytes);
    let cli::Command::Serve(mut serve) = cli::Cli::try_parse_from(words).ok()?.command else {
        return None;
    };
    let directory = fs::read_link(proc.join("cwd")).unwrap_or_default();
    let paths = [&mut serve.config, &mut serve.state, &mut serve.admin_socket];
    for path in paths.into_iter().flatten() {
        *path = directory.join(&*path);
    }
    Some(*serve)
}

/// The soft limit, which a server raises to the hard one at start.
fn open_files_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_soft_one() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax open files   1024   20000   files\n";
        assert_eq!(open_files_max(text), Some(1024));
        assert_eq!(open_files_max("Max open files   unlimited unlimited files"), None);
    }

    #[test]
    fn who_waits_for_a_lock_does_not_have_it() {
        let text = "1: POSIX  ADVISORY  WRITE 7 fe:00:52 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 811 fe:00:52 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 900 fe:00:53 0 EOF\n";
        assert_eq!(holders_of(text, 52).collect::<Vec<_>>(), [(811, "fe:00:52")]);
        assert_eq!(holders_of(text, 53).count(), 0);
    }
}
