//! What can be read of the keeper: rows built on demand, in an order that a reader can resume from,
//! so that the table is never copied (B8.6).

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::bytes::{FileKey, Name};
use crate::change::{Client, Exactness, Lock, Snapshot};
use crate::clients::{SuspectReason, TrackedClient};
use crate::identity::{ClientId, Epoch, HostKey, LockId, Owner, ShareId};
use crate::keeper::Keeper;
use crate::range::Range;
use crate::shares::HeldShare;
use crate::table::HeldLock;
use crate::view::{ClientView, Counts, GraceView, LockState, LockView, ShareView, WaiterView};
use crate::waiters::{Waiter, WaiterId};

impl Keeper {
    /// The epoch of this run.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The server's NSM state.
    pub fn nsm_state(&self) -> u32 {
        self.epoch.nsm_state()
    }

    /// How far the recovered locks could be trusted.
    pub fn exactness(&self) -> Exactness {
        self.exactness
    }

    /// How many reclaims of this epoch an exact store did not have (B4.96).
    pub fn unrecorded_reclaims(&self) -> u64 {
        self.recovery.unrecorded
    }

    /// The id that would be assigned next; grows with every lock and waiter.
    pub fn next_id(&self) -> u64 {
        self.ids.next()
    }

    /// Whether hosts may still reclaim what they held.
    pub fn in_window(&self) -> bool {
        !self.recovery.window.has_ended()
    }

    /// The state of the grace period; `None` outside grace.
    pub fn grace(&self) -> Option<GraceView> {
        self.recovery.in_grace.then(|| GraceView {
            exactness: self.exactness,
            window: self.recovery.window.length(),
            ends: self.recovery.window.ends(),
            missing: self.recovery.missing,
            parked: self.parking.len(),
        })
    }

    /// Sizes of the tables.
    pub fn counts(&self) -> Counts {
        Counts {
            clients: self.clients.len(),
            locks: self.table.len(),
            shares: self.shares.len(),
            waiters: self.waiters.len(),
            unconfirmed: self.recovery.unconfirmed,
            parked: self.parking.len() + self.waiter_probes.len(),
            open_grants: self.grants.len(),
        }
    }

    /// How long the oldest waiter has waited; `now` is `Time::mono`.
    pub fn longest_wait(&self, now: Duration) -> Option<Duration> {
        self.waiters.oldest().map(|waiter| now.saturating_sub(waiter.since))
    }

    /// Locks with ids above `after`, in order of id.
    pub fn locks(&self, after: LockId) -> impl Iterator<Item = LockView<'_>> {
        self.table.after(after).map(|held| self.view_lock(held))
    }

    /// A held lock.
    pub fn lock(&self, id: LockId) -> Option<LockView<'_>> {
        self.table.get(id).map(|held| self.view_lock(held))
    }

    /// The locks of a client.
    pub fn locks_of(&self, client: ClientId) -> impl Iterator<Item = LockView<'_>> {
        let owners = self.clients.get(client).into_iter().flat_map(|tracked| &tracked.owners);
        owners.flat_map(|owner| self.table.of_owner(*owner)).map(|held| self.view_lock(held))
    }

    /// The locks on a file, in order of first byte.
    pub fn locks_on(&self, file: &FileKey) -> impl Iterator<Item = LockView<'_>> {
        let file = self.files.find(file).into_iter();
        file.flat_map(|file| self.table.of_file(file)).map(|held| self.view_lock(held))
    }

    /// Roster records with ids above `after`, while an inexact store is being recovered.
    pub fn remembered(&self, after: LockId) -> impl Iterator<Item = &Lock> {
        self.recovery.remembered.after(after)
    }

    /// The roster records of locks on a file.
    pub fn remembered_on(&self, file: &FileKey) -> impl Iterator<Item = &Lock> {
        self.recovery.remembered.on(file)
    }

    /// The roster record of a lock.
    pub fn remembered_one(&self, id: LockId) -> Option<&Lock> {
        self.recovery.remembered.locks.get(&id)
    }

    /// The number of locks in the roster records.
    pub fn remembered_len(&self) -> usize {
        self.recovery.remembered.locks.len()
    }

    /// The shares on a file.
    pub fn shares_on(&self, file: &FileKey) -> impl Iterator<Item = ShareView<'_>> {
        let file = self.files.find(file).map(|file| &self.files[file]);
        let ids = file.into_iter().flat_map(|file| &file.shares);
        ids.filter_map(|id| self.shares.get(*id)).map(|share| self.view_share(share))
    }

    /// Shares with ids above `after`, in order of id.
    pub fn shares(&self, after: ShareId) -> impl Iterator<Item = ShareView<'_>> {
        self.shares.after(after).map(|share| self.view_share(share))
    }

    /// A held share.
    pub fn share(&self, id: ShareId) -> Option<ShareView<'_>> {
        self.shares.get(id).map(|share| self.view_share(share))
    }

    /// The shares of a client.
    pub fn shares_of(&self, client: ClientId) -> impl Iterator<Item = ShareView<'_>> {
        self.shares.of_host(client).map(|share| self.view_share(share))
    }

    /// Waiters with ids above `after`, in order of arrival.
    pub fn waiters(&self, after: LockId) -> impl Iterator<Item = WaiterView<'_>> {
        let after = self.waiters.after(WaiterId(after.0));
        after.map(|(id, waiter)| self.view_waiter(id, waiter))
    }

    /// A queued request.
    pub fn waiter(&self, id: LockId) -> Option<WaiterView<'_>> {
        let id = WaiterId(id.0);
        self.waiters.get(id).map(|waiter| self.view_waiter(id, waiter))
    }

    /// The queued requests of a client.
    pub fn waiters_of(&self, client: ClientId) -> impl Iterator<Item = WaiterView<'_>> {
        let owners = self.clients.get(client).into_iter().flat_map(|tracked| &tracked.owners);
        owners
            .flat_map(|owner| self.waiters.of_owner(*owner))
            .map(|(id, waiter)| self.view_waiter(id, waiter))
    }

    /// The file's waiters in order of arrival.
    pub fn waiters_on(&self, file: &FileKey) -> impl Iterator<Item = WaiterView<'_>> {
        let file = self.files.find(file).map(|file| &self.files[file]);
        let ids = file.into_iter().flat_map(|file| &file.waiters);
        ids.filter_map(|id| Some(self.view_waiter(*id, self.waiters.get(*id)?)))
    }

    /// Clients with ids above `after`, in order of id.
    pub fn clients(&self, after: ClientId) -> impl Iterator<Item = ClientView<'_>> {
        self.clients.after(after).map(|tracked| self.view_client(tracked))
    }

    /// A client.
    pub fn client(&self, id: ClientId) -> Option<ClientView<'_>> {
        self.clients.get(id).map(|tracked| self.view_client(tracked))
    }

    /// The row of a lock host.
    pub fn host(&self, key: &HostKey) -> Option<&Client> {
        let id = self.clients.find_host(key)?;
        self.clients.get(id).map(|tracked| &*tracked.row)
    }

    /// The first lock of an owner that overlaps a range of a file.
    pub fn owned_by(&self, owner: &Owner, file: &FileKey, range: Range) -> Option<LockView<'_>> {
        let (owner, file) = (self.owners.find(owner)?, self.files.find(file)?);
        self.table.owned(owner, file, range).next().map(|held| self.view_lock(held))
    }

    /// Whether a lock other than `besides` prevents a waiter.
    pub fn is_blocked_besides(&self, waiter: LockId, besides: LockId) -> bool {
        let Some(waiter) = self.waiters.get(WaiterId(waiter.0)) else { return false };
        let Waiter { file, owner, range, mode, .. } = *waiter;
        let mut blocked = false;
        self.table.conflicts(file, owner, range, mode, &mut |held| {
            blocked = held.id != besides;
            if blocked { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        blocked
    }

    /// The hosts at an address.
    pub fn hosts_at(&self, address: IpAddr) -> impl Iterator<Item = &Client> {
        self.clients.hosts_at(address).map(|tracked| &*tracked.row)
    }

    /// Whether a host at this address is fenced; the server then refuses all writes from it.
    pub fn is_fenced(&self, address: IpAddr) -> bool {
        self.clients.fences.has_address(address.to_canonical())
    }

    /// Whether a host of this name is fenced, at whatever address.
    pub fn is_name_fenced(&self, name: &Name) -> bool {
        self.clients.fences.has_name(name)
    }

    /// The hosts whose names name the same machine, in order of id.
    pub fn hosts_named(&self, name: &Name) -> impl Iterator<Item = &Client> {
        let ids = self.clients.named(name).into_iter();
        ids.filter_map(|id| self.clients.get(id)).map(|tracked| &*tracked.row)
    }

    /// The durable state once every step so far is committed.
    pub fn snapshot(&self) -> Snapshot {
        let locks = self.table.after(LockId(0)).map(|held| self.row_of(&held));
        let remembered = &self.recovery.remembered;
        let shares = self.shares.iter().map(|share| self.share_row(share));
        Snapshot {
            epoch: self.epoch,
            exactness: if self.recovery.in_grace { self.exactness } else { Exactness::Exact },
            in_grace: self.recovery.in_grace,
            stopped_cleanly: self.stopped,
            ids_below: self.ids.told_below(),
            clients: self.clients.iter().map(|t| (t.row.id, t.row.clone())).collect(),
            locks: locks
                .chain(remembered.locks.values().cloned())
                .map(|lock| (lock.id, lock))
                .collect(),
            shares: shares
                .chain(remembered.shares.values().cloned())
                .map(|share| (share.id, share))
                .collect(),
        }
    }

    pub(crate) fn view_lock(&self, held: HeldLock) -> LockView<'_> {
        let owner = self.owners.key(held.owner);
        let current = self.clients.incarnation(owner.host);
        let state = match held.kind.confirmed {
            false if self.in_window() => LockState::Unconfirmed,
            false => LockState::Releasable,
            true if held.kind.incarnation.is_known() && held.kind.incarnation != current => {
                LockState::Suspect
            }
            true => LockState::Held,
        };
        LockView {
            id: held.id,
            file: self.files.key(held.file),
            owner,
            range: held.range,
            mode: held.kind.mode,
            incarnation: held.kind.incarnation,
            monitored: held.kind.monitored,
            since_ms: held.since_ms,
            state,
        }
    }

    pub(crate) fn view_share<'a>(&'a self, share: &'a HeldShare) -> ShareView<'a> {
        ShareView {
            id: share.id,
            file: self.files.key(share.file),
            owner: self.owners.key(share.owner),
            access: share.access,
            deny: share.deny,
            confirmed: share.confirmed,
            since_ms: share.since_ms,
        }
    }

    pub(crate) fn view_waiter<'a>(&'a self, id: WaiterId, waiter: &'a Waiter) -> WaiterView<'a> {
        let Waiter { file, owner, range, mode, .. } = *waiter;
        WaiterView {
            id: LockId(id.0),
            file: self.files.key(file),
            owner: self.owners.key(owner),
            range,
            mode,
            since_ms: waiter.since_ms,
            blocked_by: self.table.conflict(file, owner, range, mode).map(|held| held.id),
            passed_over: waiter.passed_over,
        }
    }

    fn view_client<'a>(&self, tracked: &'a TrackedClient) -> ClientView<'a> {
        let suspect = match tracked.suspect {
            None => false,
            Some(SuspectReason::Reset) => !tracked.has_nothing(),
            Some(SuspectReason::State(_)) => tracked.has_other_incarnations(),
        };
        // Two machines that are one owner: whatever it holds may be of either.
        let suspect = suspect || (tracked.alternated.is_some() && !tracked.has_nothing());
        ClientView {
            client: &tracked.row,
            last_seen: tracked.last_seen,
            locks: tracked.locks,
            shares: tracked.shares,
            waiting: tracked.waiting,
            unconfirmed: tracked.unconfirmed,
            missing: tracked.missing,
            oldest: tracked.oldest(None),
            suspect,
            alternated: tracked.alternated,
            crashed: tracked.crashed,
            pending: tracked.pending.as_ref(),
        }
    }
}
