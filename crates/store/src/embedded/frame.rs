//! The bytes of journals and snapshots. A file is a header and frames; a frame is a header and a
//! body; a body is records (`record.rs`), each after its length as a count. Integers are
//! little-endian.
//!
//! ```text
//! file:    | file header 72 | frame | frame | ... | zeros (a preallocated journal) |
//! frame:   | frame header 56 | body |
//! body:    | length of record, count | record | length of record, count | record | ...
//!
//! file header (offset, length)                   frame header (offset, length)
//!  0  8  "LKjournl" or "LKsnapsh"                 0  4  "LKfr"
//!  8  2  format                                   4  1  flags: 1 not exact, 2 the last of a snapshot,
//! 10  1  flags: 1 process, 2 not exact, 4 open           4 open, 8 the mark names its journal
//! 11  5  zero                                     5  3  zero
//!                                                 8  8  length of the body
//! 16 16  the store's id                          16  8  number: one more than the frame before
//! 32  8  generation                              24  8  token
//! 40  8  number of the first batch               32  8  synced: all batches up to this number
//! 48 16  key                                            were on the disk before this was written
//! 64  8  checksum of the 64 bytes before         40  8  checksum of the body
//!                                                48  8  checksum of the 48 bytes before
//! ```
//!
//! A frame of a journal is a batch. A checksum is SipHash-1-3, in frames under the file's random
//! key: peers choose some bytes of a body, and must not be able to forge a frame; nor can a frame
//! of an older file pass for one of this. The format and the checksum of a file header stay where
//! they are in all versions.
//!
//! *Not exact* alone is a roster; *open* is never set without it, so that a program that does not know
//! *open* sees a roster at least. Flag 8 is set in journals since marks name them (`mark.rs`), and in
//! the last frame of a snapshot that replaces such a journal.

use std::hash::Hasher;

use keeper::change::Exactness;
use siphasher::sip::SipHasher13;

use crate::durability::Durability;

pub(super) const FORMAT: u16 = 1;
pub(super) const FILE_HEADER_BYTES: usize = 72;
pub(super) const FRAME_HEADER_BYTES: usize = 56;
const FRAME_MAGIC: [u8; 4] = *b"LKfr";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Journal,
    Snapshot,
}

impl FileKind {
    fn magic(self) -> [u8; 8] {
        match self {
            FileKind::Journal => *b"LKjournl",
            FileKind::Snapshot => *b"LKsnapsh",
        }
    }

    fn word(self) -> &'static str {
        match self {
            FileKind::Journal => "journal",
            FileKind::Snapshot => "snapshot",
        }
    }

    pub(super) fn file_name(self, generation: u64) -> String {
        format!("{}.{generation}", self.word())
    }

    /// The generation in the name of a file of this kind.
    pub(super) fn generation(self, name: &str) -> Option<u64> {
        let generation = name.strip_prefix(self.word())?.strip_prefix('.')?.parse().ok()?;
        (self.file_name(generation) == name).then_some(generation)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) kind: FileKind,
    pub(super) store_id: [u8; 16],
    pub(super) generation: u64,
    /// The first batch of a journal, or the first that is not in a snapshot.
    pub(super) first: u64,
    pub(super) durability: Durability,
    /// How far the state could be trusted when this file was begun.
    pub(super) exactness: Exactness,
    pub(super) key: [u8; 16],
}

/// Why bytes are not a file header that this program reads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    Damaged,
    Newer(u16),
}

impl FileHeader {
    pub(super) fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        let process = u8::from(self.durability == Durability::Process);
        bytes[0..8].copy_from_slice(&self.kind.magic());
        bytes[8..10].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[10] = process | exactness_flags(self.exactness, 2, 4);
        bytes[16..32].copy_from_slice(&self.store_id);
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.key);
        let checksum = checksum(&[0; 16], &bytes[..64]);
        bytes[64..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(
        kind: FileKind,
        bytes: &[u8; FILE_HEADER_BYTES],
    ) -> Result<Self, HeaderError> {
        let format = u16::from_le_bytes(array(bytes, 8));
        let good = bytes[0..8] == kind.magic()
            && u64::from_le_bytes(array(bytes, 64)) == checksum(&[0; 16], &bytes[..64]);
        if good && format > FORMAT {
            return Err(HeaderError::Newer(format));
        }
        if !good || format != FORMAT || bytes[10] > 7 || bytes[11..16] != [0; 5] {
            return Err(HeaderError::Damaged);
        }
        let exactness = exactness(bytes[10], 2, 4).ok_or(HeaderError::Damaged)?;
        Ok(Self {
            kind,
            store_id: array(bytes, 16),
            generation: u64::from_le_bytes(array(bytes, 32)),
            first: u64::from_le_bytes(array(bytes, 40)),
            durability: match bytes[10] & 1 {
                1 => Durability::Process,
                _ => Durability::Power,
            },
            exactness,
            key: array(bytes, 48),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) exactness: Exactness,
    pub(super) last: bool,
    pub(super) mark_names_journal: bool,
    pub(super) length: u64,
    pub(super) number: u64,
    pub(super) token: u64,
    pub(super) synced: u64,
    body_checksum: u64,
}

/// The fields of a frame header that its writer chooses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameFields {
    pub(super) exactness: Exactness,
    pub(super) last: bool,
    /// The mark of the process that writes it names its journal.
    pub(super) mark_names_journal: bool,
    pub(super) number: u64,
    pub(super) token: u64,
    pub(super) synced: u64,
}

/// Appends a frame with `body` to `out`.
pub(super) fn encode_frame(fields: FrameFields, body: &[u8], key: &[u8; 16], out: &mut Vec<u8>) {
    let mut header = [0; FRAME_HEADER_BYTES];
    header[0..4].copy_from_slice(&FRAME_MAGIC);
    header[4] = exactness_flags(fields.exactness, 1, 4)
        | u8::from(fields.last) << 1
        | u8::from(fields.mark_names_journal) << 3;
    header[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
    header[16..24].copy_from_slice(&fields.number.to_le_bytes());
    header[24..32].copy_from_slice(&fields.token.to_le_bytes());
    header[32..40].copy_from_slice(&fields.synced.to_le_bytes());
    header[40..48].copy_from_slice(&checksum(key, body).to_le_bytes());
    let header_checksum = checksum(key, &header[..48]);
    header[48..].copy_from_slice(&header_checksum.to_le_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(body);
}

impl FrameHeader {
    /// `None` if these bytes are not a frame header of the file with this key.
    pub(super) fn decode(bytes: &[u8; FRAME_HEADER_BYTES], key: &[u8; 16]) -> Option<Self> {
        let good = bytes[0..4] == FRAME_MAGIC
            && u64::from_le_bytes(array(bytes, 48)) == checksum(key, &bytes[..48]);
        let exactness = exactness(bytes[4], 1, 4)?;
        good.then(|| Self {
            exactness,
            last: bytes[4] & 2 != 0,
            mark_names_journal: bytes[4] & 8 != 0,
            length: u64::from_le_bytes(array(bytes, 8)),
            number: u64::from_le_bytes(array(bytes, 16)),
            token: u64::from_le_bytes(array(bytes, 24)),
            synced: u64::from_le_bytes(array(bytes, 32)),
            body_checksum: u64::from_le_bytes(array(bytes, 40)),
        })
    }

    pub(super) fn matches(&self, body: &[u8], key: &[u8; 16]) -> bool {
        self.length == body.len() as u64 && self.body_checksum == checksum(key, body)
    }

    /// Splits the frame off the beginning of `bytes`: header, body and rest. `None` if it is
    /// incomplete or damaged.
    pub(super) fn split<'a>(bytes: &'a [u8], key: &[u8; 16]) -> Option<(Self, &'a [u8], &'a [u8])> {
        let (header, rest) = bytes.split_first_chunk()?;
        let header = Self::decode(header, key)?;
        let (body, rest) = rest.split_at_checked(usize::try_from(header.length).ok()?)?;
        header.matches(body, key).then_some((header, body, rest))
    }

    /// All frame headers in `bytes`, at any offset.
    pub(super) fn search<'a>(
        bytes: &'a [u8],
        key: &'a [u8; 16],
    ) -> impl Iterator<Item = Self> + 'a {
        bytes
            .windows(FRAME_HEADER_BYTES)
            .filter(|window| window.starts_with(&FRAME_MAGIC))
            .filter_map(|window| Self::decode(window.first_chunk()?, key))
    }
}

/// The flags of a degree; `open` is set with `inexact` only.
fn exactness_flags(exactness: Exactness, inexact: u8, open: u8) -> u8 {
    match exactness {
        Exactness::Exact => 0,
        Exactness::Roster => inexact,
        Exactness::Open => inexact | open,
    }
}

fn exactness(flags: u8, inexact: u8, open: u8) -> Option<Exactness> {
    match (flags & inexact != 0, flags & open != 0) {
        (false, false) => Some(Exactness::Exact),
        (true, false) => Some(Exactness::Roster),
        (true, true) => Some(Exactness::Open),
        (false, true) => None,
    }
}

pub(super) fn checksum(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write(bytes);
    hasher.finish()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
