//! Bytes, times and counts as text.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

/// Escapes unprintable bytes of text chosen by peers, so that different names look different and none
/// can control a terminal (B7.3).
pub(crate) fn bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                letter if is_plain(letter) => text.push(letter),
                letter => letter.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| {
                    let _ = write!(text, "\\x{byte:02x}");
                }),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Neither control, nor bidirectional formatting, nor invisible.
fn is_plain(letter: char) -> bool {
    let invisible = matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    !letter.is_control() && !invisible
}

/// RFC 3339 in UTC.
pub(crate) fn time(wall_ms: u64) -> String {
    // RFC 3339 ends with the year 9999.
    let latest = Duration::from_secs(253_402_300_799);
    let time = UNIX_EPOCH + Duration::from_millis(wall_ms).min(latest);
    humantime::format_rfc3339_millis(time).to_string()
}

/// A number with its singular or plural noun.
pub(crate) fn count(number: u64, one: &str, more: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {more}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_that_cannot_do_anything() {
        assert_eq!(bytes(b"alice"), "alice");
        assert_eq!(bytes("B\u{fc}ro".as_bytes()), "B\u{fc}ro");
        assert_eq!(bytes(b"a\x1b[31m\n\\"), "a\\x1b[31m\\x0a\\\\");
        assert_eq!(bytes(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(bytes("a\u{202e}b".as_bytes()), "a\\xe2\\x80\\xaeb");
    }

    #[test]
    fn times_far_off_do_not_break_anything() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert!(time(u64::MAX).starts_with("9999-"));
    }
}
