//! Limits (I10, B7.1): whether another lock, waiter or share fits. Each limit has a refusal of its
//! own.

use crate::clients::TrackedClient;
use crate::identity::ClientId;
use crate::interned::{FileId, OwnerId};
use crate::keeper::Keeper;
use crate::locking::NO_FILE;
use crate::parking::Parked;
use crate::step::Refusal;
use crate::table::LockKind;
use crate::waiters::WantedLock;

impl Keeper {
    /// Whether another lock fits (B7.1). A lock that adds no entry always does.
    pub(crate) fn has_room(
        &self,
        host: Option<ClientId>,
        wanted: WantedLock,
        kind: LockKind,
    ) -> Result<(), Refusal> {
        match self.has_entry(host, self.table.file_len(wanted.file), 1) {
            Err(refusal) if self.adds_entry(wanted, kind) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Splitting is part of giving up a lock, so it may go to twice the limits.
    pub(crate) fn has_room_to_split(&self, owner: OwnerId, file: FileId) -> Result<(), Refusal> {
        self.has_entry(Some(self.owners.host(owner)), self.table.file_len(file), 2)
    }

    /// Whether another waiter fits. It counts as an entry even if its lock will merge with another.
    pub(crate) fn has_room_to_wait(
        &self,
        host: Option<ClientId>,
        wanted: WantedLock,
    ) -> Result<(), Refusal> {
        let waiting = match wanted.file {
            NO_FILE => 0,
            file => self.files[file].waiters.len(),
        };
        if waiting >= self.config.limits.waiters_per_file {
            return Err(Refusal::TooManyWaitersOnFile);
        }
        self.has_entry(host, self.table.file_len(wanted.file), 1)
    }

    /// Whether one more entry fits within `times` the limits, beside `on_file` entries on its file.
    pub(crate) fn has_entry(
        &self,
        host: Option<ClientId>,
        on_file: usize,
        times: usize,
    ) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let host = host.and_then(|host| self.clients.get(host));
        let of_host = host.map_or(0, TrackedClient::entries);
        let of_address = host.map_or(0, |host| self.clients.entries_beside(host));
        let fits = |count: usize, limit: usize| count < limit.saturating_mul(times);
        if !fits(self.entries(), limits.locks) {
            Err(Refusal::TooManyLocks)
        } else if !fits(on_file, limits.locks_per_file) {
            Err(Refusal::TooManyLocksOnFile)
        } else if !fits(of_host, limits.locks_per_client) {
            Err(Refusal::TooManyLocksOfHost)
        } else if !fits(of_address, limits.locks_per_address) {
            Err(Refusal::TooManyLocksOfAddress)
        } else {
            Ok(())
        }
    }

    /// Whether a request from this address may be parked.
    pub(crate) fn has_room_to_park(&self, parked: &Parked) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let there = self.parking.len_at(parked.address());
        if self.parking.len() >= limits.parked {
            Err(Refusal::TooManyParked)
        } else if there >= limits.parked_per_address {
            Err(Refusal::TooManyParkedOfAddress)
        } else {
            Ok(())
        }
    }

    /// Locks, shares and waiters.
    pub(crate) fn entries(&self) -> usize {
        self.table.len() + self.shares.len() + self.waiters.len()
    }

    /// Whether the owner would have more entries than before: its locks there may merge with the
    /// new one, be replaced, or be split.
    fn adds_entry(&self, wanted: WantedLock, kind: LockKind) -> bool {
        let (mut before, mut after) = (0, 1);
        for held in self.table.owned(wanted.owner, wanted.file, wanted.range.widened()) {
            if held.kind == kind {
                before += 1;
            } else if held.range.overlaps(wanted.range) {
                let (below, above) = held.range.without(wanted.range);
                before += 1;
                after += usize::from(below.is_some()) + usize::from(above.is_some());
            }
        }
        after > before
    }
}
