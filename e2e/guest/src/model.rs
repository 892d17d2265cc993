//! The expected content of a file: a seeded history of writes, truncations and reads, in memory. The
//! seed determines the content after every turn, so guests and harness need to exchange only the turn
//! number.

use std::fmt;

use crate::random::Random;

/// The bound on file sizes: small enough for a slow guest, large enough for many pages and several
/// WRITE calls.
pub const SIZE_MAX: u64 = 384 * 1024;
const CHUNK_MAX: u64 = 48 * 1024;

/// An operation on a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    Write { offset: u64, data: Vec<u8> },
    Append { data: Vec<u8> },
    Truncate { size: u64 },
    MapWrite { offset: u64, data: Vec<u8> },
    Read { offset: u64, length: u64 },
    MapRead { offset: u64, length: u64 },
    Sync,
    Reopen,
}

/// The first difference between a file and the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    Length { expected: u64, found: u64 },
    Byte { offset: u64, expected: u8, found: u8, bytes_wrong: u64 },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { expected, found } => {
                write!(f, "length {found} instead of {expected}")
            }
            Self::Byte { offset, expected, found, bytes_wrong } => write!(
                f,
                "byte {offset} is {found:#04x} instead of {expected:#04x} ({bytes_wrong} bytes differ)"
            ),
        }
    }
}

impl std::error::Error for Difference {}

/// The expected content of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    contents: Vec<u8>,
}

impl Model {
    /// The file at the start of `turn`, by replaying every turn before it.
    pub fn before(seed: u64, file: u64, turn: u64, operations: u64) -> Self {
        let mut model = Self::default();
        for earlier in 0..turn {
            let mut random = Random::stream(seed, file, earlier);
            for _ in 0..operations {
                let operation = model.next_operation(&mut random);
                model.apply(&operation);
            }
        }
        model
    }

    pub fn len(&self) -> u64 {
        self.contents.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.contents.is_empty()
    }

    /// The next operation; depends only on the model and the random stream.
    pub fn next_operation(&self, random: &mut Random) -> Operation {
        let length = 1 + random.below(CHUNK_MAX);
        let offset = random.below(SIZE_MAX - length);
        // A mapping must lie within the file: an access beyond its last page raises SIGBUS.
        let inside = random.below(self.len());
        let room = length.min(self.len() - inside);
        match random.below(16) {
            0..=3 => Operation::Write { offset, data: random.bytes(length as usize) },
            4..=5 if self.len() + length <= SIZE_MAX => {
                Operation::Append { data: random.bytes(length as usize) }
            }
            6 => Operation::Truncate { size: random.below(SIZE_MAX) },
            7 => Operation::Truncate { size: inside },
            8..=9 if room > 0 => {
                Operation::MapWrite { offset: inside, data: random.bytes(room as usize) }
            }
            10..=11 if room > 0 => Operation::MapRead { offset: inside, length: room },
            12 => Operation::Sync,
            13 => Operation::Reopen,
            _ => Operation::Read { offset, length },
        }
    }

    pub fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Write { offset, data } | Operation::MapWrite { offset, data } => {
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                if self.contents.len() < end {
                    self.contents.resize(end, 0);
                }
                self.contents[start..end].copy_from_slice(data);
            }
            Operation::Append { data } => self.contents.extend_from_slice(data),
            Operation::Truncate { size } => self.contents.resize(*size as usize, 0),
            Operation::Read { .. }
            | Operation::MapRead { .. }
            | Operation::Sync
            | Operation::Reopen => {}
        }
    }

    /// Checks the result of a read of `length` bytes at `offset`.
    pub fn check_read(&self, offset: u64, length: u64, found: &[u8]) -> Result<(), Difference> {
        let start = offset.min(self.len());
        let end = offset.saturating_add(length).min(self.len());
        let expected = &self.contents[start as usize..end as usize];
        if expected.len() != found.len() {
            let (expected, found) = (expected.len() as u64, found.len() as u64);
            return Err(Difference::Length { expected, found });
        }
        let mut wrong = expected.iter().zip(found).enumerate().filter(|(_, (a, b))| a != b);
        match wrong.next() {
            None => Ok(()),
            Some((at, (&expected, &found))) => Err(Difference::Byte {
                offset: start + at as u64,
                expected,
                found,
                bytes_wrong: 1 + wrong.count() as u64,
            }),
        }
    }

    /// Checks a whole file.
    pub fn check_all(&self, found: &[u8]) -> Result<(), Difference> {
        self.check_read(0, self.len().max(found.len() as u64), found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown() -> Model {
        let mut model = Model::before(7, 0, 3, 40);
        if model.is_empty() {
            model.apply(&Operation::Append { data: vec![1; 100] });
        }
        model
    }

    #[test]
    fn the_right_contents_pass() {
        let model = grown();
        assert_eq!(model.check_all(&model.contents), Ok(()));
        assert_eq!(model.check_read(model.len() + 5, 10, &[]), Ok(()));
    }

    #[test]
    fn one_wrong_byte_is_noticed_and_named() {
        let model = grown();
        let mut found = model.contents.clone();
        let at = found.len() / 2;
        found[at] ^= 1;
        let difference = model.check_all(&found).unwrap_err();
        assert!(
            matches!(difference, Difference::Byte { offset, bytes_wrong: 1, .. } if offset == at as u64)
        );
    }

    #[test]
    fn a_short_or_long_file_is_noticed() {
        let model = grown();
        assert!(model.check_all(&model.contents[1..]).is_err());
        let mut long = model.contents.clone();
        long.push(0);
        assert!(model.check_all(&long).is_err());
        assert!(model.check_all(&[]).is_err());
    }

    #[test]
    fn a_truncation_that_keeps_old_bytes_is_noticed() {
        let mut model = Model::default();
        model.apply(&Operation::Append { data: vec![9; 10] });
        model.apply(&Operation::Truncate { size: 5 });
        model.apply(&Operation::Truncate { size: 10 });
        assert!(model.check_all(&[9; 10]).is_err());
    }

    #[test]
    fn every_kind_of_operation_turns_up_and_files_stay_bounded() {
        let mut kinds = std::collections::HashSet::new();
        let mut model = Model::default();
        let mut random = Random::new(1);
        for _ in 0..500 {
            let operation = model.next_operation(&mut random);
            kinds.insert(std::mem::discriminant(&operation));
            model.apply(&operation);
            assert!(model.len() <= SIZE_MAX);
        }
        assert_eq!(kinds.len(), 8);
    }

    #[test]
    fn files_and_turns_have_histories_of_their_own() {
        assert_ne!(Model::before(1, 0, 2, 20), Model::before(1, 1, 2, 20));
        assert_ne!(Model::before(1, 0, 2, 20), Model::before(1, 0, 3, 20));
        assert_eq!(Model::before(1, 0, 2, 20), Model::before(1, 0, 2, 20));
    }
}
