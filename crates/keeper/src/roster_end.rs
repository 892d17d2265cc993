//! The end of a roster or open grace (B4.95): what becomes of records that were not reclaimed.

use std::collections::BTreeMap;

use crate::change::{Change, Lock};
use crate::event::{Event, Release};
use crate::grace::recorded_kind;
use crate::identity::ClientId;
use crate::keeper::Keeper;
use crate::range::Range;
use crate::time::Time;
use crate::timer::Timer;

impl Keeper {
    /// The end of a roster or open grace (B4.95). Records of hosts that were heard go: they could
    /// have reclaimed. Those of other hosts become releasable, unless others reclaimed the same.
    pub(crate) fn end_remembered(&mut self, now: Time) {
        let remembered = std::mem::take(&mut self.recovery.remembered);
        let mut gone: BTreeMap<ClientId, u64> = BTreeMap::new();
        let mut kept: BTreeMap<ClientId, u64> = BTreeMap::new();
        // Of records that contradict each other, the newest is true.
        for lock in remembered.locks.into_values().rev() {
            let host = lock.owner.host;
            if !self.was_heard(host) && self.keep_record(&lock, now) {
                *kept.entry(host).or_default() += 1;
            } else {
                *gone.entry(host).or_default() += 1;
                self.change(Change::LockGone(lock.id));
            }
        }
        for share in remembered.shares.into_values().rev() {
            let host = share.owner.host;
            if !self.was_heard(host) && self.contradicting_share(&share).is_none() {
                *kept.entry(host).or_default() += 1;
                self.recover_share(share);
            } else {
                *gone.entry(host).or_default() += 1;
                self.change(Change::ShareGone(share.id));
            }
        }
        for (client, count) in gone {
            self.event(Event::Released { client, count, why: Release::RosterEnd });
        }
        for (client, count) in kept {
            self.event(Event::Releasable { client, count });
        }
    }

    /// Makes a record releasable, as far as its owner does not hold the range already; false if it
    /// conflicts with what others hold.
    fn keep_record(&mut self, lock: &Lock, now: Time) -> bool {
        if self.insert_unconfirmed(lock) {
            return true;
        }
        let (owner, file) = (self.intern_owner(&lock.owner), self.files.intern(&lock.file));
        if self.table.conflict(file, owner, lock.range, lock.mode).is_some() {
            return false;
        }
        let kind = recorded_kind(lock);
        let held: Vec<Range> =
            self.table.owned(owner, file, lock.range).map(|held| held.range).collect();
        self.change(Change::LockGone(lock.id));
        self.insert_between(file, owner, lock.range, &held, kind, now);
        true
    }

    fn was_heard(&self, host: ClientId) -> bool {
        self.clients.get(host).is_none_or(|tracked| tracked.last_seen.is_some())
    }

    /// Whether the host has records of an inexact store that it never reclaimed.
    pub(crate) fn has_doubtful(&self, client: ClientId) -> bool {
        !self.exactness.is_exact()
            && !self.recovery.in_grace
            && self.unconfirmed_of(Some(client)) > 0
    }

    /// A host was heard for the first time after an inexact grace: it is told of the restart, and has
    /// a window to reclaim (B4.95).
    pub(crate) fn await_late_reclaim(&mut self, client: ClientId, now: Time) {
        if !self.has_pending_notice(client) {
            self.renotify(client, now);
        }
        self.timers.set(Timer::LateReclaim(client), now.mono + self.recovery.window.length());
    }

    /// The host did not reclaim these records, which may be of locks that it gave up before.
    pub(crate) fn release_unreclaimed(&mut self, client: ClientId, now: Time) {
        if self.has_doubtful(client) {
            self.drop_unconfirmed(client, Release::RosterEnd, now);
        }
    }
}
