//! What an administrator decides, as far as locks are concerned.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::Protocol;

#[derive(Clone, Debug)]
pub struct Config {
    /// The recovery window, and what a protocol has instead (R4.1).
    pub window: Duration,
    pub windows: BTreeMap<Protocol, Duration>,
    pub grace: GraceMode,
    pub unreachable: Unreachable,
    pub verify: Verify,
    pub limits: Limits,
    /// Names that clients may know us by: configured ones, the host name, its short form.
    pub names: Vec<Name>,
    /// What an address of ours resolves to.
    pub reverse_names: BTreeMap<IpAddr, Name>,
    /// Mixed into tables so that peers cannot choose their shape.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(90),
            windows: BTreeMap::new(),
            grace: GraceMode::Strict,
            unreachable: Unreachable::OnDemand,
            verify: Verify::SignsOfLife,
            limits: Limits::default(),
            names: Vec::new(),
            reverse_names: BTreeMap::new(),
            seed: 0,
        }
    }
}

impl Config {
    pub fn window(&self, protocol: Protocol) -> Duration {
        self.windows.get(&protocol).copied().unwrap_or(self.window)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraceMode {
    /// New locks wait until all old ones are back (R4.2).
    Strict,
    /// With an exact store, only what conflicts with an old lock waits (R4.4).
    Instant,
}

/// What becomes of the locks of a host that is not heard of (R2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// After the window, when somebody wants them and the host fails a probe.
    OnDemand,
    /// After the first notice that failed.
    Immediate,
    /// Never without proof or an operator.
    Retain,
}

/// What a reboot notice needs besides its source address (R6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// No sign of life of the old kernel.
    SignsOfLife,
    /// The same; and a notice that came as a datagram counts only once the status monitor at that
    /// address has answered the notified state.
    Ask,
    /// Nothing: the address is believed.
    Address,
}

/// Every table has a bound (I10).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub clients: usize,
    pub locks: usize,
    pub locks_per_client: usize,
    pub locks_per_file: usize,
    pub waiters_per_file: usize,
    /// SM_MON registrations of one address.
    pub registrations_per_address: usize,
    /// Requests held back for a probe or for the end of grace.
    pub parked: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 10_000,
            locks: 10_000_000,
            locks_per_client: 10_000,
            locks_per_file: 1_000_000,
            waiters_per_file: 1_000,
            registrations_per_address: 1_000,
            parked: 10_000,
        }
    }
}
