//! Releases that the owner did not ask for: everything of a host after a reboot, a FREE_ALL or a
//! fence, or single locks.

use crate::change::Change;
use crate::event::{Event, Release};
use crate::identity::{ClientId, Incarnation};
use crate::interned::OwnerId;
use crate::keeper::Keeper;
use crate::reboot_reports::Arrival;
use crate::table::HeldLock;
use crate::time::Time;
use crate::waiters::WaiterId;

/// Which of a host's locks, waiters and shares are swept.
#[derive(Clone, Copy)]
pub(crate) enum SweepScope {
    /// Those of other incarnations (I7), except the ones newer than the report. A lock that carries
    /// an older state is of an older kernel, whenever its request was handled.
    Reboot {
        to: Incarnation,
        arrived: Arrival,
    },
    /// The same, but whatever is newer than the report stays: a new kernel may have been given the
    /// old state.
    Confirmed {
        to: Incarnation,
        arrived: Arrival,
    },
    /// Those of this incarnation, except the ones newer than the report.
    Kernel {
        about: Incarnation,
        arrived: Arrival,
    },
    /// Those taken before the report.
    Before(Arrival),
    Everything,
}

impl SweepScope {
    /// `reports` as in `LockKind`.
    fn covers_lock(self, incarnation: Incarnation, reports: u32) -> bool {
        match self {
            SweepScope::Reboot { to, arrived } => {
                let late = incarnation.is_known() && incarnation.is_before(to);
                incarnation != to && (reports < arrived.reports || late)
            }
            scope => scope.covers_share(incarnation, reports),
        }
    }

    /// A share records the state its host was known to be in when it was taken. An equal state
    /// spares it; an older one proves nothing.
    fn covers_share(self, incarnation: Incarnation, reports: u32) -> bool {
        match self {
            SweepScope::Reboot { to, arrived } | SweepScope::Confirmed { to, arrived } => {
                incarnation != to && reports < arrived.reports
            }
            SweepScope::Kernel { about, arrived } => {
                incarnation == about && reports < arrived.reports
            }
            SweepScope::Before(arrived) => reports < arrived.reports,
            SweepScope::Everything => true,
        }
    }
}

impl Keeper {
    /// Releases what `scope` covers; returns how many locks and shares that were.
    pub(crate) fn sweep(&mut self, host: ClientId, scope: SweepScope, now: Time) -> u64 {
        let Some(tracked) = self.clients.get(host) else { return 0 };
        let owners: Vec<OwnerId> = tracked.owners.iter().copied().collect();
        let mut lost: Vec<HeldLock> = Vec::new();
        let mut given_up: Vec<WaiterId> = Vec::new();
        let mut ends =
            |held: &HeldLock| scope.covers_lock(held.kind.incarnation, held.kind.reports);
        self.table.remove_all_owned(&owners, &mut ends, &mut lost);
        for owner in &owners {
            let waiting = self.waiters.of_owner(*owner);
            let waiting =
                waiting.filter(|(_, waiter)| scope.covers_lock(waiter.incarnation, waiter.reports));
            given_up.extend(waiting.map(|(id, _)| id));
        }
        let shares = self.shares.of_host(host);
        let shares = shares.filter(|share| scope.covers_share(share.incarnation, share.reports));
        let shares: Vec<_> = shares.map(|share| share.id).collect();
        for waiter in given_up {
            self.remove_waiter(waiter, now);
        }
        let count = (lost.len() + shares.len()) as u64;
        self.write_off(&lost, now);
        if !shares.is_empty() {
            self.note_deprived(host);
        }
        for share in shares {
            self.remove_share(share, now);
        }
        match scope {
            // Roster records belong to the host, whichever kernel took the lock.
            SweepScope::Kernel { .. } => count,
            _ => count + self.sweep_remembered(host),
        }
    }

    /// How many locks and shares `sweep` would release.
    pub(crate) fn count_swept(&self, host: ClientId, scope: SweepScope) -> u64 {
        let Some(tracked) = self.clients.get(host) else { return 0 };
        let locks = tracked.owners.iter().flat_map(|owner| self.table.of_owner(*owner));
        let locks =
            locks.filter(|held| scope.covers_lock(held.kind.incarnation, held.kind.reports));
        let shares = self.shares.of_host(host);
        let shares = shares.filter(|share| scope.covers_share(share.incarnation, share.reports));
        (locks.count() + shares.count()) as u64
    }

    fn sweep_remembered(&mut self, host: ClientId) -> u64 {
        if self.recovery.remembered.is_empty() {
            return 0;
        }
        let (locks, shares) = self.recovery.remembered.take_host(host);
        let count = (locks.len() + shares.len()) as u64;
        for id in locks {
            self.change(Change::LockGone(id));
        }
        for id in shares {
            self.change(Change::ShareGone(id));
        }
        count
    }

    /// Releases single locks of a host and emits `Released`.
    pub(crate) fn drop_locks(
        &mut self,
        host: ClientId,
        lost: Vec<HeldLock>,
        why: Release,
        now: Time,
    ) {
        if !lost.is_empty() {
            let count = lost.len() as u64;
            self.take_locks(lost, Event::Released { client: host, count, why }, now);
        }
    }

    /// Releases single locks and emits this event.
    pub(crate) fn take_locks(&mut self, lost: Vec<HeldLock>, event: Event, now: Time) {
        for held in &lost {
            self.table.remove(held.id);
        }
        self.write_off(&lost, now);
        self.event(event);
    }

    /// Something of a host is released without its request: what it holds is no longer all that it
    /// believes it holds.
    pub(crate) fn note_deprived(&mut self, host: ClientId) {
        if let Some(tracked) = self.clients.get_mut(host) {
            tracked.deprived |= tracked.missing > 0;
        }
    }

    /// Records the release of locks that are no longer in the table.
    fn write_off(&mut self, lost: &[HeldLock], now: Time) {
        self.step.changes.reserve(lost.len());
        for held in lost {
            self.note_deprived(self.owners.host(held.owner));
            self.change(Change::LockGone(held.id));
            self.count_out(held, now);
            self.close_grants(held.owner, held.file, held.range);
            self.free(held.file, held.range);
            self.touch(held.owner, held.file);
        }
    }
}
