//! Directories that are configured and not served yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;

use super::opening::{Opened, Opening, Place};

/// The pause between attempts to open a directory.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// A directory whose file system did not answer in time, or that could not be opened or served when it
/// did.
pub(super) struct Late {
    pub(super) attempt: Arc<Opening>,
    /// When the server began to wait for it.
    pub(super) since: Instant,
    /// Why it cannot be served, as far as its file system has said.
    pub(super) problem: Option<String>,
    /// The outcome of the attempt has been dealt with.
    is_seen: bool,
}

impl Late {
    pub(super) fn new(attempt: Arc<Opening>, since: Instant) -> Self {
        Self { attempt, since, problem: None, is_seen: false }
    }

    /// Whether there is an outcome that has not been dealt with; a failure is logged.
    pub(super) fn has_news(&mut self) -> bool {
        let Some(outcome) = self.attempt.wait(Instant::now()) else { return false };
        if std::mem::replace(&mut self.is_seen, true) {
            return false;
        }
        match outcome {
            Ok(_) => true,
            Err(error) => self.has_problem(error, "it is tried again until it works"),
        }
    }

    /// What is open of it.
    pub(super) fn opened(&self) -> Option<Opened> {
        self.attempt.wait(Instant::now())?.ok()
    }

    /// Logs a problem once; false if it is known.
    pub(super) fn has_problem(&mut self, problem: String, then: &str) -> bool {
        if self.problem.as_ref() == Some(&problem) {
            return false;
        }
        let path = self.attempt.wanted.path.display();
        warn!(
            event.kind = "export-late",
            event.export = %path,
            "{path} is not served: {problem}; {then}"
        );
        self.problem = Some(problem);
        true
    }

    /// Begins a new attempt if the last one failed a while ago.
    pub(super) fn try_again(&mut self, place: &Place, open: &[Opened]) -> Option<Arc<Opening>> {
        if !self.attempt.failed_before(RETRY_EVERY) {
            return None;
        }
        self.attempt = Opening::begin(self.attempt.wanted.clone(), place.clone(), open);
        self.is_seen = false;
        Some(self.attempt.clone())
    }
}
