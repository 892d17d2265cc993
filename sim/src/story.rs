//! The story of a run, written only when somebody wants to read it: the same seed tells the same
//! story, so it is told again when it is needed.

use std::fmt;

use crate::queue::Ms;

#[derive(Debug, Default)]
pub struct Story {
    pub lines: Option<Vec<String>>,
}

impl Story {
    pub fn new(told: bool) -> Self {
        Self { lines: told.then(Vec::new) }
    }

    pub fn is_told(&self) -> bool {
        self.lines.is_some()
    }

    pub fn line(&mut self, now: Ms, text: &str) {
        if let Some(lines) = &mut self.lines {
            let (minutes, seconds, ms) = (now / 60_000, now / 1000 % 60, now % 1000);
            lines.push(format!("{minutes:3}:{seconds:02}.{ms:03}  {text}"));
        }
    }
}

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: &'static str,
    pub what: String,
    pub at: Ms,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}
