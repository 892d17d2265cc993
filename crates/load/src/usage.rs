//! CPU time and memory of processes, from /proc.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::ClockId;
use nix::unistd::Pid;

/// The resident memory of a process.
pub fn rss_bytes(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).context(path)?;
    parse_rss(&status).context("no VmRSS")
}

/// The CPU time of a process, over all threads. By its clock, since `/proc` counts hundredths of a
/// second.
pub fn cpu(process: u32) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(process)?));
    let now = clock.and_then(ClockId::now);
    Ok(now.with_context(|| format!("no processor time of process {process}"))?.into())
}

/// The CPU time of all processes of this name and of their terminated children.
pub fn cpu_of_all(name: &str) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for entry in std::fs::read_dir("/proc").context("/proc")? {
        // Not every entry is a process, and a process may end meanwhile.
        if let Ok(stat) = std::fs::read_to_string(entry?.path().join("stat"))
            && let Some(used) = parse_cpu_with_children(&stat, name)
        {
            sum += used;
        }
    }
    Ok(sum)
}

/// The CPU time of this process.
pub fn own_cpu() -> Duration {
    cpu(std::process::id()).unwrap_or_default()
}

/// The CPU time of the machine, over all processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    pub busy: Duration,
    pub all: Duration,
}

pub fn machine() -> Result<Machine> {
    let stat = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    parse_machine(&stat).context("no processor times in /proc/stat")
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
fn parse_machine(stat: &str) -> Option<Machine> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> =
        line.split_ascii_whitespace().take(8).map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let all: u64 = times.iter().sum();
    let idle = times.get(3)? + times.get(4)?;
    let time = |ticks: u64| Duration::from_millis(ticks * 10);
    Some(Machine { busy: time(all - idle), all: time(all) })
}

/// VmRSS of `/proc/PID/status`.
fn parse_rss(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// utime, stime, cutime and cstime of `/proc/PID/stat`, in hundredths of a second, if the process has
/// this name.
fn parse_cpu_with_children(stat: &str, name: &str) -> Option<Duration> {
    // The name, in parentheses, may contain spaces and parentheses.
    let (start, fields) = stat.rsplit_once(')')?;
    let (_, found) = start.split_once('(')?;
    let times = fields.split_ascii_whitespace().skip(11).take(4).map(|n| n.parse().ok());
    let times: Vec<u64> = times.collect::<Option<_>>()?;
    (found == name && times.len() == 4)
        .then(|| Duration::from_millis(times.iter().sum::<u64>() * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_time_are_parsed() {
        let status = "Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    5120 kB\nThreads:\t1\n";
        assert_eq!(parse_rss(status), Some(5 << 20));
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 123 77 60 40 20 0 1 0 5 6 7";
        assert_eq!(parse_cpu_with_children(stat, "a) b"), Some(Duration::from_secs(3)));
        assert_eq!(parse_cpu_with_children(stat, "a"), None);
        assert_eq!((parse_rss(""), parse_cpu_with_children("", "")), (None, None));
    }

    #[test]
    fn the_clock_of_a_process_runs_while_it_works() {
        let before = own_cpu();
        while own_cpu() < before + Duration::from_millis(2) {}
        assert!(cpu(u32::MAX).is_err());
    }

    #[test]
    fn waiting_for_the_disk_counts_as_idle() {
        let stat = "cpu  100 0 100 500 300 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let (busy, all) = (Duration::from_secs(2), Duration::from_secs(10));
        assert_eq!(parse_machine(stat), Some(Machine { busy, all }));
        assert_eq!(parse_machine("intr 1"), None);
    }
}
