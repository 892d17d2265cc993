//! The client tracker: lock hosts, SM_MON registrants and clients of other protocols in one table.
//! The row is durable; everything beside it is known in this epoch only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::{Client, Protocol};
use crate::fences::Fences;
use crate::identity::{ClientId, HostKey, Incarnation};
use crate::interned::OwnerId;
use crate::map::{Map, Seed};
use crate::names::NameIndex;
use crate::reboot_reports::Arrival;
use crate::request::Callback;
use crate::taken::Taken;
use crate::view::PendingReboot;
use crate::waiters::WaiterId;

/// Equal source, `my_id` and `mon_name` denote the same SM_MON registration.
type RegistrationKey = (IpAddr, Callback, Name);

pub(crate) struct Clients {
    rows: BTreeMap<ClientId, TrackedClient>,
    hosts: Map<HostKey, ClientId>,
    registrants: Map<RegistrationKey, ClientId>,
    foreign: BTreeMap<(Protocol, HostKey), ClientId>,
    by_address: BTreeMap<IpAddr, HostsAt>,
    /// Lock hosts by name.
    names: NameIndex,
    pub(crate) fences: Fences,
    /// Lock hosts that may hold nothing, the longest idle first.
    idle: IdleQueue,
    registered: Registered,
    /// The locks, shares and waiters of all hosts at one address, by slot.
    entries: Vec<usize>,
    free_slots: Vec<AddressSlot>,
    /// Entries of the queues that searches examined.
    #[cfg(test)]
    pub(crate) looked_at: std::cell::Cell<usize>,
}

/// The hosts at one address, without registrants.
struct HostsAt {
    ids: BTreeSet<ClientId>,
    slot: AddressSlot,
    idle: IdleQueue,
}

/// When a host last gave something up, as far as it was looked at. A host that holds something may be
/// in the queue, with its entry from before; `longest_idle` removes it, and it returns when it has
/// nothing. So neither a LOCK nor an UNLOCK touches the queue, and each step of a search is paid for by
/// an earlier one of these.
type IdleQueue = BTreeSet<(Duration, ClientId)>;

/// Registrants, by what they are looked for.
#[derive(Default)]
struct Registered {
    by_address: BTreeMap<IpAddr, BTreeSet<ClientId>>,
    /// By the name of the machine that they watch.
    watched: NameIndex,
    /// By its address, if it is named by one.
    watched_addresses: BTreeMap<IpAddr, BTreeSet<ClientId>>,
    /// The longest silent first, as far as they were looked at.
    silent: IdleQueue,
}

/// The place of an address in `Clients::entries`, kept in the row of each host there so that a lock
/// costs no lookup of the address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressSlot(usize);

impl AddressSlot {
    /// Of a registrant, which holds nothing.
    const NONE: AddressSlot = AddressSlot(usize::MAX);
}

/// A client's durable row, and what this epoch knows of it.
pub(crate) struct TrackedClient {
    pub row: Arc<Client>,
    pub last_seen: Option<Duration>,
    pub locks: usize,
    pub shares: usize,
    pub waiting: usize,
    /// Waiters that were passed over because the host did not answer.
    pub absent: BTreeSet<WaiterId>,
    address_slot: AddressSlot,
    /// Locks and shares recovered and not yet reclaimed.
    pub unconfirmed: usize,
    /// Those of them that grace waits for.
    pub missing: usize,
    /// Its locks, shares and waiters, by the kernel that took them.
    pub taken: Taken,
    /// The server's addresses that it had used at the start, or when the server last lost one.
    pub used_before: Vec<IpAddr>,
    /// Its owners that have an interned id.
    pub owners: BTreeSet<OwnerId>,
    /// When it last gave something up.
    pub idle_since: Duration,
    /// Its entry in the queue of idle hosts or of silent registrants.
    queued: Option<Duration>,
    pub suspect: Option<SuspectReason>,
    /// The state that its LOCKs carried before the recorded one, without a reboot in between.
    pub previous_state: Option<Incarnation>,
    /// When its LOCKs last returned to the state before.
    pub alternated: Option<Duration>,
    pub crashed: bool,
    /// A connection of it was reset since its last LOCK (B3.15).
    pub reset: bool,
    /// The incarnation last proven gone, and until when its requests are refused as stale.
    pub quarantine: Option<(Incarnation, Duration)>,
    pub pending: Option<PendingReboot>,
    /// It has been `missing` something in this epoch.
    pub expected: bool,
    /// Something was released without its request while it was `missing` something.
    pub deprived: bool,
    /// When it last sent a reclaim in this epoch.
    pub reclaimed: Option<Duration>,
    /// When it first reclaimed locks or shares without a state, as long as it is not known which
    /// kernel did.
    pub reclaimed_by_unknown: Option<Duration>,
    /// When its last LOCK arrived.
    pub last_lock: Option<Duration>,
}

/// Signs of a reboot that are no proof (B3.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspectReason {
    /// Some of its locks were taken in another state than it is in now, which the LOCK that arrived
    /// then carried first.
    State(Arrival),
    /// Its connection was reset, and it continues in the same state.
    Reset,
}

impl TrackedClient {
    /// Whether something of it may be of a kernel other than the recorded one. If a reboot to the
    /// recorded state was accepted, entries without a state were taken after it.
    pub(crate) fn has_other_incarnations(&self) -> bool {
        let recorded = self.row.incarnation;
        let accepted = self.row.reboot.is_some_and(|reboot| reboot.to == recorded);
        self.taken.has_others(recorded, None, if accepted { 0 } else { u32::MAX })
    }

    /// The oldest incarnation of its locks, waiters and shares, except this one.
    pub(crate) fn oldest(&self, except: Option<Incarnation>) -> Incarnation {
        self.taken.oldest(except).unwrap_or(self.row.incarnation)
    }

    /// What counts against its limit.
    pub(crate) fn entries(&self) -> usize {
        self.locks + self.shares + self.waiting
    }

    /// Whether the host is this machine: it called from an address that it also called.
    pub(crate) fn is_local(&self) -> bool {
        self.row.address.is_loopback() || self.row.used.contains(&self.row.address)
    }

    /// Whether it has reclaimed, or given up by itself, all that it was expected to reclaim.
    pub(crate) fn has_everything_back(&self) -> bool {
        self.expected && self.missing == 0 && !self.deprived
    }

    pub(crate) fn has_nothing(&self) -> bool {
        self.locks == 0 && self.shares == 0 && self.waiting == 0
    }

    /// Whether it holds nothing, and no search for idle hosts would find it.
    pub(crate) fn is_unnoticed_idle(&self) -> bool {
        self.queued.is_none() && self.has_nothing()
    }

    /// Whether it may give its place to another. Never a fenced host: unregistering it would lift the
    /// fence.
    fn may_leave(&self) -> bool {
        self.has_nothing() && !self.row.fenced
    }
}

/// Where in its queue a client belongs; `None` if in none.
fn queue_key(tracked: &TrackedClient) -> Option<Duration> {
    match &tracked.row.registrant {
        Some(_) => Some(tracked.last_seen.unwrap_or_default()),
        None => Some(tracked.idle_since).filter(|_| tracked.row.is_host() && tracked.may_leave()),
    }
}

fn remove_from(index: &mut BTreeMap<IpAddr, BTreeSet<ClientId>>, address: IpAddr, id: ClientId) {
    if let Some(ids) = index.get_mut(&address) {
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(&address);
        }
    }
}

impl Clients {
    pub(crate) fn new(seed: Seed) -> Self {
        Self {
            rows: BTreeMap::new(),
            hosts: seed.map(),
            registrants: seed.map(),
            foreign: BTreeMap::new(),
            by_address: BTreeMap::new(),
            names: NameIndex::default(),
            fences: Fences::default(),
            idle: IdleQueue::new(),
            registered: Registered::default(),
            entries: Vec::new(),
            free_slots: Vec::new(),
            #[cfg(test)]
            looked_at: Default::default(),
        }
    }

    pub(crate) fn insert(&mut self, row: Arc<Client>, now: Duration) {
        let id = row.id;
        let mut address_slot = AddressSlot::NONE;
        if row.fenced {
            self.fences.insert(&row);
        }
        match &row.registrant {
            None if row.protocol.is_foreign() => {
                self.foreign.insert((row.protocol.clone(), row.key()), id);
            }
            None => {
                self.hosts.insert(row.key(), id);
                self.names.insert(&row.name, id);
                let Self { by_address, entries, free_slots, .. } = self;
                let there = by_address.entry(row.address).or_insert_with(|| {
                    let slot = free_slots.pop().unwrap_or_else(|| {
                        entries.push(0);
                        AddressSlot(entries.len() - 1)
                    });
                    HostsAt { ids: BTreeSet::new(), slot, idle: IdleQueue::new() }
                });
                there.ids.insert(id);
                address_slot = there.slot;
            }
            Some(registrant) => {
                let key = (row.address, registrant.callback.clone(), registrant.watched.clone());
                self.registrants.insert(key, id);
                let Registered { by_address, watched, watched_addresses, .. } =
                    &mut self.registered;
                by_address.entry(row.address).or_default().insert(id);
                watched.insert(&registrant.watched, id);
                if let Some(address) = registrant.watched.as_address() {
                    watched_addresses.entry(address).or_default().insert(id);
                }
            }
        }
        let tracked = TrackedClient {
            row,
            last_seen: None,
            locks: 0,
            shares: 0,
            waiting: 0,
            absent: BTreeSet::new(),
            address_slot,
            unconfirmed: 0,
            missing: 0,
            taken: Taken::default(),
            used_before: Vec::new(),
            owners: BTreeSet::new(),
            idle_since: now,
            queued: None,
            suspect: None,
            previous_state: None,
            alternated: None,
            crashed: false,
            reset: false,
            quarantine: None,
            pending: None,
            expected: false,
            deprived: false,
            reclaimed: None,
            reclaimed_by_unknown: None,
            last_lock: None,
        };
        self.rows.insert(id, tracked);
        self.queue(id);
    }

    pub(crate) fn remove(&mut self, id: ClientId) -> Option<TrackedClient> {
        self.unqueue(id);
        let tracked = self.rows.remove(&id)?;
        let row = &tracked.row;
        if row.fenced {
            self.fences.remove(row);
        }
        match &row.registrant {
            None if row.protocol.is_foreign() => {
                self.foreign.remove(&(row.protocol.clone(), row.key()));
            }
            None => {
                self.hosts.remove(&row.key());
                self.names.remove(&row.name, id);
                if let Some(there) = self.by_address.get_mut(&row.address) {
                    there.ids.remove(&id);
                    if there.ids.is_empty() {
                        if let Some(entries) = self.entries.get_mut(there.slot.0) {
                            *entries = 0;
                        }
                        self.free_slots.push(there.slot);
                        self.by_address.remove(&row.address);
                    }
                }
            }
            Some(registrant) => {
                let key = (row.address, registrant.callback.clone(), registrant.watched.clone());
                self.registrants.remove(&key);
                let Registered { by_address, watched, watched_addresses, .. } =
                    &mut self.registered;
                remove_from(by_address, row.address, id);
                watched.remove(&registrant.watched, id);
                if let Some(address) = registrant.watched.as_address() {
                    remove_from(watched_addresses, address, id);
                }
            }
        }
        Some(tracked)
    }

    /// Fences a host or lifts its fence; returns the row to be recorded.
    pub(crate) fn set_fenced(&mut self, id: ClientId, fenced: bool) -> Option<Arc<Client>> {
        let tracked = self.rows.get_mut(&id)?;
        if tracked.row.fenced {
            self.fences.remove(&tracked.row);
        }
        Arc::make_mut(&mut tracked.row).fenced = fenced;
        if fenced {
            self.fences.insert(&tracked.row);
        }
        let row = tracked.row.clone();
        if !fenced {
            self.queue(id);
        }
        Some(row)
    }

    /// The hosts whose names name the same machine.
    pub(crate) fn named(&self, name: &Name) -> BTreeSet<ClientId> {
        self.names.find(name)
    }

    /// The registrants that watch a machine of this name or, if it is given, of this address.
    pub(crate) fn watchers(&self, name: &Name, address: Option<IpAddr>) -> BTreeSet<ClientId> {
        let mut watchers = self.registered.watched.find(name);
        let by_address = address.and_then(|it| self.registered.watched_addresses.get(&it));
        watchers.extend(by_address.into_iter().flatten());
        watchers
    }

    pub(crate) fn registrants_at(&self, address: IpAddr) -> impl Iterator<Item = &TrackedClient> {
        let there = self.registered.by_address.get(&address);
        there.into_iter().flatten().filter_map(|id| self.rows.get(id))
    }

    pub(crate) fn count_registrants_at(&self, address: IpAddr) -> usize {
        self.registered.by_address.get(&address).map_or(0, BTreeSet::len)
    }

    pub(crate) fn find_host(&self, key: &HostKey) -> Option<ClientId> {
        self.hosts.get(key).copied()
    }

    pub(crate) fn find_registrant(&self, key: &RegistrationKey) -> Option<ClientId> {
        self.registrants.get(key).copied()
    }

    pub(crate) fn find_foreign(&self, protocol: &Protocol, key: &HostKey) -> Option<ClientId> {
        self.foreign.get(&(protocol.clone(), key.clone())).copied()
    }

    pub(crate) fn get(&self, id: ClientId) -> Option<&TrackedClient> {
        self.rows.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut TrackedClient> {
        self.rows.get_mut(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &TrackedClient> {
        self.rows.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TrackedClient> {
        self.rows.values_mut()
    }

    pub(crate) fn after(&self, id: ClientId) -> impl Iterator<Item = &TrackedClient> {
        self.rows.range((Bound::Excluded(id), Bound::Unbounded)).map(|(_, tracked)| tracked)
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = &TrackedClient> {
        self.iter().filter(|tracked| tracked.row.is_host())
    }

    /// Hosts (not registrants) at an address.
    pub(crate) fn hosts_at(&self, address: IpAddr) -> impl Iterator<Item = &TrackedClient> {
        let there = self.by_address.get(&address.to_canonical());
        let ids = there.into_iter().flat_map(|there| &there.ids);
        ids.filter_map(|id| self.rows.get(id))
    }

    /// The number of hosts at an address, and of their locks, shares and waiters.
    pub(crate) fn load_at(&self, address: IpAddr) -> (usize, usize) {
        let there = self.by_address.get(&address.to_canonical());
        there.map_or((0, 0), |there| (there.ids.len(), self.entries_in(there.slot)))
    }

    /// The locks, shares and waiters of all hosts at this host's address.
    pub(crate) fn entries_beside(&self, tracked: &TrackedClient) -> usize {
        self.entries_in(tracked.address_slot)
    }

    fn entries_in(&self, slot: AddressSlot) -> usize {
        self.entries.get(slot.0).copied().unwrap_or(0)
    }

    /// `get_mut`, for a host that gets one more lock, share or waiter.
    pub(crate) fn count_entry(&mut self, id: ClientId) -> Option<&mut TrackedClient> {
        let tracked = self.rows.get_mut(&id)?;
        if let Some(entries) = self.entries.get_mut(tracked.address_slot.0) {
            *entries += 1;
        }
        Some(tracked)
    }

    /// `get_mut`, for a host that gives one up.
    pub(crate) fn uncount_entry(&mut self, id: ClientId) -> Option<&mut TrackedClient> {
        let tracked = self.rows.get_mut(&id)?;
        if let Some(entries) = self.entries.get_mut(tracked.address_slot.0) {
            *entries -= 1;
        }
        Some(tracked)
    }

    /// The host that has held nothing for the longest time.
    pub(crate) fn longest_idle(&mut self) -> Option<ClientId> {
        self.first_of(|clients| clients.idle.first())
    }

    /// The same among the hosts at an address.
    pub(crate) fn longest_idle_at(&mut self, address: IpAddr) -> Option<ClientId> {
        let address = address.to_canonical();
        self.first_of(|clients| clients.by_address.get(&address)?.idle.first())
    }

    pub(crate) fn longest_silent_registrant(&mut self) -> Option<ClientId> {
        self.first_of(|clients| clients.registered.silent.first())
    }

    /// The first of a queue that is there with right. Those before it are removed, or moved to where
    /// they belong.
    fn first_of(
        &mut self,
        first: impl Fn(&Self) -> Option<&(Duration, ClientId)>,
    ) -> Option<ClientId> {
        loop {
            let (since, id) = *first(self)?;
            #[cfg(test)]
            self.looked_at.set(self.looked_at.get() + 1);
            if self.rows.get(&id).and_then(queue_key) == Some(since) {
                return Some(id);
            }
            self.unqueue(id);
            self.queue(id);
        }
    }

    /// Adds a client to the queues, if it may give its place to another.
    pub(crate) fn queue(&mut self, id: ClientId) {
        let Some(tracked) = self.rows.get_mut(&id) else { return };
        let Some(since) = queue_key(tracked).filter(|_| tracked.queued.is_none()) else { return };
        tracked.queued = Some(since);
        match &tracked.row.registrant {
            Some(_) => {
                self.registered.silent.insert((since, id));
            }
            None => {
                self.idle.insert((since, id));
                if let Some(there) = self.by_address.get_mut(&tracked.row.address) {
                    there.idle.insert((since, id));
                }
            }
        }
    }

    fn unqueue(&mut self, id: ClientId) {
        let Some(tracked) = self.rows.get_mut(&id) else { return };
        let Some(since) = tracked.queued.take() else { return };
        self.registered.silent.remove(&(since, id));
        self.idle.remove(&(since, id));
        if let Some(there) = self.by_address.get_mut(&tracked.row.address) {
            there.idle.remove(&(since, id));
        }
    }

    /// The reboot reports of a host that have arrived, for what it takes now.
    pub(crate) fn reports(&self, id: Option<ClientId>) -> u32 {
        id.and_then(|id| self.get(id)).map_or(0, |tracked| tracked.taken.reports())
    }

    /// The host's recorded incarnation.
    pub(crate) fn incarnation(&self, id: ClientId) -> Incarnation {
        self.get(id).map_or(Incarnation::UNKNOWN, |tracked| tracked.row.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Epoch;

    const HOSTS: u64 = 10_000;

    fn row(number: u64) -> Arc<Client> {
        Arc::new(Client {
            id: ClientId(number),
            protocol: Protocol::NLM,
            address: IpAddr::from((0x0a00_0000 + number as u32).to_be_bytes()),
            name: Name::from(format!("host{number}.example").as_str()),
            incarnation: Incarnation(3),
            reboot: None,
            monitored: true,
            fenced: false,
            used: Vec::new(),
            registered_at_ms: 0,
            epoch: Epoch(1),
            registrant: None,
        })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// B7.121: each step of a search is paid for by a LOCK or UNLOCK, so that a host that invents names
    /// at the limit of clients does not have all of them examined for each.
    #[test]
    fn the_longest_idle_is_found_without_a_scan() {
        let mut clients = Clients::new(Seed(7));
        for number in 1..=HOSTS {
            clients.insert(row(number), at(number));
        }
        let take = |clients: &mut Clients| {
            let id = clients.longest_idle().unwrap();
            clients.remove(id);
            id
        };
        for number in 1..=100 {
            assert_eq!(take(&mut clients), ClientId(number));
        }
        assert_eq!(clients.looked_at.take(), 100);
        // One that holds something, one that was used since, one that is fenced.
        clients.get_mut(ClientId(101)).unwrap().locks = 1;
        clients.get_mut(ClientId(102)).unwrap().idle_since = at(HOSTS + 5);
        clients.set_fenced(ClientId(103), true);
        assert_eq!(take(&mut clients), ClientId(104));
        assert_eq!(clients.looked_at.take(), 4);
        // They return when they have nothing, or are fenced no more.
        let held = clients.get_mut(ClientId(101)).unwrap();
        (held.locks, held.idle_since) = (0, at(HOSTS + 6));
        assert!(held.is_unnoticed_idle());
        clients.queue(ClientId(101));
        clients.set_fenced(ClientId(103), false);
        assert_eq!(take(&mut clients), ClientId(103));
        for number in 105..=HOSTS {
            let address = row(number).address;
            assert_eq!(clients.longest_idle_at(address), Some(ClientId(number)));
            assert_eq!(take(&mut clients), ClientId(number));
        }
        assert_eq!([take(&mut clients), take(&mut clients)], [ClientId(102), ClientId(101)]);
        assert_eq!(clients.longest_idle(), None);
        assert!(clients.looked_at.take() < 3 * HOSTS as usize);
        assert!(clients.idle.is_empty() && clients.by_address.is_empty());
    }
}
