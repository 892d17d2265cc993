//! Deadlock detection (B2.16): would a request, by waiting, close a cycle of owners that wait for
//! each other? An owner waits for the holders of what it wants and, since queues are fair, for the
//! earlier waiters.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::interned::Files;
use crate::interned::OwnerId;
use crate::table::Table;
use crate::waiters::{Waiter, Waiters, WantedLock};

/// How many locks and waiters one search visits. A longer cycle is not found; its members wait
/// until one of them cancels.
const VISITS_MAX: u32 = 100_000;

pub(crate) struct DeadlockSearch<'a> {
    table: &'a Table,
    files: &'a Files,
    waiters: &'a Waiters,
    looks: u32,
    seen: BTreeSet<OwnerId>,
    /// Owners found in the way whose own waiters are still to be followed.
    open: Vec<OwnerId>,
}

impl<'a> DeadlockSearch<'a> {
    pub(crate) fn new(table: &'a Table, files: &'a Files, waiters: &'a Waiters) -> Self {
        Self { table, files, waiters, looks: VISITS_MAX, seen: BTreeSet::new(), open: Vec::new() }
    }

    pub(crate) fn closes_cycle(mut self, wanted: WantedLock) -> bool {
        let goal = wanted.owner;
        // No owner waits for one that holds nothing and waits for nothing.
        let reachable =
            self.table.owner_len(goal) > 0 || self.waiters.of_owner(goal).next().is_some();
        if !reachable || self.waiters.is_empty() {
            return false;
        }
        if self.is_blocked_by(wanted, goal) {
            return true;
        }
        while let Some(owner) = self.open.pop().filter(|_| self.looks > 0) {
            let waiters = self.waiters;
            for (id, waiter) in waiters.of_owner(owner) {
                let Waiter { file, range, mode, .. } = *waiter;
                if self
                    .is_blocked_by(WantedLock { owner, file, range, mode, waiter: Some(id) }, goal)
                {
                    return true;
                }
            }
        }
        false
    }

    /// Whether `goal` prevents this lock; every other owner that does is added to `open`.
    fn is_blocked_by(&mut self, wanted: WantedLock, goal: OwnerId) -> bool {
        let WantedLock { owner, file, range, mode, waiter } = wanted;
        let (table, files, waiters) = (self.table, self.files, self.waiters);
        let mut found = false;
        let mut look = |blocker: Option<OwnerId>| {
            found |= blocker == Some(goal);
            if found || self.looks == 0 {
                return ControlFlow::Break(());
            }
            self.looks -= 1;
            if let Some(blocker) = blocker
                && self.seen.insert(blocker)
            {
                self.open.push(blocker);
            }
            ControlFlow::Continue(())
        };
        table.conflicts(file, owner, range, mode, &mut |held| look(Some(held.owner)));
        let earlier = files[file].waiters.iter().take_while(|id| Some(**id) != waiter);
        for waiter in earlier.filter_map(|id| waiters.get(*id)) {
            let in_the_way = waiter.blocks(wanted, table).then_some(waiter.owner);
            if look(in_the_way).is_break() {
                break;
            }
        }
        found
    }
}
