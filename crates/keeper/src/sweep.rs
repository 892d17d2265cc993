//! What goes when a host is over, or when a single lock is taken away: out of the table, out of the
//! store, and to who waits for it.

use std::collections::BTreeSet;

use crate::change::Change;
use crate::event::{Event, Release};
use crate::identity::{ClientId, Incarnation};
use crate::keeper::Keeper;
use crate::range::Range;
use crate::table::{FileId, Held, OwnerId};
use crate::time::Time;
use crate::waiters::WaiterId;

/// How much of a host is over.
#[derive(Clone, Copy)]
pub enum Ended {
    /// Everything of other incarnations (I7), except what is newer than the news.
    Reboot {
        to: Incarnation,
        arrived: u64,
    },
    /// What was taken as this incarnation, except what is newer than the news.
    Kernel {
        about: Incarnation,
        arrived: u64,
    },
    /// Everything that was there before.
    Before(u64),
    Everything,
}

impl Ended {
    fn takes_lock(self, incarnation: Incarnation, id: u64) -> bool {
        match self {
            Ended::Reboot { to, arrived } => {
                let late = incarnation.is_known() && incarnation.is_before(to);
                incarnation != to && (id < arrived || late)
            }
            Ended::Kernel { about, arrived } => incarnation == about && id < arrived,
            Ended::Before(arrived) => id < arrived,
            Ended::Everything => true,
        }
    }

    /// A share is of the state that its host was known to be in: that spares it, and says no more.
    fn takes_share(self, incarnation: Incarnation, id: u64) -> bool {
        match self {
            Ended::Reboot { to, arrived } => incarnation != to && id < arrived,
            Ended::Kernel { about, arrived } => incarnation == about && id < arrived,
            Ended::Before(arrived) => id < arrived,
            Ended::Everything => true,
        }
    }
}

impl Keeper {
    /// Takes from a host all locks, shares and waiters that have ended, and gives what becomes free
    /// to who waits for it.
    pub(crate) fn sweep(&mut self, host: ClientId, ended: Ended, now: Time) -> u64 {
        let Some(tracked) = self.clients.get(host) else { return 0 };
        let owners: Vec<OwnerId> = tracked.owners.iter().copied().collect();
        let mut lost: Vec<Held> = Vec::new();
        let mut given_up: Vec<WaiterId> = Vec::new();
        let mut ends = |held: &Held| ended.takes_lock(held.terms.incarnation, held.id.0);
        self.table.remove_all_owned(&owners, &mut ends, &mut lost);
        for owner in &owners {
            let waiting = self.waiters.of_owner(*owner);
            let waiting = waiting.filter(|(id, waiter)| ended.takes_lock(waiter.incarnation, id.0));
            given_up.extend(waiting.map(|(id, _)| id));
        }
        let shares = self.shares.of_host(host);
        let shares = shares.filter(|share| ended.takes_share(share.incarnation, share.id.0));
        let shares: Vec<_> = shares.map(|share| share.id).collect();
        let mut woken: Vec<(FileId, Range)> = Vec::new();
        for waiter in given_up {
            if let Some(waiter) = self.forget_waiter(waiter, now) {
                woken.push((waiter.file, waiter.range));
            }
        }
        let count = (lost.len() + shares.len()) as u64;
        self.write_off(&lost, now);
        woken.extend(lost.iter().map(|held| (held.file, held.range)));
        let mut files = self.wake_all(woken, now);
        for share in shares {
            files.extend(self.remove_share(share, now).map(|share| share.file));
        }
        // Only now: until here, something of the host may still have needed its number.
        for owner in owners {
            self.tidy_owner(owner);
        }
        for file in files {
            if self.table.file_len(file) == 0 {
                self.files.forget_unused(file);
            }
        }
        match ended {
            // What a roster remembers is of the host, whichever kernel took it.
            Ended::Kernel { .. } => count,
            _ => count + self.sweep_remembered(host),
        }
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

    /// Takes single locks from a host.
    pub(crate) fn drop_locks(&mut self, host: ClientId, lost: Vec<Held>, why: Release, now: Time) {
        if !lost.is_empty() {
            let count = lost.len() as u64;
            self.take_locks(lost, Event::Released { client: host, count, why }, now);
        }
    }

    /// The same, told in other words.
    pub(crate) fn take_locks(&mut self, lost: Vec<Held>, event: Event, now: Time) {
        for held in &lost {
            self.table.remove(held.id);
        }
        self.write_off(&lost, now);
        self.event(event);
        self.wake_all(lost.iter().map(|held| (held.file, held.range)).collect(), now);
        for held in &lost {
            self.tidy(held.owner, held.file);
        }
    }

    /// Writes down locks that are out of the table already.
    fn write_off(&mut self, lost: &[Held], now: Time) {
        self.step.changes.reserve(lost.len());
        for held in lost {
            self.change(Change::LockGone(held.id));
            self.count_out(held, now);
            self.forget_grants(held.owner, held.file, held.range);
        }
    }

    /// Wakes each file once, with the whole of what became free on it.
    fn wake_all(&mut self, mut freed: Vec<(FileId, Range)>, now: Time) -> BTreeSet<FileId> {
        freed.sort_unstable();
        let mut files = BTreeSet::new();
        for part in freed.chunk_by(|a, b| a.0 == b.0) {
            let hull = part.iter().map(|(_, range)| *range).reduce(Range::hull);
            if let (Some((file, _)), Some(hull)) = (part.first(), hull) {
                files.insert(*file);
                self.wake(*file, hull, now);
            }
        }
        files
    }
}
