//! Fences (B8.71): an operator shuts a machine out. A machine can take another name or another address, so a
//! fence holds for its name, short or full, and for every address that it has used under it. The row of
//! a host is the durable record of either: a fenced row fences its name and its address.
//!
//! Other hosts at such an address may be the machine under another name, or its neighbours: they get no
//! lock and no longer wait, but keep (B8.72) what they hold, since nothing shows that it is the machine's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::bytes::Name;
use crate::change::{Change, Client, Protocol};
use crate::clients::TrackedClient;
use crate::event::{Event, Release};
use crate::identity::{Caller, ClientId, HostKey, Incarnation, Transport};
use crate::keeper::Keeper;
use crate::names::NameIndex;
use crate::parking::Parked;
use crate::step::{OperatorError, Outcome, Refusal, Reply};
use crate::sweep::SweepScope;
use crate::time::Time;
use crate::waiters::WaiterId;

/// The most addresses of one machine that are fenced because its name appeared there (I10). From others
/// it is refused by its name.
const ADDRESSES_MAX: usize = 64;

/// The fenced rows, by name and by address.
#[derive(Default)]
pub(crate) struct Fences {
    names: NameIndex,
    addresses: BTreeMap<IpAddr, usize>,
}

impl Fences {
    pub(crate) fn insert(&mut self, row: &Client) {
        if names_a_machine(&row.name) {
            self.names.insert(&row.name, row.id);
        }
        *self.addresses.entry(row.address).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, row: &Client) {
        self.names.remove(&row.name, row.id);
        if let Some(count) = self.addresses.get_mut(&row.address) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&row.address);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    pub(crate) fn has_name(&self, name: &Name) -> bool {
        self.names.contains(name)
    }

    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }
}

/// Whether a name tells machines apart. Many call themselves `localhost`.
fn names_a_machine(name: &Name) -> bool {
    let generic = ["localhost", "(none)"];
    let is = |generic: &&str| name.names_same_machine(&Name::from(*generic));
    !name.bytes().is_empty() && !generic.iter().any(is)
}

/// Whom a fence of a client hits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceScope {
    /// The client and the hosts of its name: they lose what they hold.
    pub machine: BTreeSet<ClientId>,
    /// Their addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Other hosts at these addresses: they get no lock and cannot write.
    pub neighbours: BTreeSet<ClientId>,
}

impl Keeper {
    /// Whom a fence of this client hits, as far as it is known, besides hosts at `others`, which are
    /// addresses that the machine used without locking.
    pub fn fence_scope(&self, client: ClientId, others: &[IpAddr]) -> FenceScope {
        let machine = self.same_machine(client);
        let rows = machine.iter().filter_map(|id| self.clients.get(*id));
        let addresses: BTreeSet<IpAddr> =
            rows.map(|tracked| tracked.row.address).chain(others.iter().copied()).collect();
        let there = addresses.iter().flat_map(|address| self.clients.hosts_at(*address));
        let neighbours = there.map(|tracked| tracked.row.id).filter(|id| !machine.contains(id));
        FenceScope { neighbours: neighbours.collect(), machine, addresses }
    }

    /// Whether a host of this name, or at this address, is fenced.
    pub fn is_shut_out(&self, address: IpAddr, name: &Name) -> bool {
        let fences = &self.clients.fences;
        fences.has_address(address.to_canonical()) || fences.has_name(name)
    }

    /// The client, and all hosts whose names name the same machine as one of them.
    fn same_machine(&self, client: ClientId) -> BTreeSet<ClientId> {
        let mut found = BTreeSet::from([client]);
        let mut unseen = vec![client];
        while let Some(id) = unseen.pop() {
            let Some(tracked) = self.clients.get(id) else { continue };
            if names_a_machine(&tracked.row.name) {
                let named = self.clients.named(&tracked.row.name);
                unseen.extend(named.into_iter().filter(|id| found.insert(*id)));
            }
        }
        found
    }

    pub(crate) fn fence(
        &mut self,
        client: ClientId,
        by: Name,
        now: Time,
    ) -> Result<u64, OperatorError> {
        self.host_of(client)?;
        let FenceScope { machine, addresses, neighbours } = self.fence_scope(client, &[]);
        let mut all = 0;
        for host in machine {
            self.set_fenced(host, true);
            self.event(Event::Fenced { client: host, by: by.clone() });
            let released = self.sweep(host, SweepScope::Everything, now);
            if released > 0 {
                let why = Release::Operator(by.clone());
                self.event(Event::Released { client: host, count: released, why });
            }
            self.settle_report(host);
            all += released;
        }
        for neighbour in neighbours {
            self.stop_waiting(neighbour, now);
        }
        self.refuse_parked(&addresses);
        Ok(all)
    }

    /// Lifts the fence of the whole machine.
    pub(crate) fn unfence(&mut self, client: ClientId, by: Name) -> Result<u64, OperatorError> {
        self.host_of(client)?;
        for host in self.same_machine(client) {
            if host == client || self.is_host_fenced(host) {
                self.set_fenced(host, false);
                self.event(Event::Unfenced { client: host, by: by.clone() });
            }
        }
        Ok(0)
    }

    fn set_fenced(&mut self, client: ClientId, fenced: bool) {
        if let Some(row) = self.clients.set_fenced(client, fenced) {
            self.change(Change::Client(row));
        }
    }

    /// A waiter would be granted although its host gets no lock.
    fn stop_waiting(&mut self, host: ClientId, now: Time) {
        let waiting: Vec<WaiterId> =
            self.waiters_of(host).map(|waiter| WaiterId(waiter.id.0)).collect();
        if !waiting.is_empty() {
            self.event(Event::Refused { client: Some(host), why: Refusal::Fenced });
        }
        for waiter in waiting {
            self.remove_waiter(waiter, now);
        }
    }

    /// Parked shares, and locks from elsewhere, are refused when they are decided.
    fn refuse_parked(&mut self, addresses: &BTreeSet<IpAddr>) {
        let clients = &self.clients;
        let is_fenced = |host: &HostKey| {
            let tracked = clients.find_host(host).and_then(|id| clients.get(id));
            tracked.is_some_and(|tracked| tracked.row.fenced)
        };
        let refused = |parked: &Parked| {
            let Parked::Lock(request, _) = parked else { return false };
            let host = &request.caller.host;
            is_fenced(host) || (!request.reclaim && addresses.contains(&host.address()))
        };
        for request in self.parking.take_out(refused) {
            self.reply(request, Reply::Lock(Outcome::Refused(Refusal::Fenced)));
        }
    }

    /// Whether a LOCK or SHARE is refused because of a fence. A neighbour may reclaim what it held.
    pub(crate) fn is_refused_by_fence(
        &mut self,
        caller: &Caller,
        host: Option<ClientId>,
        reclaims: bool,
        now: Time,
    ) -> bool {
        if self.clients.fences.is_empty() {
            return false;
        }
        if host.is_some_and(|host| self.is_host_fenced(host)) {
            return true;
        }
        if self.clients.fences.has_name(caller.host.name()) {
            // The source of a datagram can be forged, and the server itself is no client's address.
            if caller.namespace.transport() == Transport::Tcp && !caller.is_local() {
                let ours = caller.namespace.server_address();
                self.fence_appearance(caller.host.clone(), ours, now);
            }
            return true;
        }
        let there = self.clients.fences.has_address(caller.host.address());
        there && !(reclaims && host.is_some())
    }

    /// Fences the address at which the name of a fenced machine appeared.
    pub(crate) fn fence_appearance(&mut self, key: HostKey, ours: IpAddr, now: Time) {
        if !self.clients.fences.has_name(key.name()) {
            return;
        }
        let of_machine = self.clients.named(key.name());
        let rows = of_machine.iter().filter_map(|id| self.clients.get(*id));
        let fenced = |tracked: &&TrackedClient| tracked.row.fenced;
        if rows.filter(fenced).count() >= ADDRESSES_MAX {
            return;
        }
        match self.clients.find_host(&key) {
            Some(known) if self.is_host_fenced(known) => return,
            Some(known) => self.set_fenced(known, true),
            None if self.clients.len() >= self.clients_max() => return,
            None => {
                let row = Client {
                    id: ClientId(self.ids.take()),
                    protocol: Protocol::NLM,
                    address: key.address(),
                    name: key.name().clone(),
                    incarnation: Incarnation::UNKNOWN,
                    reboot: None,
                    monitored: false,
                    fenced: true,
                    used: vec![ours],
                    registered_at_ms: now.wall_ms,
                    epoch: self.epoch,
                    registrant: None,
                };
                self.insert_client(row, now);
            }
        }
        if let Some(client) = self.clients.find_host(&key) {
            self.event(Event::FenceExtended { client });
        }
    }
}
