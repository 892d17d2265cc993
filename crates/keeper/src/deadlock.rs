//! Deadlock detection (B2.16). An owner waits for another if one of its requests conflicts with a
//! lock that the other holds; would a request, by waiting, close a cycle of such owners?
//!
//! Breadth first, and each holder's requests are compared with the goal's locks as soon as the
//! holder is found: a cycle of two is found whatever else waits.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;

use crate::interned::OwnerId;
use crate::table::Table;
use crate::waiters::{Waiters, WantedLock};

/// How many locks and waiters one search visits. A longer cycle is not found; its members wait
/// until one of them cancels.
const VISITS_MAX: u32 = 100_000;

pub(crate) struct DeadlockSearch<'a> {
    table: &'a Table,
    waiters: &'a Waiters,
    /// The owner that a cycle must lead back to.
    goal: OwnerId,
    visits_left: u32,
    seen: BTreeSet<OwnerId>,
    /// Owners found in the way whose own requests are still to be followed.
    open: VecDeque<OwnerId>,
}

impl<'a> DeadlockSearch<'a> {
    pub(crate) fn new(table: &'a Table, waiters: &'a Waiters, goal: OwnerId) -> Self {
        let (seen, open) = (BTreeSet::new(), VecDeque::new());
        Self { table, waiters, goal, visits_left: VISITS_MAX, seen, open }
    }

    /// Whether the goal would be in a cycle if it waited for this lock.
    pub(crate) fn closes_cycle(mut self, wanted: WantedLock) -> bool {
        self.is_waited_for() && (self.follow(wanted) || self.follow_open())
    }

    /// Whether the goal is in a cycle by one of its waiting requests.
    pub(crate) fn finds_cycle(mut self) -> bool {
        self.open.push_back(self.goal);
        self.is_waited_for() && self.follow_open()
    }

    /// False only if no request can wait for the goal.
    fn is_waited_for(&self) -> bool {
        self.table.owner_len(self.goal) > 0 && !self.waiters.is_empty()
    }

    fn follow_open(&mut self) -> bool {
        let waiters = self.waiters;
        while let Some(owner) = self.open.pop_front() {
            let wanted = waiters.of_owner(owner).map(|(id, waiter)| waiter.wanted(id));
            if wanted.into_iter().any(|wanted| self.follow(wanted)) {
                return true;
            }
        }
        false
    }

    /// Visits the holders of what is wanted. True if one of them waits for the goal.
    fn follow(&mut self, wanted: WantedLock) -> bool {
        let WantedLock { owner, file, range, mode, .. } = wanted;
        let mut found = false;
        let table = self.table;
        table.conflicts(file, owner, range, mode, &mut |held| {
            if !self.visit() {
                return ControlFlow::Break(());
            }
            if held.owner != self.goal && self.seen.insert(held.owner) {
                found = self.waits_for_goal(held.owner);
                self.open.push_back(held.owner);
            }
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    }

    fn waits_for_goal(&mut self, owner: OwnerId) -> bool {
        let (table, waiters) = (self.table, self.waiters);
        for (_, waiter) in waiters.of_owner(owner) {
            for held in table.owned(self.goal, waiter.file, waiter.range) {
                if held.kind.mode.conflicts(waiter.mode) {
                    return true;
                }
                if !self.visit() {
                    return false;
                }
            }
        }
        false
    }

    /// Counts a visit; false if there were too many.
    fn visit(&mut self) -> bool {
        self.visits_left = self.visits_left.saturating_sub(1);
        self.visits_left > 0
    }
}
