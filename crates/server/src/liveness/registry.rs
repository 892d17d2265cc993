//! Which connections lead to which host, which were reset recently, and which hosts are watched
//! because they hold or await locks. No I/O and no clock. `W` is the witness of a watched host, which
//! ends when it is dropped.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keeper::bytes::Name;
use keeper::change::Client;
use keeper::identity::{HostKey, Incarnation, OwnerNamespace};

use super::connection::{ConnectionEnd, EndCause, TrackedConnection};
use super::round::observation_of_reset;
use super::verdict::Observation;

/// How long a rebooted client repeats its SM_NOTIFY.
pub const RESETS_KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// Bound on the kept resets of all hosts; the oldest are dropped first.
const RESETS_MAX: usize = 8192;
/// Witnesses of one address, which all lead to the same lock manager. More hosts there are behind a
/// NAT, where no witness reaches them, or invented.
const WITNESSES_PER_ADDRESS_MAX: usize = 64;
/// Incarnations of one host whose lock times are kept: the current one, the next, and two for hosts
/// whose state changes without a reboot.
const INCARNATIONS_MAX: usize = 4;

pub struct Registry<W> {
    open: HashMap<IpAddr, Vec<Arc<TrackedConnection>>>,
    resets: HashMap<IpAddr, VecDeque<Arc<TrackedConnection>>>,
    /// The address of each reset in `resets`, the oldest first.
    resets_in_order: VecDeque<IpAddr>,
    watched: HashMap<IpAddr, Vec<WatchedHost<W>>>,
    witnesses: usize,
}

impl<W> Default for Registry<W> {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            resets: HashMap::new(),
            resets_in_order: VecDeque::new(),
            watched: HashMap::new(),
            witnesses: 0,
        }
    }
}

struct WatchedHost<W> {
    name: Name,
    namespace: OwnerNamespace,
    /// When it was last given a lock, a share or a place in a queue.
    touched: Instant,
    witness: Option<W>,
    /// The state that the client tracker has of it: probes ask about shares by it.
    state: Incarnation,
    /// When each incarnation last sent a request that was granted or queued, by the state that the
    /// request carried; for shares, by the state that the host was known to be in.
    last_locks: Vec<(Incarnation, Instant)>,
    /// When it last sent a reclaim, or a SHARE before any state was known. These count for every
    /// incarnation: a rebooted kernel has nothing to reclaim.
    last_of_any: Option<Instant>,
}

/// A request that was granted or queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenBy {
    /// A LOCK with this state. Without one it counts for itself: the kernel that sent it may be
    /// another than that of the states.
    Lock(Incarnation),
    Share,
    Reclaim,
}

/// A connection to probe for a host.
pub struct ProbeCandidate {
    pub connection: Arc<TrackedConnection>,
    /// It carries the host's name. Otherwise its acknowledgements count, but not its end.
    pub is_named: bool,
}

/// A connection of a host was reset without a probe.
pub struct UnpromptedReset {
    pub host: HostKey,
    pub end: ConnectionEnd,
    /// The host has no other connection that could be probed first.
    pub no_other_connection: bool,
}

impl<W> Registry<W> {
    pub fn insert(&mut self, connection: Arc<TrackedConnection>) {
        self.open.entry(connection.address).or_default().push(connection);
    }

    /// Removes a connection that has ended. Its `kernel_since` passes on to the connections of the
    /// same host that were opened before its last acknowledgement: they lead to the same kernel.
    fn remove(&mut self, connection: &Arc<TrackedConnection>) {
        let Some(there) = self.open.get_mut(&connection.address) else { return };
        if let Some(at) = there.iter().position(|other| Arc::ptr_eq(other, connection)) {
            there.swap_remove(at);
        }
        let Some(end) = connection.end() else { return };
        let (since, names) = (connection.kernel_since(), connection.names());
        for other in there.iter().filter(|other| other.opened <= end.last_ack) {
            if names.iter().any(|name| other.belongs_to(name)) {
                other.extend_kernel_since(since);
            }
        }
        if there.is_empty() {
            self.open.remove(&connection.address);
        }
        if end.cause != EndCause::Other && connection.is_named() && connection.end_is_evidence() {
            self.keep_reset(connection.clone(), end.at);
        }
    }

    fn keep_reset(&mut self, connection: Arc<TrackedConnection>, now: Instant) {
        self.drop_old_resets(now);
        if self.resets_in_order.len() >= RESETS_MAX {
            self.drop_oldest_reset();
        }
        self.resets_in_order.push_back(connection.address);
        self.resets.entry(connection.address).or_default().push_back(connection);
    }

    fn drop_old_resets(&mut self, now: Instant) {
        while let Some(oldest) = self.resets_in_order.front().and_then(|at| self.resets.get(at))
            && oldest
                .front()
                .and_then(|connection| connection.end())
                .is_none_or(|end| is_old(end.at, now))
        {
            self.drop_oldest_reset();
        }
    }

    fn drop_oldest_reset(&mut self) {
        let Some(address) = self.resets_in_order.pop_front() else { return };
        if let Some(there) = self.resets.get_mut(&address) {
            there.pop_front();
            if there.is_empty() {
                self.resets.remove(&address);
            }
        }
    }

    /// The connections of a host that were opened by `before`, the oldest first. A connection without
    /// a name counts if no connection from that address carries another host's name: two hosts may
    /// share an address.
    pub fn connections_of(
        &self,
        host: &HostKey,
        before: Instant,
        max: usize,
    ) -> Vec<ProbeCandidate> {
        let there = self.open.get(&host.address()).map_or(&[][..], Vec::as_slice);
        let address_is_shared = there
            .iter()
            .any(|connection| connection.is_named() && !connection.belongs_to(host.name()));
        let mut candidates: Vec<_> = there
            .iter()
            .filter(|connection| connection.opened <= before && connection.has_requests())
            .map(|connection| ProbeCandidate {
                connection: connection.clone(),
                is_named: connection.belongs_to(host.name()),
            })
            .filter(|candidate| {
                candidate.is_named || (!address_is_shared && !candidate.connection.is_named())
            })
            .collect();
        candidates.sort_by_key(|candidate| candidate.connection.opened);
        candidates.truncate(max);
        candidates
    }

    /// Connections of a host that were opened by `before` and reset recently, the latest first.
    pub fn resets_of(
        &self,
        host: &HostKey,
        before: Instant,
        max: usize,
        now: Instant,
    ) -> Vec<Observation> {
        let there = self.resets.get(&host.address()).into_iter().flatten().rev();
        there
            .filter(|connection| connection.opened <= before && connection.belongs_to(host.name()))
            .filter(|connection| connection.end().is_some_and(|end| !is_old(end.at, now)))
            .take(max)
            .filter_map(observation_of_reset)
            .collect()
    }

    /// Removes a connection that has ended. Returns the hosts that may have rebooted.
    pub fn end(
        &mut self,
        connection: &Arc<TrackedConnection>,
        end: ConnectionEnd,
    ) -> Vec<UnpromptedReset> {
        self.remove(connection);
        if end.cause != EndCause::ResetUnprompted || !connection.end_is_evidence() {
            return Vec::new();
        }
        let reset = |name| {
            let host = HostKey::new(connection.address, name);
            let no_other_connection = self.connections_of(&host, end.at, 1).is_empty();
            UnpromptedReset { host, end, no_other_connection }
        };
        connection.names().into_iter().map(reset).collect()
    }

    /// Watches a host that holds or awaits locks. False if it was watched already; otherwise
    /// `witness` is called, unless there are too many.
    pub fn watch(
        &mut self,
        host: &HostKey,
        namespace: OwnerNamespace,
        witnesses_max: usize,
        now: Instant,
        witness: impl FnOnce() -> Option<W>,
    ) -> bool {
        let there = self.watched.entry(host.address()).or_default();
        if let Some(known) = there.iter_mut().find(|watched| watched.name == *host.name()) {
            known.touched = now;
            return false;
        }
        let at_address = there.iter().filter(|watched| watched.witness.is_some()).count();
        let has_room = self.witnesses < witnesses_max && at_address < WITNESSES_PER_ADDRESS_MAX;
        let witness = if has_room { witness() } else { None };
        self.witnesses += usize::from(witness.is_some());
        there.push(WatchedHost {
            name: host.name().clone(),
            namespace,
            touched: now,
            witness,
            state: Incarnation::UNKNOWN,
            last_locks: Vec::new(),
            last_of_any: None,
        });
        true
    }

    pub fn watched(&self) -> impl Iterator<Item = HostKey> {
        self.watched.iter().flat_map(|(address, there)| {
            there.iter().map(|watched| HostKey::new(*address, watched.name.clone()))
        })
    }

    /// Whether a host at this address is watched.
    pub fn watches(&self, address: IpAddr) -> bool {
        self.watched.contains_key(&address)
    }

    /// Stops watching a host that held nothing at `at`, unless it was given something since.
    pub fn unwatch(&mut self, host: &HostKey, at: Instant) {
        let Some(there) = self.watched.get_mut(&host.address()) else { return };
        let removed = there.extract_if(.., |watched: &mut WatchedHost<W>| {
            watched.name == *host.name() && watched.touched <= at
        });
        self.witnesses -= removed.filter(|watched| watched.witness.is_some()).count();
        if there.is_empty() {
            self.watched.remove(&host.address());
        }
    }

    /// Whether the connection belongs to a watched host.
    pub fn is_watched(&self, connection: &TrackedConnection) -> bool {
        let there = self.watched.get(&connection.address);
        there.is_some_and(|there| there.iter().any(|host| connection.belongs_to(&host.name)))
    }

    /// The owner namespace of a watched host.
    pub fn namespace(&self, host: &HostKey) -> Option<OwnerNamespace> {
        self.watched_host(host).map(|watched| watched.namespace)
    }

    fn watched_host(&self, host: &HostKey) -> Option<&WatchedHost<W>> {
        self.watched.get(&host.address())?.iter().find(|watched| watched.name == *host.name())
    }

    /// Records when a granted or queued request of a watched host arrived. Ignored for other hosts.
    pub fn record_lock(&mut self, host: &HostKey, by: TakenBy, at: Instant) {
        let Some(watched) = self.watched_host_mut(host) else { return };
        let incarnation = match by {
            TakenBy::Lock(carried) => carried,
            TakenBy::Share if watched.state.is_known() => watched.state,
            TakenBy::Share | TakenBy::Reclaim => {
                watched.last_of_any = watched.last_of_any.max(Some(at));
                return;
            }
        };
        if incarnation.is_known() {
            watched.state = incarnation;
        }
        let last_locks = &mut watched.last_locks;
        match last_locks.iter_mut().find(|(known, _)| *known == incarnation) {
            Some((_, last)) => *last = at.max(*last),
            None => {
                last_locks.push((incarnation, at));
                if last_locks.len() > INCARNATIONS_MAX {
                    let oldest = last_locks.iter().map(|(_, at)| *at).min();
                    last_locks.retain(|(_, at)| Some(*at) != oldest);
                }
            }
        }
    }

    /// Records the state that the client tracker has of a watched host. It may be unknown, if the
    /// host was forgotten and registered anew.
    pub fn record_state(&mut self, row: &Client) {
        if row.is_host()
            && let Some(watched) = self.watched_host_mut(&row.key())
        {
            watched.state = row.incarnation;
        }
    }

    /// When this incarnation of a watched host last took a lock.
    pub fn last_lock(&self, host: &HostKey, incarnation: Incarnation) -> Option<Instant> {
        let watched = self.watched_host(host)?;
        let own = watched.last_locks.iter().filter(|(known, _)| *known == incarnation);
        own.map(|(_, at)| *at).chain(watched.last_of_any).max()
    }

    fn watched_host_mut(&mut self, host: &HostKey) -> Option<&mut WatchedHost<W>> {
        let there = self.watched.get_mut(&host.address())?;
        there.iter_mut().find(|watched| watched.name == *host.name())
    }
}

fn is_old(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) > RESETS_KEPT_FOR
}

#[cfg(test)]
impl<W> Registry<W> {
    /// Numbers of open connections and of kept resets.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let resets: usize = self.resets.values().map(VecDeque::len).sum();
        assert_eq!(resets, self.resets_in_order.len());
        (self.open.values().map(Vec::len).sum(), resets)
    }
}
