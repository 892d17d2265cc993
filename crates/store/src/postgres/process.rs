//! Which process holds the seat, so that a server that was killed need not wait for its own lease:
//! on the same machine one can look.

use std::fs;
use std::io::ErrorKind;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::embedded::mark::BootId;

/// A process of one machine. Two that differ in any of these are two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub boot: BootId,
    /// The namespaces in which pid and start time are counted: a container has its own.
    pub namespaces: String,
    pub pid: u32,
    /// In ticks since the machine started, as pids are used again.
    pub started: u64,
}

impl Process {
    /// This one; none if the kernel does not say, and then nobody will look for it.
    pub fn own() -> Option<Self> {
        let pid = std::process::id();
        let (_, started) = stat(pid).ok()??;
        let boot = BootId::of_this_machine().ok()?;
        Some(Self { boot, namespaces: namespaces()?, pid, started })
    }

    /// Whether it is certain that it runs no more. Of another machine or another container nothing
    /// is certain.
    pub fn is_gone(&self) -> bool {
        let here = BootId::of_this_machine().is_ok_and(|boot| boot == self.boot)
            && namespaces().is_some_and(|namespaces| namespaces == self.namespaces);
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        if !here {
            return false;
        }
        // By signal first: /proc may hide the processes of others.
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return true;
        }
        match stat(self.pid) {
            Ok(Some((_, started))) if started != self.started => true,
            // Dead, and its parent has not noticed; unless a thread of it is still on its way out.
            Ok(Some(('Z' | 'X', _))) => threads(self.pid) <= 1,
            _ => false,
        }
    }
}

/// State and start time of a process; `None` if there is no such process to be seen.
fn stat(pid: u32) -> std::io::Result<Option<(char, u64)>> {
    let text = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // The name of the program may contain anything, so count from its closing parenthesis.
    let mut fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let state = fields.next().and_then(|state| state.chars().next());
    let started = fields.nth(18).and_then(|started| started.parse().ok());
    Ok(state.zip(started))
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

fn namespaces() -> Option<String> {
    let pid = fs::read_link("/proc/self/ns/pid").ok()?;
    // Absent on kernels that have none of them, and then equal everywhere.
    let time = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!("{} {}", pid.display(), time.display()))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn of(pid: u32) -> Process {
        let started = stat(pid).unwrap().unwrap().1;
        Process { pid, started, ..Process::own().unwrap() }
    }

    #[test]
    fn a_process_is_gone_when_it_has_ended_and_not_before() {
        assert!(!Process::own().unwrap().is_gone());
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let process = of(child.id());
        assert!(!process.is_gone());
        child.kill().unwrap();
        // Not reaped yet: a zombie is as dead as any.
        let ended = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            process.is_gone()
        });
        assert!(ended);
        child.wait().unwrap();
        assert!(process.is_gone());
    }

    #[test]
    fn a_pid_that_is_used_again_is_another_process() {
        let own = Process::own().unwrap();
        assert!(Process { started: own.started + 1, ..own.clone() }.is_gone());
    }

    #[test]
    fn of_another_machine_or_container_nothing_is_certain() {
        let own = Process::own().unwrap();
        let elsewhere = Process { started: 1, boot: BootId([7; 16]), ..own.clone() };
        assert!(!elsewhere.is_gone());
        let contained = Process { started: 1, namespaces: "pid:[1]".into(), ..own };
        assert!(!contained.is_gone());
    }
}
