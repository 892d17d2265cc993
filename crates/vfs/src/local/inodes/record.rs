//! The records of the inode map's file.
//!
//! ```text
//! record   length of body u32, SipHash-2-4 of body u64, body
//! body     kind u8; inode u64; generation u64; parent inode u64; name
//! kind     1 = name added; once more for a name that is there: a client used the handle
//!          2 = name removed
//!          3 = birth time of the inode, in place of the parent, where it is not the generation
//! ```
//! All numbers are little-endian.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

const HEAD: usize = 12;
const BODY_MIN: usize = 25;

/// The length of a record with a name of average length, to estimate the size of a file.
pub(super) const TYPICAL: u64 = (HEAD + BODY_MIN + 24) as u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordKind {
    NameAdded = 1,
    NameRemoved = 2,
    Born = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) kind: RecordKind,
    pub(super) inode: u64,
    pub(super) generation: u64,
    /// With [`RecordKind::Born`], the birth time.
    pub(super) parent: u64,
    pub(super) name: &'a [u8],
}

impl<'a> Record<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let head = out.len();
        out.extend([0; HEAD]);
        out.push(self.kind as u8);
        let numbers = [self.inode, self.generation, self.parent];
        numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
        out.extend(self.name);
        let body = head + HEAD;
        let (length, sum) = ((out.len() - body) as u32, checksum(&out[body..]));
        out[head..head + 4].copy_from_slice(&length.to_le_bytes());
        out[head + 4..body].copy_from_slice(&sum.to_le_bytes());
    }

    /// The first record and its length; `None` if it is torn.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (sum, rest) = rest.split_first_chunk()?;
        let body = rest.get(..u32::from_le_bytes(*length) as usize)?;
        if checksum(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        let (kind, numbers) = body.split_first()?;
        let kind = match kind {
            1 => RecordKind::NameAdded,
            2 => RecordKind::NameRemoved,
            3 => RecordKind::Born,
            _ => return None,
        };
        let (inode, numbers) = numbers.split_first_chunk()?;
        let (generation, numbers) = numbers.split_first_chunk()?;
        let (parent, name) = numbers.split_first_chunk()?;
        let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let (inode, generation, parent) = (number(inode), number(generation), number(parent));
        Some((Self { kind, inode, generation, parent, name }, HEAD + body.len()))
    }
}

fn checksum(body: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(body);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_a_torn_or_altered_one_is_not() {
        let record = Record {
            kind: RecordKind::NameAdded,
            inode: 7,
            generation: u64::MAX,
            parent: 2,
            name: b"name",
        };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(Record::decode(&bytes), Some((record, bytes.len())));
        for cut in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..cut]), None);
        }
        let end = bytes.len() - 1;
        bytes[end] ^= 1;
        assert_eq!(Record::decode(&bytes), None);
    }
}
