//! The end of every input: freed ranges go to their waiters, grace ends once nothing is missing,
//! requests whose wait is over are decided, notices to hosts that have everything back end, and interned
//! ids out of use are dropped.
//!
//! Handlers only record what they freed and touched. Nothing is granted in the middle of a
//! decision, so no callback leaves for a lock that the same input takes back.

use crate::deadlock::DeadlockSearch;
use crate::event::Event;
use crate::interned::{FileId, OwnerId};
use crate::keeper::Keeper;
use crate::range::Range;
use crate::time::Time;

/// What the handlers of one input leave for [`Keeper::settle`]; empty between inputs.
#[derive(Default)]
pub(crate) struct Unsettled {
    freed: Vec<(FileId, Range)>,
    /// The window closed: every waiter is examined, after the requests that grace held back.
    pub(crate) window_closed: bool,
    owners: Vec<OwnerId>,
    files: Vec<FileId>,
    /// Owners that were given a lock while others of their requests wait.
    given: Vec<OwnerId>,
}

impl Keeper {
    /// Records that waiters for this range may now be grantable.
    pub(crate) fn free(&mut self, file: FileId, range: Range) {
        self.unsettled.freed.push((file, range));
    }

    /// Records that an owner or a file may have lost its last lock, waiter or share.
    pub(crate) fn touch(&mut self, owner: OwnerId, file: FileId) {
        let Unsettled { owners, files, .. } = &mut self.unsettled;
        if owners.last() != Some(&owner) {
            owners.push(owner);
        }
        if files.last() != Some(&file) {
            files.push(file);
        }
    }

    /// Records that an owner was given a lock. If others of its requests wait, that may close a
    /// cycle.
    pub(crate) fn note_given(&mut self, owner: OwnerId) {
        if self.unsettled.given.last() != Some(&owner)
            && self.waiters.of_owner(owner).next().is_some()
        {
            self.unsettled.given.push(owner);
        }
    }

    /// Ends an input: called last by every `handle_*` except `handle_stall` and `handle_stop`, and
    /// by `handle_timeout` after each timer. Requests that became ready are decided here one at a
    /// time, each after the ranges that its predecessor freed have gone to their waiters.
    pub(crate) fn settle(&mut self, now: Time) {
        loop {
            self.wake_freed(now);
            self.end_grace_if_complete(now);
            if let Some(ready) = self.parking.pop_ready() {
                self.resume(ready, now);
            } else if std::mem::take(&mut self.unsettled.window_closed) {
                // Unconfirmed locks have become releasable: their waiters may have the host probed.
                let files = self.waiters.iter().map(|(_, waiter)| (waiter.file, Range::ALL));
                self.unsettled.freed.extend(files);
            } else {
                break;
            }
        }
        self.report_closed_cycles();
        self.end_notices_of_reclaimers(now);
        self.drop_unused_ids();
    }

    /// Wakes each file once, for everything that was freed on it. Waking frees nothing.
    fn wake_freed(&mut self, now: Time) {
        if self.unsettled.freed.is_empty() {
            return;
        }
        let mut freed = std::mem::take(&mut self.unsettled.freed);
        freed.sort_unstable();
        freed.dedup_by(|next, first| {
            let same_file = next.0 == first.0;
            if same_file {
                first.1 = first.1.hull(next.1);
            }
            same_file
        });
        for (file, range) in &freed {
            self.wake(*file, *range, now);
        }
        freed.clear();
        self.unsettled.freed = freed;
    }

    /// A callback cannot say that its grant closed a cycle of waiting owners; the next of them that
    /// repeats its request is refused (B2.16).
    fn report_closed_cycles(&mut self) {
        if self.unsettled.given.is_empty() {
            return;
        }
        let mut given = std::mem::take(&mut self.unsettled.given);
        given.sort_unstable();
        given.dedup();
        for owner in given {
            if DeadlockSearch::new(&self.table, &self.waiters, owner).finds_cycle() {
                let client = self.owners.host(owner);
                self.event(Event::CycleClosed { client });
            }
        }
    }

    fn drop_unused_ids(&mut self) {
        let Unsettled { owners, files, .. } = &mut self.unsettled;
        for file in files.drain(..) {
            if self.table.file_len(file) == 0 {
                self.files.remove_unused(file);
            }
        }
        for owner in owners.drain(..) {
            if self.table.owner_len(owner) == 0
                && let Some(key) = self.owners.remove_unused(owner)
                && let Some(tracked) = self.clients.get_mut(key.host)
            {
                tracked.owners.remove(&owner);
            }
        }
    }
}
