//! Share reservations: SHARE and UNSHARE. A share states the access wanted and the access denied to
//! others. Shares never wait and are independent of byte ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::bytes::{FileKey, OwnerTag};
use crate::change::{Change, Share};
use crate::config::GraceMode;
use crate::event::{Event, Release};
use crate::identity::{Caller, ClientId, Incarnation, ShareId};
use crate::interned::{FileId, OwnerId};
use crate::keeper::Keeper;
use crate::locking::owner_on;
use crate::namespaces;
use crate::parking::{Parked, ProbeHistory};
use crate::request::{Access, OwnerName, ProbeAnswer, Question, ShareRequest, UnshareRequest};
use crate::step::{Outcome, Refusal, Reply};
use crate::time::Time;

#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldShare {
    pub id: ShareId,
    pub file: FileId,
    pub owner: OwnerId,
    pub host: ClientId,
    pub access: Access,
    pub deny: Access,
    pub incarnation: Incarnation,
    pub confirmed: bool,
    /// As in `LockKind`.
    pub reports: u32,
    pub since_ms: u64,
}

impl HeldShare {
    fn conflicts(&self, access: Access, deny: Access) -> bool {
        self.deny.meets(access) || self.access.meets(deny)
    }
}

#[derive(Default)]
pub(crate) struct Shares {
    rows: BTreeMap<ShareId, HeldShare>,
    by_host: BTreeSet<(ClientId, ShareId)>,
}

impl Shares {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn get(&self, id: ShareId) -> Option<&HeldShare> {
        self.rows.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &HeldShare> {
        self.rows.values()
    }

    pub(crate) fn after(&self, id: ShareId) -> impl Iterator<Item = &HeldShare> {
        self.rows.range((Bound::Excluded(id), Bound::Unbounded)).map(|(_, share)| share)
    }

    pub(crate) fn of_host(&self, host: ClientId) -> impl Iterator<Item = &HeldShare> {
        let bounds = (host, ShareId(0))..=(host, ShareId(u64::MAX));
        self.by_host.range(bounds).filter_map(|(_, id)| self.rows.get(id))
    }

    pub(crate) fn of_host_after(
        &self,
        host: ClientId,
        after: ShareId,
    ) -> impl Iterator<Item = &HeldShare> {
        let bounds = (Bound::Excluded((host, after)), Bound::Included((host, ShareId(u64::MAX))));
        self.by_host.range(bounds).filter_map(|(_, id)| self.rows.get(id))
    }

    pub(crate) fn of_owner(&self, owner: OwnerId) -> impl Iterator<Item = &HeldShare> {
        self.rows.values().filter(move |share| share.owner == owner)
    }
}

impl Keeper {
    pub(crate) fn decide_share(&mut self, request: ShareRequest, history: ProbeHistory, now: Time) {
        let host = self.clients.find_host(&request.caller.host);
        if self.is_refused_by_fence(&request.caller, host, request.reclaim, now) {
            return self.refuse_share(&request, Refusal::Fenced);
        }
        if request.reclaim {
            return self.reclaim_share(request, host, now);
        }
        let conflicts = self.conflicting_shares(&request);
        if self.grace_holds_back_share(&conflicts) {
            return self.hold_back(Parked::Share(request, history), now);
        }
        let releasable = |share: &HeldShare| {
            !share.confirmed && self.may_release() && !history.holders.contains(&share.host)
        };
        match conflicts.first() {
            None => self.take_share(request, now),
            Some(first) if conflicts.iter().all(releasable) => {
                self.ask(first.host, Question::Reachable, Parked::Share(request, history), now);
            }
            Some(_) => self.reply(request.id, Reply::Share(Outcome::Denied)),
        }
    }

    pub(crate) fn decide_unshare(&mut self, request: UnshareRequest, now: Time) {
        self.hear(&request.caller, now);
        let name = share_owner(&request.tag);
        let release = namespaces::Request::Release;
        self.adopt_former_share(&request.caller, &name, &request.file, release, |_| true);
        self.unshare_remembered(&request.caller, &request.tag, &request.file);
        if let (owner, Some(file)) = self.ids_of(&request.caller, &name, &request.file)
            && let Some(share) = self.share_of(owner, file)
        {
            self.remove_share(share.id, now);
        }
        self.reply(request.id, Reply::Unshare);
    }

    /// Drops the roster record of a share that its owner gave up or took anew.
    fn unshare_remembered(&mut self, caller: &Caller, tag: &OwnerTag, file: &FileKey) {
        if let Some(owner) = self.owner(caller, &share_owner(tag))
            && let Some(id) = self.recovery.remembered.take_share(&owner, file)
        {
            self.change(Change::ShareGone(id));
        }
    }

    fn grace_holds_back_share(&self, conflicts: &[HeldShare]) -> bool {
        self.recovery.in_grace
            && (!self.exactness.is_exact()
                || self.config.grace == GraceMode::Strict
                || conflicts.iter().any(|share| !share.confirmed))
    }

    pub(crate) fn share_of(&self, owner: OwnerId, file: FileId) -> Option<HeldShare> {
        let ids = self.files[file].shares.iter();
        ids.filter_map(|id| self.shares.get(*id)).find(|share| share.owner == owner).copied()
    }

    fn conflicting_shares(&self, request: &ShareRequest) -> Vec<HeldShare> {
        let name = share_owner(&request.tag);
        let (owner, Some(file)) = self.ids_of(&request.caller, &name, &request.file) else {
            return Vec::new();
        };
        let ids = self.files[file].shares.iter();
        let others = ids.filter_map(|id| self.shares.get(*id)).filter(|s| s.owner != owner);
        others.filter(|share| share.conflicts(request.access, request.deny)).copied().collect()
    }

    /// A share that cannot be true together with this record: another of its owner, or one that
    /// conflicts with it.
    pub(crate) fn contradicting_share(&self, record: &Share) -> Option<ShareId> {
        let file = self.files.find(&record.file)?;
        let ids = self.files[file].shares.iter();
        let others = ids.filter_map(|id| self.shares.get(*id));
        let mut others = others.filter(|share| {
            *self.owners.key(share.owner) == record.owner
                || share.conflicts(record.access, record.deny)
        });
        others.next().map(|share| share.id)
    }

    fn take_share(&mut self, request: ShareRequest, now: Time) {
        if let Err(refusal) = self.has_room_to_share(&request) {
            return self.refuse_share(&request, refusal);
        }
        let known = self.clients.find_host(&request.caller.host);
        let host = match self.register(&request.caller, known, true, Incarnation::UNKNOWN, now) {
            Ok(host) => host,
            Err(refusal) => return self.refuse_share(&request, refusal),
        };
        if request.reclaim {
            self.note_unrecorded(host, now);
            self.adopt_remembered(host, &request.caller, &share_owner(&request.tag));
        }
        self.unshare_remembered(&request.caller, &request.tag, &request.file);
        let owner = owner_on(host, &request.caller, &share_owner(&request.tag));
        let owner = self.intern_owner(&owner);
        let file = self.files.intern(&request.file);
        if let Some(share) = self.share_of(owner, file) {
            // One from before a report may be of the earlier kernel.
            let known = share.confirmed && share.reports == self.clients.reports(Some(host));
            if known && share.access == request.access && share.deny == request.deny {
                return self.reply(request.id, Reply::Share(Outcome::Granted));
            }
            self.remove_share(share.id, now);
        }
        let id = ShareId(self.ids.take());
        self.insert_share(HeldShare {
            id,
            file,
            owner,
            host,
            access: request.access,
            deny: request.deny,
            incarnation: match request.reclaim {
                true => self.reclaimed_incarnation(Some(host)),
                false => self.clients.incarnation(host),
            },
            confirmed: true,
            reports: self.clients.reports(Some(host)),
            since_ms: now.wall_ms,
        });
        self.reply(request.id, Reply::Share(Outcome::Granted));
    }

    /// Whether another share fits; one that replaces another always does.
    fn has_room_to_share(&self, request: &ShareRequest) -> Result<(), Refusal> {
        let name = share_owner(&request.tag);
        let (owner, file) = self.ids_of(&request.caller, &name, &request.file);
        if file.is_some_and(|file| self.share_of(owner, file).is_some()) {
            return Ok(());
        }
        let on_file = file.map_or(0, |file| self.files[file].shares.len());
        // Earlier partial unlocks may have left the host above its limit.
        let times = if request.reclaim { 2 } else { 1 };
        self.has_entry(self.clients.find_host(&request.caller.host), on_file, times)
    }

    fn reclaim_share(&mut self, request: ShareRequest, host: Option<ClientId>, now: Time) {
        self.note_reclaim(host, now);
        let name = share_owner(&request.tag);
        let (access, deny) = (request.access, request.deny);
        let reclaim = namespaces::Request::Reclaim;
        self.adopt_former_share(&request.caller, &name, &request.file, reclaim, |share| {
            share.access == access && share.deny == deny
        });
        let (owner, file) = self.ids_of(&request.caller, &name, &request.file);
        if let Some(share) = file.and_then(|file| self.share_of(owner, file))
            && share.access == request.access
            && share.deny == request.deny
        {
            let before = self.missing_of(host);
            self.confirm_share(share);
            self.announce_reclaimed(host, before);
            return self.reply(request.id, Reply::Share(Outcome::Granted));
        }
        if !self.recovery.in_grace {
            return self.reply(request.id, Reply::Share(Outcome::Grace));
        }
        let may_reclaim = self.may_reclaim(host, request.admitted);
        if may_reclaim && self.conflicting_shares(&request).is_empty() {
            return self.take_share(request, now);
        }
        if let Some(client) = host {
            self.event(Event::ReclaimRefused { client });
        }
        self.reply(request.id, Reply::Share(Outcome::Denied));
    }

    /// A share that the owner took under a former address of the server is its own (B2.80).
    fn adopt_former_share(
        &mut self,
        caller: &Caller,
        name: &OwnerName,
        file: &FileKey,
        request: namespaces::Request,
        fits: impl Fn(HeldShare) -> bool,
    ) {
        if let (owner, Some(file)) = self.ids_of(caller, name, file)
            && self.share_of(owner, file).is_none()
        {
            let host = self.clients.find_host(&caller.host);
            self.adopt_former_owner(host, caller, name, request, |keeper, former| {
                keeper.share_of(former, file).is_some_and(&fits)
            });
        }
    }

    fn confirm_share(&mut self, share: HeldShare) {
        if share.confirmed {
            return;
        }
        if let Some(row) = self.shares.rows.get_mut(&share.id) {
            row.confirmed = true;
        }
        if let Some(tracked) = self.clients.get_mut(share.host) {
            self.recovery.count_confirmed(tracked, true);
        }
    }

    pub(crate) fn recover_share(&mut self, share: Share) {
        let held = HeldShare {
            id: share.id,
            file: self.files.intern(&share.file),
            owner: self.intern_owner(&share.owner),
            host: share.owner.host,
            access: share.access,
            deny: share.deny,
            incarnation: share.incarnation,
            confirmed: false,
            reports: 0,
            since_ms: share.since_ms,
        };
        self.keep_share(held);
    }

    fn insert_share(&mut self, share: HeldShare) {
        self.keep_share(share);
        let row = self.share_row(&share);
        self.change(Change::Share(row));
    }

    fn keep_share(&mut self, share: HeldShare) {
        self.shares.by_host.insert((share.host, share.id));
        self.shares.rows.insert(share.id, share);
        self.files[share.file].shares.push(share.id);
        self.owners[share.owner] += 1;
        if let Some(tracked) = self.clients.count_entry(share.host) {
            tracked.shares += 1;
            tracked.taken.count_share(share.incarnation, share.reports);
            if !share.confirmed {
                self.recovery.count_unconfirmed(tracked, true);
            }
        }
    }

    pub(crate) fn share_row(&self, share: &HeldShare) -> Share {
        Share {
            id: share.id,
            file: self.files.key(share.file).clone(),
            owner: self.owners.key(share.owner).clone(),
            access: share.access,
            deny: share.deny,
            incarnation: share.incarnation,
            since_ms: share.since_ms,
        }
    }

    /// Records the state of the kernel that reclaimed shares.
    pub(crate) fn identify_shares(&mut self, host: ClientId, state: Incarnation) {
        let reclaimed = self.shares.of_host(host);
        let reclaimed = reclaimed.filter(|it| it.confirmed && !it.incarnation.is_known());
        let reclaimed: Vec<ShareId> = reclaimed.map(|share| share.id).collect();
        for id in reclaimed {
            let Some(share) = self.shares.rows.get_mut(&id) else { continue };
            let before = std::mem::replace(&mut share.incarnation, state);
            let share = *share;
            if let Some(tracked) = self.clients.get_mut(host) {
                tracked.taken.uncount_share(before, share.reports);
                tracked.taken.count_share(state, share.reports);
            }
            let row = self.share_row(&share);
            self.change(Change::Share(row));
        }
    }

    /// Gives a share to another owner of the same host.
    pub(crate) fn give_share(&mut self, id: ShareId, owner: OwnerId) {
        if let Some(share) = self.shares.rows.get_mut(&id) {
            let before = std::mem::replace(&mut share.owner, owner);
            self.owners[before] -= 1;
            self.owners[owner] += 1;
        }
    }

    pub(crate) fn remove_share(&mut self, id: ShareId, now: Time) {
        let Some(share) = self.shares.rows.remove(&id) else { return };
        self.shares.by_host.remove(&(share.host, id));
        self.files[share.file].shares.retain(|other| *other != id);
        self.owners[share.owner] -= 1;
        if let Some(tracked) = self.clients.uncount_entry(share.host) {
            tracked.shares -= 1;
            tracked.taken.uncount_share(share.incarnation, share.reports);
            tracked.idle_since = now.mono;
            if !share.confirmed {
                self.recovery.count_confirmed(tracked, true);
            }
            if tracked.is_unnoticed_idle() {
                self.clients.queue(share.host);
            }
        }
        self.change(Change::ShareGone(id));
        self.touch(share.owner, share.file);
    }

    /// Uses the answer of a probe of a host whose unconfirmed share conflicts with a request.
    pub(crate) fn judge_sharer(
        &mut self,
        holder: ClientId,
        request: &ShareRequest,
        answer: ProbeAnswer,
        now: Time,
    ) {
        if answer == ProbeAnswer::Alive || !self.may_release() {
            return;
        }
        let conflicts = self.conflicting_shares(request);
        let lost = conflicts.iter().filter(|share| !share.confirmed && share.host == holder);
        let lost: Vec<ShareId> = lost.map(|share| share.id).collect();
        self.drop_shares(holder, &lost, Release::Unanswered, now);
    }

    pub(crate) fn drop_unconfirmed_shares(&mut self, host: ClientId, why: Release, now: Time) {
        let lost = self.shares.of_host(host).filter(|share| !share.confirmed);
        let lost: Vec<ShareId> = lost.map(|share| share.id).collect();
        self.drop_shares(host, &lost, why, now);
    }

    fn drop_shares(&mut self, client: ClientId, lost: &[ShareId], why: Release, now: Time) {
        self.note_deprived(client);
        for id in lost {
            self.remove_share(*id, now);
        }
        if !lost.is_empty() {
            self.event(Event::Released { client, count: lost.len() as u64, why });
        }
    }

    pub(crate) fn refuse_share(&mut self, request: &ShareRequest, why: Refusal) {
        let client = self.clients.find_host(&request.caller.host);
        self.event(Event::Refused { client, why });
        self.reply(request.id, Reply::Share(Outcome::Refused(why)));
    }
}

/// A share has no process number; its owner is the tag alone.
fn share_owner(tag: &OwnerTag) -> OwnerName {
    OwnerName { number: 0, tag: tag.clone() }
}
