//! The trace of a run, recorded only on request: a failing seed is simply run again with it.

use std::fmt;

use crate::queue::Ms;

#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub lines: Option<Vec<String>>,
}

impl Trace {
    pub(crate) fn new(on: bool) -> Self {
        Self { lines: on.then(Vec::new) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    pub(crate) fn line(&mut self, now: Ms, text: &str) {
        if let Some(lines) = &mut self.lines {
            let (minutes, seconds, ms) = (now / 60_000, now / 1000 % 60, now % 1000);
            lines.push(format!("{minutes:3}:{seconds:02}.{ms:03}  {text}"));
        }
    }
}

/// A broken rule.
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
