//! What must be durable. Applying all changes of a run to an empty `Snapshot`, in order, yields the
//! keeper's durable state.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::bytes::{FileKey, Name};
use crate::identity::{ClientId, Epoch, HostKey, Incarnation, LockId, Owner, ShareId};
use crate::range::Range;
use crate::request::{Access, Callback, Mode};

/// One durable change. A store applies the changes of a step in order and all or none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The server started. Until its grace has ended durably the store is no more exact than
    /// `grace` says; the last stop no longer counts as clean.
    Started {
        /// The new epoch.
        epoch: Epoch,
        /// The start begins a grace period, from a state that can be trusted this far. Without one
        /// there is nothing to recover, and the store is exact from here on.
        grace: Option<Exactness>,
    },
    /// Recovery is over: from now on the changes determine the lock set, and the store is exact.
    GraceEnded,
    /// A clean stop (B4.17).
    Stopped,
    /// No id below this will be assigned again.
    IdsBelow(u64),
    /// Inserts or replaces a row of the client tracker.
    Client(Arc<Client>),
    /// Removes a row of the client tracker.
    ClientGone(ClientId),
    /// Inserts a lock, with a new id; or replaces one whose owner moved (B2.80).
    Lock(Lock),
    /// Removes a lock.
    LockGone(LockId),
    /// Inserts a share, with a new id; or replaces one whose owner moved (B2.80).
    Share(Share),
    /// Removes a share.
    ShareGone(ShareId),
}

/// A row of the client tracker: a lock host, an SM_MON registrant, or a client of another protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The row's key.
    pub id: ClientId,
    /// The protocol by which it registered.
    pub protocol: Protocol,
    /// The address it calls from, canonical.
    pub address: IpAddr,
    /// The client's own name for itself.
    pub name: Name,
    /// Its last known state; of a registrant, the last state of the watched host that was relayed.
    pub incarnation: Incarnation,
    /// The last reboot that was accepted; of a registrant, one that it has not acknowledged yet.
    pub reboot: Option<Reboot>,
    /// Notified of the server's restarts. False for a host that took only unmonitored locks.
    pub monitored: bool,
    /// An operator has shut it out.
    pub fenced: bool,
    /// The server addresses it used, oldest first.
    pub used: Vec<IpAddr>,
    /// When it registered (wall clock, for display).
    pub registered_at_ms: u64,
    /// The epoch in which it registered; only clients of earlier epochs may reclaim (I5).
    pub epoch: Epoch,
    /// Only for a registrant.
    pub registrant: Option<Registrant>,
}

impl Client {
    /// Whether it is a lock host.
    pub fn is_host(&self) -> bool {
        self.protocol == Protocol::NLM
    }

    /// The identity of a lock host.
    pub fn key(&self) -> HostKey {
        HostKey::new(self.address, self.name.clone())
    }
}

/// A client's protocol, by name. `Config::windows` has its recovery window (B4.6).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(Cow<'static, str>);

impl Protocol {
    /// That of a lock host.
    pub const NLM: Protocol = Protocol(Cow::Borrowed("nlm"));
    /// That of an SM_MON registrant.
    pub const NSM: Protocol = Protocol(Cow::Borrowed("nsm"));
    /// The longest name, in bytes.
    pub const NAME_MAX: usize = 32;

    /// `None` unless the name is 1 to 32 lower-case letters, digits and hyphens.
    pub fn new(name: &str) -> Option<Protocol> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let valid = (1..=Self::NAME_MAX).contains(&name.len()) && name.bytes().all(plain);
        valid.then(|| match name {
            "nlm" => Self::NLM,
            "nsm" => Self::NSM,
            other => Protocol(Cow::Owned(other.to_owned())),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether a program that embeds the keeper serves it: neither NLM nor NSM.
    pub fn is_foreign(&self) -> bool {
        *self != Self::NLM && *self != Self::NSM
    }
}

/// What a registrant asked for with SM_MON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// The procedure to call (`my_id`).
    pub callback: Callback,
    /// The machine to watch (`mon_name`).
    pub watched: Name,
    /// Passed back unchanged (`priv`).
    pub private: [u8; 16],
}

/// An accepted reboot. It is durable before the locks are released, so that a sweep cut short is
/// finished at the next start (B3.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reboot {
    /// The state before.
    pub from: Incarnation,
    /// The state since.
    pub to: Incarnation,
    /// Locks and shares with this id or a greater one are not concerned.
    pub before: LockId,
}

impl Reboot {
    /// Whether this reboot ended a lock or share with this incarnation and id.
    pub fn ended(&self, incarnation: Incarnation, id: u64) -> bool {
        id < self.before.0 && incarnation != self.to
    }
}

/// A held lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Assigned once; a lock that changes gets a new one.
    pub id: LockId,
    /// The file, whatever handle it was reached by.
    pub file: FileKey,
    /// The lock owner on its host.
    pub owner: Arc<Owner>,
    /// In bytes; may extend to the end of the file.
    pub range: Range,
    /// Shared or exclusive.
    pub mode: Mode,
    /// The state of its host when it was taken; a reboot to another state frees it (I7).
    pub incarnation: Incarnation,
    /// Taken by LOCK rather than NM_LOCK; grace waits for its reclaim.
    pub monitored: bool,
    /// When it was taken (wall clock, for display).
    pub since_ms: u64,
}

/// A held share reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// From the same counter as lock ids.
    pub id: ShareId,
    /// The file, whatever handle it was reached by.
    pub file: FileKey,
    /// The lock owner on its host.
    pub owner: Arc<Owner>,
    /// The access its owner wants.
    pub access: Access,
    /// The access denied to others.
    pub deny: Access,
    /// SHARE carries no state; this is the one its host was known to be in.
    pub incarnation: Incarnation,
    /// When it was taken (wall clock, for display).
    pub since_ms: u64,
}

/// How far a snapshot can be trusted (B4.90). The greater value promises less: of two judgements
/// the maximum holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exactness {
    /// Every acknowledged change is included.
    #[default]
    Exact,
    /// All clients are included; locks may be missing or obsolete.
    Roster,
    /// Clients may be missing as well: the store was lost, restored from a backup, or failed over
    /// to a replica that lacked transactions.
    Open,
}

impl Exactness {
    /// Whether every acknowledged lock is known.
    pub fn is_exact(self) -> bool {
        self == Exactness::Exact
    }
}

/// All durable state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The last epoch that was started.
    pub epoch: Epoch,
    /// The worse of what the last start recorded and of the store's own judgement.
    pub exactness: Exactness,
    /// The grace of `epoch` has not ended durably.
    pub in_grace: bool,
    /// The last run ended with `Change::Stopped`.
    pub stopped_cleanly: bool,
    /// Ids below this may have been assigned.
    pub ids_below: u64,
    /// The client tracker.
    pub clients: BTreeMap<ClientId, Arc<Client>>,
    /// All locks.
    pub locks: BTreeMap<LockId, Lock>,
    /// All shares.
    pub shares: BTreeMap<ShareId, Share>,
}

impl Snapshot {
    /// Applies one change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Started { epoch, grace } => {
                self.epoch = epoch;
                self.in_grace = grace.is_some();
                self.stopped_cleanly = false;
                self.exactness = grace.unwrap_or_default();
            }
            Change::GraceEnded => {
                self.in_grace = false;
                self.exactness = Exactness::Exact;
            }
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
    fn the_name_of_a_protocol_is_short_and_plain() {
        let valid = |name: &str| Protocol::new(name).is_some_and(|known| known.name() == name);
        assert!(["nlm", "nsm", "lease", "nfs-4", "9p"].into_iter().all(valid));
        let long = "x".repeat(Protocol::NAME_MAX + 1);
        assert!(!["", "Lease", "a b", "a_b", "\0", "\u{fc}", &long].into_iter().any(valid));
        assert_eq!(Protocol::new("nlm"), Some(Protocol::NLM));
        assert!(Protocol::new("lease").is_some_and(|protocol| protocol.is_foreign()));
        assert!(!Protocol::NLM.is_foreign() && !Protocol::NSM.is_foreign());
    }

    #[test]
    fn a_reboot_ends_what_older_kernels_took_before_it_was_known() {
        let reboot = Reboot { from: Incarnation(3), to: Incarnation(5), before: LockId(10) };
        assert!(reboot.ended(Incarnation(3), 9));
        assert!(reboot.ended(Incarnation(1), 9));
        assert!(!reboot.ended(Incarnation(5), 9), "taken by the new kernel");
        assert!(!reboot.ended(Incarnation(3), 10), "taken after the news");
    }
}
