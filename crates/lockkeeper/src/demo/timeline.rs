//! What happened when, line by line; each line is something that was seen and found to be true.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Who did something or saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Server,
    Alice,
    Bob,
    /// The demonstration itself.
    We,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Alice => "alice",
            Self::Bob => "bob",
            Self::We => "we",
        }
    }

    /// As terminals number colours.
    fn colour(self) -> u8 {
        match self {
            Self::Server => 33,
            Self::Alice => 36,
            Self::Bob => 35,
            Self::We => 31,
        }
    }
}

/// A line of the timeline that was not true.
#[derive(Debug, thiserror::Error)]
#[error("step {number} was not true: {who} {what}: {why}")]
pub struct NotTrue {
    number: usize,
    who: &'static str,
    what: String,
    why: String,
}

pub struct Timeline<W> {
    out: W,
    colour: bool,
    begun: Instant,
    lines: usize,
}

impl<W: Write> Timeline<W> {
    pub fn new(out: W, colour: bool) -> Self {
        Self { out, colour, begun: Instant::now(), lines: 0 }
    }

    /// How many lines were found true.
    pub fn lines(&self) -> usize {
        self.lines
    }

    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// What comes next, in bold; nothing is claimed by it.
    pub fn chapter(&mut self, title: &str) {
        let title = self.paint("1", title);
        self.write(&format!("\n{title}\n"));
    }

    pub fn remark(&mut self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    /// One line: `what` was tried, and what came of it, with the words for that; or why it is not
    /// what had to come of it. Gives what came of it.
    pub fn step<T>(
        &mut self,
        who: Who,
        what: &str,
        seen: Result<(T, impl Display)>,
    ) -> Result<T, NotTrue> {
        self.step_at(Instant::now(), who, what, seen)
    }

    /// As `step`, of something that was seen a moment ago.
    pub fn step_at<T>(
        &mut self,
        at: Instant,
        who: Who,
        what: &str,
        seen: Result<(T, impl Display)>,
    ) -> Result<T, NotTrue> {
        let ms = at.saturating_duration_since(self.begun).as_millis();
        let name = self.paint(&who.colour().to_string(), &format!("{:<6}", who.name()));
        let number = self.lines + 1;
        match seen {
            Ok((value, words)) => {
                self.lines = number;
                let words = self.paint("32", &words.to_string());
                self.write(&format!("{ms:>6} ms  {name}  {what}: {words}\n"));
                Ok(value)
            }
            Err(why) => {
                let why = format!("{why:#}");
                let not = self.paint("1;31", "NOT TRUE");
                self.write(&format!("{ms:>6} ms  {name}  {what}: {not}, {why}\n"));
                Err(NotTrue { number, who: who.name(), what: what.to_owned(), why })
            }
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Whoever reads may have gone; what was begun is cleaned up all the same.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn told(colour: bool, seen: Result<&str>) -> (String, Result<(), NotTrue>, usize) {
        let mut out = Vec::new();
        let mut timeline = Timeline::new(&mut out, colour);
        let result = timeline.step(Who::Alice, "LOCK", seen.map(|seen| ((), seen)));
        let lines = timeline.lines();
        (String::from_utf8(out).unwrap(), result, lines)
    }

    #[test]
    fn a_line_that_is_true_says_what_was_seen_and_counts() {
        let (text, result, lines) = told(false, Ok("GRANTED"));
        assert!(text.ends_with(" ms  alice   LOCK: GRANTED\n"), "{text:?}");
        assert!(result.is_ok() && lines == 1);
    }

    #[test]
    fn a_line_that_is_not_true_is_an_error_with_its_number_and_reason() {
        let (text, result, lines) = told(false, Err(anyhow!("it was DENIED")));
        assert!(text.ends_with("LOCK: NOT TRUE, it was DENIED\n"), "{text:?}");
        assert_eq!(lines, 0);
        let said = result.unwrap_err().to_string();
        assert_eq!(said, "step 1 was not true: alice LOCK: it was DENIED");
    }

    #[test]
    fn there_is_colour_only_where_it_is_wanted() {
        assert!(told(true, Ok("GRANTED")).0.contains("\x1b[36malice"));
        assert!(!told(false, Ok("GRANTED")).0.contains('\x1b'));
    }
}
