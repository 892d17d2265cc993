//! The client tracker (R5.1): hosts that lock and registrants of SM_MON, in one table that knows no
//! protocol. What is durable is in the row; what is learnt in this epoch is beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::{Client, Protocol};
use crate::identity::{ClientId, HostKey, Incarnation};
use crate::map::{Map, Seed};
use crate::request::Callback;
use crate::table::OwnerId;
use crate::view::PendingReboot;

/// An SM_MON of the same source, `my_id` and `mon_name` is the same registration.
type RegistrationKey = (IpAddr, Callback, Name);

pub struct Clients {
    rows: BTreeMap<ClientId, Tracked>,
    hosts: Map<HostKey, ClientId>,
    registrants: Map<RegistrationKey, ClientId>,
    by_address: BTreeMap<IpAddr, BTreeSet<ClientId>>,
}

/// A client, and what this epoch knows of it.
pub struct Tracked {
    pub row: Arc<Client>,
    pub last_seen: Option<Duration>,
    pub locks: usize,
    pub shares: usize,
    pub waiting: usize,
    /// Locks and shares recovered and not yet reclaimed.
    pub unconfirmed: usize,
    /// Those of them that grace waits for.
    pub missing: usize,
    /// How many locks and waiters it has of each incarnation that they carry.
    taken_as: BTreeMap<Incarnation, usize>,
    /// Owners of this host that have a number.
    pub owners: BTreeSet<OwnerId>,
    /// Since when it has nothing.
    pub idle_since: Duration,
    pub suspect: Option<Suspicion>,
    pub crashed: bool,
    /// An old connection of it was reset since its last request (R6.2).
    pub reset: bool,
    /// The incarnation that was last proven gone, and until when its packets may still arrive.
    pub haunted: Option<(Incarnation, Duration)>,
    pub pending: Option<PendingReboot>,
    /// When it last sent a reclaim in this epoch.
    pub reclaimed: Option<Duration>,
    /// When its last LOCK came.
    pub last_lock: Option<Duration>,
}

/// Signs of a reboot without proof (R6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// It speaks of another state than some of its locks were taken in.
    State,
    /// Its old connection was reset, and it goes on in the same state.
    Reset,
}

impl Tracked {
    pub fn count_taken(&mut self, incarnation: Incarnation) {
        if incarnation.is_known() {
            *self.taken_as.entry(incarnation).or_default() += 1;
        }
    }

    pub fn count_given_back(&mut self, incarnation: Incarnation) {
        if let Some(count) = self.taken_as.get_mut(&incarnation) {
            *count -= 1;
            if *count == 0 {
                self.taken_as.remove(&incarnation);
            }
        }
    }

    /// Whether it has locks or waiters of another incarnation than the one it is known to be in.
    /// Those that carry no state, and shares, which never do, say nothing.
    pub fn has_strangers(&self) -> bool {
        self.has_others(self.row.incarnation, None)
    }

    /// Whether it has locks or waiters of another incarnation than these two.
    pub fn has_others(&self, one: Incarnation, other: Option<Incarnation>) -> bool {
        self.taken_as.keys().any(|taken| *taken != one && Some(*taken) != other)
    }

    /// The first incarnation that it has something of.
    pub fn oldest(&self) -> Incarnation {
        self.taken_as.keys().next().copied().unwrap_or(self.row.incarnation)
    }

    /// What counts against its limit.
    pub fn entries(&self) -> usize {
        self.locks + self.shares + self.waiting
    }

    /// Whether this machine itself is the host: it came to us from an address that it called.
    pub fn is_local(&self) -> bool {
        self.row.address.is_loopback() || self.row.used.contains(&self.row.address)
    }

    pub fn has_nothing(&self) -> bool {
        self.locks == 0 && self.shares == 0 && self.waiting == 0
    }
}

impl Clients {
    pub fn new(seed: Seed) -> Self {
        Self {
            rows: BTreeMap::new(),
            hosts: seed.map(),
            registrants: seed.map(),
            by_address: BTreeMap::new(),
        }
    }

    pub fn insert(&mut self, row: Arc<Client>, now: Duration) {
        let id = row.id;
        match &row.registrant {
            None => {
                self.hosts.insert(row.key(), id);
                self.by_address.entry(row.address).or_default().insert(id);
            }
            Some(registrant) => {
                let key = (row.address, registrant.callback.clone(), registrant.watched.clone());
                self.registrants.insert(key, id);
            }
        }
        let tracked = Tracked {
            row,
            last_seen: None,
            locks: 0,
            shares: 0,
            waiting: 0,
            unconfirmed: 0,
            missing: 0,
            taken_as: BTreeMap::new(),
            owners: BTreeSet::new(),
            idle_since: now,
            suspect: None,
            crashed: false,
            reset: false,
            haunted: None,
            pending: None,
            reclaimed: None,
            last_lock: None,
        };
        self.rows.insert(id, tracked);
    }

    pub fn remove(&mut self, id: ClientId) -> Option<Tracked> {
        let tracked = self.rows.remove(&id)?;
        let row = &tracked.row;
        match &row.registrant {
            None => {
                self.hosts.remove(&row.key());
                if let Some(there) = self.by_address.get_mut(&row.address) {
                    there.remove(&id);
                    if there.is_empty() {
                        self.by_address.remove(&row.address);
                    }
                }
            }
            Some(registrant) => {
                let key = (row.address, registrant.callback.clone(), registrant.watched.clone());
                self.registrants.remove(&key);
            }
        }
        Some(tracked)
    }

    pub fn find_host(&self, key: &HostKey) -> Option<ClientId> {
        self.hosts.get(key).copied()
    }

    pub fn find_registrant(&self, key: &RegistrationKey) -> Option<ClientId> {
        self.registrants.get(key).copied()
    }

    pub fn get(&self, id: ClientId) -> Option<&Tracked> {
        self.rows.get(&id)
    }

    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut Tracked> {
        self.rows.get_mut(&id)
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Tracked> {
        self.rows.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tracked> {
        self.rows.values_mut()
    }

    pub fn after(&self, id: ClientId) -> impl Iterator<Item = &Tracked> {
        self.rows.range((Bound::Excluded(id), Bound::Unbounded)).map(|(_, tracked)| tracked)
    }

    pub fn hosts(&self) -> impl Iterator<Item = &Tracked> {
        self.iter().filter(|tracked| tracked.row.protocol == Protocol::Nlm)
    }

    /// Hosts (not registrants) at an address.
    pub fn hosts_at(&self, address: IpAddr) -> impl Iterator<Item = &Tracked> {
        let ids = self.by_address.get(&address.to_canonical()).into_iter().flatten();
        ids.filter_map(|id| self.rows.get(id))
    }

    pub fn registrants(&self) -> impl Iterator<Item = &Tracked> {
        self.iter().filter(|tracked| tracked.row.registrant.is_some())
    }

    /// The host that has had nothing for the longest time, to make room for another. A fenced one
    /// stays: forgetting it would lift the fence.
    pub fn longest_idle(&self) -> Option<ClientId> {
        self.hosts()
            .filter(|tracked| tracked.has_nothing())
            .filter(|tracked| !tracked.row.fenced)
            .min_by_key(|tracked| tracked.idle_since)
            .map(|tracked| tracked.row.id)
    }

    pub fn longest_silent_registrant(&self) -> Option<ClientId> {
        self.registrants().min_by_key(|tracked| tracked.last_seen).map(|tracked| tracked.row.id)
    }

    /// What the host was last known to be in.
    pub fn incarnation(&self, id: ClientId) -> Incarnation {
        self.get(id).map_or(Incarnation::UNKNOWN, |tracked| tracked.row.incarnation)
    }
}
