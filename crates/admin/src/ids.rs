//! Ids as people type them: a letter for what it is, then the number in 32 digits that cannot be
//! taken for one another.

use keeper::identity::{ClientId, LockId};

const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// `k7f2`: a lock, a share or a waiter.
pub fn entry(id: LockId) -> String {
    write('k', id.0)
}

/// `c3`.
pub fn client(id: ClientId) -> String {
    write('c', id.0)
}

pub fn parse_entry(text: &str) -> Option<LockId> {
    parse('k', text).map(LockId)
}

pub fn parse_client(text: &str) -> Option<ClientId> {
    parse('c', text).map(ClientId)
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
    // A number has one spelling, so that no two words mean one thing.
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
            assert_eq!(parse_entry(&entry(LockId(number))), Some(LockId(number)));
        }
        assert_eq!(entry(LockId(32 * 32 + 2)), "k102");
        assert_eq!(client(ClientId(3)), "c3");
    }

    #[test]
    fn other_words_are_none() {
        for word in ["", "k", "k01", "c3", "kI", "k ", "kzzzzzzzzzzzzzzzzzzz", "k-1", "\u{212a}1"] {
            assert_eq!(parse_entry(word), None, "{word}");
        }
    }
}
