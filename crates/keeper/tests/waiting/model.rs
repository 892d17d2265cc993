//! The plain model: who holds each byte, and which requests wait.

use std::collections::BTreeSet;

use lockkeeper_keeper::request::Mode;

use super::OWNERS;

pub const BYTES: usize = 12;

/// A blocking request of one thread of an owner; `first` and `last` are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub owner: usize,
    pub thread: usize,
    pub first: usize,
    pub last: usize,
    pub mode: Mode,
}

impl Request {
    fn key(&self) -> (usize, usize, usize, usize, bool) {
        (self.owner, self.thread, self.first, self.last, self.mode == Mode::Exclusive)
    }
}

impl PartialOrd for Request {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Request {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

pub type Bytes = [Option<Mode>; BYTES];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub held: [Bytes; OWNERS],
    /// In order of arrival.
    pub waits: Vec<Request>,
}

impl Model {
    pub fn waiting(&self) -> BTreeSet<Request> {
        self.waits.iter().copied().collect()
    }

    /// The owners that hold what is in the way of a request.
    pub fn holders(&self, request: Request) -> BTreeSet<usize> {
        let Request { owner, first, last, mode, .. } = request;
        let in_the_way =
            |held: &Bytes| held[first..=last].iter().flatten().any(|held| conflict(*held, mode));
        (0..OWNERS).filter(|other| *other != owner && in_the_way(&self.held[*other])).collect()
    }

    pub fn take(&mut self, request: Request) {
        self.held[request.owner][request.first..=request.last].fill(Some(request.mode));
    }

    pub fn release(&mut self, owner: usize, first: usize, last: usize) {
        self.held[owner][first..=last].fill(None);
    }

    /// Grants what can be granted; returns how many requests that were. A granted downgrade frees a
    /// range for others.
    pub fn grant(&mut self) -> usize {
        let before = self.waits.len();
        while self.grant_round() > 0 {}
        before - self.waits.len()
    }

    /// Grants in order of arrival, once.
    fn grant_round(&mut self) -> usize {
        let before = self.waits.len();
        for wait in std::mem::take(&mut self.waits) {
            match self.holders(wait).is_empty() {
                true => self.take(wait),
                false => self.waits.push(wait),
            }
        }
        before - self.waits.len()
    }

    /// Whether requests that exclude each other can be granted: the kernel lets them race.
    pub fn is_a_race(&self) -> bool {
        let mut at = self.clone();
        loop {
            let free = at.waits.iter().filter(|wait| at.holders(**wait).is_empty());
            let free: Vec<Request> = free.copied().collect();
            let races = free.iter().enumerate().any(|(place, one)| {
                free[..place].iter().any(|other| {
                    // Of one owner, the later of two overlapping requests prevails.
                    let apart = one.owner != other.owner && !conflict(one.mode, other.mode);
                    one.first <= other.last && other.first <= one.last && !apart
                })
            });
            if races {
                return true;
            }
            if at.grant_round() == 0 {
                return false;
            }
        }
    }

    /// The length of the shortest cycle that a request closes by waiting: breadth first.
    pub fn cycle_by(&self, request: Request) -> Option<usize> {
        let mut seen = BTreeSet::new();
        let mut level = self.holders(request);
        let mut length = 1;
        while !level.is_empty() {
            length += 1;
            let waits = self.waits.iter().filter(|wait| level.contains(&wait.owner));
            let next: BTreeSet<usize> = waits.flat_map(|wait| self.holders(*wait)).collect();
            if next.contains(&request.owner) {
                return Some(length);
            }
            seen.extend(level);
            level = next.difference(&seen).copied().collect();
        }
        None
    }

    /// A waiting request in a cycle, if there is one.
    pub fn cycle(&self) -> Option<Request> {
        self.waits.iter().copied().find(|wait| self.cycle_by(*wait).is_some())
    }

    /// Whether the kernel sees this cycle: every owner on the way waits once, for one other, and the
    /// cycle is short.
    pub fn is_plain_for_the_kernel(&self, request: Request, length: usize) -> bool {
        let mut at = request;
        for _ in 0..length {
            let holders = self.holders(at);
            let mut waits = self.waits.iter().filter(|wait| holders.contains(&wait.owner));
            let (1, Some(next), None) = (holders.len(), waits.next(), waits.next()) else {
                return length <= 8 && holders.len() == 1 && holders.contains(&request.owner);
            };
            if holders.contains(&request.owner) {
                return length <= 8;
            }
            at = *next;
        }
        false
    }
}

fn conflict(one: Mode, other: Mode) -> bool {
    one == Mode::Exclusive || other == Mode::Exclusive
}
