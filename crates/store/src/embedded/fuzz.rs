//! Properties of the readers of journals and snapshots for arbitrary contents: no panic, no memory
//! beyond the size of the files, and whatever is understood can be written again and means the same.
//!
//! The input describes frames, which get valid checksums, so that a fuzzer reaches what is behind
//! them; a frame may also be raw bytes, as after damage.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed check panics")]

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::sync::{Arc, Mutex};

use keeper::change::{Exactness, Snapshot};

use super::disk::{DirectoryId, Disk, DiskFile};
use super::files::{compact, create_journal, create_store};
use super::frame::{FRAME_HEADER_BYTES, FileHeader, FileKind, FrameFields, checksum, encode_frame};
use super::replay::{LogContents, LogPosition, replay};
use crate::durability::Durability;

const KEY: [u8; 16] = *b"the corpus' key!";
const STORE_ID: [u8; 16] = [7; 16];
/// A body is at most this long, so that many frames fit into an input.
const BODY_MAX: usize = 0xffff;

/// The first byte has the flags of the file header; if its top bit is set, the number of the first
/// batch follows. The rest are the frames of the journal, see [`Input::frames`].
pub fn journal(data: &[u8]) {
    check(&journal_disk(data));
}

fn journal_disk(data: &[u8]) -> MemoryDisk {
    let disk = MemoryDisk::default();
    create_store(&disk, Durability::Process).unwrap();
    disk.with("snapshot.1", |bytes| bytes[16..32].copy_from_slice(&STORE_ID));
    disk.with("snapshot.1", |bytes| {
        let sum = checksum(&[0; 16], &bytes[..64]).to_le_bytes();
        bytes[64..72].copy_from_slice(&sum);
    });
    let mut input = Input(data);
    let mut bytes = input.header(FileKind::Journal).encode().to_vec();
    input.frames(&mut bytes);
    disk.with("journal.1", |file| *file = bytes);
    disk
}

/// As [`journal`], but the frames are those of the snapshot.
pub fn snapshot(data: &[u8]) {
    check(&snapshot_disk(data));
}

fn snapshot_disk(data: &[u8]) -> MemoryDisk {
    let disk = MemoryDisk::default();
    create_store(&disk, Durability::Process).unwrap();
    let mut input = Input(data);
    let header = input.header(FileKind::Snapshot);
    let mut bytes = header.encode().to_vec();
    input.frames(&mut bytes);
    disk.with("snapshot.1", |file| *file = bytes);
    let empty = FileHeader { kind: FileKind::Journal, ..header };
    disk.with("journal.1", |file| *file = empty.encode().to_vec());
    disk
}

/// What can be replayed is the same after it was compacted.
fn check(disk: &MemoryDisk) {
    let Ok(Some(before)) = replay(disk, None) else { return };
    let end = LogPosition { generation: before.generation, number: before.last_batch };
    let next = FileHeader {
        kind: FileKind::Journal,
        store_id: before.store_id,
        generation: before.generation + 1,
        first: before.last_batch + 1,
        durability: before.durability,
        exactness: before.exactness,
        key: KEY,
    };
    create_journal(disk, next).unwrap();
    compact(disk, end).unwrap();
    let after = replay(disk, None).unwrap().unwrap();
    let shown = |contents: &LogContents| {
        let LogContents { snapshot, last_batch, token, exactness, at_rest, .. } = contents;
        let snapshot = Snapshot { exactness: *exactness, ..snapshot.clone() };
        (snapshot, *last_batch, *token, *at_rest)
    };
    assert_eq!(shown(&before), shown(&after));
}

/// Bytes from a fuzzer; zeros after their end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let length = self.0.len().min(N);
        let (head, rest) = self.0.split_at(length);
        let mut taken = [0; N];
        taken[..length].copy_from_slice(head);
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn header(&mut self, kind: FileKind) -> FileHeader {
        let [flags] = self.take();
        FileHeader {
            kind,
            store_id: STORE_ID,
            generation: 1,
            first: if flags & 0x80 == 0 { 1 } else { self.number() },
            durability: if flags & 1 == 0 { Durability::Power } else { Durability::Process },
            exactness: exactness(flags >> 1),
            key: KEY,
        }
    }

    /// Frames: `flags u8 | [number u64] | [synced u64] | [length u64] | length of body u16 | body`.
    ///
    /// ```text
    /// flags 1, 2 exactness; 4 the last of a snapshot; 8 the mark names the journal
    ///       16 with a number of its own; 32 with a number of synced batches
    ///       64 with a length that the body does not have; 128 no frame, but the raw body
    /// ```
    fn frames(&mut self, out: &mut Vec<u8>) {
        let mut number = 0_u64;
        while !self.0.is_empty() {
            let [flags] = self.take();
            number = if flags & 16 == 0 { number.wrapping_add(1) } else { self.number() };
            let synced = if flags & 32 == 0 { 0 } else { self.number() };
            let length = (flags & 64 != 0).then(|| self.number());
            let body_length = usize::from(u16::from_le_bytes(self.take()));
            let (body, rest) = self.0.split_at(body_length.min(self.0.len()).min(BODY_MAX));
            self.0 = rest;
            if flags & 128 != 0 {
                out.extend_from_slice(body);
                continue;
            }
            let fields = FrameFields {
                exactness: exactness(flags),
                last: flags & 4 != 0,
                mark_names_journal: flags & 8 != 0,
                number,
                token: number,
                synced,
            };
            let at = out.len();
            encode_frame(fields, body, &KEY, out);
            if let Some(length) = length {
                out[at + 8..at + 16].copy_from_slice(&length.to_le_bytes());
                let sum = checksum(&KEY, &out[at..at + 48]).to_le_bytes();
                out[at + 48..at + FRAME_HEADER_BYTES].copy_from_slice(&sum);
            }
        }
    }
}

fn exactness(bits: u8) -> Exactness {
    match bits & 3 {
        1 => Exactness::Roster,
        2 => Exactness::Open,
        _ => Exactness::Exact,
    }
}

type Contents = Arc<Mutex<Vec<u8>>>;

/// A disk that neither fails nor forgets.
#[derive(Default)]
struct MemoryDisk {
    files: Mutex<BTreeMap<String, Contents>>,
}

impl MemoryDisk {
    fn with(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.files.lock().unwrap()[name].lock().unwrap());
    }

    fn find(&self, name: &str) -> io::Result<Contents> {
        let files = self.files.lock().unwrap();
        files.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

struct MemoryFile(Contents);

impl Disk for MemoryDisk {
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        Ok(Some(Box::new(())))
    }

    fn id(&self) -> io::Result<DirectoryId> {
        Ok(DirectoryId { device: 1, inode: 1 })
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn network_kind(&self) -> io::Result<Option<&'static str>> {
        Ok(None)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().unwrap().keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>> {
        Ok(Box::new(Cursor::new(self.find(name)?.lock().unwrap().clone())))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.files.lock().unwrap();
        Ok(Arc::new(MemoryFile(files.entry(name.to_owned()).or_default().clone())))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock().unwrap();
        let moved = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), moved);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.lock().unwrap().remove(name);
        Ok(())
    }

    fn length(&self, name: &str) -> io::Result<u64> {
        Ok(self.find(name)?.lock().unwrap().len() as u64)
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn display_path(&self, name: &str) -> String {
        format!("memory/{name}")
    }
}

impl DiskFile for MemoryFile {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let (mut file, at) = (self.0.lock().unwrap(), at as usize);
        let length = file.len().max(at + bytes.len());
        file.resize(length, 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.lock().unwrap().resize(length as usize, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use keeper::change::Change;
    use keeper::identity::{ClientId, Epoch, LockId, ShareId};
    use testbed::corpus;

    use super::super::body::Body;
    use super::*;
    use crate::conformance as rows;
    use crate::record::Metadata;
    use crate::store::Token;

    /// A frame of the input that [`Input::frames`] reads.
    fn frame(flags: u8, numbers: &[u64], body: &[u8]) -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        let length = (body.len() as u16).to_le_bytes();
        [flags].into_iter().chain(numbers).chain(length).chain(body.iter().copied()).collect()
    }

    fn body(changes: &[Change]) -> Vec<u8> {
        let mut body = Body::default();
        changes.iter().for_each(|change| body.push(change));
        body.bytes().to_vec()
    }

    fn start() -> Change {
        Change::Started { epoch: Epoch(3), grace: Some(Exactness::Roster) }
    }

    fn everything() -> Vec<Change> {
        let rows =
            (1..5).flat_map(|id| [rows::client(id), rows::lock(id, id), rows::share(id, id)]);
        rows.collect()
    }

    fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        let all = frame(0, &[], &body(&everything()));
        let gone = [
            Change::LockGone(LockId(1)),
            Change::ShareGone(ShareId(2)),
            Change::ClientGone(ClientId(3)),
            Change::IdsBelow(99),
            Change::GraceEnded,
            Change::Stopped,
        ];
        let metadata = Metadata {
            epoch: Epoch(4),
            ids_below: 99,
            token: Token(5),
            in_grace: true,
            stopped_cleanly: false,
            exactness: Exactness::Open,
            at_rest: false,
        };
        let mut last = Body::default();
        last.push_metadata(&metadata);
        let mut cleared = Body::default();
        cleared.push_cleared();
        let whole = |flags: u8, frames: &[Vec<u8>]| [&[flags][..], &frames.concat()].concat();
        let started = frame(1, &[], &body(&[start()]));
        vec![
            ("journal", "empty", whole(0, &[])),
            ("journal", "rows", whole(1, &[started.clone(), all.clone()])),
            (
                "journal",
                "gone",
                whole(3, &[started.clone(), all.clone(), frame(8, &[], &body(&gone))]),
            ),
            ("journal", "cleared", whole(0, &[all.clone(), frame(0, &[], cleared.bytes())])),
            ("journal", "torn", whole(0, &[started.clone(), frame(128, &[], b"LKfr half")])),
            (
                "journal",
                "synced",
                whole(0, &[frame(128, &[], b"x"), frame(48, &[2, 1], &body(&[start()]))]),
            ),
            ("snapshot", "empty", whole(0, &[frame(4, &[], last.bytes())])),
            ("snapshot", "rows", whole(1, &[all.clone(), frame(12, &[], last.bytes())])),
            ("snapshot", "roster", whole(2, &[all.clone(), frame(4, &[], last.bytes())])),
            ("snapshot", "endless", whole(0, std::slice::from_ref(&all))),
            ("snapshot", "long", whole(0, &[frame(68, &[1 << 60], last.bytes())])),
            (
                "snapshot",
                "late",
                whole(0x80, &[u64::MAX.to_le_bytes().to_vec(), frame(4, &[], b"")]),
            ),
        ]
    }

    #[test]
    fn the_corpus_passes_and_its_seeds_are_what_is_written_here() {
        for (target, name, bytes) in seeds() {
            corpus::is_seed(target, name, &bytes);
        }
        corpus::each("journal", journal);
        corpus::each("snapshot", snapshot);
    }

    #[test]
    fn valid_files_are_understood() {
        let understood = |wanted: &str, check: fn(&[u8]) -> MemoryDisk| {
            for (target, name, bytes) in seeds() {
                if (target, name) == (wanted, "rows") {
                    let contents = replay(&check(&bytes), None).unwrap().unwrap();
                    assert_eq!(contents.snapshot.locks.len(), 4, "{target}");
                }
            }
        };
        understood("journal", journal_disk);
        understood("snapshot", snapshot_disk);
    }
}
