//! Identifies the leader's process. On the same machine a standby can see that it has exited, and need
//! not wait for its lease.

use std::fs;
use std::io::ErrorKind;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::boot_id::BootId;

/// Identifies one run of a process, across machines and reused pids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The start of the machine that it runs on.
    pub boot: BootId,
    /// The pid and time namespaces that `pid` and `started` belong to: a container has its own.
    pub namespaces: String,
    /// The process id.
    pub pid: u32,
    /// When it started, in clock ticks since the machine started.
    pub started: u64,
}

impl ProcessIdentity {
    /// This process; `None` if `/proc` is not readable.
    pub fn current() -> Option<Self> {
        let pid = std::process::id();
        let (_, started) = stat(pid).ok()??;
        let boot = BootId::of_this_machine().ok()?;
        Some(Self { boot, namespaces: namespaces()?, pid, started })
    }

    /// Whether it has certainly exited. Never certain for another machine or container.
    pub fn has_exited(&self) -> bool {
        let here = BootId::of_this_machine().is_ok_and(|boot| boot == self.boot)
            && namespaces().is_some_and(|namespaces| namespaces == self.namespaces);
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        if !here {
            return false;
        }
        // By signal first: /proc may hide processes of other users.
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return true;
        }
        match stat(self.pid) {
            Ok(Some((_, started))) if started != self.started => true,
            // A zombie, unless one of its threads is still exiting.
            Ok(Some(('Z' | 'X', _))) => threads(self.pid) <= 1,
            _ => false,
        }
    }
}

/// State and start time of a process; `None` if no such process is visible.
fn stat(pid: u32) -> std::io::Result<Option<(char, u64)>> {
    let text = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // The program's name may contain anything, so fields count from its closing parenthesis.
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
    // Absent on kernels without time namespaces, and then equal everywhere.
    let time = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!("{} {}", pid.display(), time.display()))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn of(pid: u32) -> ProcessIdentity {
        let started = stat(pid).unwrap().unwrap().1;
        ProcessIdentity { pid, started, ..ProcessIdentity::current().unwrap() }
    }

    #[test]
    fn a_process_has_exited_when_it_has_ended_and_not_before() {
        assert!(!ProcessIdentity::current().unwrap().has_exited());
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let process = of(child.id());
        assert!(!process.has_exited());
        child.kill().unwrap();
        // Not reaped yet: a zombie.
        let ended = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            process.has_exited()
        });
        assert!(ended);
        child.wait().unwrap();
        assert!(process.has_exited());
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let own = ProcessIdentity::current().unwrap();
        assert!(ProcessIdentity { started: own.started + 1, ..own.clone() }.has_exited());
    }

    #[test]
    fn for_another_machine_or_container_nothing_is_certain() {
        let own = ProcessIdentity::current().unwrap();
        let elsewhere = ProcessIdentity { started: 1, boot: BootId([7; 16]), ..own.clone() };
        assert!(!elsewhere.has_exited());
        let contained = ProcessIdentity { started: 1, namespaces: "pid:[1]".into(), ..own };
        assert!(!contained.has_exited());
    }
}
