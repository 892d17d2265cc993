//! Creates journals and snapshots. A file is written under a temporary name, synced and renamed, so
//! that it is complete whenever it has its final name.

use std::io;
use std::sync::Arc;

use keeper::change::{Change, Exactness, Snapshot};

use super::body::Body;
use super::disk::{Disk, DiskFile};
use super::frame::{FILE_HEADER_BYTES, FileHeader, FileKind, FrameFields, encode_frame};
use super::replay::{LogContents, LogPosition, replay};
use super::reserve::{self, is_full};
use crate::durability::Durability;
use crate::error::StoreError;

/// The suffix of files that are not complete.
pub(super) const UNFINISHED: &str = ".unfinished";
/// The bytes of rows after which a frame of a snapshot ends.
const SNAPSHOT_FRAME_BYTES: usize = 1 << 18;

/// A journal without batches.
pub(super) struct NewJournal {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) header: FileHeader,
    /// Its length; zeros follow the header.
    pub(super) allocated: u64,
}

/// Creates a journal without batches.
pub(super) fn create_journal(disk: &dyn Disk, header: FileHeader) -> io::Result<NewJournal> {
    let file = create_complete(disk, &header, 0, |_, _| Ok(()))?;
    Ok(NewJournal { file, header, allocated: FILE_HEADER_BYTES as u64 })
}

/// Creates a journal without batches in a file of the reserve. Fails as on a full disk if there is none
/// left.
pub(super) fn create_journal_from_reserve(
    disk: &dyn Disk,
    header: FileHeader,
) -> io::Result<NewJournal> {
    let unfinished = unfinished_name(&header);
    let Some(allocated) = reserve::take(disk, &unfinished)? else {
        return Err(io::ErrorKind::StorageFull.into());
    };
    let file = create_complete(disk, &header, allocated, |_, _| Ok(()))?;
    Ok(NewJournal { file, header, allocated: allocated.max(FILE_HEADER_BYTES as u64) })
}

/// For a start: uses the reserve if the disk is full.
pub(super) fn create_first_journal(disk: &dyn Disk, header: FileHeader) -> io::Result<NewJournal> {
    match create_journal(disk, header.clone()) {
        Err(error) if is_full(&error) => {
            create_journal_from_reserve(disk, header).map_err(|_| error)
        }
        other => other,
    }
}

fn unfinished_name(header: &FileHeader) -> String {
    format!("{}{UNFINISHED}", header.kind.file_name(header.generation))
}

/// Creates a snapshot and returns its length.
fn create_snapshot(
    disk: &dyn Disk,
    header: &FileHeader,
    contents: &LogContents,
) -> io::Result<u64> {
    let mut bytes = 0;
    create_complete(disk, header, 0, |file, at| {
        let mut writer = SnapshotWriter { file, at, header, number: 0, body: Body::default() };
        writer.write_rows(&contents.snapshot)?;
        writer.body.push_metadata(&contents.metadata());
        writer.finish(contents.mark_names_journal)?;
        bytes = writer.at;
        Ok(())
    })?;
    Ok(bytes)
}

/// `keep` bytes of a file with the unfinished name stay.
fn create_complete(
    disk: &dyn Disk,
    header: &FileHeader,
    keep: u64,
    write: impl FnOnce(&dyn DiskFile, u64) -> io::Result<()>,
) -> io::Result<Arc<dyn DiskFile>> {
    let name = header.kind.file_name(header.generation);
    let unfinished = unfinished_name(header);
    let file = disk.open(&unfinished)?;
    let written = file
        .truncate(keep)
        .and_then(|()| {
            let bytes = header.encode();
            file.write(&bytes, 0)?;
            write(&*file, bytes.len() as u64)
        })
        .and_then(|()| file.sync())
        .and_then(|()| disk.rename(&unfinished, &name));
    match written {
        Ok(()) => disk.sync_names().map(|()| file),
        Err(error) => {
            // The disk may be full.
            let _ = disk.remove(&unfinished);
            Err(error)
        }
    }
}

/// Writes the frames of a snapshot.
struct SnapshotWriter<'a> {
    file: &'a dyn DiskFile,
    at: u64,
    header: &'a FileHeader,
    number: u64,
    body: Body,
}

impl SnapshotWriter<'_> {
    fn write_rows(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        for client in snapshot.clients.values() {
            self.write_row(&Change::Client(Arc::clone(client)))?;
        }
        for lock in snapshot.locks.values() {
            self.write_row(&Change::Lock(lock.clone()))?;
        }
        for share in snapshot.shares.values() {
            self.write_row(&Change::Share(share.clone()))?;
        }
        Ok(())
    }

    fn write_row(&mut self, row: &Change) -> io::Result<()> {
        self.body.push(row);
        if self.body.bytes().len() < SNAPSHOT_FRAME_BYTES {
            Ok(())
        } else {
            self.flush(FrameFields::default())
        }
    }

    fn finish(&mut self, mark_names_journal: bool) -> io::Result<()> {
        self.flush(FrameFields { last: true, mark_names_journal, ..FrameFields::default() })
    }

    fn flush(&mut self, fields: FrameFields) -> io::Result<()> {
        self.number += 1;
        let fields = FrameFields { number: self.number, ..fields };
        let mut bytes = Vec::new();
        encode_frame(fields, self.body.bytes(), &self.header.key, &mut bytes);
        self.file.write(&bytes, self.at)?;
        self.at += bytes.len() as u64;
        self.body.clear();
        Ok(())
    }
}

/// Replaces everything up to `end` by a snapshot and returns its length.
pub(super) fn compact(disk: &dyn Disk, end: LogPosition) -> Result<u64, StoreError> {
    match replay(disk, Some(end))? {
        Some(contents) => {
            replace_journals(disk, &contents).map_err(|error| unwritable(disk, &error))
        }
        None => Ok(0),
    }
}

/// Writes `contents` as the snapshot of the next generation, whose journal must exist already, and
/// removes the files that it replaces.
pub(super) fn replace_journals(disk: &dyn Disk, contents: &LogContents) -> io::Result<u64> {
    let generation = contents.generation + 1;
    let header = FileHeader {
        kind: FileKind::Snapshot,
        store_id: contents.store_id,
        generation,
        first: contents.last_batch + 1,
        durability: contents.durability,
        exactness: contents.exactness,
        key: random_bytes()?,
    };
    let bytes = create_snapshot(disk, &header, contents)?;
    remove_older(disk, generation);
    Ok(bytes)
}

/// Removes files older than `generation`. One that cannot be removed does no harm: replay ignores
/// it.
fn remove_older(disk: &dyn Disk, generation: u64) {
    for name in disk.names().unwrap_or_default() {
        let of = FileKind::Journal.generation(&name).or(FileKind::Snapshot.generation(&name));
        if of.is_some_and(|of| of < generation) {
            let _ = disk.remove(&name);
        }
    }
}

/// Removes incomplete files of a process that ended.
pub(super) fn remove_unfinished(disk: &dyn Disk) {
    for name in disk.names().unwrap_or_default() {
        if name.ends_with(UNFINISHED) {
            let _ = disk.remove(&name);
        }
    }
}

/// Creates the first journal and then the first snapshot of a new store.
pub(super) fn create_store(disk: &dyn Disk, durability: Durability) -> io::Result<()> {
    let store_id = random_bytes()?;
    let header = |kind, key| FileHeader {
        kind,
        store_id,
        generation: 1,
        first: 1,
        durability,
        exactness: Exactness::Exact,
        key,
    };
    create_journal(disk, header(FileKind::Journal, random_bytes()?))?;
    let contents = LogContents {
        store_id,
        generation: 1,
        snapshot: Snapshot::default(),
        last_batch: 0,
        token: Default::default(),
        exactness: Exactness::Exact,
        journal_keys: Vec::new(),
        mark_names_journal: true,
        at_rest: false,
        durability,
        snapshot_bytes: 0,
        journals: 0,
        journal_bytes: 0,
    };
    create_snapshot(disk, &header(FileKind::Snapshot, random_bytes()?), &contents).map(|_| ())
}

pub(super) fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let taken = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if taken == bytes.len() { Ok(bytes) } else { Err(io::Error::other("too little randomness")) }
}

pub(super) fn unwritable(disk: &dyn Disk, error: &io::Error) -> StoreError {
    StoreError::Unwritable(format!("{}: {error}", disk.display_path("")))
}
