//! Does the kernel that took the locks still live? One inquiry about one host: its lines are asked,
//! looked at again and again, and what they say becomes a verdict. No I/O and no clock: production
//! sleeps between two looks, the simulator lets its own time pass.

use std::time::{Duration, Instant};

use keeper::identity::HostKey;
use keeper::request::ProbeAnswer;

use super::registry::{Candidate, Registry};
use super::round::{OnEnded, Round};
use super::verdict::{Testimony, verdict};

/// Three questions, and time for the last answer.
pub const SAME_KERNEL_MAX: Duration = Duration::from_secs(10);
/// So many lines of one host are asked, the oldest ones.
pub const LINES_MAX: usize = 64;

/// What the registry knows of a host when an inquiry begins.
pub struct Evidence {
    lines: Vec<Candidate>,
    resets: Vec<Testimony>,
    asked: Instant,
    /// When the kernel in question last took a lock; `None` if that was before all lines.
    taken: Option<Instant>,
}

impl Evidence {
    /// Lines opened after `asked` say nothing about the kernel before it.
    pub fn gather<W>(
        registry: &Registry<W>,
        host: &HostKey,
        asked: Instant,
        taken: Option<Instant>,
        now: Instant,
    ) -> Self {
        let lines = registry.lines_of(host, asked, LINES_MAX);
        let resets = registry.resets_of(host, asked, LINES_MAX, now);
        Self { lines, resets, asked, taken }
    }
}

pub struct SameKernel {
    round: Round,
    resets: Vec<Testimony>,
    taken: Option<Instant>,
}

impl SameKernel {
    /// Begins to ask. Not with the registry locked, see [`Round::new`].
    pub fn begin(evidence: Evidence) -> Self {
        let Evidence { lines, resets, asked, taken } = evidence;
        Self { round: Round::new(lines, asked, true), resets, taken }
    }

    pub fn look(&mut self, ended: OnEnded<'_>) {
        self.round.look(ended);
    }

    /// Nothing that could still be said would change the answer.
    pub fn is_over(&self) -> bool {
        self.round.is_over() || self.taken.is_some_and(|taken| self.round.hears_life_since(taken))
    }

    /// What the lines have said by now; final when it is over, or after [`SAME_KERNEL_MAX`].
    pub fn answer(&self) -> ProbeAnswer {
        let resets = self.resets.iter().copied();
        let testimonies: Vec<Testimony> = self.round.testimonies().chain(resets).collect();
        verdict(&testimonies, self.taken)
    }
}
