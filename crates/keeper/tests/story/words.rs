//! The tokens of a command, and the meaning of single words.

use std::time::Duration;

use lockkeeper_keeper::range::Range;
use lockkeeper_keeper::request::{Access, Mode};

pub type Parsed<T> = Result<T, String>;

/// The tokens of a command; a comma, colon or question mark at the end of a word is a token.
pub struct Words {
    left: std::vec::IntoIter<String>,
}

impl Words {
    pub fn new(line: &str) -> Parsed<Self> {
        let mut words = Vec::new();
        let mut rest = line.trim();
        while !rest.is_empty() {
            let end = match rest.strip_prefix('"') {
                Some(quoted) => 2 + quoted.find('"').ok_or("a quote does not end")?,
                None => rest.find(char::is_whitespace).unwrap_or(rest.len()),
            };
            let (word, after) = rest.split_at(end);
            let word_bare =
                if word.starts_with('"') { word } else { word.trim_end_matches([',', '?', ':']) };
            words.push(word_bare.to_owned());
            words.extend(word[word_bare.len()..].chars().map(String::from));
            rest = after.trim_start();
            if let Some(after) = rest.strip_prefix(',') {
                words.push(",".to_owned());
                rest = after.trim_start();
            }
        }
        Ok(Self { left: words.into_iter() })
    }

    pub fn next(&mut self) -> Parsed<String> {
        self.left.next().ok_or("the sentence ends too soon".into())
    }

    pub fn number(&mut self) -> Parsed<u64> {
        let word = self.next()?;
        word.parse().map_err(|_| format!("{word:?} is no number"))
    }

    /// Consumes this word if it is the next one.
    pub fn eat(&mut self, word: &str) -> Parsed<()> {
        match self.left.as_slice().first() {
            Some(next) if next == word => {
                self.left.next();
                Ok(())
            }
            next => Err(format!("{word:?} is expected, not {next:?}")),
        }
    }

    pub fn eat_all(&mut self, words: &str) -> Parsed<()> {
        words.split(' ').try_for_each(|word| self.eat(word))
    }

    pub fn end(&self) -> Parsed<()> {
        match self.left.as_slice().first() {
            None => Ok(()),
            Some(word) => Err(format!("{word:?} is one word too many")),
        }
    }
}

pub fn mode(word: &str) -> Parsed<Mode> {
    match word {
        "shared" => Ok(Mode::Shared),
        "exclusive" => Ok(Mode::Exclusive),
        other => Err(format!("a lock is not {other:?}")),
    }
}

pub fn access(word: &str) -> Parsed<Access> {
    match word {
        "nothing" => Ok(Access { read: false, write: false }),
        "read" => Ok(Access { read: true, write: false }),
        "write" => Ok(Access { read: false, write: true }),
        "both" => Ok(Access { read: true, write: true }),
        other => Err(format!("access is not {other:?}")),
    }
}

pub fn range(word: &str) -> Parsed<Range> {
    let inner = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
    let (first, last) =
        inner.and_then(|inner| inner.split_once("..")).ok_or("a range is [0..9]")?;
    let last = if last.is_empty() { Ok(u64::MAX) } else { last.parse() };
    match (first.parse(), last) {
        (Ok(first), Ok(last)) => {
            Range::between(first, last).ok_or("it ends before it begins".into())
        }
        _ => Err(format!("{word:?} is no range")),
    }
}

pub fn duration(count: u64, unit: &str) -> Parsed<Duration> {
    match unit {
        "ms" => Ok(Duration::from_millis(count)),
        "s" => Ok(Duration::from_secs(count)),
        "min" => Ok(Duration::from_secs(count * 60)),
        "h" => Ok(Duration::from_secs(count * 3600)),
        other => Err(format!("{other:?} is no unit of time")),
    }
}

/// A name, bare or in quotes; `\xNN` and `\n` in quotes are bytes.
pub fn bytes(word: &str) -> Vec<u8> {
    let Some(quoted) = word.strip_prefix('"').and_then(|word| word.strip_suffix('"')) else {
        return word.as_bytes().to_vec();
    };
    let mut name = Vec::new();
    let mut rest = quoted.bytes();
    while let Some(byte) = rest.next() {
        name.push(match byte {
            b'\\' => match rest.next() {
                Some(b'x') => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                Some(b'n') => b'\n',
                other => other.unwrap(),
            },
            plain => plain,
        });
    }
    name
}
