//! Registration: the server monitors every lock client itself, from its first lock until it has
//! held nothing for a day (B3.1, B3.2).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::change::{Change, Client, Exactness, Protocol};
use crate::event::Event;
use crate::identity::{Caller, ClientId, Incarnation};
use crate::keeper::Keeper;
use crate::step::Refusal;
use crate::time::Time;
use crate::timer::Timer;

/// A host that has held nothing for this long is unregistered.
const IDLE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How many of the server's addresses are remembered per host.
const USED_ADDRESSES_MAX: usize = 16;

impl Keeper {
    /// Notes that a host called.
    pub(crate) fn hear(&mut self, caller: &Caller, now: Time) -> Option<ClientId> {
        let client = self.clients.find_host(&caller.host);
        if let Some(client) = client {
            self.hear_client(client, now);
        }
        self.hear_call(caller.is_local(), now);
        client
    }

    pub(crate) fn hear_client(&mut self, client: ClientId, now: Time) {
        if let Some(tracked) = self.clients.get_mut(client) {
            tracked.crashed = false;
            let absent = !tracked.absent.is_empty() || self.waiter_probes.len() > 0;
            let first = tracked.last_seen.replace(now.mono).is_none();
            if first && tracked.row.is_host() && tracked.row.epoch < self.epoch {
                self.note_progress(now);
                self.resend_notice_to(client, now);
            }
            if first && self.has_doubtful(client) {
                self.await_late_reclaim(client, now);
            }
            if absent {
                self.try_absent_again(client);
            }
        }
    }

    /// Notes a call from an address, for all hosts there; `local` if from this machine.
    pub(crate) fn hear_address(&mut self, address: IpAddr, local: bool, now: Time) {
        let there: Vec<ClientId> =
            self.clients.hosts_at(address).map(|tracked| tracked.row.id).collect();
        for client in there {
            self.hear_client(client, now);
        }
        self.hear_call(local, now);
    }

    /// Changes a row of the client tracker and records the change.
    pub(crate) fn update_client(&mut self, id: ClientId, update: impl FnOnce(&mut Client)) {
        if let Some(tracked) = self.clients.get_mut(id) {
            update(Arc::make_mut(&mut tracked.row));
            let row = tracked.row.clone();
            self.change(Change::Client(row));
        }
    }

    /// Inserts or updates the row of a calling host, in the step of its lock (B3.1). A host learns
    /// its first known state here.
    pub(crate) fn register(
        &mut self,
        caller: &Caller,
        known: Option<ClientId>,
        monitored: bool,
        incarnation: Incarnation,
        now: Time,
    ) -> Result<ClientId, Refusal> {
        let ours = caller.namespace.server_address();
        if let Some(id) = known {
            let Some(tracked) = self.clients.get(id) else { return Ok(id) };
            let row = &tracked.row;
            let learns_state = incarnation.is_known() && !row.incarnation.is_known();
            if (monitored && !row.monitored) || learns_state || !row.used.contains(&ours) {
                let newly_monitored = monitored && !row.monitored;
                self.update_client(id, |row| {
                    row.monitored |= monitored;
                    if learns_state {
                        row.incarnation = incarnation;
                    }
                    add_used(row, ours);
                });
                self.addresses.learn(ours);
                self.forget_unused_addresses(id);
                if newly_monitored {
                    self.event(Event::Registered { client: id });
                }
            }
            return Ok(id);
        }
        self.make_room_at(caller.host.address(), now)?;
        self.make_room(&Protocol::NLM, now)?;
        let row = Client {
            id: ClientId(self.ids.take()),
            protocol: Protocol::NLM,
            address: caller.host.address(),
            name: caller.host.name().clone(),
            incarnation,
            reboot: None,
            monitored,
            fenced: false,
            used: vec![ours],
            registered_at_ms: now.wall_ms,
            epoch: self.epoch,
            registrant: None,
        };
        Ok(self.insert_client(row, now))
    }

    pub(crate) fn insert_client(&mut self, row: Client, now: Time) -> ClientId {
        let (id, monitored) = (row.id, row.monitored);
        let row = Arc::new(row);
        self.change(Change::Client(row.clone()));
        self.clients.insert(row, now.mono);
        if let Some(tracked) = self.clients.get_mut(id) {
            tracked.last_lock = Some(now.mono);
        }
        self.hear_client(id, now);
        if !self.timers.is_set(Timer::Idle) {
            self.timers.set(Timer::Idle, now.mono + IDLE_MAX);
        }
        if monitored {
            self.event(Event::Registered { client: id });
        }
        id
    }

    /// Makes room for one more host at an address, which takes something (B7.70). Hosts there must
    /// not fill the tables for others.
    fn make_room_at(&mut self, address: IpAddr, now: Time) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let (hosts, entries) = self.clients.load_at(address);
        if entries >= limits.locks_per_address {
            return Err(Refusal::TooManyLocksOfAddress);
        }
        if hosts < limits.clients_per_address * self.open_factor() {
            return Ok(());
        }
        let mut leaves = None;
        if !self.recovery.in_grace {
            leaves = self.clients.longest_idle_at(address);
        }
        self.unregister(leaves.ok_or(Refusal::TooManyClientsOfAddress)?, now);
        Ok(())
    }

    /// The most clients. An open store may have some that left since, which must not keep others
    /// from reclaiming: it takes twice as many.
    pub(crate) fn clients_max(&self) -> usize {
        self.config.limits.clients * self.open_factor()
    }

    fn open_factor(&self) -> usize {
        let open = self.exactness == Exactness::Open && !self.recovery.window.has_ended();
        if open { 2 } else { 1 }
    }

    /// Makes room for one more client (B7.2). A client that holds something or may reclaim stays.
    pub(crate) fn make_room(&mut self, protocol: &Protocol, now: Time) -> Result<(), Refusal> {
        if self.clients.len() < self.clients_max() {
            return Ok(());
        }
        let mut leaves = None;
        if !self.recovery.in_grace {
            leaves = self.clients.longest_idle();
        }
        // A lock host takes precedence over a registrant.
        if leaves.is_none() && *protocol == Protocol::NLM {
            leaves = self.clients.longest_silent_registrant();
        }
        self.unregister(leaves.ok_or(Refusal::TooManyClients)?, now);
        Ok(())
    }

    pub(crate) fn unregister(&mut self, id: ClientId, now: Time) {
        if let Some(tracked) = self.clients.remove(id) {
            self.forget_notices(id, now);
            self.change(Change::ClientGone(id));
            if tracked.row.monitored {
                self.event(Event::Unregistered { client: id });
            }
        }
    }

    pub(crate) fn unregister_idle(&mut self, now: Time) {
        if self.recovery.in_grace {
            return self.timers.set(Timer::Idle, now.mono + IDLE_MAX / 24);
        }
        let mut next = now.mono + IDLE_MAX;
        let mut idle = Vec::new();
        for tracked in self.clients.hosts() {
            if tracked.has_nothing() && !tracked.row.fenced {
                match tracked.idle_since + IDLE_MAX {
                    due if due <= now.mono => idle.push(tracked.row.id),
                    due => next = next.min(due),
                }
            }
        }
        for id in idle {
            self.unregister(id, now);
        }
        if self.clients.len() > 0 {
            self.timers.set(Timer::Idle, next);
        }
    }

    pub(crate) fn is_host_fenced(&self, host: ClientId) -> bool {
        self.clients.get(host).is_some_and(|tracked| tracked.row.fenced)
    }
}

/// Remembers a server address that a client used, if it is new.
pub(crate) fn add_used(row: &mut Client, ours: IpAddr) {
    if !row.used.contains(&ours) {
        note_used(row, ours);
    }
}

/// Records an address of the server that a host used for the first time, or last; the oldest ones
/// go.
pub(crate) fn note_used(row: &mut Client, ours: IpAddr) {
    row.used.push(ours);
    let extra = row.used.len().saturating_sub(USED_ADDRESSES_MAX);
    row.used.drain(..extra);
}
