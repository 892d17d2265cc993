//! What fits and what does not (I10, R3.9). Every bound has its name.

use crate::identity::ClientId;
use crate::keeper::Keeper;
use crate::planted::{self, Bug};
use crate::request::LockRequest;
use crate::step::Refusal;
use crate::table::{FileId, OwnerId, Terms};
use crate::waiters::Wish;

impl Keeper {
    /// Whether another entry fits (R3.9). What the owner holds already needs no room.
    pub(crate) fn has_room(
        &self,
        host: Option<ClientId>,
        wish: Wish,
        terms: Terms,
    ) -> Result<(), Refusal> {
        if planted::has(Bug::NoLimits) {
            return Ok(());
        }
        let limits = &self.config.limits;
        let of_host = host.and_then(|host| self.clients.get(host));
        let refusal = if self.entries() >= limits.locks {
            Refusal::TooManyLocks
        } else if self.table.file_len(wish.file) >= limits.locks_per_file {
            Refusal::TooManyLocksOnFile
        } else if of_host.is_some_and(|host| host.entries() >= limits.locks_per_client) {
            Refusal::TooManyLocksOfHost
        } else {
            return Ok(());
        };
        if self.adds_entry(wish, terms) { Err(refusal) } else { Ok(()) }
    }

    /// Splitting is giving back, so it has twice the room.
    pub(crate) fn has_room_to_split(&self, owner: OwnerId, file: FileId) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let host = self.clients.get(self.owners.host(owner));
        if self.entries() >= limits.locks.saturating_mul(2) {
            Err(Refusal::TooManyLocks)
        } else if self.table.file_len(file) >= limits.locks_per_file.saturating_mul(2) {
            Err(Refusal::TooManyLocksOnFile)
        } else if host
            .is_some_and(|host| host.entries() >= limits.locks_per_client.saturating_mul(2))
        {
            Err(Refusal::TooManyLocksOfHost)
        } else {
            Ok(())
        }
    }

    /// Locks, shares, and waiters, which become locks.
    pub(crate) fn entries(&self) -> usize {
        self.table.len() + self.shares.len() + self.waiters.len()
    }

    /// Whether the owner would have more entries than before: what it has there may be merged with
    /// the new lock, replaced by it, or cut into fragments.
    fn adds_entry(&self, wish: Wish, terms: Terms) -> bool {
        let (mut before, mut after) = (0, 1);
        for held in self.table.owned(wish.owner, wish.file, wish.range.widened()) {
            if held.terms == terms {
                before += 1;
            } else if held.range.overlaps(wish.range) {
                let (below, above) = held.range.without(wish.range);
                before += 1;
                after += usize::from(below.is_some()) + usize::from(above.is_some());
            }
        }
        after > before
    }

    pub(crate) fn has_room_to_wait(
        &self,
        request: &LockRequest,
        host: Option<ClientId>,
        wish: Wish,
    ) -> Result<(), Refusal> {
        let file = self.files.find(&request.file).map(|file| self.files.file(file));
        let waiting = file.map_or(0, |file| file.queue.len());
        if waiting >= self.config.limits.waiters_per_file {
            return Err(Refusal::TooManyWaitersOnFile);
        }
        self.has_room(host, wish, crate::locking::terms(request))
    }
}
