//! One inquiry into whether the kernel that took the locks of a host is still running: probes the
//! host's connections, polls them, and turns the responses into a verdict. No I/O and no clock:
//! production sleeps between polls, the simulator advances its own time.

use std::time::{Duration, Instant};

use keeper::identity::HostKey;
use keeper::request::ProbeAnswer;

use super::registry::{ProbeCandidate, Registry};
use super::round::{OnEnded, Round};
use super::verdict::{Observation, verdict};

/// Three probes, and time for the last answer.
pub const SAME_KERNEL_MAX: Duration = Duration::from_secs(10);
/// At most so many connections of one host are probed, the oldest first.
pub const CONNECTIONS_MAX: usize = 64;

/// What the registry knows of a host when an inquiry begins.
pub struct Evidence {
    connections: Vec<ProbeCandidate>,
    resets: Vec<Observation>,
    asked: Instant,
    /// When the kernel in question last took a lock; `None` if that was before all connections.
    last_lock: Option<Instant>,
}

impl Evidence {
    /// Leaves out connections opened after `asked`: they say nothing about the kernel before it.
    pub fn gather<W>(
        registry: &Registry<W>,
        host: &HostKey,
        asked: Instant,
        last_lock: Option<Instant>,
        now: Instant,
    ) -> Self {
        let connections = registry.connections_of(host, asked, CONNECTIONS_MAX);
        let resets = registry.resets_of(host, asked, CONNECTIONS_MAX, now);
        Self { connections, resets, asked, last_lock }
    }
}

pub struct KernelInquiry {
    round: Round,
    resets: Vec<Observation>,
    last_lock: Option<Instant>,
}

impl KernelInquiry {
    /// Starts probing. Not to be called with the registry locked, see [`Round::new`].
    pub fn begin(evidence: Evidence) -> Self {
        let Evidence { connections, resets, asked, last_lock } = evidence;
        Self { round: Round::new(connections, asked, true), resets, last_lock }
    }

    pub fn poll(&mut self, ended: OnEnded<'_>) {
        self.round.poll(ended);
    }

    /// No further response can change the answer.
    pub fn is_complete(&self) -> bool {
        self.round.is_complete()
            || self.last_lock.is_some_and(|at| self.round.is_acknowledged_since(at))
    }

    /// The verdict on the responses so far; final when complete, or after [`SAME_KERNEL_MAX`].
    pub fn answer(&self) -> ProbeAnswer {
        let resets = self.resets.iter().copied();
        let observations: Vec<Observation> = self.round.observations().chain(resets).collect();
        verdict(&observations, self.last_lock)
    }
}
