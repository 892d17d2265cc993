//! What can be read of the keeper: rows made as they are asked for, in an order that a reader can
//! go on from, so that nobody has to copy the table (R8.1).

use std::net::IpAddr;
use std::ops::ControlFlow;

use crate::bytes::FileKey;
use crate::change::{Client, Exactness, Lock, Snapshot};
use crate::clients::{Suspicion, Tracked};
use crate::identity::{ClientId, Epoch, HostKey, LockId, Owner, ShareId};
use crate::keeper::Keeper;
use crate::range::Range;
use crate::shares::HeldShare;
use crate::table::Held;
use crate::view::{ClientView, Counts, GraceView, LockState, LockView, ShareView, WaiterView};
use crate::waiters::{Waiter, WaiterId};

impl Keeper {
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn nsm_state(&self) -> u32 {
        self.epoch.nsm_state()
    }

    /// How far the recovered locks could be trusted.
    pub fn exactness(&self) -> Exactness {
        self.exactness
    }

    /// Grows with every lock taken and every place in line.
    pub fn next_id(&self) -> u64 {
        self.ids.next()
    }

    /// Whether hosts may still come back for what they held.
    pub fn in_window(&self) -> bool {
        !self.recovery.window.is_over()
    }

    pub fn grace(&self) -> Option<GraceView> {
        self.recovery.in_grace.then(|| GraceView {
            exactness: self.exactness,
            window: self.recovery.window.length(),
            ends: self.recovery.window.ends(),
            missing: self.recovery.missing,
            parked: self.parking.len(),
        })
    }

    pub fn counts(&self) -> Counts {
        Counts {
            clients: self.clients.len(),
            locks: self.table.len(),
            shares: self.shares.len(),
            waiters: self.waiters.len(),
            unconfirmed: self.recovery.unconfirmed,
            parked: self.parking.len() + self.parking.waiters(),
            open_grants: self.grants.len(),
        }
    }

    /// Locks in the order of their ids, from the one after `after`.
    pub fn locks(&self, after: LockId) -> impl Iterator<Item = LockView<'_>> {
        self.table.after(after).map(|held| self.view_lock(held))
    }

    pub fn lock(&self, id: LockId) -> Option<LockView<'_>> {
        self.table.get(id).map(|held| self.view_lock(held))
    }

    pub fn locks_of(&self, client: ClientId) -> impl Iterator<Item = LockView<'_>> {
        let owners = self.clients.get(client).into_iter().flat_map(|tracked| &tracked.owners);
        owners.flat_map(|owner| self.table.of_owner(*owner)).map(|held| self.view_lock(held))
    }

    pub fn locks_on(&self, file: &FileKey) -> impl Iterator<Item = LockView<'_>> {
        let file = self.files.find(file).into_iter();
        file.flat_map(|file| self.table.of_file(file)).map(|held| self.view_lock(held))
    }

    /// Records of a roster that is being recovered.
    pub fn remembered(&self, after: LockId) -> impl Iterator<Item = &Lock> {
        self.recovery.remembered.after(after)
    }

    pub fn remembered_on(&self, file: &FileKey) -> impl Iterator<Item = &Lock> {
        self.recovery.remembered.on(file)
    }

    pub fn remembered_one(&self, id: LockId) -> Option<&Lock> {
        self.recovery.remembered.locks.get(&id)
    }

    pub fn remembered_len(&self) -> usize {
        self.recovery.remembered.locks.len()
    }

    pub fn shares_on(&self, file: &FileKey) -> impl Iterator<Item = ShareView<'_>> {
        let file = self.files.find(file).map(|file| self.files.file(file));
        let ids = file.into_iter().flat_map(|file| &file.shares);
        ids.filter_map(|id| self.shares.get(*id)).map(|share| self.view_share(share))
    }

    /// Shares in the order of their ids, from the one after `after`.
    pub fn shares(&self, after: ShareId) -> impl Iterator<Item = ShareView<'_>> {
        self.shares.after(after).map(|share| self.view_share(share))
    }

    pub fn share(&self, id: ShareId) -> Option<ShareView<'_>> {
        self.shares.get(id).map(|share| self.view_share(share))
    }

    pub fn shares_of(&self, client: ClientId) -> impl Iterator<Item = ShareView<'_>> {
        self.shares.of_host(client).map(|share| self.view_share(share))
    }

    /// Those who wait, in the order in which they came, from the one after `after`.
    pub fn waiters(&self, after: LockId) -> impl Iterator<Item = WaiterView<'_>> {
        let after = self.waiters.after(WaiterId(after.0));
        after.map(|(id, waiter)| self.view_waiter(id, waiter))
    }

    pub fn waiter(&self, id: LockId) -> Option<WaiterView<'_>> {
        let id = WaiterId(id.0);
        self.waiters.get(id).map(|waiter| self.view_waiter(id, waiter))
    }

    pub fn waiters_of(&self, client: ClientId) -> impl Iterator<Item = WaiterView<'_>> {
        let owners = self.clients.get(client).into_iter().flat_map(|tracked| &tracked.owners);
        owners
            .flat_map(|owner| self.waiters.of_owner(*owner))
            .map(|(id, waiter)| self.view_waiter(id, waiter))
    }

    /// First come, first served.
    pub fn waiters_on(&self, file: &FileKey) -> impl Iterator<Item = WaiterView<'_>> {
        let file = self.files.find(file).map(|file| self.files.file(file));
        let ids = file.into_iter().flat_map(|file| &file.queue);
        ids.filter_map(|id| Some(self.view_waiter(*id, self.waiters.get(*id)?)))
    }

    pub fn clients(&self, after: ClientId) -> impl Iterator<Item = ClientView<'_>> {
        self.clients.after(after).map(|tracked| self.view_client(tracked))
    }

    pub fn client(&self, id: ClientId) -> Option<ClientView<'_>> {
        self.clients.get(id).map(|tracked| self.view_client(tracked))
    }

    pub fn host(&self, key: &HostKey) -> Option<&Client> {
        let id = self.clients.find_host(key)?;
        self.clients.get(id).map(|tracked| &*tracked.row)
    }

    /// What an owner has in a range of a file.
    pub fn owned_by(&self, owner: &Owner, file: &FileKey, range: Range) -> Option<LockView<'_>> {
        let (owner, file) = (self.owners.find(owner)?, self.files.find(file)?);
        self.table.owned(owner, file, range).next().map(|held| self.view_lock(held))
    }

    /// Whether another lock than this one is in a waiter's way.
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

    /// Whether an operator has shut out somebody at this address: its writes are refused too.
    pub fn is_fenced(&self, address: IpAddr) -> bool {
        self.clients.hosts_at(address).any(|tracked| tracked.row.fenced)
    }

    /// The durable state as it will be when every step so far is committed.
    pub fn snapshot(&self) -> Snapshot {
        let locks = self.table.after(LockId(0)).map(|held| self.row_of(&held));
        let remembered = &self.recovery.remembered;
        let shares = self.shares.iter().map(|share| self.share_row(share));
        Snapshot {
            epoch: self.epoch,
            exactness: self.exactness,
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

    fn view_lock(&self, held: Held) -> LockView<'_> {
        let owner = self.owners.owner(held.owner);
        let current = self.clients.incarnation(owner.host);
        let state = match held.terms.confirmed {
            false if self.in_window() => LockState::Unconfirmed,
            false => LockState::Releasable,
            true if held.terms.incarnation.is_known() && held.terms.incarnation != current => {
                LockState::Suspect
            }
            true => LockState::Held,
        };
        LockView {
            id: held.id,
            file: self.files.key(held.file),
            owner,
            range: held.range,
            mode: held.terms.mode,
            incarnation: held.terms.incarnation,
            monitored: held.terms.monitored,
            since_ms: held.since_ms,
            state,
        }
    }

    fn view_share<'a>(&'a self, share: &'a HeldShare) -> ShareView<'a> {
        ShareView {
            id: share.id,
            file: self.files.key(share.file),
            owner: self.owners.owner(share.owner),
            access: share.access,
            deny: share.deny,
            confirmed: share.confirmed,
            since_ms: share.since_ms,
        }
    }

    fn view_waiter<'a>(&'a self, id: WaiterId, waiter: &'a Waiter) -> WaiterView<'a> {
        let Waiter { file, owner, range, mode, .. } = *waiter;
        WaiterView {
            id: LockId(id.0),
            file: self.files.key(file),
            owner: self.owners.owner(owner),
            range,
            mode,
            since_ms: waiter.since_ms,
            blocked_by: self.table.conflict(file, owner, range, mode).map(|held| held.id),
            passed_over: waiter.passed_over,
        }
    }

    fn view_client<'a>(&self, tracked: &'a Tracked) -> ClientView<'a> {
        let suspect = match tracked.suspect {
            None => false,
            Some(Suspicion::Reset) => !tracked.has_nothing(),
            Some(Suspicion::State) => tracked.has_strangers(),
        };
        ClientView {
            client: &tracked.row,
            last_seen: tracked.last_seen,
            locks: tracked.locks,
            shares: tracked.shares,
            waiting: tracked.waiting,
            unconfirmed: tracked.unconfirmed,
            oldest: tracked.oldest(),
            suspect,
            crashed: tracked.crashed,
            pending: tracked.pending.as_ref(),
        }
    }
}
