//! Reboot reports that only time decides (R6.1): the host holds locks of before our restart, and all
//! its connections are younger than that, so they may be the old kernel's or the new one's. The old
//! one would reclaim; whether a reclaim comes is the answer.

use std::time::Duration;

use crate::event::{Doubt, Proof, Release};
use crate::identity::ClientId;
use crate::keeper::Keeper;
use crate::parking::Parked;
use crate::reboots::Claim;
use crate::request::Question;
use crate::shares::HeldShare;
use crate::table::OwnerId;
use crate::time::Time;
use crate::timer::Timer;

/// How long a host has to refute a notice by a reclaim, if its status monitor says the same.
const REFUTE: Duration = Duration::from_secs(15);

impl Keeper {
    /// Connections of this epoch acknowledge, but the locks are of an earlier one: the kernel that
    /// took them would reclaim them, another would not. So the notice is believed if no reclaim
    /// comes: soon if the host's status monitor says the same, else after a whole window (R6.1).
    /// `agrees` is what the status monitor said, once it was asked.
    pub(crate) fn judge_unreclaimed(
        &mut self,
        host: ClientId,
        claim: Claim,
        agrees: Option<bool>,
        now: Time,
    ) {
        let Some(tracked) = self.clients.get(host) else {
            return self.resolve(claim.request, true);
        };
        let since = tracked.pending.as_ref().and_then(|pending| pending.refutable(claim.to));
        let since = since.unwrap_or(now.mono);
        let since = tracked.reclaimed.map_or(since, |reclaimed| since.max(reclaimed));
        let (soon, late) = (since + REFUTE, since + self.recovery.window.length());
        if now.mono >= late || (now.mono >= soon && agrees == Some(true)) {
            return self.believe_unreclaimed(host, &claim, now);
        }
        if now.mono >= soon && agrees.is_none() {
            return self.ask(host, Question::State, Parked::Claim(claim), now);
        }
        self.doubt(host, &claim, Doubt::Unreclaimed, now);
        let again = if now.mono < soon { soon.min(late) } else { late };
        self.timers.set(Timer::Report(host), again);
        self.resolve(claim.request, false);
    }

    /// Everything goes that the host held before our restart and has not reclaimed. What it took
    /// since stays: the kernel that answers took it, whatever state it was told.
    fn believe_unreclaimed(&mut self, host: ClientId, claim: &Claim, now: Time) {
        let Some(to) = claim.to else { return self.resolve(claim.request, false) };
        let Some(tracked) = self.clients.get(host) else {
            return self.resolve(claim.request, true);
        };
        let owners: Vec<OwnerId> = tracked.owners.iter().copied().collect();
        let (mut lost, mut kept) = (Vec::new(), false);
        for owner in owners {
            for held in self.table.of_owner(owner).filter(|held| held.terms.incarnation != to) {
                kept |= held.terms.confirmed;
                if !held.terms.confirmed {
                    lost.push(held);
                }
            }
            kept |= self.waiters.of_owner(owner).any(|(_, waiter)| waiter.incarnation != to);
        }
        let shares: Vec<HeldShare> = self.shares.of_host(host).copied().collect();
        kept |= shares.iter().any(|share| share.confirmed && share.incarnation != to);
        if kept {
            self.drop_locks(host, lost, Release::Unreclaimed, now);
            self.drop_unconfirmed_shares(host, Release::Unreclaimed, now);
            self.end_grace_if_complete(now);
            self.doubt(host, claim, Doubt::Alive, now);
            return self.resolve(claim.request, false);
        }
        self.accept_reboot(host, to, claim.arrived, Proof::Unreclaimed, now);
        self.resolve(claim.request, true);
    }

    /// A pending report is due, repeated or not.
    pub(crate) fn judge_report_again(&mut self, host: ClientId, now: Time) {
        let Some(tracked) = self.clients.get(host) else { return };
        let Some(pending) = &tracked.pending else { return };
        if tracked.row.incarnation == pending.incarnation && !tracked.has_strangers() {
            return self.settle_report(host);
        }
        if pending.why != Doubt::Unreclaimed || tracked.unconfirmed == 0 {
            return;
        }
        let claim = Claim {
            request: None,
            source: pending.source,
            name: pending.name.clone(),
            to: Some(pending.incarnation),
            recorded: tracked.row.incarnation,
            speaks_for_itself: true,
            unverified: false,
            arrived: pending.arrived,
        };
        let question = Question::SameKernel(tracked.oldest());
        self.ask(host, question, Parked::Claim(claim), now);
    }

    /// Time in which nothing could be decided refutes nothing.
    pub(crate) fn delay_reports(&mut self, lasted: Duration) {
        let delayed = self.clients.iter_mut().filter_map(|tracked| {
            tracked.reclaimed = tracked.reclaimed.map(|at| at + lasted);
            let pending = tracked.pending.as_mut()?;
            pending.since += lasted;
            Some(tracked.row.id)
        });
        let delayed: Vec<ClientId> = delayed.collect();
        for host in delayed {
            if let Some(due) = self.timers.due(Timer::Report(host)) {
                self.timers.set(Timer::Report(host), due + lasted);
            }
        }
    }
}
