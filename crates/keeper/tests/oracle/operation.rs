//! The operations put to all three, on ranges that crowd around the boundaries.

use std::fmt;

use lockkeeper_keeper::request::Mode;

pub const OWNERS: usize = 5;
/// The largest offset that a file can have.
pub const LAST: u64 = i64::MAX as u64;

/// One operation of one owner; a `length` of 0 is "to the end", as in NLM and `fcntl`.
#[derive(Clone, Copy)]
pub struct Operation {
    pub owner: usize,
    pub verb: Verb,
    pub offset: u64,
    pub length: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Verb {
    Lock(Mode),
    Unlock,
    Test(Mode),
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { owner, verb, offset, length } = self;
        write!(f, "owner {owner}: {verb:?} offset {offset} length {length}")
    }
}

/// The answer to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Conflict,
    /// The range ends beyond the largest file offset.
    OffsetTooLarge,
    Free,
    Held(Held),
}

/// A conflicting lock. `last` is `LAST` for a lock to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub first: u64,
    pub last: u64,
    pub mode: Mode,
}

/// The stretches of the file in which ranges begin and end: its start, somewhere in the middle, and
/// just below the largest offset. No range ends between them, so each gap counts as one byte.
#[derive(Clone, Copy, Debug)]
pub struct Stretches {
    pub middle: u64,
}

const STRETCH: u64 = 24;

impl Stretches {
    pub fn stretches(self) -> [(u64, u64); 3] {
        [(0, STRETCH - 1), (self.middle, self.middle + STRETCH - 1), (LAST + 1 - STRETCH, LAST)]
    }

    pub fn new(random: u64) -> Self {
        Self { middle: 1000 + random % (1 << 62) }
    }

    /// Maps any number to an operation; shared by proptest and the plain loop.
    pub fn operation(self, number: u64) -> Operation {
        let mut rest = number;
        let mut below = |bound: u64| {
            let taken = rest % bound;
            rest /= bound;
            taken
        };
        let owner = below(OWNERS as u64) as usize;
        let verb = match below(8) {
            0..=1 => Verb::Lock(Mode::Shared),
            2..=3 => Verb::Lock(Mode::Exclusive),
            4..=6 => Verb::Unlock,
            _ if below(2) == 0 => Verb::Test(Mode::Shared),
            _ => Verb::Test(Mode::Exclusive),
        };
        let stretches = self.stretches();
        // Half of all ranges are near the start of the file, where they overlap.
        let from = below(4).saturating_sub(1) as usize;
        let offset = stretches[from].0 + below(STRETCH);
        let length = match below(16) {
            0 => 0,
            // To an offset in this stretch or a later one.
            1..=2 => {
                let to = from + below(3 - from as u64) as usize;
                (stretches[to].0 + below(STRETCH)).saturating_sub(offset) + 1
            }
            // Sometimes past the largest file offset.
            3 => LAST - offset + below(4),
            _ => (below(6) + 1).min(stretches[from].1 - offset + 1),
        };
        Operation { owner, verb, offset, length }
    }
}
