//! A naive lock table: for each byte, which owners read and which write. It shares no code with the
//! keeper, not even its ranges.

use lockkeeper_keeper::request::Mode;

use super::operation::{Answer, Held, LAST, OWNERS, Operation, Stretches, Verb};

/// One byte, or all bytes between two stretches. Bit n is owner n.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cell {
    readers: u8,
    writers: u8,
}

#[derive(Clone, Debug)]
pub struct ByteMap {
    cells: Vec<Cell>,
    /// The first byte of each cell.
    firsts: Vec<u64>,
}

impl ByteMap {
    pub fn new(stretches: Stretches) -> Self {
        let mut firsts = Vec::new();
        for (first, last) in stretches.stretches() {
            firsts.extend(first..=last);
            if last < LAST {
                firsts.push(last + 1);
            }
        }
        Self { cells: vec![Cell::default(); firsts.len()], firsts }
    }

    pub fn judge(&mut self, operation: Operation) -> Answer {
        let Operation { owner, verb, offset, length } = operation;
        let last = match length {
            0 => LAST,
            length => match offset.checked_add(length - 1) {
                Some(last) if last <= LAST => last,
                _ => return Answer::OffsetTooLarge,
            },
        };
        let from = self.cell_of(offset);
        let to = self.cell_of(last);
        let me = 1u8 << owner;
        match verb {
            Verb::Unlock => {
                for cell in &mut self.cells[from..=to] {
                    cell.readers &= !me;
                    cell.writers &= !me;
                }
                Answer::Done
            }
            Verb::Lock(mode) => {
                if self.in_the_way(me, mode, from, to) {
                    return Answer::Conflict;
                }
                for cell in &mut self.cells[from..=to] {
                    cell.readers &= !me;
                    cell.writers &= !me;
                    match mode {
                        Mode::Shared => cell.readers |= me,
                        Mode::Exclusive => cell.writers |= me,
                    }
                }
                Answer::Done
            }
            Verb::Test(mode) => {
                if !self.in_the_way(me, mode, from, to) {
                    return Answer::Free;
                }
                Answer::Held(self.conflicts(operation).next().expect("a conflicting lock"))
            }
        }
    }

    fn in_the_way(&self, me: u8, mode: Mode, from: usize, to: usize) -> bool {
        self.cells[from..=to].iter().any(|cell| {
            let readers = if mode == Mode::Exclusive { cell.readers } else { 0 };
            (readers | cell.writers) & !me != 0
        })
    }

    /// Every lock that a TEST may report.
    pub fn conflicts(&self, operation: Operation) -> impl Iterator<Item = Held> {
        let Operation { owner: me, verb, offset, length } = operation;
        let last = if length == 0 { LAST } else { offset + length - 1 };
        let wants = if let Verb::Test(mode) = verb { mode } else { Mode::Exclusive };
        let others = (0..OWNERS).filter(move |owner| *owner != me);
        others.flat_map(|owner| self.held_by(owner)).filter(move |held| {
            let clash = held.mode == Mode::Exclusive || wants == Mode::Exclusive;
            clash && held.first <= last && offset <= held.last
        })
    }

    /// What an owner holds, in order, as the longest runs of one mode.
    pub fn held_by(&self, owner: usize) -> Vec<Held> {
        let mut runs: Vec<Held> = Vec::new();
        let mut before = None;
        for (at, cell) in self.cells.iter().enumerate() {
            let bit = 1u8 << owner;
            let mode = match (cell.readers & bit != 0, cell.writers & bit != 0) {
                (_, true) => Some(Mode::Exclusive),
                (true, false) => Some(Mode::Shared),
                (false, false) => None,
            };
            let last = self.firsts.get(at + 1).map_or(LAST, |next| next - 1);
            match (mode, runs.last_mut()) {
                (Some(mode), Some(run)) if before == Some(mode) => run.last = last,
                (Some(mode), _) => runs.push(Held { first: self.firsts[at], last, mode }),
                (None, _) => {}
            }
            before = mode;
        }
        runs
    }

    fn cell_of(&self, byte: u64) -> usize {
        self.firsts.partition_point(|first| *first <= byte) - 1
    }
}
