//! What a command left behind: processes and files below the directory that it was given for
//! temporary things.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The command lines of running processes that name the directory.
fn processes(temporary: &Path) -> Vec<String> {
    let named = temporary.to_str().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        // Not every entry is a process, and one may end while it is looked at.
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(named) {
            found.push(line);
        }
    }
    found
}

/// A process that was killed may take a moment to go.
pub fn no_process_is_left(temporary: &Path) {
    let begun = Instant::now();
    while !processes(temporary).is_empty() {
        let left = processes(temporary);
        assert!(begun.elapsed() < Duration::from_secs(20), "still there: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn nothing_is_left(temporary: &Path) {
    no_process_is_left(temporary);
    let left: Vec<_> =
        fs::read_dir(temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "still there: {left:?}");
}
