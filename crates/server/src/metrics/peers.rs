//! Connections and datagrams that are not served, by reason (B7.95, B7.96).

use super::{Count, Metrics};

/// Why a connection was closed when it was accepted; the label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedConnection {
    /// No export admits its address.
    NotAdmitted,
    /// `connections`, the part of it that is not reserved for known clients included.
    Total,
    /// `connections_per_address`.
    PerAddress,
}

impl RefusedConnection {
    pub const LABELS: [(Self, &'static str); 3] = [
        (Self::NotAdmitted, "not_admitted"),
        (Self::Total, "connections"),
        (Self::PerAddress, "connections_per_address"),
    ];
}

/// Why an open connection was closed; the label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionReason {
    /// No export admits its address any more.
    NotAdmitted,
    /// It was idle, and `connections` were open.
    Slots,
    /// It was slow to send or to read, and memory was short.
    Memory,
}

impl EvictionReason {
    pub const LABELS: [(Self, &'static str); 3] =
        [(Self::NotAdmitted, "not_admitted"), (Self::Slots, "slots"), (Self::Memory, "memory")];
}

#[derive(Debug, Default)]
pub(super) struct PeerCounts {
    refused: [Count; RefusedConnection::LABELS.len()],
    evicted: [Count; EvictionReason::LABELS.len()],
}

impl Metrics {
    pub fn refused_connections(&self, reason: RefusedConnection) -> u64 {
        self.peers.refused[reason as usize].get()
    }

    pub fn evicted_connections(&self, reason: EvictionReason) -> u64 {
        self.peers.evicted[reason as usize].get()
    }

    pub(crate) fn count_refused_connection(&self, reason: RefusedConnection) {
        self.peers.refused[reason as usize].add(1);
    }

    pub(crate) fn count_evicted_connection(&self, reason: EvictionReason) {
        self.peers.evicted[reason as usize].add(1);
    }

    pub(crate) fn count_dropped_datagrams(&self, count: u64) {
        self.dropped_datagrams.add(count);
    }
}
