//! Shares: judged as byte-range locks are, with a whole file in place of a byte.

use std::collections::BTreeMap;

use keeper::Keeper;
use keeper::change::{Change, Snapshot};
use keeper::identity::Owner;
use keeper::step::{Message, Outcome, Reply, Step};

use crate::cells::FILES;
use crate::host::BelievedShare;
use crate::judge::cause::client_released_by;
use crate::judge::input::ObservedInput;
use crate::model::{CellState, ModelShare};
use crate::packet::{Call, Request};
use crate::translate::file_key;
use crate::world::World;

type Shares = BTreeMap<(usize, usize), ModelShare>;

fn clash(one: &ModelShare, other: &ModelShare) -> bool {
    one.deny.meets(other.access) || one.access.meets(other.deny)
}

impl World {
    /// The shares in the keeper's table.
    fn read_shares(&mut self, keeper: &Keeper) -> Shares {
        let mut shares = Shares::new();
        if keeper.counts().shares == 0 {
            return shares;
        }
        for file in 0..FILES {
            for view in keeper.shares_on(&file_key(file)) {
                let owner = self.numbered((**view.owner).clone());
                let Some(process) = self.process_of(keeper, &owner) else {
                    self.violate("I6", || format!("a share without an owner: {view:?}"));
                    continue;
                };
                let shared = ModelShare {
                    access: view.access,
                    deny: view.deny,
                    incarnation: 0,
                    life: 0,
                    unconfirmed: !view.confirmed,
                };
                if shares.insert((process, file), shared).is_some() {
                    self.violate("I1", || format!("one owner has two shares: {view:?}"));
                }
            }
        }
        shares
    }

    /// Finds the cause of each change.
    pub(crate) fn judge_shares(&mut self, keeper: &Keeper, inputs: &[ObservedInput], step: &Step) {
        let mut seen = self.read_shares(keeper);
        let old = std::mem::take(&mut self.model.shares);
        let asked = step.messages.iter().any(|m| matches!(m, Message::Reply(_, Reply::Share(_))));
        if seen.is_empty() && old.is_empty() && !asked {
            return;
        }
        for (key, before) in &old {
            match seen.get_mut(key) {
                Some(now) => {
                    now.life = before.life;
                    now.incarnation = before.incarnation;
                }
                None if self.gave_back(*key, step) => {}
                None => self.judge_unshared(*key, *before, step, inputs),
            }
        }
        for (key, now) in &mut seen {
            match self.share_granted(*key, step) {
                Some((life, host, reclaim)) => {
                    now.life = life;
                    // A share that is reclaimed, or that a repeated SHARE finds, stays of the state
                    // that it was taken in.
                    let kept = old.contains_key(key)
                        && (reclaim || !self.share_written(keeper, *key, step));
                    let open = reclaim && self.model.open && self.model.recovering;
                    if open {
                        now.incarnation = 0;
                    } else if !kept {
                        now.incarnation = self.model.states.get(&host).copied().unwrap_or(0);
                    }
                }
                None if !old.contains_key(key) && self.is_share_releasable(*key, step) => {
                    self.model.kept.insert(*key);
                    if let Some(recorded) = self.model.remembered_shares.get(key) {
                        (now.life, now.incarnation) = (recorded.life, recorded.incarnation);
                    }
                }
                None if !old.contains_key(key) => {
                    let who = self.who(key.0);
                    self.violate("I6", || {
                        format!("{who} got a share of file {} without a cause", key.1)
                    });
                }
                // B4.91: the kernel that reclaimed it is identified.
                None if now.incarnation == 0 => {
                    now.incarnation = self.written_state(keeper, *key, step).unwrap_or(0);
                }
                None => {}
            }
        }
        // Granted and released in one step: the reply is outdated when it is sent.
        let granted: Vec<(usize, usize)> = self
            .share_requests(step)
            .filter(|(_, reply)| **reply == Reply::Share(Outcome::Granted))
            .filter_map(|(request, _)| match request.call {
                Call::Share { file, .. } => request.truth.process.map(|process| (process, file)),
                _ => None,
            })
            .collect();
        for (process, file) in granted {
            if !seen.contains_key(&(process, file)) {
                self.model.unshared_at[process][file] = self.model.serial + 1;
            }
        }
        self.model.shares = seen;
        self.check_share_conflicts();
        self.check_shared();
    }

    /// B4.95, as for locks.
    fn is_share_releasable(&mut self, key: (usize, usize), step: &Step) -> bool {
        let host = self.processes[key.0].host;
        self.is_releasable(host, step)
    }

    fn share_requests<'a>(
        &'a self,
        step: &'a Step,
    ) -> impl Iterator<Item = (&'a Request, &'a Reply)> + 'a {
        step.messages.iter().filter_map(|message| match message {
            Message::Reply(id, reply) => {
                self.model.pending_requests.get(id).map(|(request, _)| (&**request, reply))
            }
            _ => None,
        })
    }

    fn gave_back(&self, (process, file): (usize, usize), step: &Step) -> bool {
        self.share_requests(step).any(|(request, _)| {
            request.truth.process == Some(process)
                && matches!(request.call, Call::Unshare { file: it } if it == file)
        })
    }

    /// The boot and the host that it was granted to in this step, and whether by a reclaim.
    fn share_granted(
        &self,
        (process, file): (usize, usize),
        step: &Step,
    ) -> Option<(u32, usize, bool)> {
        self.share_requests(step).find_map(|(request, reply)| match request.call {
            Call::Share { file: it, reclaim, .. }
                if it == file
                    && request.truth.process == Some(process)
                    && *reply == Reply::Share(Outcome::Granted) =>
            {
                Some((request.truth.life, request.truth.host, reclaim))
            }
            _ => None,
        })
    }

    /// The state in a record of it that is written in this step.
    fn written_state(
        &mut self,
        keeper: &Keeper,
        (process, file): (usize, usize),
        step: &Step,
    ) -> Option<u32> {
        step.changes.iter().rev().find_map(|change| match change {
            Change::Share(share) if share.file == file_key(file) => {
                let owner = self.numbered((*share.owner).clone());
                let own = self.process_of(keeper, &owner) == Some(process);
                own.then_some(share.incarnation.0)
            }
            _ => None,
        })
    }

    /// Whether a record of it is written in this step.
    fn share_written(
        &mut self,
        keeper: &Keeper,
        (process, file): (usize, usize),
        step: &Step,
    ) -> bool {
        self.written_state(keeper, (process, file), step).is_some()
    }

    /// Shares have no owner number; the tag identifies the process.
    fn numbered(&self, owner: Owner) -> Owner {
        let process = self.processes.iter().find(|process| process.tag == owner.tag);
        Owner { number: process.map_or(0, |process| process.number), ..owner }
    }

    fn judge_unshared(
        &mut self,
        (process, file): (usize, usize),
        before: ModelShare,
        step: &Step,
        inputs: &[ObservedInput],
    ) {
        let host = self.processes[process].host;
        self.model.unshared_at[process][file] = self.model.serial + 1;
        let cell = CellState {
            strength: 1,
            incarnation: before.incarnation,
            life: before.life,
            unconfirmed: before.unconfirmed,
            ..CellState::default()
        };
        let mut why = Err("no event says why".to_owned());
        for event in &step.events {
            let Some(client) = client_released_by(event) else { continue };
            if self.host_of(client) == Some(host) && why.is_err() {
                why = self.allowed(client, host, event, cell, inputs);
            }
        }
        let who = self.who(process);
        let live = match why {
            Ok(live) => live,
            Err(reason) => {
                return self.violate("I6", || {
                    format!("{who} lost its share of file {file} ({before:?}): {reason}")
                });
            }
        };
        let alive = before.life == self.hosts[host].life;
        if let Some(sharing) = &mut self.processes[process].shares[file]
            && !sharing.tainted
        {
            sharing.tainted = true;
            if let (Err(reason), true) = (live, alive) {
                self.violate("I1", || {
                    format!("{who} is alive and lost its share of file {file}: {reason}")
                });
            }
        }
    }

    fn check_share_conflicts(&mut self) {
        let shares: Vec<_> =
            self.model.shares.iter().map(|(key, shared)| (*key, *shared)).collect();
        for (at, (one, mine)) in shares.iter().enumerate() {
            for (other, theirs) in &shares[at + 1..] {
                if one.1 == other.1 && clash(mine, theirs) {
                    let (a, b) = (self.who(one.0), self.who(other.0));
                    return self.violate("I1", || {
                        format!("{a} and {b} both share file {}: {mine:?}, {theirs:?}", one.1)
                    });
                }
            }
        }
    }

    pub(crate) fn judge_share_replies(&mut self, step: &Step) {
        let simple = step.messages.len() == 1 && step.events.is_empty();
        let in_grace = !self.model.grace_over;
        let mut wrong = None;
        let mut reclaims = Vec::new();
        for (request, reply) in self.share_requests(step) {
            let Call::Share { file, access, deny, reclaim } = request.call else { continue };
            let Some(process) = request.truth.process else { continue };
            let wanted = ModelShare { access, deny, incarnation: 0, life: 0, unconfirmed: false };
            let conflict = self.model.shares.iter().any(|((other, at), theirs)| {
                *other != process && *at == file && clash(&wanted, theirs)
            });
            let held = self.model.shares.get(&(process, file));
            let held = held.is_some_and(|held| held.access == access && held.deny == deny);
            if reclaim && in_grace && !self.model.exact && *reply == Reply::Share(Outcome::Granted)
            {
                reclaims.push((process, file, wanted));
            }
            match reply {
                Reply::Share(Outcome::Granted) if simple && !held => {
                    wrong = Some(("B2.17", format!("granted, and not there: {request:?}")));
                }
                Reply::Share(Outcome::Granted) if in_grace && !reclaim && self.strict() => {
                    wrong = Some(("I5", format!("a new share in grace: {request:?}")));
                }
                Reply::Share(Outcome::Denied) if simple && !conflict && !reclaim => {
                    wrong = Some(("reply", format!("denied without a conflict: {request:?}")));
                }
                _ => {}
            }
        }
        if let Some((rule, what)) = wrong {
            self.violate(rule, || what);
        }
        for (process, file, wanted) in reclaims {
            self.judge_roster_share(process, file, &wanted);
        }
    }

    /// In a roster grace the first reclaim wins. Losing to a client that does not know that its share
    /// was released by a rule is allowed.
    fn judge_roster_share(&mut self, process: usize, file: usize, wanted: &ModelShare) {
        if self.processes[process].shares[file].is_some_and(|mine| !mine.tainted) {
            return;
        }
        for other in 0..self.processes.len() {
            let Some(sharing) = self.processes[other].shares[file] else { continue };
            let BelievedShare { access, deny, .. } = sharing;
            let theirs = ModelShare { access, deny, ..*wanted };
            if other == process || sharing.tainted || !clash(wanted, &theirs) {
                continue;
            }
            if let Some(sharing) = &mut self.processes[other].shares[file] {
                sharing.tainted = true;
            }
            self.model.unshared_at[other][file] = self.model.serial;
            self.coverage.reach("lost to a false reclaim in a roster grace");
        }
    }

    /// I1: the server has every share that a live process relies on, unless released by a rule.
    pub(crate) fn check_shared(&mut self) {
        if self.model.recovering {
            return;
        }
        for process in 0..self.processes.len() {
            for file in 0..FILES {
                let Some(sharing) = self.processes[process].shares[file] else { continue };
                let backed = self.model.shares.get(&(process, file)).is_some_and(|shared| {
                    let busy = matches!(
                        self.processes[process].doing,
                        crate::host::Activity::Sharing { file: asked, .. } if asked == file
                    );
                    busy || (shared.access == sharing.access && shared.deny == sharing.deny)
                });
                if !backed && !sharing.tainted {
                    let who = self.who(process);
                    return self.violate("I1", || {
                        format!("{who} relies on a share of file {file}, and the server does not know it")
                    });
                }
            }
        }
    }

    /// The end of a roster grace: shares that were not reclaimed are gone (I6).
    pub(crate) fn taint_unbacked_shares(&mut self) {
        for process in 0..self.processes.len() {
            for file in 0..FILES {
                let Some(sharing) = &mut self.processes[process].shares[file] else { continue };
                // An older record of the share may have become releasable.
                let backed = self.model.shares.get(&(process, file)).is_some_and(|shared| {
                    let same = shared.access == sharing.access && shared.deny == sharing.deny;
                    same || !shared.unconfirmed
                });
                if backed || sharing.tainted {
                    continue;
                }
                sharing.tainted = true;
                let given_up = sharing.given_up;
                self.model.unshared_at[process][file] = self.model.serial + 1;
                if !given_up {
                    self.judge_calm_loss(process, "the roster's grace ended without its share");
                }
            }
        }
    }

    /// Releases shares that no process relies on, by a fence that is lifted at once.
    pub(crate) fn clean_up_shares(&mut self) {
        let left: Vec<_> = self.model.shares.iter().map(|(key, shared)| (*key, *shared)).collect();
        for ((process, file), shared) in left {
            let host = self.processes[process].host;
            let it = &self.processes[process];
            if it.shares[file].is_some() || it.call.is_some() {
                continue;
            }
            let explained = shared.life != self.hosts[host].life
                || self.hosts[host].never_back
                || self.model.kept.contains(&(process, file))
                || self.model.abandoned.contains(&(process, file));
            if !explained {
                let who = self.who(process);
                self.violate("liveness", || {
                    format!(
                        "{who} relies on nothing, and its share of file {file} is left: {shared:?}"
                    )
                });
            }
            let client = self.model.hosts.iter().find(|(_, known)| **known == Some(host));
            let key = keeper::identity::HostKey::new(
                self.hosts[host].address,
                self.hosts[host].name.clone(),
            );
            let current = self.server.engine.as_ref().and_then(|d| d.decider.keeper.host(&key));
            if let Some(client) = current.map(|row| row.id).or(client.map(|(id, _)| *id)) {
                self.operator(keeper::request::OperatorAction::Fence(client));
                self.operator(keeper::request::OperatorAction::Unfence(client));
            }
        }
    }

    /// After a start: exactly the shares on disk, or none of a roster.
    pub(crate) fn restore_shares(&mut self, keeper: &Keeper, saved: &Snapshot) {
        let mut seen = self.read_shares(keeper);
        let old = std::mem::take(&mut self.model.shares);
        let expected = if self.model.exact { saved.shares.len() } else { 0 };
        if seen.len() != expected {
            let found = seen.len();
            self.violate("I4", || {
                format!("{expected} shares on the disk, {found} after the start")
            });
        }
        for (key, shared) in &mut seen {
            shared.life = old.get(key).map_or(0, |known| known.life);
            let host = self.processes[key.0].host;
            let row = saved.shares.values().find(|share| {
                share.file == file_key(key.1)
                    && self.model.hosts.get(&share.owner.host) == Some(&Some(host))
            });
            shared.incarnation = row.map_or(0, |share| share.incarnation.0);
        }
        self.model.shares = seen;
    }
}
