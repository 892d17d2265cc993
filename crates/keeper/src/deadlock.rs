//! Deadlock (R3.4): would this request, by waiting, close a circle of owners that wait for each
//! other? An owner waits for whoever holds what it wants, and, since queues are fair, for whoever
//! waits for it before.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::files::Files;
use crate::table::{OwnerId, Table};
use crate::waiters::{Waiter, Waiters, Wish};

/// How many locks and waiters one search looks at. A circle longer than that is not found: its members wait
/// until one of them gives up.
const LOOKS_MAX: u32 = 100_000;

pub struct Search<'a> {
    table: &'a Table,
    files: &'a Files,
    waiters: &'a Waiters,
    looks: u32,
    seen: BTreeSet<OwnerId>,
    /// Owners found in somebody's way, whose own wishes are still to be followed.
    open: Vec<OwnerId>,
}

impl<'a> Search<'a> {
    pub fn new(table: &'a Table, files: &'a Files, waiters: &'a Waiters) -> Self {
        Self { table, files, waiters, looks: LOOKS_MAX, seen: BTreeSet::new(), open: Vec::new() }
    }

    pub fn closes_circle(mut self, wish: Wish) -> bool {
        let goal = wish.owner;
        // Nobody can wait for an owner that holds nothing and waits for nothing.
        let wanted = self.table.owner_len(goal) > 0 || self.waiters.of_owner(goal).next().is_some();
        if !wanted || self.waiters.is_empty() {
            return false;
        }
        if self.is_blocked_by(wish, goal) {
            return true;
        }
        while let Some(owner) = self.open.pop().filter(|_| self.looks > 0) {
            let waiters = self.waiters;
            for (id, waiter) in waiters.of_owner(owner) {
                let Waiter { file, range, mode, .. } = *waiter;
                if self.is_blocked_by(Wish { owner, file, range, mode, place: Some(id) }, goal) {
                    return true;
                }
            }
        }
        false
    }

    /// Whether `goal` is in the way of the wish; everybody else who is becomes `open`.
    fn is_blocked_by(&mut self, wish: Wish, goal: OwnerId) -> bool {
        let Wish { owner, file, range, mode, place } = wish;
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
        let earlier = files.file(file).queue.iter().take_while(|id| Some(**id) != place);
        for waiter in earlier.filter_map(|id| waiters.get(*id)) {
            let in_the_way = waiter.is_in_the_way_of(wish, table).then_some(waiter.owner);
            if look(in_the_way).is_break() {
                break;
            }
        }
        found
    }
}
