//! Owner namespaces after the server got another address. The address that a host called is part of
//! every owner (B2.4), so its locks would be those of a stranger once it calls another one.
//!
//! A namespace moves in two ways only: at a start, if the configuration says that the address replaces
//! another; or when a reclaim or an UNLOCK fits exactly one recorded owner of the calling host, under an
//! address that is not the server's any more. That an address is missing is no reason by itself: it may
//! not be up yet. An UNLOCK counts only through an address that is new to the host, and if it used one
//! former address: repeated after a crash through another mount, it must not take the lock of a process
//! that has the same number here (I14).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::change::Change;
use crate::event::Event;
use crate::identity::{Caller, ClientId, Owner, OwnerNamespace};
use crate::interned::OwnerId;
use crate::keeper::Keeper;
use crate::registration::note_used;
use crate::request::OwnerName;
use crate::table::HeldLock;

/// The server's addresses, and whether hosts used others.
#[derive(Default)]
pub(crate) struct OwnAddresses {
    /// `None`: not known, so every address counts as the server's.
    known: Option<BTreeSet<IpAddr>>,
    /// A host used an address that is not the server's any more.
    former_used: bool,
}

/// What a request says about its owner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// The client holds this.
    Reclaim,
    /// The client does not hold this any more. Repeated, it may mean a lock that is gone already: it
    /// tells nothing if the host used several addresses that are gone, or used this one before.
    Release,
}

impl OwnAddresses {
    pub(crate) fn new(known: Option<BTreeSet<IpAddr>>) -> Self {
        Self { known, former_used: false }
    }

    /// Whether a host used an address that is not the server's any more.
    pub(crate) fn has_former(&self) -> bool {
        self.former_used
    }

    /// A call arrived at this address.
    pub(crate) fn learn(&mut self, address: IpAddr) {
        if let Some(known) = &mut self.known {
            known.insert(address);
        }
    }

    /// Whether the address is certainly the server's.
    fn is_up(&self, address: IpAddr) -> bool {
        self.known.as_ref().is_some_and(|known| known.contains(&address))
    }

    /// Those that a host at `address` may know; any, if they are not known.
    pub(crate) fn of_family(&self, address: IpAddr) -> Vec<IpAddr> {
        let same = |ours: &&IpAddr| {
            ours.is_ipv4() == address.is_ipv4() && ours.is_loopback() == address.is_loopback()
        };
        let known: Vec<IpAddr> = self.known.iter().flatten().filter(same).copied().collect();
        match address {
            _ if !known.is_empty() => known,
            IpAddr::V4(_) => vec![Ipv4Addr::UNSPECIFIED.into()],
            IpAddr::V6(_) => vec![Ipv6Addr::UNSPECIFIED.into()],
        }
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.known.as_ref().is_none_or(|known| known.contains(&address))
    }
}

impl Keeper {
    pub(crate) fn set_addresses(&mut self, known: Option<BTreeSet<IpAddr>>) {
        let kept = |(before, now): (&BTreeSet<_>, &BTreeSet<_>)| before.is_subset(now);
        let lost = !self.addresses.known.as_ref().zip(known.as_ref()).is_some_and(kept);
        self.addresses = OwnAddresses::new(known);
        self.find_former_addresses();
        if lost {
            self.note_used_addresses();
        }
    }

    /// From now on, an address that a host has used already replaces no other.
    pub(crate) fn note_used_addresses(&mut self) {
        for tracked in self.clients.iter_mut() {
            tracked.used_before.clone_from(&tracked.row.used);
        }
    }

    pub(crate) fn find_former_addresses(&mut self) {
        let addresses = &self.addresses;
        let mut used = self.clients.hosts().flat_map(|tracked| &tracked.row.used);
        let former_used = used.any(|address| !addresses.contains(*address));
        self.addresses.former_used = former_used;
    }

    /// `Config::formerly`: moves what was recorded under addresses that were replaced, unless the
    /// server has the old address, too.
    pub(crate) fn move_replaced_namespaces(&mut self) {
        let replaced = std::mem::take(&mut self.config.formerly);
        for (new, old) in &replaced {
            if self.addresses.is_up(*old) {
                continue;
            }
            let namespaces: BTreeSet<(ClientId, OwnerNamespace)> = self
                .clients
                .hosts()
                .flat_map(|tracked| &tracked.owners)
                .map(|owner| &**self.owners.key(*owner))
                .chain(self.recovery.remembered.owners())
                .filter(|owner| owner.namespace.server_address() == *old)
                .map(|owner| (owner.host, owner.namespace))
                .collect();
            for (host, from) in namespaces {
                self.move_namespace(host, from, from.at(*new));
            }
        }
        self.config.formerly = replaced;
    }

    /// Makes the caller the owner that it was under a former address of the server, if `fits` holds
    /// for exactly one recorded owner. True if the owner moved; the ids of owners are then to be
    /// looked up anew.
    pub(crate) fn adopt_former_owner(
        &mut self,
        host: Option<ClientId>,
        caller: &Caller,
        name: &OwnerName,
        request: Request,
        fits: impl Fn(&Self, OwnerId) -> bool,
    ) -> bool {
        if !self.addresses.has_former() {
            return false;
        }
        let Some(tracked) = host.and_then(|host| self.clients.get(host)) else { return false };
        let client = tracked.row.id;
        let former = tracked.row.used.iter().filter(|used| !self.addresses.contains(**used));
        let fitting: Vec<OwnerNamespace> = former
            .map(|used| caller.namespace.at(*used))
            .filter(|namespace| {
                let (number, tag) = (name.number, name.tag.clone());
                let owner = Owner { host: client, namespace: *namespace, number, tag };
                self.owners.find(&owner).is_some_and(|owner| fits(self, owner))
            })
            .collect();
        let at = caller.namespace.server_address();
        let used_before = &tracked.used_before;
        let former = used_before.iter().filter(|used| !self.addresses.contains(**used)).count();
        let certain = request == Request::Reclaim || (former == 1 && !used_before.contains(&at));
        match fitting[..] {
            [] => false,
            [from] if certain => {
                let moved = self.move_namespace(client, from, caller.namespace);
                self.forget_unused_addresses(client);
                moved
            }
            _ => {
                self.event(Event::OwnersAmbiguous { client, at });
                false
            }
        }
    }

    /// The same for records of an inexact store, when the host reclaims: if exactly one recorded owner
    /// under a former address can be the caller, its namespace moves.
    pub(crate) fn adopt_remembered(&mut self, host: ClientId, caller: &Caller, name: &OwnerName) {
        if self.recovery.remembered.is_empty() {
            return;
        }
        let same = |owner: &&Owner| {
            let address = owner.namespace.server_address();
            owner.host == host
                && (owner.number, &owner.tag) == (name.number, &name.tag)
                && caller.namespace.at(address) == owner.namespace
                && !self.addresses.contains(address)
        };
        let former: BTreeSet<OwnerNamespace> =
            self.recovery.remembered.owners().filter(same).map(|owner| owner.namespace).collect();
        if former.len() == 1
            && let Some(from) = former.first()
        {
            for moved in self.recovery.remembered.move_namespace(host, *from, caller.namespace) {
                self.change(moved);
            }
        }
    }

    /// Forgets that a host used former addresses under which nothing is recorded: the server may get
    /// them again.
    pub(crate) fn forget_unused_addresses(&mut self, host: ClientId) {
        let Some(tracked) = self.clients.get(host) else { return };
        if !self.addresses.has_former() || !self.recovery.remembered.is_empty() {
            return;
        }
        let owners = tracked.owners.iter().map(|owner| self.owners.key(*owner));
        let needed: BTreeSet<IpAddr> =
            owners.map(|owner| owner.namespace.server_address()).collect();
        let stays = |used: &IpAddr| self.addresses.contains(*used) || needed.contains(used);
        let stays: Vec<IpAddr> = tracked.row.used.iter().copied().filter(stays).collect();
        if stays != tracked.row.used {
            self.update_client(host, |row| row.used = stays);
        }
    }

    /// Moves all owners of a host from one namespace to another, durably in this step. Nothing moves
    /// if two owners that become one hold the same bytes, or share the same file.
    fn move_namespace(&mut self, host: ClientId, from: OwnerNamespace, to: OwnerNamespace) -> bool {
        let Some(tracked) = self.clients.get(host) else { return false };
        let owners = tracked.owners.iter().copied();
        let moved: Vec<OwnerId> =
            owners.filter(|owner| self.owners.key(*owner).namespace == from).collect();
        if moved.iter().any(|owner| self.is_split(*owner, to)) {
            self.event(Event::OwnersAmbiguous { client: host, at: to.server_address() });
            return false;
        }
        let mut count = 0;
        for owner in moved {
            count += self.move_owner(owner, to);
        }
        for lock in self.recovery.remembered.move_namespace(host, from, to) {
            count += 1;
            self.change(lock);
        }
        let address = to.server_address();
        self.update_client(host, |row| {
            row.used.retain(|used| *used != address);
            note_used(row, address);
        });
        let (from, to) = (from.server_address(), address);
        self.event(Event::OwnersMoved { client: host, from, to, count });
        true
    }

    /// Whether the owner cannot become the one of the same name in another namespace.
    fn is_split(&self, owner: OwnerId, to: OwnerNamespace) -> bool {
        let Some(there) = self.owners.find(&self.owners.key(owner).within(to)) else {
            return false;
        };
        let mut held = self.table.of_owner(owner);
        let mut shares = self.shares.of_owner(owner);
        held.any(|held| self.table.owned(there, held.file, held.range).next().is_some())
            || shares.any(|share| self.share_of(there, share.file).is_some())
            || self.waiters.of_owner(owner).next().is_some()
            || self.grants.has_open(owner)
    }

    /// Returns how many locks and shares moved.
    fn move_owner(&mut self, owner: OwnerId, to: OwnerNamespace) -> u64 {
        let key = self.owners.key(owner).within(to);
        let held: Vec<HeldLock> = self.table.of_owner(owner).collect();
        let shares: Vec<_> = self.shares.of_owner(owner).copied().collect();
        match self.owners.find(&key) {
            None => self.owners.rename(owner, key.into()),
            Some(there) => {
                for held in &held {
                    self.table.remove(held.id);
                    self.table.insert(HeldLock { owner: there, ..*held });
                    // A request of the same owner may have waited for it.
                    self.free(held.file, held.range);
                    self.touch(owner, held.file);
                }
                for share in &shares {
                    self.give_share(share.id, there);
                    self.touch(owner, share.file);
                }
            }
        }
        for held in &held {
            if let Some(held) = self.table.get(held.id) {
                let row = self.row_of(&held);
                self.change(Change::Lock(row));
            }
        }
        for share in &shares {
            if let Some(share) = self.shares.get(share.id) {
                let row = self.share_row(share);
                self.change(Change::Share(row));
            }
        }
        (held.len() + shares.len()) as u64
    }
}
