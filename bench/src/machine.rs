//! The machine on which a comparison ran.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;
use testbed::process::run;

#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub memory_gib: u64,
    pub kernel: String,
    /// In UTC, as 2026-01-31.
    pub date: String,
}

impl Machine {
    pub(crate) fn this() -> Result<Self> {
        let processor = fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        Ok(Self {
            processor: value(&processor, "model name").unwrap_or("unknown").to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            memory_gib: memory_gib(&memory).context("no MemTotal")?,
            kernel: version_of(&rustix::system::uname().release().to_string_lossy()),
            date: run(Command::new("date").args(["-u", "+%F"]))?.trim().to_owned(),
        })
    }
}

fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

fn memory_gib(memory: &str) -> Option<u64> {
    let kib: u64 = value(memory, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some((kib + (1 << 19)) >> 20)
}

/// The version without what a distribution or a hypervisor adds to it.
fn version_of(release: &str) -> String {
    release.split('-').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_and_memory_are_parsed() {
        let processor = "processor\t: 0\nmodel name\t: Some CPU @ 2.5 GHz\nflags\t\t: a b\n";
        assert_eq!(value(processor, "model name"), Some("Some CPU @ 2.5 GHz"));
        assert_eq!(memory_gib("MemTotal:       16384000 kB\nMemFree: 1 kB\n"), Some(16));
        assert_eq!(memory_gib(""), None);
    }

    #[test]
    fn this_machine_has_a_date_and_a_kernel() {
        let machine = Machine::this().unwrap();
        assert_eq!(machine.date.split('-').count(), 3);
        assert!(!machine.kernel.is_empty() && machine.processors > 0 && machine.memory_gib > 0);
    }
}
