//! Operator actions. Each is recorded in an event with the operator's name.

use crate::bytes::Name;
use crate::clients::SuspectReason;
use crate::event::{Event, GraceEnd, Proof, ReleasedItem};
use crate::identity::{ClientId, LockId, ShareId};
use crate::keeper::Keeper;
use crate::request::{OperatorAction, OperatorRequest};
use crate::step::{OperatorError, OperatorOutcome, Reply};
use crate::sweep::SweepScope;
use crate::time::Time;
use crate::view::PendingReboot;

impl Keeper {
    pub(crate) fn decide_operator(&mut self, request: OperatorRequest, now: Time) {
        let OperatorRequest { id, by, action } = request;
        let done = match action {
            OperatorAction::Release(lock) => self.release_lock(lock, by, now),
            OperatorAction::Fence(client) => self.fence(client, by, now),
            OperatorAction::Unfence(client) => self.unfence(client, by),
            OperatorAction::ConfirmReboot { client, force } => {
                self.confirm_reboot(client, force, by, now)
            }
            OperatorAction::EndGrace => self.end_grace_by_hand(by, now),
            OperatorAction::Renotify(client) => self.renotify_by_hand(client, by, now),
            OperatorAction::NotifyAddresses(addresses) => {
                self.notify_addresses_by_hand(addresses, by, now)
            }
            OperatorAction::Forget(client) => self.forget_client(client, by, now),
        };
        let done = done.map(|released| OperatorOutcome { released });
        self.reply(id, Reply::Operator(done));
    }

    /// Locks and shares draw their ids from one counter.
    fn release_lock(&mut self, id: LockId, by: Name, now: Time) -> Result<u64, OperatorError> {
        if let Some(held) = self.table.get(id) {
            let client = self.owners.host(held.owner);
            let what = ReleasedItem::Lock(held.range, held.kind.mode);
            self.take_locks(vec![held], Event::ReleasedByOperator { client, id, what, by }, now);
        } else if let Some(share) = self.shares.get(ShareId(id.0)).copied() {
            self.note_deprived(share.host);
            self.remove_share(share.id, now);
            let what = ReleasedItem::Share;
            self.event(Event::ReleasedByOperator { client: share.host, id, what, by });
        } else {
            return Err(OperatorError::NoSuchLock);
        }
        Ok(1)
    }

    /// Accepts the pending report. Without one, sweeps what the host has from before, if forced.
    fn confirm_reboot(
        &mut self,
        client: ClientId,
        force: bool,
        by: Name,
        now: Time,
    ) -> Result<u64, OperatorError> {
        self.host_of(client)?;
        let before = self.held_by(client);
        let scope = self.confirmed_scope(client);
        let tracked = self.clients.get_mut(client);
        let proof = Proof::Operator(by);
        match tracked.and_then(|tracked| tracked.pending.take()) {
            Some(PendingReboot { to: Some(to), first, .. }) => {
                self.accept_reboot(client, to, first, proof, now);
            }
            None if !force => return Err(OperatorError::NoReport),
            _ => {
                let to = self.clients.incarnation(client);
                let released = self.sweep(client, scope, now);
                if let Some(tracked) = self.clients.get_mut(client) {
                    tracked.suspect = None;
                }
                self.event(Event::Rebooted { client, to, proof, released });
            }
        }
        Ok(before.saturating_sub(self.held_by(client)))
    }

    /// The locks and shares that a confirmed reboot of this client would release.
    pub fn released_by_reboot(&self, client: ClientId) -> u64 {
        self.count_swept(client, self.confirmed_scope(client))
    }

    /// What the host held when its pending report first arrived, or when its LOCK first showed
    /// another state; everything if there was neither.
    fn confirmed_scope(&self, client: ClientId) -> SweepScope {
        let Some(tracked) = self.clients.get(client) else { return SweepScope::Everything };
        match (&tracked.pending, tracked.suspect) {
            (Some(PendingReboot { to: Some(to), first, .. }), _) => {
                SweepScope::Confirmed { to: *to, arrived: *first }
            }
            (Some(free_all), _) => SweepScope::Before(free_all.first),
            (None, Some(SuspectReason::State(arrived))) if tracked.has_other_incarnations() => {
                SweepScope::Confirmed { to: tracked.row.incarnation, arrived }
            }
            (None, _) => SweepScope::Everything,
        }
    }

    fn held_by(&self, client: ClientId) -> u64 {
        self.clients.get(client).map_or(0, |tracked| (tracked.locks + tracked.shares) as u64)
    }

    fn end_grace_by_hand(&mut self, by: Name, now: Time) -> Result<u64, OperatorError> {
        if !self.recovery.in_grace {
            return Err(OperatorError::NotInGrace);
        }
        self.close_window(now);
        self.end_grace(GraceEnd::Operator(by), now);
        Ok(0)
    }

    fn renotify_by_hand(
        &mut self,
        client: ClientId,
        by: Name,
        now: Time,
    ) -> Result<u64, OperatorError> {
        if self.clients.get(client).is_none_or(|tracked| !tracked.row.monitored) {
            return Err(OperatorError::NoSuchClient);
        }
        self.event(Event::Renotified { client, by });
        self.renotify(client, now);
        Ok(0)
    }

    /// Refused for a fenced client: forgetting it would lift the fence.
    fn forget_client(
        &mut self,
        client: ClientId,
        by: Name,
        now: Time,
    ) -> Result<u64, OperatorError> {
        let tracked = self.clients.get(client).ok_or(OperatorError::NoSuchClient)?;
        if !tracked.has_nothing() || tracked.row.fenced || self.has_pending_notice(client) {
            return Err(OperatorError::Busy);
        }
        let (name, address) = (tracked.row.name.clone(), tracked.row.address);
        self.unregister(client, now);
        self.event(Event::Forgotten { client, name, address, by });
        Ok(0)
    }

    pub(crate) fn host_of(&self, client: ClientId) -> Result<(), OperatorError> {
        let host = self.clients.get(client).filter(|tracked| tracked.row.is_host());
        host.map(drop).ok_or(OperatorError::NoSuchClient)
    }
}
