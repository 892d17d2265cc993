//! The bytes of the files. A file is a head and frames; a frame is a head and a body; a body is
//! records (`record.rs`), each behind its length as a count. Numbers are little-endian.
//!
//! ```text
//! file head, 72 bytes                            frame head, 56 bytes
//!  0  8  "LKjournl" or "LKsnapsh"                 0  4  "LKfr"
//!  8  2  format                                   4  1  flags: 1 roster, 2 the last of a snapshot
//! 10  1  flags: 1 process, 2 roster               5  3  zero
//! 11  5  zero                                     8  8  length of the body
//! 16 16  the store's id                          16  8  number: one more than the frame before
//! 32  8  generation                              24  8  token
//! 40  8  number of the first batch               32  8  synced: all batches up to this number
//! 48 16  key                                            were on the disk before this was written
//! 64  8  check of the 64 before                  40  8  check of the body
//!                                                48  8  check of the 48 before
//! ```
//!
//! Checks are SipHash-1-3, in frames under the file's own random key: peers choose some bytes of a
//! body, and must not be able to write one that passes for a frame; nor can a frame of an older
//! file pass for one of this. The place of a file head's format and check is fixed for ever.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::durability::Durability;

pub const FORMAT: u16 = 1;
pub const FILE_HEAD: usize = 72;
pub const FRAME_HEAD: usize = 56;
const FRAME_MAGIC: [u8; 4] = *b"LKfr";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Journal,
    Snapshot,
}

impl Kind {
    fn magic(self) -> [u8; 8] {
        match self {
            Kind::Journal => *b"LKjournl",
            Kind::Snapshot => *b"LKsnapsh",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Journal => "journal",
            Kind::Snapshot => "snapshot",
        }
    }

    pub fn name(self, generation: u64) -> String {
        format!("{}.{generation}", self.word())
    }

    /// The generation in the name of a file of this kind.
    pub fn generation(self, name: &str) -> Option<u64> {
        let generation = name.strip_prefix(self.word())?.strip_prefix('.')?.parse().ok()?;
        (self.name(generation) == name).then_some(generation)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHead {
    pub kind: Kind,
    pub store: [u8; 16],
    pub generation: u64,
    /// The number of the first batch of a journal; of the first that a snapshot does not contain.
    pub first: u64,
    pub durability: Durability,
    /// What was known of the locks when this file was begun.
    pub roster: bool,
    pub key: [u8; 16],
}

/// Why 72 bytes are no head of ours.
#[derive(Debug, PartialEq, Eq)]
pub enum BadHead {
    Damaged,
    Newer(u16),
}

impl FileHead {
    pub fn encode(&self) -> [u8; FILE_HEAD] {
        let mut bytes = [0; FILE_HEAD];
        let process = u8::from(self.durability == Durability::Process);
        bytes[0..8].copy_from_slice(&self.kind.magic());
        bytes[8..10].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[10] = process | u8::from(self.roster) << 1;
        bytes[16..32].copy_from_slice(&self.store);
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.key);
        let check = check(&[0; 16], &bytes[..64]);
        bytes[64..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    pub fn decode(kind: Kind, bytes: &[u8; FILE_HEAD]) -> Result<Self, BadHead> {
        let format = u16::from_le_bytes(array(bytes, 8));
        let good = bytes[0..8] == kind.magic()
            && u64::from_le_bytes(array(bytes, 64)) == check(&[0; 16], &bytes[..64]);
        if good && format > FORMAT {
            return Err(BadHead::Newer(format));
        }
        if !good || format != FORMAT || bytes[10] > 3 || bytes[11..16] != [0; 5] {
            return Err(BadHead::Damaged);
        }
        Ok(Self {
            kind,
            store: array(bytes, 16),
            generation: u64::from_le_bytes(array(bytes, 32)),
            first: u64::from_le_bytes(array(bytes, 40)),
            durability: match bytes[10] & 1 {
                1 => Durability::Process,
                _ => Durability::Power,
            },
            roster: bytes[10] & 2 != 0,
            key: array(bytes, 48),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    pub roster: bool,
    pub last: bool,
    pub length: u64,
    pub number: u64,
    pub token: u64,
    pub synced: u64,
    body_check: u64,
}

/// What a frame says besides its body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Labels {
    pub roster: bool,
    pub last: bool,
    pub number: u64,
    pub token: u64,
    pub synced: u64,
}

/// Puts a frame with `body` behind what is in `out`.
pub fn encode_frame(labels: Labels, body: &[u8], key: &[u8; 16], out: &mut Vec<u8>) {
    let mut head = [0; FRAME_HEAD];
    head[0..4].copy_from_slice(&FRAME_MAGIC);
    head[4] = u8::from(labels.roster) | u8::from(labels.last) << 1;
    head[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
    head[16..24].copy_from_slice(&labels.number.to_le_bytes());
    head[24..32].copy_from_slice(&labels.token.to_le_bytes());
    head[32..40].copy_from_slice(&labels.synced.to_le_bytes());
    head[40..48].copy_from_slice(&check(key, body).to_le_bytes());
    let head_check = check(key, &head[..48]);
    head[48..].copy_from_slice(&head_check.to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(body);
}

impl FrameHead {
    /// `None` if these bytes were never written as the head of a frame of this file.
    pub fn decode(bytes: &[u8; FRAME_HEAD], key: &[u8; 16]) -> Option<Self> {
        let good = bytes[0..4] == FRAME_MAGIC
            && u64::from_le_bytes(array(bytes, 48)) == check(key, &bytes[..48]);
        good.then(|| Self {
            roster: bytes[4] & 1 != 0,
            last: bytes[4] & 2 != 0,
            length: u64::from_le_bytes(array(bytes, 8)),
            number: u64::from_le_bytes(array(bytes, 16)),
            token: u64::from_le_bytes(array(bytes, 24)),
            synced: u64::from_le_bytes(array(bytes, 32)),
            body_check: u64::from_le_bytes(array(bytes, 40)),
        })
    }

    pub fn fits(&self, body: &[u8], key: &[u8; 16]) -> bool {
        self.length == body.len() as u64 && self.body_check == check(key, body)
    }

    /// The frame at the beginning of `bytes`, if all of it is there and as it was written.
    pub fn split<'a>(bytes: &'a [u8], key: &[u8; 16]) -> Option<(Self, &'a [u8], &'a [u8])> {
        let (head, rest) = bytes.split_first_chunk()?;
        let head = Self::decode(head, key)?;
        let (body, rest) = rest.split_at_checked(usize::try_from(head.length).ok()?)?;
        head.fits(body, key).then_some((head, body, rest))
    }

    /// All heads of frames in `bytes`, wherever they begin.
    pub fn search<'a>(bytes: &'a [u8], key: &'a [u8; 16]) -> impl Iterator<Item = Self> + 'a {
        bytes
            .windows(FRAME_HEAD)
            .filter(|window| window.starts_with(&FRAME_MAGIC))
            .filter_map(|window| Self::decode(window.first_chunk()?, key))
    }
}

pub fn check(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write(bytes);
    hasher.finish()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
