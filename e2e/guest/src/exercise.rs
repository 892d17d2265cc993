//! One turn of the exerciser: opens a file, checks that it has the content of the turns before,
//! performs this turn's operations on file and model, compares on every read, and closes. Successive
//! turns may run on different clients; close-to-open consistency makes this invisible.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::model::{Model, Operation};
use crate::random::Random;

#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub seed: u64,
    /// The number of the file.
    pub file: u64,
    pub turn: u64,
    pub operations: u64,
}

pub fn take_turn(turn: &Turn, path: &Path) -> Result<()> {
    let mut model = Model::before(turn.seed, turn.file, turn.turn, turn.operations);
    let mut file = open(path)?;
    model.check_all(&read(&file, 0, model.len() + 1)?).with_context(|| {
        format!("{turn:?}: when opened, the file differs from the result of the previous turn")
    })?;
    let mut random = Random::stream(turn.seed, turn.file, turn.turn);
    for step in 0..turn.operations {
        let operation = model.next_operation(&mut random);
        perform(&operation, &mut file, path, &model)
            .with_context(|| format!("{turn:?}: operation {step}, {}", Brief(&operation)))?;
        model.apply(&operation);
    }
    model
        .check_all(&read(&file, 0, model.len() + 1)?)
        .with_context(|| format!("{turn:?}: after the last operation"))
}

fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

fn perform(operation: &Operation, file: &mut File, path: &Path, model: &Model) -> Result<()> {
    match operation {
        Operation::Write { offset, data } => file.write_all_at(data, *offset)?,
        Operation::Append { data } => {
            OpenOptions::new().append(true).open(path)?.write_all(data)?;
        }
        Operation::Truncate { size } => file.set_len(*size)?,
        Operation::MapWrite { offset, data } => {
            let mut map = Map::new(file, model.len())?;
            map.bytes()[*offset as usize..][..data.len()].copy_from_slice(data);
        }
        Operation::Read { offset, length } => {
            model.check_read(*offset, *length, &read(file, *offset, *length)?)?;
        }
        Operation::MapRead { offset, length } => {
            let mut map = Map::new(file, model.len())?;
            let found = &map.bytes()[*offset as usize..][..*length as usize];
            model.check_read(*offset, *length, found)?;
        }
        Operation::Sync => file.sync_all()?,
        Operation::Reopen => *file = open(path)?,
    }
    Ok(())
}

fn read(file: &File, offset: u64, length: u64) -> Result<Vec<u8>> {
    let mut buffer = vec![0; length as usize];
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

/// A shared mapping of a whole file; the kernel writes it back by the close at the latest.
struct Map {
    address: *mut libc::c_void,
    length: usize,
}

impl Map {
    #[allow(unsafe_code)]
    fn new(file: &File, length: u64) -> Result<Self> {
        let length = length as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel picks the address; the result is checked before use.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            bail!("cannot map {length} bytes: {}", std::io::Error::last_os_error());
        }
        Ok(Self { address, length })
    }

    #[allow(unsafe_code)]
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping lives as long as self, and this process has no other one of the file.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.length) }
    }
}

impl Drop for Map {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned, and no slice of it outlives self.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

struct Brief<'a>(&'a Operation);

impl std::fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Operation::Write { offset, data } => write!(f, "write {} at {offset}", data.len()),
            Operation::Append { data } => write!(f, "append {}", data.len()),
            Operation::MapWrite { offset, data } => {
                write!(f, "write {} at {offset} through a mapping", data.len())
            }
            other => write!(f, "{other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Turn = Turn { seed: 11, file: 0, turn: 0, operations: 60 };
    const SECOND: Turn = Turn { turn: 1, ..FIRST };

    #[test]
    fn turns_follow_each_other_on_a_local_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        take_turn(&FIRST, &path).unwrap();
        take_turn(&SECOND, &path).unwrap();
        let model = Model::before(11, 0, 2, 60);
        model.check_all(&std::fs::read(&path).unwrap()).unwrap();
    }

    #[test]
    fn a_byte_that_changed_between_turns_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        take_turn(&FIRST, &path).unwrap();
        let mut contents = std::fs::read(&path).unwrap();
        let last = contents.len() - 1;
        contents[last] ^= 0x80;
        std::fs::write(&path, contents).unwrap();
        assert!(take_turn(&SECOND, &path).is_err());
    }

    #[test]
    fn a_turn_that_was_lost_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(take_turn(&SECOND, &dir.path().join("file")).is_err());
    }
}
