//! Requests that are held back: for the end of grace (R4.2), or for what a probe will say (R6.1,
//! R6.2, R4.5). Bounded (I10); a caller that gives up takes its request out again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::bytes::FileKey;
use crate::identity::{Caller, ClientId, Incarnation, RequestId};
use crate::range::Range;
use crate::reboots::Claim;
use crate::request::{LockRequest, Mode, OwnerName, Question, ShareRequest, TestRequest};
use crate::waiters::WaiterId;

/// A request on its way, with what has been asked on its behalf, so that nothing is asked twice.
#[derive(Clone, Debug)]
pub enum Parked {
    Lock(LockRequest, Asked),
    Share(ShareRequest, Asked),
    Test(TestRequest),
    /// Somebody says that a host rebooted.
    Claim(Claim),
    /// A waiter whose turn has come, or who wants what nobody has reclaimed.
    Waiter(WaiterId, About),
}

/// Of whom a host is asked on behalf of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Of the waiter itself: a range is free, and it has not been heard of for long.
    Waiter,
    /// Of who holds what it wants.
    Holder,
}

#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Whether the caller's old kernel lives: that of which incarnation.
    pub kernel: Option<Incarnation>,
    /// Everything taken before that was asked has an id below this.
    pub arrived: u64,
    /// Hosts that hold what is wanted, are releasable, and answered.
    pub holders: Vec<ClientId>,
}

impl Parked {
    pub fn caller(&self) -> Option<&Caller> {
        match self {
            Parked::Lock(request, _) => Some(&request.caller),
            Parked::Share(request, _) => Some(&request.caller),
            Parked::Test(request) => Some(&request.caller),
            Parked::Claim(_) | Parked::Waiter(..) => None,
        }
    }

    /// Whether it is a LOCK of this owner on this file within the range (and of that mode).
    fn is_lock_of(
        &self,
        caller: &Caller,
        owner: &OwnerName,
        file: &FileKey,
        range: Range,
        mode: Option<Mode>,
    ) -> bool {
        match self {
            Parked::Lock(request, _) => {
                request.caller == *caller
                    && request.owner == *owner
                    && request.file == *file
                    && match mode {
                        Some(mode) => request.mode == mode && request.range == range,
                        None => range.covers(request.range),
                    }
            }
            _ => false,
        }
    }

    pub fn request(&self) -> Option<RequestId> {
        match self {
            Parked::Lock(request, _) => Some(request.id),
            Parked::Share(request, _) => Some(request.id),
            Parked::Test(request) => Some(request.id),
            Parked::Claim(claim) => claim.request,
            Parked::Waiter(..) => None,
        }
    }
}

#[derive(Default)]
pub struct Parking {
    held_back: VecDeque<(Duration, Parked)>,
    /// For answers that are still to come, and for those that are here.
    probes: BTreeMap<(ClientId, Question), VecDeque<Parked>>,
    answered: BTreeMap<(ClientId, Question), VecDeque<Parked>>,
    /// Waiters on whose behalf a host is being asked. They have a bound of their own.
    asking: BTreeSet<(ClientId, WaiterId)>,
    /// All the others.
    count: usize,
}

impl Parking {
    pub fn len(&self) -> usize {
        self.count
    }

    /// Waiters for which somebody is being asked.
    pub fn waiters(&self) -> usize {
        self.asking.len()
    }

    pub fn hold_back(&mut self, until: Duration, parked: Parked) {
        self.count += 1;
        self.held_back.push_back((until, parked));
    }

    /// When the first that is held back for grace must be answered.
    pub fn first_deadline(&self) -> Option<Duration> {
        self.held_back.front().map(|(until, _)| *until)
    }

    pub fn pop_held_back(&mut self, by: Option<Duration>) -> Option<Parked> {
        let due = self.held_back.front().is_some_and(|(until, _)| by.is_none_or(|by| *until <= by));
        if !due {
            return None;
        }
        self.count -= 1;
        self.held_back.pop_front().map(|(_, parked)| parked)
    }

    /// Parks for the answer to a question.
    pub fn await_probe(&mut self, host: ClientId, question: Question, parked: Parked) {
        if let Parked::Waiter(waiter, _) = parked {
            self.asking.insert((host, waiter));
        } else {
            self.count += 1;
        }
        self.probes.entry((host, question)).or_default().push_back(parked);
    }

    /// A waiter is gone: nothing is asked on its behalf any more.
    pub fn forget_waiter(&mut self, waiter: WaiterId) {
        if self.asking.is_empty() {
            return;
        }
        let of_waiter = self.asking.extract_if(.., |(_, asking)| *asking == waiter);
        let hosts: Vec<ClientId> = of_waiter.map(|(host, _)| host).collect();
        for host in hosts {
            let key = (host, Question::Reachable);
            let queues = [self.probes.get_mut(&key), self.answered.get_mut(&key)];
            for parked in queues.into_iter().flatten() {
                parked.retain(|it| !matches!(it, Parked::Waiter(asking, _) if *asking == waiter));
            }
        }
    }

    pub fn is_asking(&self, host: ClientId, waiter: WaiterId) -> bool {
        self.asking.contains(&(host, waiter))
    }

    /// The answer is here: who has waited for it so far is apart from who comes now. News of a
    /// reboot comes first: what else was waiting may be of the kernel that is gone.
    pub fn answer(&mut self, host: ClientId, question: Question) {
        if let Some(parked) = self.probes.remove(&(host, question)) {
            let is_claim = |parked: &Parked| matches!(parked, Parked::Claim(_));
            let (claims, others): (Vec<_>, Vec<_>) = parked.into_iter().partition(is_claim);
            let answered = self.answered.entry((host, question)).or_default();
            answered.extend(claims.into_iter().chain(others));
        }
    }

    pub fn pop_answered(&mut self, host: ClientId, question: Question) -> Option<Parked> {
        let waiting = self.answered.get_mut(&(host, question))?;
        let parked = waiting.pop_front();
        match parked {
            Some(Parked::Waiter(waiter, _)) => {
                self.asking.remove(&(host, waiter));
            }
            Some(_) => self.count -= 1,
            None => {
                self.answered.remove(&(host, question));
            }
        }
        parked
    }

    /// Takes out the LOCKs that an owner no longer wants: of one range and mode (CANCEL), or all
    /// within a range (UNLOCK).
    pub fn withdraw(
        &mut self,
        caller: &Caller,
        owner: &OwnerName,
        file: &FileKey,
        range: Range,
        mode: Option<Mode>,
    ) -> Vec<RequestId> {
        if self.count == 0 {
            return Vec::new();
        }
        self.take_out(|parked| parked.is_lock_of(caller, owner, file, range, mode))
    }

    /// Takes out what `unwanted` says, and gives back who asked.
    pub fn take_out(&mut self, unwanted: impl Fn(&Parked) -> bool) -> Vec<RequestId> {
        let mut out = Vec::new();
        let mut keep = |parked: &Parked| {
            let unwanted = unwanted(parked);
            if unwanted {
                out.extend(parked.request());
            }
            !unwanted
        };
        self.held_back.retain(|(_, parked)| keep(parked));
        // A question stays asked even when nobody waits for its answer any more.
        for waiting in self.probes.values_mut().chain(self.answered.values_mut()) {
            waiting.retain(&mut keep);
        }
        self.count -= out.len();
        out
    }
}
