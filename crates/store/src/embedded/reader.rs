//! Reads a store while a server writes to it, for a backup.

use std::path::Path;
use std::thread;
use std::time::Duration;

use keeper::change::{Change, Snapshot};

use super::disk::{Directory, Disk};
use super::replay::{replay, unreadable};
use crate::error::StoreError;
use crate::store::{CommitOutcome, Store, Token};

/// How often a read is repeated: a compaction removes files that are being read, and a batch that is
/// being written can look damaged.
const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// The state of an embedded store as of one batch, read without its lock. It has every batch that was
/// acknowledged before [`EmbeddedReader::open`] was called. Cannot be written.
#[derive(Debug)]
pub struct EmbeddedReader {
    saved: Snapshot,
    token: Token,
}

impl EmbeddedReader {
    /// Reads the store in `directory`. Changes nothing.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        Self::read(&Directory::existing(directory.to_owned()))
    }

    pub(super) fn read(disk: &dyn Disk) -> Result<Self, StoreError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match replay(disk, None) {
                Ok(Some(contents)) => {
                    let exactness = contents.exactness;
                    let saved = Snapshot { exactness, ..contents.snapshot };
                    return Ok(Self { saved, token: contents.token });
                }
                Ok(None) => {
                    let none = std::io::Error::other("no store is there");
                    return Err(unreadable(disk, "", &none));
                }
                Err(error) if attempts == ATTEMPTS => return Err(error),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

impl Store for EmbeddedReader {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        Ok(self.saved.clone())
    }

    fn commit(&mut self, _: &[Change], _: Token) -> CommitOutcome {
        CommitOutcome::NotWritten(StoreError::InUse)
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        Ok(self.token)
    }

    fn clear(&mut self, _: bool) -> Result<(), StoreError> {
        Err(StoreError::InUse)
    }
}
