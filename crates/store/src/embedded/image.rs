//! Writing files that are complete from the moment they have their name: written under another,
//! synced, renamed. A snapshot takes the place of all journals before it.

use std::io;
use std::sync::Arc;

use keeper::change::{Change, Snapshot};

use super::body::Body;
use super::disk::{Disk, DiskFile};
use super::frame::{FileHead, Kind, Labels, encode_frame};
use super::replay::{Found, Until, replay};
use crate::durability::Durability;
use crate::error::StoreError;

/// Ends the names of files that are not complete.
const UNFINISHED: &str = ".unfinished";
/// So many bytes of rows go into one part of a snapshot.
const PART_BYTES: usize = 1 << 18;

/// A new file with nothing but its head; for a journal, where batches go.
pub fn begin(disk: &dyn Disk, head: &FileHead) -> io::Result<Arc<dyn DiskFile>> {
    finished(disk, head, |_, _| Ok(()))
}

/// Writes the snapshot that `head` begins, and returns its length.
fn write(disk: &dyn Disk, head: &FileHead, found: &Found) -> io::Result<u64> {
    let mut bytes = 0;
    finished(disk, head, |file, at| {
        let mut parts = Parts { file, at, head, number: 0, body: Body::default() };
        parts.rows(&found.snapshot)?;
        parts.body.push_facts(&found.facts());
        parts.flush(true)?;
        bytes = parts.at;
        Ok(())
    })?;
    Ok(bytes)
}

fn finished(
    disk: &dyn Disk,
    head: &FileHead,
    fill: impl FnOnce(&dyn DiskFile, u64) -> io::Result<()>,
) -> io::Result<Arc<dyn DiskFile>> {
    let name = head.kind.name(head.generation);
    let unfinished = format!("{name}{UNFINISHED}");
    let file = disk.open(&unfinished)?;
    let written = file
        .cut(0)
        .and_then(|()| {
            let bytes = head.encode();
            file.write(&bytes, 0)?;
            fill(&*file, bytes.len() as u64)
        })
        .and_then(|()| file.sync())
        .and_then(|()| disk.rename(&unfinished, &name));
    match written {
        Ok(()) => disk.sync_names().map(|()| file),
        Err(error) => {
            // On a full disk its bytes are worth more than its traces.
            let _ = disk.remove(&unfinished);
            Err(error)
        }
    }
}

struct Parts<'a> {
    file: &'a dyn DiskFile,
    at: u64,
    head: &'a FileHead,
    number: u64,
    body: Body,
}

impl Parts<'_> {
    fn rows(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        for client in snapshot.clients.values() {
            self.row(&Change::Client(Arc::clone(client)))?;
        }
        for lock in snapshot.locks.values() {
            self.row(&Change::Lock(lock.clone()))?;
        }
        for share in snapshot.shares.values() {
            self.row(&Change::Share(share.clone()))?;
        }
        Ok(())
    }

    fn row(&mut self, row: &Change) -> io::Result<()> {
        self.body.push(row);
        if self.body.bytes().len() < PART_BYTES { Ok(()) } else { self.flush(false) }
    }

    fn flush(&mut self, last: bool) -> io::Result<()> {
        self.number += 1;
        let labels = Labels { last, number: self.number, ..Labels::default() };
        let mut bytes = Vec::new();
        encode_frame(labels, self.body.bytes(), &self.head.key, &mut bytes);
        self.file.write(&bytes, self.at)?;
        self.at += bytes.len() as u64;
        self.body.clear();
        Ok(())
    }
}

/// Reads the journals up to `until` and puts a snapshot in their place. Returns its length.
pub fn condense(disk: &dyn Disk, until: Until) -> Result<u64, StoreError> {
    match replay(disk, Some(until))? {
        Some(found) => replace(disk, &found).map_err(|error| unwritable(disk, &error)),
        None => Ok(0),
    }
}

/// Writes `found` as the snapshot before the next journal, which is there already, and removes what
/// is in it.
pub fn replace(disk: &dyn Disk, found: &Found) -> io::Result<u64> {
    let generation = found.generation + 1;
    let head = FileHead {
        kind: Kind::Snapshot,
        store: found.store,
        generation,
        first: found.number + 1,
        durability: found.durability,
        roster: found.roster,
        key: random()?,
    };
    let bytes = write(disk, &head, found)?;
    remove_older(disk, generation);
    Ok(bytes)
}

/// Removes what `generation` has replaced, and what was never finished. A file that stays is found
/// by the next start, which needs it for nothing.
fn remove_older(disk: &dyn Disk, generation: u64) {
    for name in disk.names().unwrap_or_default() {
        let of = Kind::Journal.generation(&name).or(Kind::Snapshot.generation(&name));
        if of.is_some_and(|of| of < generation) {
            let _ = disk.remove(&name);
        }
    }
}

/// Removes what a process did not finish before it ended.
pub fn remove_unfinished(disk: &dyn Disk) {
    for name in disk.names().unwrap_or_default() {
        if name.ends_with(UNFINISHED) {
            let _ = disk.remove(&name);
        }
    }
}

/// The first journal and the first snapshot of a new store.
pub fn create(disk: &dyn Disk, durability: Durability) -> io::Result<()> {
    let store = random()?;
    let head = |kind, key| FileHead {
        kind,
        store,
        generation: 1,
        first: 1,
        durability,
        roster: false,
        key,
    };
    begin(disk, &head(Kind::Journal, random()?))?;
    let found = Found {
        store,
        generation: 1,
        snapshot: Snapshot::default(),
        number: 0,
        token: Default::default(),
        roster: false,
        at_rest: false,
        durability,
        snapshot_bytes: 0,
        journals: 0,
        journal_bytes: 0,
    };
    write(disk, &head(Kind::Snapshot, random()?), &found).map(|_| ())
}

pub fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let taken = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if taken == bytes.len() { Ok(bytes) } else { Err(io::Error::other("too little randomness")) }
}

pub fn unwritable(disk: &dyn Disk, error: &io::Error) -> StoreError {
    StoreError::Unwritable(format!("{}: {error}", disk.place("")))
}
