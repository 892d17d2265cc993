//! Byte ranges as the kernel has them: inclusive, up to the largest file offset, with `u64::MAX` as
//! "to the end of the file". No interval crate has inclusive ends up to `u64::MAX`.

use std::fmt;

/// The largest file offset (`OFFSET_MAX` of the kernel).
const OFFSET_MAX: u64 = i64::MAX as u64;

/// From `first` to `last`, both included. `last == u64::MAX` is "to the end of the file".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    first: u64,
    last: u64,
}

/// The range begins or ends beyond the largest file offset (FBIG).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetTooLarge;

impl Range {
    /// The whole file.
    pub const ALL: Range = Range { first: 0, last: u64::MAX };

    /// From NLM's offset and length: a length of 0, or an end at the largest offset, is "to the
    /// end".
    pub fn at(offset: u64, length: u64) -> Result<Range, OffsetTooLarge> {
        if offset > OFFSET_MAX {
            return Err(OffsetTooLarge);
        }
        if length == 0 {
            return Ok(Range { first: offset, last: u64::MAX });
        }
        match offset.checked_add(length - 1) {
            Some(last) if last < OFFSET_MAX => Ok(Range { first: offset, last }),
            Some(OFFSET_MAX) => Ok(Range { first: offset, last: u64::MAX }),
            _ => Err(OffsetTooLarge),
        }
    }

    /// Like [`Range::at`], but a range that only ends beyond the largest offset is "to the end".
    pub fn clamped(offset: u64, length: u64) -> Result<Range, OffsetTooLarge> {
        Range::at(offset, length).or_else(|_| Range::at(offset, 0))
    }

    /// From valid ends; `None` if `first > last`.
    pub fn between(first: u64, last: u64) -> Option<Range> {
        (first <= last).then_some(Range { first, last })
    }

    /// The first byte.
    pub fn first(self) -> u64 {
        self.first
    }

    /// The last byte; `u64::MAX` is "to the end".
    pub fn last(self) -> u64 {
        self.last
    }

    /// The length in NLM's terms: 0 is "to the end".
    pub fn length(self) -> u64 {
        if self.last == u64::MAX { 0 } else { self.last - self.first + 1 }
    }

    /// Whether they have a byte in common.
    pub fn overlaps(self, other: Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether every byte of `other` is in this range.
    pub fn covers(self, other: Range) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// Whether they overlap or are adjacent.
    pub fn touches(self, other: Range) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    /// With the two adjacent bytes.
    pub(crate) fn widened(self) -> Range {
        Range { first: self.first.saturating_sub(1), last: self.last.saturating_add(1) }
    }

    /// The smallest range that covers both.
    pub(crate) fn hull(self, other: Range) -> Range {
        Range { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// The bytes they have in common.
    pub fn overlap(self, other: Range) -> Option<Range> {
        Range::between(self.first.max(other.first), self.last.min(other.last))
    }

    /// What remains below and above `cut`.
    pub fn without(self, cut: Range) -> (Option<Range>, Option<Range>) {
        let below = cut
            .first
            .checked_sub(1)
            .and_then(|last| Range::between(self.first, last.min(self.last)));
        let above = cut
            .last
            .checked_add(1)
            .and_then(|first| Range::between(first.max(self.first), self.last));
        (below, above)
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            u64::MAX => write!(f, "[{}..]", self.first),
            last => write!(f, "[{}..{last}]", self.first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> Range {
        Range::between(first, last).unwrap()
    }

    #[test]
    fn length_zero_means_to_the_end() {
        assert_eq!(Range::at(7, 0), Ok(range(7, u64::MAX)));
        assert_eq!(range(7, u64::MAX).length(), 0);
        assert_eq!(Range::at(0, 10), Ok(range(0, 9)));
        assert_eq!(range(7, 16).length(), 10);
    }

    #[test]
    fn an_end_at_the_largest_offset_means_to_the_end() {
        assert_eq!(Range::at(0, 1 << 63), Ok(Range::ALL));
        assert_eq!(Range::at(OFFSET_MAX, 1), Ok(range(OFFSET_MAX, u64::MAX)));
    }

    #[test]
    fn past_the_largest_offset_is_too_far() {
        assert_eq!(Range::at(1 << 63, 0), Err(OffsetTooLarge));
        assert_eq!(Range::at(OFFSET_MAX, 2), Err(OffsetTooLarge));
        assert_eq!(Range::at(1, u64::MAX), Err(OffsetTooLarge));
        assert_eq!(Range::at(u64::MAX, u64::MAX), Err(OffsetTooLarge));
    }

    #[test]
    fn neighbours_touch_and_strangers_do_not() {
        assert!(range(0, 4).touches(range(5, 9)));
        assert!(range(5, 9).touches(range(0, 4)));
        assert!(!range(0, 4).touches(range(6, 9)));
        assert!(range(0, u64::MAX).touches(range(5, 9)));
    }

    #[test]
    fn a_cut_leaves_what_is_below_and_above() {
        assert_eq!(range(0, 9).without(range(3, 5)), (Some(range(0, 2)), Some(range(6, 9))));
        assert_eq!(range(3, 5).without(range(0, 9)), (None, None));
        assert_eq!(range(0, 9).without(range(0, 5)), (None, Some(range(6, 9))));
        assert_eq!(Range::ALL.without(range(5, u64::MAX)), (Some(range(0, 4)), None));
        assert_eq!(range(0, 4).without(range(8, 9)), (Some(range(0, 4)), None));
    }
}
