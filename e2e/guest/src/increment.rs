//! `increment PATH LOG`: reads a number under a lock, adds one and writes it back, until the input
//! ends. Each number is logged on the local disk before the lock is released: a number that was
//! written twice, or never, shows where a lock failed.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::lock::{Kind, Outcome, Range, open, say, set};

/// A fixed number of digits, so that each write replaces the whole previous one.
const DIGITS: usize = 12;

static END: AtomicBool = AtomicBool::new(false);

/// Increments until the input ends, then prints the number of increments.
pub fn run(path: &Path, log: &Path) -> Result<()> {
    let file = open(path)?;
    let log = OpenOptions::new().create(true).append(true).open(log);
    let mut log = log.context("cannot open the log")?;
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        END.store(true, Ordering::Relaxed);
    });
    let mut count = 0_u64;
    while !END.load(Ordering::Relaxed) {
        add_one(&file, &mut log).with_context(|| format!("after {count} increments"))?;
        count += 1;
    }
    say(&count.to_string())
}

fn add_one(file: &File, log: &mut File) -> Result<()> {
    let all = Range { start: 0, length: 0 };
    let outcome = set(file, Kind::Posix, libc::F_WRLCK, all, true)?;
    ensure!(outcome == Outcome::Granted, "the lock was {}", outcome.word());
    let value = number(file)? + 1;
    file.write_all_at(format!("{value:0DIGITS$}").as_bytes(), 0).context("cannot write")?;
    file.sync_data().context("cannot sync")?;
    writeln!(log, "{value}").and_then(|()| log.sync_data()).context("cannot log")?;
    set(file, Kind::Posix, libc::F_UNLCK, all, false)?;
    Ok(())
}

fn number(file: &File) -> Result<u64> {
    let mut text = [0; DIGITS];
    let length = file.read_at(&mut text, 0).context("cannot read")?;
    if length == 0 {
        return Ok(0);
    }
    let text = str::from_utf8(&text[..length]).context("not text")?;
    text.parse().with_context(|| format!("{text:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_adds_one_and_logs_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(&dir.path().join("number")).unwrap();
        let mut log = File::create(dir.path().join("log")).unwrap();
        for _ in 0..3 {
            add_one(&file, &mut log).unwrap();
        }
        assert_eq!(number(&file).unwrap(), 3);
        assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap(), "1\n2\n3\n");
    }
}
