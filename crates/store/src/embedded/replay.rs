//! Replays the newest snapshot and the journals that follow it, batch by batch. A batch that cannot
//! be read is either the torn end of the last journal, which was never acknowledged as synced, or
//! damage; this file tells the two apart.

use std::io::{self, BufReader, Read};

use keeper::change::{Change, Exactness, Snapshot};

use super::body;
use super::disk::Disk;
use super::frame::{
    FILE_HEADER_BYTES, FORMAT, FRAME_HEADER_BYTES, FileHeader, FileKind, FrameHeader, HeaderError,
};
use crate::durability::Durability;
use crate::error::StoreError;
use crate::record::{Metadata, Record};
use crate::store::{Token, cleared};

/// No store has so many batches or files: larger numbers are damage, and could not be counted on from.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// The result of a replay.
#[derive(Debug)]
pub(super) struct LogContents {
    pub(super) store_id: [u8; 16],
    /// The generation of the last journal.
    pub(super) generation: u64,
    pub(super) snapshot: Snapshot,
    /// The number of the last batch.
    pub(super) last_batch: u64,
    pub(super) token: Token,
    /// How far it can be trusted, by what earlier starts recorded.
    pub(super) exactness: Exactness,
    /// The keys of the last journal that has a batch, and of those after it. Nothing was
    /// acknowledged in a journal without a batch: the first batch of a run is synced.
    pub(super) journal_keys: Vec<[u8; 16]>,
    /// The last batch was written by a program whose mark names its journal.
    pub(super) mark_names_journal: bool,
    /// The last change is a clean stop, or the store was cleared.
    pub(super) at_rest: bool,
    /// The durability with which the last journal was written.
    pub(super) durability: Durability,
    pub(super) snapshot_bytes: u64,
    /// The number of journals after the snapshot.
    pub(super) journals: u64,
    /// The length of the batches in these journals.
    pub(super) journal_bytes: u64,
}

/// A batch in the journal of this generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogPosition {
    pub(super) generation: u64,
    pub(super) number: u64,
}

/// Replays everything, or all batches up to and including `end`. `None` if there is no store yet.
pub(super) fn replay(
    disk: &dyn Disk,
    end: Option<LogPosition>,
) -> Result<Option<LogContents>, StoreError> {
    let names = disk.names().map_err(|error| unreadable(disk, "", &error))?;
    let of = |kind: FileKind| names.iter().filter_map(move |name| kind.generation(name));
    let Some(newest) = of(FileKind::Snapshot).max() else {
        return match of(FileKind::Journal).min() {
            None => Ok(None),
            Some(generation) => without_snapshot(disk, generation),
        };
    };
    let last = match end {
        Some(end) => end.generation,
        None => of(FileKind::Journal).max().unwrap_or(newest).max(newest),
    };
    let mut contents = read_snapshot(disk, newest)?;
    let mut journal = Journal::read(disk, newest, &contents)?;
    contents.begin_journal(&journal.header);
    while contents.generation < last {
        let next = Journal::read(disk, contents.generation + 1, &contents)?;
        journal.apply(disk, &mut contents, Some(next.header.first))?;
        contents.begin_journal(&next.header);
        journal = next;
    }
    journal.apply(disk, &mut contents, end.map(|end| end.number + 1))?;
    Ok(Some(contents))
}

/// The first journal is created before the first snapshot. A start that ended between the two leaves
/// a journal without a batch: there is no store yet.
fn without_snapshot(disk: &dyn Disk, generation: u64) -> Result<Option<LogContents>, StoreError> {
    let name = FileKind::Journal.file_name(generation);
    let bytes = read_file(disk, &name)?;
    if generation == 1 && bytes.len() <= FILE_HEADER_BYTES {
        return Ok(None);
    }
    let what = format!("it needs {}, which is missing", FileKind::Snapshot.file_name(generation));
    Err(damaged(disk, &name, what))
}

impl LogContents {
    fn begin_journal(&mut self, header: &FileHeader) {
        self.generation = header.generation;
        self.journals += 1;
        self.durability = header.durability;
        self.exactness = header.exactness;
        self.journal_keys.push(header.key);
    }

    pub(super) fn metadata(&self) -> Metadata {
        Metadata {
            epoch: self.snapshot.epoch,
            ids_below: self.snapshot.ids_below,
            token: self.token,
            in_grace: self.snapshot.in_grace,
            stopped_cleanly: self.snapshot.stopped_cleanly,
            exactness: self.exactness,
            at_rest: self.at_rest,
        }
    }

    fn take_metadata(&mut self, metadata: &Metadata) {
        self.snapshot.epoch = metadata.epoch;
        self.snapshot.ids_below = metadata.ids_below;
        self.snapshot.in_grace = metadata.in_grace;
        self.snapshot.stopped_cleanly = metadata.stopped_cleanly;
        self.token = metadata.token;
        self.exactness = metadata.exactness;
        self.at_rest = metadata.at_rest;
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::Change(change) => {
                self.at_rest = matches!(change, Change::Stopped);
                self.snapshot.apply(change);
            }
            Record::Metadata(metadata) => self.take_metadata(&metadata),
            Record::Cleared => {
                self.snapshot = cleared(&self.snapshot);
                self.at_rest = true;
            }
        }
    }
}

fn read_snapshot(disk: &dyn Disk, generation: u64) -> Result<LogContents, StoreError> {
    let name = FileKind::Snapshot.file_name(generation);
    let file = disk.read(&name).map_err(|error| unreadable(disk, &name, &error))?;
    let mut file = BufReader::with_capacity(1 << 18, file);
    // Memory for what is there, not for what a damaged length says.
    let mut take = |length: usize, bytes: &mut Vec<u8>| {
        bytes.clear();
        match file.by_ref().take(length as u64).read_to_end(bytes) {
            Ok(taken) if taken == length => Ok(()),
            Ok(_) => Err(damaged(disk, &name, "it ends too early".to_owned())),
            Err(error) => Err(unreadable(disk, &name, &error)),
        }
    };
    let mut bytes = Vec::new();
    take(FILE_HEADER_BYTES, &mut bytes)?;
    let header = bytes.first_chunk().copied().unwrap_or([0; FILE_HEADER_BYTES]);
    let header = file_header(disk, &name, FileKind::Snapshot, generation, &header)?;
    let mut contents = LogContents {
        store_id: header.store_id,
        generation,
        snapshot: Snapshot::default(),
        last_batch: header.first.saturating_sub(1),
        token: Token(0),
        exactness: header.exactness,
        journal_keys: Vec::new(),
        mark_names_journal: false,
        at_rest: false,
        durability: header.durability,
        snapshot_bytes: FILE_HEADER_BYTES as u64,
        journals: 0,
        journal_bytes: 0,
    };
    let mut body = Vec::new();
    for number in 1.. {
        take(FRAME_HEADER_BYTES, &mut bytes)?;
        let frame = bytes.first_chunk().and_then(|bytes| FrameHeader::decode(bytes, &header.key));
        let frame = frame.filter(|frame| frame.number == number);
        let Some(frame) = frame else {
            return Err(damaged(disk, &name, format!("frame {number} has a damaged header")));
        };
        take(frame.length as usize, &mut body)?;
        if !frame.matches(&body, &header.key) {
            return Err(damaged(
                disk,
                &name,
                format!("frame {number} does not match its checksum"),
            ));
        }
        body::read(&body, |record| contents.apply(record))
            .map_err(|why| damaged(disk, &name, format!("frame {number}: {why}")))?;
        contents.snapshot_bytes += FRAME_HEADER_BYTES as u64 + frame.length;
        if frame.last {
            contents.mark_names_journal = frame.mark_names_journal;
            break;
        }
    }
    match file.read(&mut [0]) {
        Ok(0) => Ok(contents),
        Ok(_) => Err(damaged(disk, &name, "it continues after its last frame".to_owned())),
        Err(error) => Err(unreadable(disk, &name, &error)),
    }
}

struct Journal {
    name: String,
    header: FileHeader,
    bytes: Vec<u8>,
}

impl Journal {
    fn read(disk: &dyn Disk, generation: u64, contents: &LogContents) -> Result<Self, StoreError> {
        let name = FileKind::Journal.file_name(generation);
        let bytes = read_file(disk, &name)?;
        let Some(header) = bytes.first_chunk() else {
            return Err(damaged(disk, &name, "it is shorter than its header".to_owned()));
        };
        let header = file_header(disk, &name, FileKind::Journal, generation, header)?;
        if header.store_id != contents.store_id {
            return Err(damaged(disk, &name, "it belongs to another store".to_owned()));
        }
        Ok(Self { name, header, bytes })
    }

    /// Applies all batches, or those before `end` if it is known where this journal ends.
    fn apply(
        &self,
        disk: &dyn Disk,
        contents: &mut LogContents,
        end: Option<u64>,
    ) -> Result<(), StoreError> {
        let (key, mut rest) = (&self.header.key, &self.bytes[FILE_HEADER_BYTES..]);
        let mut expected = contents.last_batch + 1;
        if self.header.first != expected {
            let what = format!("it begins with batch {}, not {expected}", self.header.first);
            return Err(damaged(disk, &self.name, what));
        }
        while end.is_none_or(|end| expected < end) {
            let Some((frame, body, after)) = FrameHeader::split(rest, key) else { break };
            if frame.number != expected {
                break;
            }
            body::read(body, |record| contents.apply(record))
                .map_err(|why| damaged(disk, &self.name, format!("batch {expected}: {why}")))?;
            (contents.last_batch, contents.token) = (expected, Token(frame.token));
            contents.exactness = frame.exactness;
            contents.mark_names_journal = frame.mark_names_journal;
            if contents.journal_keys.first() != Some(&self.header.key) {
                contents.journal_keys.retain(|key| *key == self.header.key);
            }
            contents.journal_bytes += (rest.len() - after.len()) as u64;
            (expected, rest) = (expected + 1, after);
        }
        let missing = match end {
            Some(end) => (expected != end).then_some(end - 1),
            None => find_proof_of_sync(expected, rest, key),
        };
        match missing {
            None => Ok(()),
            Some(later) => {
                let what =
                    format!("batch {expected} cannot be read, but batches up to {later} exist");
                Err(damaged(disk, &self.name, what))
            }
        }
    }
}

/// A later batch in `rest` that proves that batch `number` was synced. A batch that was not synced
/// may be torn while later ones are intact; a synced one cannot be torn.
fn find_proof_of_sync(number: u64, rest: &[u8], key: &[u8; 16]) -> Option<u64> {
    FrameHeader::search(rest, key).find(|frame| frame.synced >= number).map(|frame| frame.number)
}

fn file_header(
    disk: &dyn Disk,
    name: &str,
    kind: FileKind,
    generation: u64,
    bytes: &[u8; FILE_HEADER_BYTES],
) -> Result<FileHeader, StoreError> {
    let is_number = |number| (1..=NUMBER_MAX).contains(&number);
    match FileHeader::decode(kind, bytes) {
        Ok(header) if !is_number(header.first) || header.generation > NUMBER_MAX => {
            Err(damaged(disk, name, "its header has impossible numbers".to_owned()))
        }
        Ok(header) if header.generation == generation => Ok(header),
        Ok(_) => Err(damaged(disk, name, "its name is that of another file".to_owned())),
        Err(HeaderError::Damaged) => Err(damaged(disk, name, "its header is damaged".to_owned())),
        Err(HeaderError::Newer(format)) => Err(StoreError::Newer {
            location: disk.display_path(name),
            found: u64::from(format),
            known: u64::from(FORMAT),
        }),
    }
}

fn read_file(disk: &dyn Disk, name: &str) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    match disk.read(name).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(damaged(disk, name, "it is missing".to_owned()))
        }
        Err(error) => Err(unreadable(disk, name, &error)),
    }
}

pub(super) fn damaged(disk: &dyn Disk, name: &str, what: String) -> StoreError {
    StoreError::Damaged { location: disk.display_path(name), what }
}

pub(super) fn unreadable(disk: &dyn Disk, name: &str, error: &io::Error) -> StoreError {
    StoreError::Unreadable(format!("{}: {error}", disk.display_path(name)))
}
