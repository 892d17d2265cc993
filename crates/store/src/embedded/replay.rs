//! Reading it all back: the newest snapshot, then the journals that follow it, batch by batch. What
//! cannot be read is either the torn end of the last journal, which nobody was told about, or
//! damage; this file tells the two apart.

use std::io::{self, BufReader, Read};

use keeper::change::{Change, Exactness, Snapshot};

use super::body;
use super::disk::Disk;
use super::frame::{BadHead, FILE_HEAD, FORMAT, FRAME_HEAD, FileHead, FrameHead, Kind};
use crate::durability::Durability;
use crate::error::StoreError;
use crate::record::{Facts, Record};
use crate::store::{Token, cleared};

/// All that the files say.
#[derive(Debug)]
pub struct Found {
    pub store: [u8; 16],
    /// Of the last journal.
    pub generation: u64,
    pub snapshot: Snapshot,
    /// The last batch that is there.
    pub number: u64,
    pub token: Token,
    pub roster: bool,
    /// A clean stop was the last thing that happened.
    pub at_rest: bool,
    /// In which mode the last journal was written.
    pub durability: Durability,
    pub snapshot_bytes: u64,
    /// How many journals follow the snapshot, and the length of their batches.
    pub journals: u64,
    pub journal_bytes: u64,
}

/// Where a reading ends that does not go to the end of the last journal.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    pub generation: u64,
    pub number: u64,
}

/// `None` if there is no store yet.
pub fn replay(disk: &dyn Disk, until: Option<Until>) -> Result<Option<Found>, StoreError> {
    let names = disk.names().map_err(|error| unreadable(disk, "", &error))?;
    let of = |kind: Kind| names.iter().filter_map(move |name| kind.generation(name));
    let Some(newest) = of(Kind::Snapshot).max() else {
        return match of(Kind::Journal).min() {
            None => Ok(None),
            Some(generation) => nothing_but_a_beginning(disk, generation),
        };
    };
    let last = match until {
        Some(until) => until.generation,
        None => of(Kind::Journal).max().unwrap_or(newest).max(newest),
    };
    let mut found = read_snapshot(disk, newest)?;
    let mut journal = Journal::read(disk, newest, &found)?;
    found.enter(&journal.head);
    while found.generation < last {
        let next = Journal::read(disk, found.generation + 1, &found)?;
        journal.apply(disk, &mut found, Some(next.head.first))?;
        found.enter(&next.head);
        journal = next;
    }
    journal.apply(disk, &mut found, until.map(|until| until.number + 1))?;
    Ok(Some(found))
}

/// The first journal is made before the first snapshot. A start that was cut short between the two
/// leaves a journal without a batch: no store yet.
fn nothing_but_a_beginning(disk: &dyn Disk, generation: u64) -> Result<Option<Found>, StoreError> {
    let name = Kind::Journal.name(generation);
    let bytes = read_file(disk, &name)?;
    if generation == 1 && bytes.len() <= FILE_HEAD {
        return Ok(None);
    }
    let what = format!("it goes with {}, which is missing", Kind::Snapshot.name(generation));
    Err(damaged(disk, &name, what))
}

impl Found {
    fn enter(&mut self, head: &FileHead) {
        self.generation = head.generation;
        self.journals += 1;
        self.durability = head.durability;
        self.roster = head.roster;
    }

    pub fn facts(&self) -> Facts {
        Facts {
            epoch: self.snapshot.epoch,
            ids_below: self.snapshot.ids_below,
            token: self.token,
            in_grace: self.snapshot.in_grace,
            stopped_cleanly: self.snapshot.stopped_cleanly,
            exactness: if self.roster { Exactness::Roster } else { Exactness::Exact },
            at_rest: self.at_rest,
        }
    }

    fn take_facts(&mut self, facts: &Facts) {
        self.snapshot.epoch = facts.epoch;
        self.snapshot.ids_below = facts.ids_below;
        self.snapshot.in_grace = facts.in_grace;
        self.snapshot.stopped_cleanly = facts.stopped_cleanly;
        self.token = facts.token;
        self.roster = facts.exactness == Exactness::Roster;
        self.at_rest = facts.at_rest;
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::Change(change) => {
                self.at_rest = matches!(change, Change::Stopped);
                self.snapshot.apply(change);
            }
            Record::Facts(facts) => self.take_facts(&facts),
            Record::Cleared => {
                self.snapshot = cleared(&self.snapshot);
                self.at_rest = true;
            }
        }
    }
}

fn read_snapshot(disk: &dyn Disk, generation: u64) -> Result<Found, StoreError> {
    let name = Kind::Snapshot.name(generation);
    let file = disk.read(&name).map_err(|error| unreadable(disk, &name, &error))?;
    let mut file = BufReader::with_capacity(1 << 18, file);
    let mut take = |bytes: &mut [u8]| match file.read_exact(bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(damaged(disk, &name, "it ends too early".to_owned()))
        }
        other => other.map_err(|error| unreadable(disk, &name, &error)),
    };
    let mut head = [0; FILE_HEAD];
    take(&mut head)?;
    let head = file_head(disk, &name, Kind::Snapshot, generation, &head)?;
    let mut found = Found {
        store: head.store,
        generation,
        snapshot: Snapshot::default(),
        number: head.first.saturating_sub(1),
        token: Token(0),
        roster: head.roster,
        at_rest: false,
        durability: head.durability,
        snapshot_bytes: FILE_HEAD as u64,
        journals: 0,
        journal_bytes: 0,
    };
    let mut body = Vec::new();
    for number in 1.. {
        let mut bytes = [0; FRAME_HEAD];
        take(&mut bytes)?;
        let frame = FrameHead::decode(&bytes, &head.key).filter(|frame| frame.number == number);
        let Some(frame) = frame else {
            return Err(damaged(disk, &name, format!("part {number} has a damaged head")));
        };
        body.resize(frame.length as usize, 0);
        take(&mut body)?;
        if !frame.fits(&body, &head.key) {
            return Err(damaged(disk, &name, format!("part {number} does not match its checksum")));
        }
        body::read(&body, |record| found.apply(record))
            .map_err(|why| damaged(disk, &name, format!("part {number}: {why}")))?;
        found.snapshot_bytes += FRAME_HEAD as u64 + frame.length;
        if frame.last {
            break;
        }
    }
    match file.read(&mut [0]) {
        Ok(0) => Ok(found),
        Ok(_) => Err(damaged(disk, &name, "it goes on after its end".to_owned())),
        Err(error) => Err(unreadable(disk, &name, &error)),
    }
}

struct Journal {
    name: String,
    head: FileHead,
    bytes: Vec<u8>,
}

impl Journal {
    fn read(disk: &dyn Disk, generation: u64, found: &Found) -> Result<Self, StoreError> {
        let name = Kind::Journal.name(generation);
        let bytes = read_file(disk, &name)?;
        let Some(head) = bytes.first_chunk() else {
            return Err(damaged(disk, &name, "it is too short for its head".to_owned()));
        };
        let head = file_head(disk, &name, Kind::Journal, generation, head)?;
        if head.store != found.store {
            return Err(damaged(disk, &name, "it belongs to another store".to_owned()));
        }
        Ok(Self { name, head, bytes })
    }

    /// Applies all batches; up to and without `end`, if it is known where this journal ends.
    fn apply(
        &self,
        disk: &dyn Disk,
        found: &mut Found,
        end: Option<u64>,
    ) -> Result<(), StoreError> {
        let (key, mut rest) = (&self.head.key, &self.bytes[FILE_HEAD..]);
        let mut expected = found.number + 1;
        if self.head.first != expected {
            let what = format!("it begins with batch {}, not {expected}", self.head.first);
            return Err(damaged(disk, &self.name, what));
        }
        while end.is_none_or(|end| expected < end) {
            let Some((frame, body, behind)) = FrameHead::split(rest, key) else { break };
            if frame.number != expected {
                break;
            }
            body::read(body, |record| found.apply(record))
                .map_err(|why| damaged(disk, &self.name, format!("batch {expected}: {why}")))?;
            (found.number, found.token) = (expected, Token(frame.token));
            found.roster = frame.roster;
            found.journal_bytes += (rest.len() - behind.len()) as u64;
            (expected, rest) = (expected + 1, behind);
        }
        let missing = match end {
            Some(end) => (expected != end).then_some(end - 1),
            None => proof_of(expected, rest, key),
        };
        match missing {
            None => Ok(()),
            Some(later) => {
                let what = format!("batch {expected} cannot be read, and batches to {later} exist");
                Err(damaged(disk, &self.name, what))
            }
        }
    }
}

/// Whether anything behind the end proves that batch `number` was on the disk once. A batch that
/// was not synced may be torn, and those behind it not; one that was synced may not.
fn proof_of(number: u64, rest: &[u8], key: &[u8; 16]) -> Option<u64> {
    FrameHead::search(rest, key).find(|frame| frame.synced >= number).map(|frame| frame.number)
}

fn file_head(
    disk: &dyn Disk,
    name: &str,
    kind: Kind,
    generation: u64,
    bytes: &[u8; FILE_HEAD],
) -> Result<FileHead, StoreError> {
    match FileHead::decode(kind, bytes) {
        Ok(head) if head.generation == generation && head.first > 0 => Ok(head),
        Ok(_) => Err(damaged(disk, name, "it has the name of another file".to_owned())),
        Err(BadHead::Damaged) => Err(damaged(disk, name, "its head is damaged".to_owned())),
        Err(BadHead::Newer(found)) => Err(StoreError::Newer {
            place: disk.place(name),
            found: u64::from(found),
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

pub fn damaged(disk: &dyn Disk, name: &str, what: String) -> StoreError {
    StoreError::Damaged { place: disk.place(name), what }
}

pub fn unreadable(disk: &dyn Disk, name: &str, error: &io::Error) -> StoreError {
    StoreError::Unreadable(format!("{}: {error}", disk.place(name)))
}
