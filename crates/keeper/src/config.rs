//! The keeper's configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::Protocol;

/// Settings of the keeper; fixed for the life of a `Keeper`.
#[derive(Clone, Debug)]
pub struct Config {
    /// The recovery window, unless `windows` has one for the protocol (B4.6).
    pub window: Duration,
    /// The protocols with a recovery window of their own. A program that embeds the keeper adds its
    /// own protocols here (B9.80).
    pub windows: BTreeMap<Protocol, Duration>,
    /// Which new locks wait during grace.
    pub grace: GraceMode,
    /// What becomes of the locks of silent hosts.
    pub unreachable: Unreachable,
    /// What proves a reboot report.
    pub verify: Verify,
    /// Whether a client may report its reboot from another address than the recorded one (B3.75).
    pub roaming: bool,
    /// The bounds of all tables.
    pub limits: Limits,
    /// The host name of this machine, under which a registrant that watches another machine is told
    /// of the server's restart.
    pub host_name: Name,
    /// Names by which clients may know the server: configured names, the host name, its short form.
    pub names: Vec<Name>,
    /// The name that each server address resolves to.
    pub reverse_names: BTreeMap<IpAddr, Name>,
    /// The server's addresses at the start; `None` if they are not known. See
    /// `Keeper::handle_addresses`.
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// Addresses of the server, each with the one that it replaces: what clients locked through the
    /// old address belongs to the same clients at the new one (B2.80).
    pub formerly: BTreeMap<IpAddr, IpAddr>,
    /// Hosts known from a copy outside the store. An open start registers those that the store
    /// lacks, so that they are notified (B4.92); any other start ignores them.
    pub roster: Vec<RosterEntry>,
    /// Mixed into the tables so that peers cannot choose their shape.
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
            roaming: false,
            limits: Limits::default(),
            host_name: Name::from("localhost"),
            names: Vec::new(),
            reverse_names: BTreeMap::new(),
            addresses: None,
            formerly: BTreeMap::new(),
            roster: Vec::new(),
            seed: 0,
        }
    }
}

impl Config {
    /// The recovery window of a protocol.
    pub fn window(&self, protocol: &Protocol) -> Duration {
        self.windows.get(protocol).copied().unwrap_or(self.window)
    }
}

/// A monitored host, as the copy of the roster has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterEntry {
    /// The address it calls from.
    pub address: IpAddr,
    /// The client's own name for itself.
    pub name: Name,
    /// The server addresses it used, oldest first.
    pub used: Vec<IpAddr>,
}

/// Which new locks wait during grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraceMode {
    /// New locks wait until all earlier ones are reclaimed (B4.9).
    Strict,
    /// With an exact store, only locks that conflict with an unconfirmed one wait (B4.10).
    Instant,
}

/// When the unconfirmed locks of a silent host are released (B4.15, B4.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// After the window, when another owner wants them and the host fails a probe.
    OnDemand,
    /// After the first failed notice.
    Immediate,
    /// Never without proof or an operator.
    Retain,
}

/// What a reboot report needs besides its source address (B3.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// No sign of life of the old kernel.
    SignsOfLife,
    /// As `SignsOfLife`; a report that came as a datagram also needs the status monitor at that
    /// address to confirm its state.
    Ask,
    /// Nothing: the source address suffices.
    Address,
}

/// The bound of every table (I10); what exceeds it is refused with the matching `Refusal`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows of the client tracker.
    pub clients: usize,
    /// Hosts at one address: a client that invents names leaves room for others.
    pub clients_per_address: usize,
    /// Locks, shares and waiters in all.
    pub locks: usize,
    /// Locks, shares and waiters of one host.
    pub locks_per_client: usize,
    /// Locks, shares and waiters of all hosts at one address.
    pub locks_per_address: usize,
    /// Locks on one file; separately, shares on one file.
    pub locks_per_file: usize,
    /// Waiters on one file.
    pub waiters_per_file: usize,
    /// SM_MON registrations of one address.
    pub registrations_per_address: usize,
    /// Requests parked for a probe or for the end of grace.
    pub parked: usize,
    /// Those of them that came from one address.
    pub parked_per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 10_000,
            clients_per_address: 5_000,
            locks: 10_000_000,
            locks_per_client: 10_000,
            locks_per_address: 5_000_000,
            locks_per_file: 1_000_000,
            waiters_per_file: 1_000,
            registrations_per_address: 1_000,
            parked: 10_000,
            parked_per_address: 5_000,
        }
    }
}
