//! What must be durable, in one vocabulary. A store is only a bag of changes: applying all changes
//! of a run to an empty `Snapshot` gives the keeper's durable state back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::bytes::{FileKey, Name};
use crate::identity::{ClientId, Epoch, HostKey, Incarnation, LockId, Owner, ShareId};
use crate::range::Range;
use crate::request::{Access, Callback, Mode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A start of the server. Until its grace has ended durably, an inexact store stays inexact;
    /// from here on the last stop was not a clean one.
    Started {
        epoch: Epoch,
        grace: bool,
    },
    /// Recovery is over: from here on the lock set is what the changes say.
    GraceEnded,
    /// A clean stop (R4.6).
    Stopped,
    /// No id below this will be given again.
    IdsBelow(u64),
    Client(Arc<Client>),
    ClientGone(ClientId),
    Lock(Lock),
    LockGone(LockId),
    Share(Share),
    ShareGone(ShareId),
}

/// A row of the client tracker: a host that locks, or a registrant of SM_MON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub id: ClientId,
    pub protocol: Protocol,
    pub address: IpAddr,
    /// What a lock host calls itself; what a registrant calls itself.
    pub name: Name,
    /// The state it was last known to be in.
    pub incarnation: Incarnation,
    /// The last reboot that was accepted.
    pub reboot: Option<Reboot>,
    /// Told of our restarts. False for a host that took only unmonitored locks.
    pub monitored: bool,
    pub fenced: bool,
    /// Those of our addresses that it used, oldest first.
    pub used: Vec<IpAddr>,
    pub registered_at_ms: u64,
    /// The epoch in which it registered: only those of earlier epochs may reclaim (I5).
    pub epoch: Epoch,
    /// Only a registrant has these.
    pub registrant: Option<Registrant>,
}

impl Client {
    pub fn key(&self) -> HostKey {
        HostKey::new(self.address, self.name.clone())
    }
}

/// Which recovery window is a client's (R4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Nlm,
    Nsm,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    pub callback: Callback,
    pub watched: Name,
    pub private: [u8; 16],
}

/// "Rebooted to `to`": a fact that is durable before the locks go, so that a clean-up cut short is
/// finished at the next start (R5.5). `before` bounds what it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reboot {
    pub from: Incarnation,
    pub to: Incarnation,
    pub before: LockId,
}

impl Reboot {
    /// Whether this reboot ended a lock or share taken as `incarnation` under `id`.
    pub fn ended(&self, incarnation: Incarnation, id: u64) -> bool {
        id < self.before.0 && incarnation != self.to
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    pub id: LockId,
    pub file: FileKey,
    pub owner: Arc<Owner>,
    pub range: Range,
    pub mode: Mode,
    /// The state of its host when it was taken: news of another state frees it (I7).
    pub incarnation: Incarnation,
    pub monitored: bool,
    pub since_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub id: ShareId,
    pub file: FileKey,
    pub owner: Arc<Owner>,
    pub access: Access,
    pub deny: Access,
    /// SHARE carries no state: the one that its host was known to be in.
    pub incarnation: Incarnation,
    pub since_ms: u64,
}

/// How far what a store gives back can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exactness {
    /// Every acknowledged change is there.
    #[default]
    Exact,
    /// Clients are all there; locks may be missing or be back from the dead.
    Roster,
}

/// All that is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub epoch: Epoch,
    /// The store's own verdict; no change ever makes it worse.
    pub exactness: Exactness,
    /// The grace of `epoch` has not ended durably.
    pub in_grace: bool,
    pub stopped_cleanly: bool,
    pub ids_below: u64,
    pub clients: BTreeMap<ClientId, Arc<Client>>,
    pub locks: BTreeMap<LockId, Lock>,
    pub shares: BTreeMap<ShareId, Share>,
}

impl Snapshot {
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Started { epoch, grace } => {
                self.epoch = epoch;
                self.in_grace = grace;
                self.stopped_cleanly = false;
            }
            Change::GraceEnded => self.in_grace = false,
            Change::Stopped => self.stopped_cleanly = true,
            Change::IdsBelow(id) => self.ids_below = id,
            Change::Client(client) => {
                self.clients.insert(client.id, client);
            }
            Change::ClientGone(id) => {
                self.clients.remove(&id);
            }
            Change::Lock(lock) => {
                self.locks.insert(lock.id, lock);
            }
            Change::LockGone(id) => {
                self.locks.remove(&id);
            }
            Change::Share(share) => {
                self.shares.insert(share.id, share);
            }
            Change::ShareGone(id) => {
                self.shares.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_ends_what_older_kernels_took_before_it_was_known() {
        let reboot = Reboot { from: Incarnation(3), to: Incarnation(5), before: LockId(10) };
        assert!(reboot.ended(Incarnation(3), 9));
        assert!(reboot.ended(Incarnation(1), 9));
        assert!(!reboot.ended(Incarnation(5), 9), "taken by the new kernel");
        assert!(!reboot.ended(Incarnation(3), 10), "taken after the news");
    }
}
