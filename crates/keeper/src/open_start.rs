//! An open start (B4.90): the store may lack hosts, because it was lost, restored from a backup, or
//! failed over without its last transactions. Clients reclaim only when they are told of the
//! restart, so it is told to every host that is known from elsewhere: the copy of the roster, hosts
//! that call during the window, and addresses that an operator names.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::{Change, Client, Exactness, Protocol};
use crate::config::RosterEntry;
use crate::event::Event;
use crate::identity::{ClientId, Epoch, HostKey, Incarnation};
use crate::interned::OwnerId;
use crate::keeper::Keeper;
use crate::registration::add_used;
use crate::request::LockRequest;
use crate::step::OperatorError;
use crate::table::HeldLock;
use crate::time::Time;

/// How long a client repeats the report of its boot.
const REPORTS_REPEATED_FOR: Duration = Duration::from_secs(15 * 60);

impl Keeper {
    /// Registers the hosts of the copy that the store lacks, as if in an earlier epoch.
    pub(crate) fn register_roster_copy(&mut self, now: Time) {
        let mut added = 0;
        for entry in std::mem::take(&mut self.config.roster) {
            let RosterEntry { address, name, used } = entry;
            if let Some(known) = self.clients.find_host(&HostKey::new(address, name.clone())) {
                self.add_used_addresses(known, &used);
            } else if self.clients.len() < self.clients_max() {
                let row = Arc::new(Client {
                    id: ClientId(self.ids.take()),
                    protocol: Protocol::NLM,
                    address: address.to_canonical(),
                    name,
                    incarnation: Incarnation::UNKNOWN,
                    reboot: None,
                    monitored: true,
                    fenced: false,
                    used,
                    registered_at_ms: now.wall_ms,
                    epoch: Epoch(self.epoch.0.saturating_sub(1)),
                    registrant: None,
                });
                self.change(Change::Client(row.clone()));
                self.clients.insert(row, now.mono);
                added += 1;
            }
        }
        if added > 0 {
            self.event(Event::RosterCopyUsed { hosts: added });
        }
    }

    /// Brings a row up to date with the copy, which has monitored hosts only.
    fn add_used_addresses(&mut self, host: ClientId, used: &[IpAddr]) {
        let Some(tracked) = self.clients.get(host) else { return };
        let row = &tracked.row;
        if !row.monitored || used.iter().any(|ours| !row.used.contains(ours)) {
            self.update_client(host, |row| {
                used.iter().for_each(|ours| add_used(row, *ours));
                row.monitored = true;
            });
        }
    }

    /// A LOCK over a connection that is older than the host's reclaims shows which kernel sent them:
    /// its state becomes that of the reclaimed locks, so that a repeated report of its own boot frees
    /// none of them.
    pub(crate) fn identify_reclaimer(&mut self, host: ClientId, request: &LockRequest) {
        let state = request.incarnation;
        let Some(tracked) = self.clients.get_mut(host) else { return };
        let (connected, reclaimed) = (request.connected, tracked.reclaimed_by_unknown);
        let (Some(connected), Some(reclaimed)) = (connected, reclaimed) else { return };
        if connected > reclaimed || !state.is_known() {
            return;
        }
        tracked.reclaimed_by_unknown = None;
        let learns = !tracked.row.incarnation.is_known();
        let owners: Vec<OwnerId> = tracked.owners.iter().copied().collect();
        if learns {
            self.update_client(host, |row| row.incarnation = state);
        }
        let held = owners.into_iter().flat_map(|owner| self.table.of_owner(owner));
        let reclaimed: Vec<HeldLock> =
            held.filter(|it| it.kind.confirmed && !it.kind.incarnation.is_known()).collect();
        for mut held in reclaimed {
            self.table.set_incarnation(held.id, state);
            if let Some(tracked) = self.clients.get_mut(host) {
                tracked.taken.uncount(held.kind.incarnation, held.kind.reports);
                tracked.taken.count(state, held.kind.reports);
            }
            held.kind.incarnation = state;
            let row = self.row_of(&held);
            self.change(Change::Lock(row));
        }
        self.identify_shares(host, state);
    }

    /// Whether the host reclaimed something without a state so recently that the report of the boot
    /// of its kernel may still be repeated. Silence then proves nothing.
    pub(crate) fn may_repeat_old_report(&self, host: ClientId, now: Time) -> bool {
        self.clients.get(host).is_some_and(|tracked| {
            let recent = |at: Duration| now.mono < at + REPORTS_REPEATED_FOR;
            tracked.reclaimed_by_unknown.is_some_and(recent)
        })
    }

    /// Whether hosts that the store lacks may reclaim.
    pub(crate) fn in_open_grace(&self) -> bool {
        self.exactness == Exactness::Open && self.recovery.in_grace
    }

    /// Notifies a host that was heard in an open grace, unless one is registered at its address.
    pub(crate) fn notify_mounted(&mut self, address: IpAddr, ours: IpAddr, now: Time) {
        let address = address.to_canonical();
        let registered = self.clients.hosts_at(address).any(|tracked| tracked.row.monitored);
        if self.in_open_grace() && !registered && !self.is_address_notified(address) {
            self.notify_address(address, vec![ours.to_canonical()], false, now);
        }
    }

    /// Notifies the hosts at these addresses, registered or not.
    pub(crate) fn notify_addresses_by_hand(
        &mut self,
        addresses: Vec<IpAddr>,
        by: Name,
        now: Time,
    ) -> Result<u64, OperatorError> {
        let count = addresses.len() as u64;
        for address in addresses {
            let address = address.to_canonical();
            let registered = self.clients.hosts_at(address).filter(|it| it.row.monitored);
            let registered: Vec<ClientId> = registered.map(|tracked| tracked.row.id).collect();
            for client in &registered {
                self.renotify(*client, now);
            }
            if registered.is_empty() {
                let ours = self.addresses.of_family(address);
                self.notify_address(address, ours, true, now);
            }
        }
        self.event(Event::AddressesNotified { count, by });
        Ok(0)
    }
}
