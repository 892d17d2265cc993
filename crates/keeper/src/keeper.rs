//! The keeper's state and its public interface: how it starts, its inputs (`handle_*`) and its
//! output (`poll_*`). The decisions are in the other files, one noun each.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::change::{Change, Exactness, Lock, Protocol, Snapshot};
use crate::clients::Clients;
use crate::config::Config;
use crate::event::Event;
use crate::grace::Recovery;
use crate::grants::Grants;
use crate::identity::*;
use crate::ids::IdAllocator;
use crate::interned::{FileId, Files, OwnerId, Owners};
use crate::map::Seed;
use crate::namespaces::OwnAddresses;
use crate::notices::Notices;
use crate::parking::{Parking, ProbeHistory, ProbeOutcome};
use crate::range::Range;
use crate::reboot_reports::PendingDecisions;
use crate::reconnection::Reconnection;
use crate::request::*;
use crate::settle::Unsettled;
use crate::shares::Shares;
use crate::step::{Message, Reply, Step};
use crate::table::{HeldLock, LockKind, Table, TableDelta};
use crate::time::Time;
use crate::timer::{Timer, Timers};
use crate::waiter_probes::WaiterProbes;
use crate::waiters::Waiters;

/// The lock keeper: a deterministic state machine. Every input (`handle_*`) takes the current time,
/// decides at once and leaves its effects in the next step. Inputs must come with a `Time::mono`
/// that never goes back.
pub struct Keeper {
    pub(crate) config: Config,
    pub(crate) epoch: Epoch,
    pub(crate) exactness: Exactness,
    pub(crate) stopped: bool,
    pub(crate) ids: IdAllocator,
    pub(crate) clients: Clients,
    pub(crate) owners: Owners,
    pub(crate) files: Files,
    pub(crate) table: Table,
    pub(crate) shares: Shares,
    pub(crate) waiters: Waiters,
    pub(crate) waiter_probes: WaiterProbes,
    pub(crate) grants: Grants,
    pub(crate) parking: Parking,
    pub(crate) decisions: PendingDecisions,
    pub(crate) recovery: Recovery,
    pub(crate) reconnection: Reconnection,
    pub(crate) notices: Notices,
    pub(crate) addresses: OwnAddresses,
    pub(crate) timers: Timers,
    pub(crate) step: Step,
    /// The number of steps handed out.
    pub(crate) steps: u64,
    pub(crate) unsettled: Unsettled,
    /// Scratch space; empty between uses.
    edit: TableDelta,
}

impl Keeper {
    /// Starts an epoch from what a store loaded. `epoch` must be greater than every earlier one.
    /// The first step records the start; it must be committed before any socket opens (I3).
    pub fn restore(saved: Snapshot, epoch: Epoch, config: Config, now: Time) -> Self {
        let seed = Seed(config.seed);
        let recovery = Recovery::starting(config.window(&Protocol::NLM));
        let mut keeper = Self {
            epoch,
            exactness: saved.exactness,
            stopped: false,
            ids: IdAllocator::after(&saved, epoch),
            clients: Clients::new(seed),
            owners: Owners::new(seed),
            files: Files::new(seed),
            table: Table::new(config.seed),
            shares: Shares::default(),
            waiters: Waiters::default(),
            waiter_probes: WaiterProbes::default(),
            grants: Grants::default(),
            parking: Parking::default(),
            decisions: PendingDecisions::default(),
            recovery,
            reconnection: Reconnection::default(),
            notices: Notices::default(),
            addresses: OwnAddresses::new(config.addresses.clone()),
            timers: Timers::default(),
            step: Step::default(),
            steps: 0,
            unsettled: Unsettled::default(),
            edit: TableDelta::default(),
            config,
        };
        keeper.recover(saved, now);
        keeper.settle(now);
        keeper
    }

    /// Everything to be done since the last call, as one unit; `None` if there is nothing. The
    /// caller commits all changes before it sends any message (I2) and never loses or reorders a
    /// step: the keeper's state already includes it.
    pub fn poll_step(&mut self) -> Option<Step> {
        if let Some(below) = self.ids.grown() {
            self.step.changes.insert(0, Change::IdsBelow(below));
        }
        self.steps += 1;
        (!self.step.is_empty()).then(|| std::mem::take(&mut self.step))
    }

    /// When `handle_timeout` must next be called (`Time::mono`); `None` if no timer is set. Any
    /// input may change it.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// LOCK and NM_LOCK. Replies `Reply::Lock`, in this step or, if the request was parked, in a
    /// later one. A granted lock, the registration of its host and the reply are in the same step.
    pub fn handle_lock(&mut self, request: LockRequest, now: Time) {
        self.hear(&request.caller, now);
        self.decide_lock(request, ProbeHistory::default(), now);
        self.settle(now);
    }

    /// TEST. Replies `Reply::Test` with a conflicting holder, if there is one.
    pub fn handle_test(&mut self, request: TestRequest, now: Time) {
        let host = self.hear(&request.caller, now);
        self.decide_test(request, host, now);
        self.settle(now);
    }

    /// UNLOCK. Replies `Reply::Unlock` whether or not anything was held; withdraws the owner's
    /// parked and queued requests inside the range. The release is in the same step as the reply.
    pub fn handle_unlock(&mut self, request: UnlockRequest, now: Time) {
        self.decide_unlock(request, now);
        self.settle(now);
    }

    /// CANCEL. Removes the queued or parked request; replies `TooLate` if it was granted already.
    pub fn handle_cancel(&mut self, request: CancelRequest, now: Time) {
        self.decide_cancel(request, now);
        self.settle(now);
    }

    /// SHARE. Replies `Reply::Share`; never waits for other shares, but may be parked like a LOCK.
    pub fn handle_share(&mut self, request: ShareRequest, now: Time) {
        self.hear(&request.caller, now);
        self.decide_share(request, ProbeHistory::default(), now);
        self.settle(now);
    }

    /// UNSHARE. Replies `Reply::Unshare` whether or not a share was held.
    pub fn handle_unshare(&mut self, request: UnshareRequest, now: Time) {
        self.decide_unshare(request, now);
        self.settle(now);
    }

    /// SM_NOTIFY. Locks are released only if the report is accepted (B3.8), possibly after a probe.
    /// Replies `Acknowledged` if it is accepted for every host concerned, otherwise `NoReply`.
    pub fn handle_reboot(&mut self, notice: RebootNotice, now: Time) {
        let RebootNotice { id, source, name, incarnation } = notice;
        if incarnation.is_known() {
            self.validate_report(id, source, name, Some(incarnation), now);
        } else {
            self.reply(id, Reply::Acknowledged);
        }
        self.settle(now);
    }

    /// FREE_ALL (B3.17): as `handle_reboot`, but without a state.
    pub fn handle_free_all(&mut self, request: FreeAllRequest, now: Time) {
        self.validate_report(request.id, request.source, request.name, None, now);
        self.settle(now);
    }

    /// SM_MON. Repeating a registration updates it.
    pub fn handle_monitor(&mut self, request: MonitorRequest, now: Time) {
        self.decide_monitor(request, now);
        self.settle(now);
    }

    /// SM_UNMON and SM_UNMON_ALL.
    pub fn handle_unmonitor(&mut self, request: UnmonitorRequest, now: Time) {
        self.hear_call(request.source.local, now);
        for client in self.registrations(&request) {
            self.unregister(client, now);
        }
        self.reply(request.id, Reply::Unmonitor);
        self.settle(now);
    }

    /// Registers a client of another protocol than NLM and NSM (B9.80), durably in the step of its
    /// `Reply::Registered`; repeating it shows that the client is there.
    pub fn handle_register(&mut self, request: RegisterRequest, now: Time) {
        self.decide_register(request, now);
        self.settle(now);
    }

    /// Unregisters such a client. Replies `Reply::Unregistered` whether or not it was there.
    pub fn handle_unregister(&mut self, request: UnregisterRequest, now: Time) {
        self.decide_unregister(request, now);
        self.settle(now);
    }

    /// The peer's answer to a `Message::Grant`. Ignored if the callback is no longer open.
    pub fn handle_grant_answer(&mut self, grant: GrantId, answer: GrantAnswer, now: Time) {
        self.use_grant_answer(grant, answer, now);
        self.settle(now);
    }

    /// The result of one attempt to deliver a `Message::Notice`.
    pub fn handle_notice_result(&mut self, notice: NoticeId, result: NoticeResult, now: Time) {
        self.use_notice_result(notice, result, now);
        self.settle(now);
    }

    /// The answer to a `Message::Probe`. A probe that is never answered times out by itself.
    pub fn handle_probe_answer(
        &mut self,
        client: ClientId,
        question: Question,
        answer: ProbeAnswer,
        now: Time,
    ) {
        self.use_probe_answer(client, question, answer, now);
        self.settle(now);
    }

    /// An operator's action. Replies `Reply::Operator` in the same step.
    pub fn handle_operator(&mut self, request: OperatorRequest, now: Time) {
        self.decide_operator(request, now);
        self.settle(now);
    }

    /// A call that is not an input of its own, such as a file operation: hosts at this address are
    /// alive. `local` if it came from this machine.
    pub fn handle_heard(&mut self, address: IpAddr, local: bool, now: Time) {
        self.hear_address(address, local, now);
        self.settle(now);
    }

    /// A host that mounts an export was heard, through this address of the server. In an open grace
    /// it is notified of the restart (B4.93): the store may lack it.
    pub fn handle_mounted(&mut self, address: IpAddr, ours: IpAddr, now: Time) {
        self.notify_mounted(address, ours, now);
        self.settle(now);
    }

    /// A connection of this host was reset although no probe asked (B3.15). `last_activity` is the
    /// last sign of life on it (`Time::mono`).
    pub fn handle_connection_reset(
        &mut self,
        client: ClientId,
        last_activity: Duration,
        now: Time,
    ) {
        self.note_reset(client, last_activity);
        self.settle(now);
    }

    /// A machine that calls itself so uses files from this address, by a connection from a reserved
    /// port. If that name is fenced, so is the address from now on.
    /// `ours` is the server's address that it called.
    pub fn handle_appearance(&mut self, host: HostKey, ours: IpAddr, now: Time) {
        self.fence_appearance(host, ours.to_canonical(), now);
        self.settle(now);
    }

    /// The server's addresses have changed; `None` if they are not known. What hosts locked through
    /// an address that is missing now is theirs through another, if they ask for it (B2.80).
    pub fn handle_addresses(&mut self, addresses: Option<BTreeSet<IpAddr>>, now: Time) {
        self.set_addresses(addresses);
        self.settle(now);
    }

    /// Nothing could be decided for this long because the store or its lease stalled: the recovery
    /// window and the deadlines of pending reports move accordingly.
    pub fn handle_stall(&mut self, lasted: Duration) {
        let due = self.timers.due(Timer::Window).map(|due| due + lasted);
        if let Some(ends) = self.recovery.window.delay(lasted).or(due) {
            self.timers.set(Timer::Window, ends);
        }
        self.delay_reports(lasted);
        self.delay_reconnection(lasted);
    }

    /// Runs every timer that is due at `now`. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(timer) = self.timers.expire(now.mono) {
            match timer {
                Timer::Window => self.end_window(now),
                Timer::Reconnection => self.end_reconnection(now),
                Timer::HeldBack => self.answer_held_back(now),
                Timer::Idle => self.unregister_idle(now),
                Timer::Grant(grant) => self.resend_grant(grant, now),
                Timer::Notice(notice) => self.send_notice(notice, now),
                Timer::Probe(client, question) => {
                    self.use_outcome(ProbeOutcome { client, question, answer: None }, now);
                }
                Timer::Report(host) => self.recheck_report(host, now),
                Timer::LateReclaim(host) => self.release_unreclaimed(host, now),
            }
            self.settle(now);
        }
    }

    /// A clean stop (B4.17). Its step must be the last one committed.
    pub fn handle_stop(&mut self, _now: Time) {
        self.stopped = true;
        self.change(Change::Stopped);
        self.event(Event::Stopped);
    }

    pub(crate) fn reply(&mut self, to: RequestId, reply: Reply) {
        self.step.messages.push(Message::Reply(to, reply));
    }

    pub(crate) fn change(&mut self, change: Change) {
        self.step.changes.push(change);
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.step.events.push(event);
    }

    pub(crate) fn intern_owner(&mut self, owner: &Owner) -> OwnerId {
        let id = self.owners.intern(owner);
        if let Some(tracked) = self.clients.get_mut(owner.host) {
            tracked.owners.insert(id);
        }
        id
    }

    /// Gives a range to an owner. A weaker lock over a stronger one frees the range for others.
    pub(crate) fn insert_lock(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        kind: LockKind,
        now: Time,
    ) {
        let mut edit = std::mem::take(&mut self.edit);
        let mut next_id = || LockId(self.ids.take());
        self.table.grant(file, owner, range, kind, now.wall_ms, &mut next_id, &mut edit);
        self.note_given(owner);
        let weakened = kind.mode == Mode::Shared
            && edit.gone.iter().any(|held| held.kind.mode == Mode::Exclusive);
        self.record(&mut edit, now);
        self.edit = edit;
        if weakened {
            self.free(file, range);
        }
    }

    /// Gives an owner the parts of a range that lie outside of `held`, which is in order.
    pub(crate) fn insert_between(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        held: &[Range],
        kind: LockKind,
        now: Time,
    ) {
        let mut rest = Some(range);
        for held in held {
            let Some((below, above)) = rest.map(|rest| rest.without(*held)) else { break };
            if let Some(below) = below {
                self.insert_lock(file, owner, below, kind, now);
            }
            rest = above;
        }
        if let Some(rest) = rest {
            self.insert_lock(file, owner, rest, kind, now);
        }
    }

    /// Releases what an owner holds in a range.
    pub(crate) fn release(&mut self, file: FileId, owner: OwnerId, range: Range, now: Time) {
        let mut edit = std::mem::take(&mut self.edit);
        let mut next_id = || LockId(self.ids.take());
        self.table.release(file, owner, range, &mut next_id, &mut edit);
        for part in edit.gone.iter().filter_map(|held| held.range.overlap(range)) {
            self.free(file, part);
        }
        self.record(&mut edit, now);
        self.edit = edit;
    }

    /// Records an edit of the table as changes, and updates the counters.
    pub(crate) fn record(&mut self, edit: &mut TableDelta, now: Time) {
        for held in edit.gone.drain(..) {
            self.change(Change::LockGone(held.id));
            self.count_out(&held, now);
            self.touch(held.owner, held.file);
        }
        for held in edit.new.drain(..) {
            let lock = self.row_of(&held);
            self.change(Change::Lock(lock));
            self.count_in(&held);
        }
    }

    pub(crate) fn row_of(&self, held: &HeldLock) -> Lock {
        Lock {
            id: held.id,
            file: self.files.key(held.file).clone(),
            owner: self.owners.key(held.owner).clone(),
            range: held.range,
            mode: held.kind.mode,
            incarnation: held.kind.incarnation,
            monitored: held.kind.monitored,
            since_ms: held.since_ms,
        }
    }

    pub(crate) fn count_in(&mut self, held: &HeldLock) {
        let host = self.owners.host(held.owner);
        if let Some(tracked) = self.clients.count_entry(host) {
            tracked.locks += 1;
            tracked.taken.count(held.kind.incarnation, held.kind.reports);
            if !held.kind.confirmed {
                self.recovery.count_unconfirmed(tracked, held.kind.monitored);
            }
        }
    }

    pub(crate) fn count_out(&mut self, held: &HeldLock, now: Time) {
        let host = self.owners.host(held.owner);
        if let Some(tracked) = self.clients.uncount_entry(host) {
            tracked.locks -= 1;
            tracked.taken.uncount(held.kind.incarnation, held.kind.reports);
            tracked.idle_since = now.mono;
            if !held.kind.confirmed {
                self.recovery.count_confirmed(tracked, held.kind.monitored);
            }
            if tracked.is_unnoticed_idle() {
                self.clients.queue(host);
            }
        }
    }
}
