//! The text form of ids: a letter for the kind, then the number in Crockford's base 32.

use std::fmt;
use std::str::FromStr;

use crate::identity::{ClientId, LockId};

const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The text is not an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError;

/// For example `k7f2`. Waiters and shares share the counter and the form of locks.
impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write('k', self.0))
    }
}

impl FromStr for LockId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        parse('k', text).map(Self).ok_or(ParseIdError)
    }
}

/// For example `c3`.
impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write('c', self.0))
    }
}

impl FromStr for ClientId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        parse('c', text).map(Self).ok_or(ParseIdError)
    }
}

fn write(letter: char, mut number: u64) -> String {
    let mut digits = vec![DIGITS[(number % 32) as usize]];
    while number >= 32 {
        number /= 32;
        digits.push(DIGITS[(number % 32) as usize]);
    }
    let digits = digits.iter().rev().map(|digit| char::from(*digit));
    std::iter::once(letter).chain(digits).collect()
}

fn parse(letter: char, text: &str) -> Option<u64> {
    let digits = text.strip_prefix(letter)?;
    // Leading zeros are rejected: an id has one spelling.
    if digits.is_empty() || (digits.starts_with('0') && digits.len() > 1) {
        return None;
    }
    digits.bytes().try_fold(0u64, |number, digit| {
        let value = DIGITS.iter().position(|known| *known == digit)? as u64;
        number.checked_mul(32)?.checked_add(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back() {
        for number in [0, 1, 31, 32, 1023, 1024, 1 << 20, u64::MAX] {
            assert_eq!(LockId(number).to_string().parse(), Ok(LockId(number)));
            assert_eq!(ClientId(number).to_string().parse(), Ok(ClientId(number)));
        }
        assert_eq!(LockId(32 * 32 + 2).to_string(), "k102");
        assert_eq!(ClientId(3).to_string(), "c3");
    }

    #[test]
    fn other_words_are_no_ids() {
        for word in ["", "k", "k01", "c3", "kI", "k ", "kzzzzzzzzzzzzzzzzzzz", "k-1", "\u{212a}1"] {
            assert_eq!(word.parse::<LockId>(), Err(ParseIdError), "{word}");
        }
    }
}
