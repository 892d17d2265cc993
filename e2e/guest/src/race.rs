//! A race between clients to create files with O_EXCL: exactly one wins each.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};

/// Tries to create `race-0` ... and prints the number of each name won, one per line.
pub fn create_exclusive(dir: &Path, count: u64) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for number in 0..count {
        match File::create_new(dir.join(format!("race-{number}"))) {
            Ok(_) => writeln!(out, "{number}")?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("race-{number}")),
        }
    }
    Ok(())
}
