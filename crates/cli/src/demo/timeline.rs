//! The timeline: one line per verified step.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Who acted or observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Actor {
    Server,
    Alice,
    Bob,
    /// The demo itself.
    We,
}

impl Actor {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Alice => "alice",
            Self::Bob => "bob",
            Self::We => "we",
        }
    }

    /// ANSI colour code.
    fn colour(self) -> u8 {
        match self {
            Self::Server => 33,
            Self::Alice => 36,
            Self::Bob => 35,
            Self::We => 31,
        }
    }
}

/// A step whose outcome was not the expected one.
#[derive(Debug, thiserror::Error)]
#[error("step {number} failed: {who} {what}: {why}")]
pub(super) struct StepFailed {
    number: usize,
    who: &'static str,
    what: String,
    why: String,
}

pub(super) struct Timeline<W> {
    out: W,
    colour: bool,
    begun: Instant,
    lines: usize,
}

impl<W: Write> Timeline<W> {
    pub(super) fn new(out: W, colour: bool) -> Self {
        Self { out, colour, begun: Instant::now(), lines: 0 }
    }

    /// Number of verified steps.
    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Prints a heading.
    pub(super) fn chapter(&mut self, title: &str) {
        let title = self.paint("1", title);
        self.write(&format!("\n{title}\n"));
    }

    pub(super) fn remark(&mut self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    /// Prints a line with `what` was done and its description, or the error. Returns the value.
    pub(super) fn step<T>(
        &mut self,
        who: Actor,
        what: &str,
        seen: Result<(T, impl Display)>,
    ) -> Result<T, StepFailed> {
        self.step_at(Instant::now(), who, what, seen)
    }

    /// As `step`, for an earlier moment.
    pub(super) fn step_at<T>(
        &mut self,
        at: Instant,
        who: Actor,
        what: &str,
        seen: Result<(T, impl Display)>,
    ) -> Result<T, StepFailed> {
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
                let not = self.paint("1;31", "FAILED");
                self.write(&format!("{ms:>6} ms  {name}  {what}: {not}, {why}\n"));
                Err(StepFailed { number, who: who.name(), what: what.to_owned(), why })
            }
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Ignores a closed stdout, so that the demo still cleans up.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn told(colour: bool, seen: Result<&str>) -> (String, Result<(), StepFailed>, usize) {
        let mut out = Vec::new();
        let mut timeline = Timeline::new(&mut out, colour);
        let result = timeline.step(Actor::Alice, "LOCK", seen.map(|seen| ((), seen)));
        let lines = timeline.lines();
        (String::from_utf8(out).unwrap(), result, lines)
    }

    #[test]
    fn a_verified_step_says_what_was_seen_and_counts() {
        let (text, result, lines) = told(false, Ok("GRANTED"));
        assert!(text.ends_with(" ms  alice   LOCK: GRANTED\n"), "{text:?}");
        assert!(result.is_ok() && lines == 1);
    }

    #[test]
    fn a_failed_step_is_an_error_with_its_number_and_reason() {
        let (text, result, lines) = told(false, Err(anyhow!("it was DENIED")));
        assert!(text.ends_with("LOCK: FAILED, it was DENIED\n"), "{text:?}");
        assert_eq!(lines, 0);
        let said = result.unwrap_err().to_string();
        assert_eq!(said, "step 1 failed: alice LOCK: it was DENIED");
    }

    #[test]
    fn there_is_colour_only_where_it_is_wanted() {
        assert!(told(true, Ok("GRANTED")).0.contains("\x1b[36malice"));
        assert!(!told(false, Ok("GRANTED")).0.contains('\x1b'));
    }
}
