//! What the three judges are asked, and where: ranges crowd together where mistakes live.

use std::fmt;

use lockkeeper_keeper::request::Mode;

pub const OWNERS: usize = 5;
/// The largest offset that a file can have.
pub const LAST: u64 = i64::MAX as u64;

/// One operation of one owner; `length` 0 is "to the end", as NLM and `fcntl` say it.
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

/// What a judge says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Done,
    Conflict,
    /// The range ends where no file can.
    TooFar,
    Free,
    Held(Held),
}

/// A lock that is in the way. `last` is `LAST` for a lock to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub first: u64,
    pub last: u64,
    pub mode: Mode,
}

/// The stretches of the file in which ranges begin and end: its start, somewhere in the middle, and
/// just below the largest offset. Nothing ever ends between them, so that is as good as one byte.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub middle: u64,
}

const STRETCH: u64 = 24;

impl Places {
    pub fn stretches(self) -> [(u64, u64); 3] {
        [(0, STRETCH - 1), (self.middle, self.middle + STRETCH - 1), (LAST + 1 - STRETCH, LAST)]
    }

    pub fn new(random: u64) -> Self {
        Self { middle: 1000 + random % (1 << 62) }
    }

    /// Any number becomes an operation: proptest and the plain loop share this.
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
        // Half of all ranges are near the start of the file, where they meet.
        let from = below(4).saturating_sub(1) as usize;
        let offset = stretches[from].0 + below(STRETCH);
        let length = match below(16) {
            0 => 0,
            // To a place in this stretch or in a later one.
            1..=2 => {
                let to = from + below(3 - from as u64) as usize;
                (stretches[to].0 + below(STRETCH)).saturating_sub(offset) + 1
            }
            // Sometimes past the end of all files.
            3 => LAST - offset + below(4),
            _ => (below(6) + 1).min(stretches[from].1 - offset + 1),
        };
        Operation { owner, verb, offset, length }
    }
}
