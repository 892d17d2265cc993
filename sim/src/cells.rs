//! The naive model of a file: one cell for each of its first sixteen bytes, and one for all that
//! follow. No interval arithmetic, and no code shared with the keeper.

use keeper::range::Range;
use keeper::request::Mode;

use crate::random::Random;

pub(crate) const FILES: usize = 3;
pub(crate) const CELLS: usize = 17;
const TAIL: usize = CELLS - 1;

/// 0: no lock, 1: shared, 2: exclusive.
pub(crate) type Strength = u8;

pub(crate) fn strength(mode: Mode) -> Strength {
    match mode {
        Mode::Shared => 1,
        Mode::Exclusive => 2,
    }
}

pub(crate) fn mode(strength: Strength) -> Option<Mode> {
    match strength {
        0 => None,
        1 => Some(Mode::Shared),
        _ => Some(Mode::Exclusive),
    }
}

pub(crate) fn clash(one: Strength, other: Strength) -> bool {
    one > 0 && other > 0 && one + other > 2
}

/// The cells that a range covers.
pub(crate) fn cells(range: Range) -> std::ops::RangeInclusive<usize> {
    let last = if range.last() == u64::MAX { TAIL } else { (range.last() as usize).min(TAIL) };
    (range.first() as usize).min(TAIL)..=last
}

pub(crate) fn range(first: usize, last: usize) -> Range {
    let end = if last >= TAIL { u64::MAX } else { last as u64 };
    Range::between(first as u64, end).unwrap_or(Range::ALL)
}

/// Mostly short, sometimes to the end of the file, so that ranges overlap often but not always.
pub(crate) fn draw_range(random: &mut Random) -> Range {
    match random.below(10) {
        0 => Range::ALL,
        1 => range(random.index(CELLS), TAIL),
        2 => range(TAIL, TAIL),
        3..=6 => {
            let first = random.index(4) * 4;
            range(first, first + 3)
        }
        _ => {
            let first = random.index(TAIL);
            range(first, (first + random.index(6)).min(TAIL - 1))
        }
    }
}

/// Ranges of equal, non-zero strength, as in a kernel's own list of locks.
pub(crate) fn stretches(cells: &[Strength; CELLS]) -> Vec<(Range, Strength)> {
    let mut found = Vec::new();
    let mut first = 0;
    for at in 1..=CELLS {
        if at == CELLS || cells[at] != cells[first] {
            if cells[first] > 0 {
                found.push((range(first, at - 1), cells[first]));
            }
            first = at;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_ends_where_the_strength_changes() {
        let mut grid = [0; CELLS];
        grid[2] = 1;
        grid[3] = 1;
        grid[4] = 2;
        grid[TAIL] = 2;
        let found = stretches(&grid);
        assert_eq!(found, vec![(range(2, 3), 1), (range(4, 4), 2), (range(TAIL, TAIL), 2)]);
        assert_eq!(cells(range(TAIL, TAIL)), TAIL..=TAIL);
        assert_eq!(cells(Range::ALL), 0..=TAIL);
    }
}
