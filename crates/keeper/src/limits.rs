//! What fits and what does not (I10, R3.9). Every bound has its name.

use crate::clients::Tracked;
use crate::identity::ClientId;
use crate::keeper::Keeper;
use crate::locking::NO_FILE;
use crate::step::Refusal;
use crate::table::{FileId, OwnerId, Terms};
use crate::waiters::Wish;

impl Keeper {
    /// Whether another lock fits (R3.9). What the owner holds already needs no room.
    pub(crate) fn has_room(
        &self,
        host: Option<ClientId>,
        wish: Wish,
        terms: Terms,
    ) -> Result<(), Refusal> {
        match self.has_entry(host, self.table.file_len(wish.file), 1) {
            Err(refusal) if self.adds_entry(wish, terms) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Splitting is giving back, so it has twice the room.
    pub(crate) fn has_room_to_split(&self, owner: OwnerId, file: FileId) -> Result<(), Refusal> {
        self.has_entry(Some(self.owners.host(owner)), self.table.file_len(file), 2)
    }

    /// A waiter is one entry more, whatever it will be merged with.
    pub(crate) fn has_room_to_wait(
        &self,
        host: Option<ClientId>,
        wish: Wish,
    ) -> Result<(), Refusal> {
        let waiting = match wish.file {
            NO_FILE => 0,
            file => self.files.file(file).queue.len(),
        };
        if waiting >= self.config.limits.waiters_per_file {
            return Err(Refusal::TooManyWaitersOnFile);
        }
        self.has_entry(host, self.table.file_len(wish.file), 1)
    }

    /// Whether one more entry of a host fits beside those on its file, within so many times the
    /// limits.
    pub(crate) fn has_entry(
        &self,
        host: Option<ClientId>,
        on_file: usize,
        times: usize,
    ) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let of_host = host.and_then(|host| self.clients.get(host)).map_or(0, Tracked::entries);
        let fits = |count: usize, limit: usize| count < limit.saturating_mul(times);
        if !fits(self.entries(), limits.locks) {
            Err(Refusal::TooManyLocks)
        } else if !fits(on_file, limits.locks_per_file) {
            Err(Refusal::TooManyLocksOnFile)
        } else if !fits(of_host, limits.locks_per_client) {
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
}
