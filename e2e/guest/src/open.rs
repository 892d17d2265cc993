//! A file held open, controlled by commands on standard input, each answered by a line. `write TEXT`
//! appends, `read` prints all, `fill BYTES SEED` writes seeded bytes from the start without syncing,
//! `check BYTES SEED` reads them back, `send` writes dirty pages to the server without a COMMIT,
//! `sync`, `unlink`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::random::Random;

pub fn run(path: &str, create: bool) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(create).open(path);
    let file = file.with_context(|| format!("cannot open {path}"))?;
    let mut out = std::io::stdout();
    writeln!(out, "open")?;
    for order in std::io::stdin().lock().lines() {
        match obey(&order?, &file, path.as_ref()) {
            Ok(answer) => writeln!(out, "ok {answer}")?,
            Err(error) => writeln!(out, "error {error:#}")?,
        }
        out.flush()?;
    }
    Ok(())
}

fn obey(order: &str, file: &File, path: &Path) -> Result<String> {
    let words: Vec<&str> = order.split(' ').collect();
    match words[..] {
        ["write", text] => file.write_all_at(text.as_bytes(), file.metadata()?.len())?,
        ["read"] => {
            let mut contents = vec![0; file.metadata()?.len() as usize];
            file.read_exact_at(&mut contents, 0)?;
            return Ok(String::from_utf8_lossy(&contents).into_owned());
        }
        ["fill", bytes, seed] => file.write_all_at(&seeded(bytes, seed)?, 0)?,
        ["check", bytes, seed] => {
            let expected = seeded(bytes, seed)?;
            let mut found = vec![0; expected.len()];
            file.read_exact_at(&mut found, 0)?;
            if found != expected {
                bail!("the contents differ");
            }
        }
        ["send"] => send(file)?,
        ["sync"] => file.sync_all()?,
        ["unlink"] => std::fs::remove_file(path)?,
        _ => bail!("unknown order {order:?}"),
    }
    Ok(String::new())
}

/// Waits for the WRITE calls without causing a COMMIT. In two steps, because a call that starts and
/// awaits the write-back makes the client commit.
#[allow(unsafe_code)]
fn send(file: &File) -> Result<()> {
    for flags in [libc::SYNC_FILE_RANGE_WRITE, libc::SYNC_FILE_RANGE_WAIT_BEFORE] {
        // SAFETY: an open descriptor and integers.
        if unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } != 0 {
            bail!("cannot send: {}", std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The bytes that `fill` writes.
pub fn contents(bytes: usize, seed: u64) -> Vec<u8> {
    Random::new(seed).bytes(bytes)
}

fn seeded(bytes: &str, seed: &str) -> Result<Vec<u8>> {
    Ok(contents(bytes.parse()?, seed.parse()?))
}
