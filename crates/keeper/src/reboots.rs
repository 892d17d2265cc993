//! Reboots: who says that a host rebooted, whether to believe it, and what goes when it did (R6.1,
//! R6.2). A lock taken from a host that lives is silent corruption; a lock kept for a dead host is
//! only a nuisance. So a claim needs the right source, news, and no sign of life.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::{Change, Client, Reboot};
use crate::clients::Suspicion;
use crate::event::{Doubt, Event, Proof, Release};
use crate::identity::{ClientId, Incarnation, LockId, RequestId};
use crate::keeper::Keeper;
use crate::parking::{Asked, Parked};
use crate::planted::{self, Bug};
use crate::range::Range;
use crate::request::{FreeAllRequest, LockRequest, ProbeAnswer, Question, RebootNotice};
use crate::step::{Outcome, Refusal, Reply};
use crate::table::{FileId, Held, OwnerId};
use crate::time::Time;
use crate::view::PendingReboot;
use crate::waiters::WaiterId;

/// How long a packet of a dead kernel may still be on its way.
const HAUNTED: Duration = Duration::from_secs(120);

/// "This host rebooted", waiting for what a probe says.
#[derive(Clone, Debug)]
pub struct Claim {
    pub request: RequestId,
    pub source: IpAddr,
    pub name: Name,
    /// The state it is in now; `None` for FREE_ALL, which concerns everything before it.
    pub to: Option<Incarnation>,
    /// What the host was known to be in when it was asked.
    pub recorded: Incarnation,
    /// It came from the host's own address. Otherwise only a reset proves it.
    pub from_its_address: bool,
    /// Everything taken so far is below this.
    pub arrived: u64,
}

/// A claim may concern several hosts; its sender is answered when all of them are judged, and only
/// if all were believed.
#[derive(Default)]
pub struct Ballots(BTreeMap<RequestId, Ballot>);

struct Ballot {
    open: usize,
    believed: bool,
}

impl Keeper {
    /// SM_NOTIFY.
    pub fn handle_reboot(&mut self, notice: RebootNotice, now: Time) {
        if !notice.incarnation.is_known() {
            return self.reply(notice.id, Reply::Heard);
        }
        let RebootNotice { id, source, name, incarnation } = notice;
        self.weigh(id, source, name, Some(incarnation), now);
    }

    /// FREE_ALL (R3.5): obeys the same rules, except that it needs no news.
    pub fn handle_free_all(&mut self, request: FreeAllRequest, now: Time) {
        self.weigh(request.id, request.source, request.name, None, now);
    }

    fn weigh(
        &mut self,
        request: RequestId,
        source: IpAddr,
        name: Name,
        to: Option<Incarnation>,
        now: Time,
    ) {
        let source = source.to_canonical();
        self.hear_anybody(now);
        let (hosts, from_its_address) = self.claimed_hosts(source, &name);
        if hosts.is_empty() {
            self.event(Event::NoticeUnknown { source, name });
            return self.reply(request, Reply::Nothing);
        }
        self.ballots.0.insert(request, Ballot { open: hosts.len(), believed: true });
        let arrived = self.ids.next();
        for host in hosts {
            let recorded = self.clients.incarnation(host);
            let name = name.clone();
            let claim = Claim { request, source, name, to, recorded, from_its_address, arrived };
            self.weigh_for(host, claim, now);
        }
    }

    /// R6.1 (a): the hosts at that address (one of them if the name says which), else hosts of that
    /// name elsewhere.
    fn claimed_hosts(&self, source: IpAddr, name: &Name) -> (Vec<ClientId>, bool) {
        if planted::has(Bug::PrefixNames) {
            let alike = |row: &Client| row.name.bytes().starts_with(name.bytes());
            let alike = self.clients.hosts().filter(|tracked| alike(&tracked.row));
            return (alike.map(|tracked| tracked.row.id).collect(), true);
        }
        let there: Vec<_> = self.clients.hosts_at(source).map(|tracked| &tracked.row).collect();
        if let [only] = there.as_slice() {
            return (vec![only.id], true);
        }
        if !there.is_empty() {
            let named = there.iter().filter(|row| row.name.names_same_machine(name));
            return (named.map(|row| row.id).collect(), true);
        }
        let elsewhere = self.clients.hosts().filter(|t| t.row.name.names_same_machine(name));
        (elsewhere.map(|tracked| tracked.row.id).collect(), false)
    }

    fn weigh_for(&mut self, host: ClientId, claim: Claim, now: Time) {
        let Some(tracked) = self.clients.get(host) else {
            return self.resolve(claim.request, true);
        };
        // A repeat changes nothing, unless something of another incarnation is still here.
        if claim.to == Some(tracked.row.incarnation) && !self.has_strangers(host) {
            return self.resolve(claim.request, true);
        }
        if tracked.has_nothing() {
            if claim.from_its_address {
                self.believe(host, &claim, Proof::NothingHeld, now);
            }
            return self.resolve(claim.request, true);
        }
        let claim = Claim { recorded: tracked.row.incarnation, ..claim };
        self.ask(host, Question::SameKernel, Parked::Claim(claim), now);
    }

    /// Whether a host has locks or waiters of another incarnation than the one it is known to be
    /// in. Those that carry no state, and shares, which never do, say nothing.
    pub(crate) fn has_strangers(&self, host: ClientId) -> bool {
        let Some(tracked) = self.clients.get(host) else { return false };
        let current = tracked.row.incarnation;
        let is_strange = |other: Incarnation| other.is_known() && other != current;
        tracked.owners.iter().any(|owner| {
            self.table.of_owner(*owner).any(|held| is_strange(held.terms.incarnation))
                || self.waiters.of_owner(*owner).any(|(_, waiter)| is_strange(waiter.incarnation))
        })
    }

    /// R6.1 (c): what a probe said of a host that is claimed to have rebooted.
    pub(crate) fn judge_claim(
        &mut self,
        host: ClientId,
        claim: Claim,
        answer: ProbeAnswer,
        now: Time,
    ) {
        let recorded = self.clients.incarnation(host);
        // The answer was about another kernel than the one we know of now: look at it anew. The
        // same news under another name ends there.
        if claim.recorded != recorded {
            return self.weigh_for(host, claim, now);
        }
        // Silence proves nothing for a stranger, nor for news that is older than what we know.
        let from_its_address = claim.from_its_address || planted::has(Bug::SilenceElsewhere);
        let is_news = claim.to.is_none_or(|to| !recorded.is_known() || !to.is_before(recorded));
        let silence_counts = from_its_address && (is_news || planted::has(Bug::OldNews));
        let verdict = match answer {
            ProbeAnswer::Gone => Ok(Proof::Reset),
            ProbeAnswer::Silent if silence_counts => Ok(Proof::Notice),
            ProbeAnswer::Silent => Err(Doubt::Unproven),
            ProbeAnswer::Alive if planted::has(Bug::SignsOfLifeIgnored) => Ok(Proof::Notice),
            ProbeAnswer::Alive => Err(Doubt::Alive),
        };
        match verdict {
            Ok(proof) => {
                self.believe(host, &claim, proof, now);
                self.resolve(claim.request, true);
            }
            Err(why) => {
                self.doubt(host, &claim, why, now);
                self.resolve(claim.request, false);
            }
        }
    }

    fn believe(&mut self, host: ClientId, claim: &Claim, proof: Proof, now: Time) {
        match claim.to {
            Some(to) => self.accept_reboot(host, to, claim.arrived, proof, now),
            None => {
                let spared = planted::has(Bug::FreeAllDoesNothing);
                let count = self.sweep(host, now, |_, id| id < claim.arrived && !spared);
                let why = Release::FreeAll;
                self.event(Event::Released { client: host, count, why });
                self.end_grace_if_complete(now);
            }
        }
    }

    /// Not believed: it stays pending, is shown, and is judged again when it is repeated.
    fn doubt(&mut self, host: ClientId, claim: &Claim, why: Doubt, now: Time) {
        let Some(to) = claim.to else { return };
        if let Some(tracked) = self.clients.get_mut(host) {
            let before = tracked.pending.take().filter(|pending| pending.incarnation == to);
            tracked.pending = Some(PendingReboot {
                name: claim.name.clone(),
                source: claim.source,
                incarnation: to,
                why,
                repeats: before.as_ref().map_or(0, |pending| pending.repeats + 1),
                first_at_ms: before.map_or(now.wall_ms, |pending| pending.first_at_ms),
            });
            self.event(Event::RebootPending { client: host, to, why });
        }
    }

    /// One host of a claim is judged.
    pub(crate) fn resolve(&mut self, request: RequestId, believed: bool) {
        let Some(ballot) = self.ballots.0.get_mut(&request) else { return };
        ballot.open -= 1;
        ballot.believed &= believed;
        if ballot.open == 0 {
            let believed = ballot.believed || planted::has(Bug::RefusalAnswered);
            let reply = if believed { Reply::Heard } else { Reply::Nothing };
            self.ballots.0.remove(&request);
            self.reply(request, reply);
        }
    }

    /// The host is now in `to`. That fact comes first; then everything of other incarnations goes
    /// (I7), except what is newer than the news itself.
    pub(crate) fn accept_reboot(
        &mut self,
        host: ClientId,
        to: Incarnation,
        arrived: u64,
        proof: Proof,
        now: Time,
    ) {
        let from = self.clients.incarnation(host);
        self.update_client(host, |row| {
            row.reboot = Some(Reboot { from, to, before: LockId(arrived) });
            row.incarnation = to;
        });
        if let Some(tracked) = self.clients.get_mut(host) {
            (tracked.suspect, tracked.crashed, tracked.pending) = (None, false, None);
            // Whoever held nothing left nothing behind that could haunt us.
            if from != to && proof != Proof::NothingHeld {
                tracked.haunted = Some((from, now.mono + HAUNTED));
            }
        }
        let released = self.sweep(host, now, |incarnation, id| {
            let other = incarnation != to || planted::has(Bug::RebootFreesNew);
            other && (id < arrived || (incarnation.is_known() && incarnation.is_before(to)))
        });
        self.withdraw_parked(host, to);
        self.event(Event::Rebooted { client: host, to, proof, released });
        self.relay_reboot(host, to, now);
        self.end_grace_if_complete(now);
    }

    /// Requests of an earlier incarnation that are held back have nobody to answer to.
    fn withdraw_parked(&mut self, host: ClientId, to: Incarnation) {
        let Some(key) = self.clients.get(host).map(|tracked| tracked.row.key()) else { return };
        let withdrawn = self.parking.take_out(|parked| match parked {
            Parked::Lock(request, _) => {
                let incarnation = request.incarnation;
                request.caller.host == key && incarnation.is_known() && incarnation.is_before(to)
            }
            _ => false,
        });
        for request in withdrawn {
            self.reply(request, Reply::Lock(Outcome::Refused(Refusal::Withdrawn)));
        }
    }

    /// Takes from a host all locks, shares and waiters that `gone` says, by incarnation and id, and
    /// gives what becomes free to who waits for it.
    pub(crate) fn sweep(
        &mut self,
        host: ClientId,
        now: Time,
        gone: impl Fn(Incarnation, u64) -> bool,
    ) -> u64 {
        let Some(tracked) = self.clients.get(host) else { return 0 };
        let owners: Vec<OwnerId> = tracked.owners.iter().copied().collect();
        let mut lost: Vec<Held> = Vec::new();
        let mut given_up: Vec<WaiterId> = Vec::new();
        for owner in &owners {
            let mut ends = |held: &Held| gone(held.terms.incarnation, held.id.0);
            self.table.remove_owned(*owner, &mut ends, &mut lost);
            let waiting = self.waiters.of_owner(*owner);
            let waiting = waiting.filter(|(id, waiter)| gone(waiter.incarnation, id.0));
            if !planted::has(Bug::WaitersSurviveReboot) {
                given_up.extend(waiting.map(|(id, _)| id));
            }
        }
        let shares =
            self.shares.of_host(host).filter(|share| gone(Incarnation::UNKNOWN, share.id.0));
        let mut shares: Vec<_> = shares.map(|share| share.id).collect();
        if planted::has(Bug::SharesSurviveReboot) {
            shares.clear();
        }
        let mut woken: Vec<(FileId, Range)> = Vec::new();
        for waiter in given_up {
            if let Some(waiter) = self.forget_waiter(waiter, now) {
                woken.push((waiter.file, waiter.range));
            }
        }
        let count = (lost.len() + shares.len()) as u64;
        self.write_off(&lost, now);
        woken.extend(lost.iter().map(|held| (held.file, held.range)));
        let mut files = self.wake_all(woken, now);
        for share in shares {
            files.extend(self.remove_share(share, now).map(|share| share.file));
        }
        // Only now: until here, something of the host may still have needed its number.
        for owner in owners {
            self.tidy_owner(owner);
        }
        for file in files {
            if self.table.file_len(file) == 0 {
                self.files.forget_unused(file);
            }
        }
        count + self.sweep_remembered(host)
    }

    fn sweep_remembered(&mut self, host: ClientId) -> u64 {
        if self.recovery.remembered.is_empty() {
            return 0;
        }
        let (locks, shares) = self.recovery.remembered.take_host(host);
        let count = (locks.len() + shares.len()) as u64;
        for id in locks {
            self.change(Change::LockGone(id));
        }
        for id in shares {
            self.change(Change::ShareGone(id));
        }
        count
    }

    /// Takes single locks from a host.
    pub(crate) fn drop_locks(&mut self, host: ClientId, lost: Vec<Held>, why: Release, now: Time) {
        if lost.is_empty() {
            return;
        }
        for held in &lost {
            self.table.remove(held.id);
        }
        self.write_off(&lost, now);
        self.event(Event::Released { client: host, count: lost.len() as u64, why });
        self.wake_all(lost.iter().map(|held| (held.file, held.range)).collect(), now);
        for held in &lost {
            self.tidy(held.owner, held.file);
        }
    }

    /// Writes down locks that are out of the table already.
    fn write_off(&mut self, lost: &[Held], now: Time) {
        self.step.changes.reserve(lost.len());
        for held in lost {
            self.change(Change::LockGone(held.id));
            self.count_out(held, now);
            self.forget_grants(held.owner, held.file, held.range);
        }
    }

    /// Wakes each file once, with the whole of what became free on it.
    fn wake_all(&mut self, mut freed: Vec<(FileId, Range)>, now: Time) -> BTreeSet<FileId> {
        freed.sort_unstable();
        let mut files = BTreeSet::new();
        for part in freed.chunk_by(|a, b| a.0 == b.0) {
            let hull = part.iter().map(|(_, range)| *range).reduce(Range::hull);
            if let (Some((file, _)), Some(hull)) = (part.first(), hull) {
                files.insert(*file);
                if !planted::has(Bug::ReleaseWakesNobody) {
                    self.wake(*file, hull, now);
                }
            }
        }
        files
    }

    /// A late packet of a kernel that is known to be gone. Only for a while: a state can come back
    /// without a reboot (a status monitor restarted in a container).
    pub(crate) fn is_ghost(&self, host: ClientId, incarnation: Incarnation, now: Time) -> bool {
        let haunted = self.clients.get(host).and_then(|tracked| tracked.haunted);
        haunted.is_some_and(|(gone, until)| {
            incarnation.is_known() && incarnation == gone && now.mono < until
        })
    }

    /// R6.2: looks at the state that a LOCK carries; true if the host must be asked first.
    pub(crate) fn sees_reboot(&mut self, host: ClientId, request: &LockRequest, now: Time) -> bool {
        let next = self.ids.next();
        let Some(tracked) = self.clients.get_mut(host) else { return false };
        let was_reset = std::mem::take(&mut tracked.reset);
        let (recorded, is) = (tracked.row.incarnation, request.incarnation);
        let nothing = tracked.has_nothing();
        let news = is.is_known() && recorded.is_known() && is != recorded && !request.reclaim;
        if news {
            if nothing {
                self.record_incarnation(host, is);
            }
            return !nothing;
        }
        if was_reset && !nothing && !request.reclaim {
            if request.stateless {
                let released = self.sweep(host, now, |_, id| id < next);
                let (client, proof) = (host, Proof::Stateless);
                self.event(Event::Rebooted { client, to: recorded, proof, released });
                self.end_grace_if_complete(now);
            } else {
                tracked.suspect = Some(Suspicion::Reset);
                self.event(Event::Suspect { client: host, was: recorded, is });
            }
        }
        false
    }

    /// What a probe said of a host whose LOCK carried another state. If the host is known to be in
    /// a third state by now, the answer was about another kernel: it is looked at anew.
    pub(crate) fn judge_incarnation(
        &mut self,
        host: ClientId,
        request: LockRequest,
        asked: Asked,
        answer: ProbeAnswer,
        now: Time,
    ) {
        let (was, is) = (self.clients.incarnation(host), request.incarnation);
        if asked.kernel == Some(was) && was != is {
            if answer == ProbeAnswer::Gone || planted::has(Bug::StateAloneFrees) {
                self.accept_reboot(host, is, self.ids.next(), Proof::Reset, now);
            } else {
                if let Some(tracked) = self.clients.get_mut(host) {
                    tracked.suspect = Some(Suspicion::State);
                }
                self.record_incarnation(host, is);
                self.event(Event::Suspect { client: host, was, is });
            }
        }
        self.decide_lock(request, asked, now);
    }

    fn record_incarnation(&mut self, host: ClientId, is: Incarnation) {
        self.update_client(host, |row| {
            row.incarnation = is;
            row.reboot = None;
        });
    }

    /// An old connection of this host was reset, without our having asked (R6.2).
    pub fn handle_reset(&mut self, client: ClientId, _now: Time) {
        if let Some(tracked) = self.clients.get_mut(client) {
            tracked.reset = true;
        }
    }
}
