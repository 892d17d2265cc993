//! What is counted while it happens: plain atomics, no names. Whoever writes metrics
//! reads them here. A server without metrics has no meters, and pays one branch.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keeper::event::{Event, Release};
use keeper::identity::ClientId;
use keeper::request::{GrantAnswer, NoticeResult};
use keeper::step::{Cancelled, Outcome, Reply, Tested};

use crate::engine::request::{Request, WhenStalled};

#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// How long things took: powers of two from 16 microseconds to 67 seconds.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Each bucket alone; the last is for what took longer than all bounds.
    buckets: [Count; Self::BOUNDS + 1],
    nanoseconds: Count,
}

impl Histogram {
    pub const BOUNDS: usize = 23;

    /// The upper bound of a bucket.
    pub fn bound(bucket: usize) -> Duration {
        Duration::from_micros(16 << bucket)
    }

    pub fn observe(&self, took: Duration) {
        let units = took.as_nanos().div_ceil(16_000).max(1);
        // The smallest power of two that is not less.
        let bucket = (u128::BITS - (units - 1).leading_zeros()) as usize;
        self.buckets[bucket.min(Self::BOUNDS)].add(1);
        self.nanoseconds.add(took.as_nanos() as u64);
    }

    /// Each bucket alone, and the sum in seconds.
    pub fn read(&self) -> ([u64; Self::BOUNDS + 1], f64) {
        let counts = std::array::from_fn(|bucket| self.buckets[bucket].get());
        (counts, self.nanoseconds.get() as f64 / 1e9)
    }

    /// The bound below which this share of all observations is.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let (counts, _) = self.read();
        let all: u64 = counts.iter().sum();
        let wanted = (all as f64 * share).ceil() as u64;
        let mut below = 0;
        let bucket = counts.iter().position(|count| {
            below += count;
            all > 0 && below >= wanted
        })?;
        Some(Self::bound(bucket))
    }
}

/// The programs that are served, as they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Nfs,
    Mount,
    Nlm,
    Nsm,
    Rpcbind,
}

impl Program {
    pub const ALL: [Self; 5] = [Self::Nfs, Self::Mount, Self::Nlm, Self::Nsm, Self::Rpcbind];

    pub fn of(number: u32) -> Option<Self> {
        match number {
            wire::nfs3::PROGRAM => Some(Self::Nfs),
            wire::mount::PROGRAM => Some(Self::Mount),
            wire::nlm::PROGRAM => Some(Self::Nlm),
            wire::nsm::PROGRAM => Some(Self::Nsm),
            wire::rpcbind::PROGRAM => Some(Self::Rpcbind),
            _ => None,
        }
    }
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Success,
    /// Arguments that cannot be read, no such procedure, a defect of ours.
    NotRun,
    /// The caller may not call.
    Denied,
    /// It got no reply, and asks again.
    Dropped,
}

impl Fate {
    pub const ALL: [Self; 4] = [Self::Success, Self::NotRun, Self::Denied, Self::Dropped];
}

/// As many as any program has, and one for all numbers beyond.
pub const PROCEDURES: usize = 25;

/// Results of lock requests, by what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Lock,
    Test,
    Unlock,
    Cancel,
    Share,
    Unshare,
}

impl Asked {
    pub const ALL: [Self; 6] =
        [Self::Lock, Self::Test, Self::Unlock, Self::Cancel, Self::Share, Self::Unshare];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Result {
    Granted,
    Denied,
    Blocked,
    Grace,
    Deadlock,
    Refused,
}

impl Result {
    pub const ALL: [Self; 6] =
        [Self::Granted, Self::Denied, Self::Blocked, Self::Grace, Self::Deadlock, Self::Refused];
}

#[derive(Debug, Default)]
pub struct Meters {
    calls: [[[Count; Fate::ALL.len()]; PROCEDURES]; Program::ALL.len()],
    durations: [Histogram; Program::ALL.len()],
    /// NSM's, each procedure by itself (R8.2).
    nsm: [Histogram; 7],
    lock_requests: [[Count; Result::ALL.len()]; Asked::ALL.len()],
    reclaims: [Count; Result::ALL.len()],
    /// From the first BLOCKED to the grant.
    pub lock_wait: Histogram,
    /// Accepted, denied, unclear, unsent.
    pub callbacks: [Count; 4],
    pub commits: Histogram,
    pub store_errors: Count,
    pub notices_started: Count,
    pub notices_answered: Count,
    pub notices_failed: Count,
    pub notice_duration: Histogram,
    pub crashes: Count,
    /// Hosts whose crash is counted already, when they are found to have rebooted. Not more than
    /// there are clients.
    silent: Mutex<BTreeSet<ClientId>>,
    pub clean_ups: Count,
    pub locks_cleaned: Count,
}

impl Meters {
    pub fn calls(&self, program: Program, procedure: usize, fate: Fate) -> u64 {
        self.calls[program as usize][procedure][fate as usize].get()
    }

    pub fn duration(&self, program: Program) -> &Histogram {
        &self.durations[program as usize]
    }

    pub fn nsm_duration(&self, procedure: usize) -> Option<&Histogram> {
        self.nsm.get(procedure)
    }

    pub fn lock_requests(&self, asked: Asked, result: Result) -> u64 {
        self.lock_requests[asked as usize][result as usize].get()
    }

    pub fn reclaims(&self, result: Result) -> u64 {
        self.reclaims[result as usize].get()
    }

    pub fn called(&self, call: Called, fate: Fate) {
        let took = call.since.elapsed();
        let procedure = (call.procedure as usize).min(PROCEDURES - 1);
        self.calls[call.program as usize][procedure][fate as usize].add(1);
        self.durations[call.program as usize].observe(took);
        if call.program == Program::Nsm
            && let Some(histogram) = self.nsm.get(procedure)
        {
            histogram.observe(took);
        }
    }

    pub fn replied(&self, reply: &Reply, reclaim: bool) {
        let (asked, result) = match reply {
            Reply::Lock(outcome) => (Asked::Lock, result(*outcome)),
            Reply::Share(outcome) => (Asked::Share, result(*outcome)),
            Reply::Test(Tested::Free) => (Asked::Test, Result::Granted),
            Reply::Test(Tested::Held(_)) => (Asked::Test, Result::Denied),
            Reply::Test(Tested::Grace) => (Asked::Test, Result::Grace),
            Reply::Unlock => (Asked::Unlock, Result::Granted),
            Reply::Cancel(Cancelled::Done) => (Asked::Cancel, Result::Granted),
            Reply::Cancel(Cancelled::TooLate) => (Asked::Cancel, Result::Denied),
            Reply::Unshare => (Asked::Unshare, Result::Granted),
            _ => return,
        };
        self.decided(asked, result, reclaim);
    }

    /// Refused because the store has not worked for too long.
    pub fn stalled(&self, request: &Request) {
        let asked = match request {
            // It is not answered, and comes again.
            request if request.when_stalled() == WhenStalled::NoReply => return,
            Request::Lock(_) => Asked::Lock,
            Request::Test(_) => Asked::Test,
            Request::Share(_) => Asked::Share,
            _ => return,
        };
        self.decided(asked, Result::Refused, false);
    }

    fn decided(&self, asked: Asked, result: Result, reclaim: bool) {
        self.lock_requests[asked as usize][result as usize].add(1);
        if reclaim {
            self.reclaims[result as usize].add(1);
        }
    }

    pub fn called_back(&self, answer: GrantAnswer) {
        let place = match answer {
            GrantAnswer::Accepted => 0,
            GrantAnswer::Denied => 1,
            GrantAnswer::Unclear => 2,
            GrantAnswer::Unsent => 3,
        };
        self.callbacks[place].add(1);
    }

    pub fn noticed(&self, result: NoticeResult, took: Duration) {
        match result {
            NoticeResult::Answered => self.notices_answered.add(1),
            NoticeResult::Failed => self.notices_failed.add(1),
            NoticeResult::Unsent => return,
        }
        self.notice_duration.observe(took);
    }

    pub fn happened(&self, event: &Event) {
        match event {
            Event::NoticeSent { .. } => self.notices_started.add(1),
            Event::Crashed { client } => {
                self.crashes.add(1);
                self.silent().insert(*client);
            }
            Event::Rebooted { client, released, .. } => {
                let known = self.silent().remove(client);
                self.crashes.add(u64::from(!known));
                self.cleaned(*released);
            }
            Event::Released { count, why: Release::Unanswered | Release::Unreachable, .. } => {
                self.cleaned(*count);
            }
            // It was there after all, or is no client any more.
            Event::Reclaimed { client }
            | Event::Registered { client }
            | Event::Unregistered { client }
            | Event::Forgotten { client, .. } => {
                self.silent().remove(client);
            }
            _ => {}
        }
    }

    fn cleaned(&self, locks: u64) {
        self.clean_ups.add(u64::from(locks > 0));
        self.locks_cleaned.add(locks);
    }

    fn silent(&self) -> MutexGuard<'_, BTreeSet<ClientId>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn store_failed(&self) {
        self.store_errors.add(1);
    }
}

fn result(outcome: Outcome) -> Result {
    match outcome {
        Outcome::Granted => Result::Granted,
        Outcome::Denied => Result::Denied,
        Outcome::Blocked => Result::Blocked,
        Outcome::Grace => Result::Grace,
        Outcome::Deadlock => Result::Deadlock,
        Outcome::Refused(_) => Result::Refused,
    }
}

/// A call that is being worked on.
#[derive(Debug, Clone, Copy)]
pub struct Called {
    program: Program,
    procedure: u32,
    since: Instant,
}

impl Called {
    /// `None` for programs that nobody serves.
    pub fn now(program: u32, procedure: u32) -> Option<Self> {
        Some(Self { program: Program::of(program)?, procedure, since: Instant::now() })
    }
}

#[cfg(test)]
mod tests {
    use keeper::event::Proof;
    use keeper::identity::Incarnation;

    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_of_the_smallest_bound_that_is_not_less() {
        for nanoseconds in [0, 1, 15_999, 16_000, 16_001, 32_000, 1_000_000, 70_000_000_000] {
            let histogram = Histogram::default();
            let took = Duration::from_nanos(nanoseconds);
            histogram.observe(took);
            let (counts, _) = histogram.read();
            let bucket = counts.iter().position(|count| *count == 1).unwrap();
            let expected = (0..Histogram::BOUNDS).find(|b| took <= Histogram::bound(*b));
            assert_eq!(bucket, expected.unwrap_or(Histogram::BOUNDS), "{nanoseconds}");
        }
    }

    #[test]
    fn a_number_that_no_program_has_is_counted_as_no_procedure() {
        let meters = Meters::default();
        for procedure in [23, 24, 99, 1000, u32::MAX] {
            meters.called(Called::now(wire::nlm::PROGRAM, procedure).unwrap(), Fate::NotRun);
        }
        assert_eq!(meters.calls(Program::Nlm, 23, Fate::NotRun), 1, "FREE_ALL alone");
        assert_eq!(meters.calls(Program::Nlm, PROCEDURES - 1, Fate::NotRun), 4);
    }

    #[test]
    fn a_crash_is_counted_once_and_a_clean_up_only_if_something_went() {
        let meters = Meters::default();
        let (client, other) = (ClientId(1), ClientId(2));
        let reboot = |client, released| {
            let (to, proof) = (Incarnation(5), Proof::Notice);
            meters.happened(&Event::Rebooted { client, to, proof, released });
        };
        let read = || (meters.crashes.get(), meters.clean_ups.get(), meters.locks_cleaned.get());
        reboot(client, 0);
        assert_eq!(read(), (1, 0, 0), "nothing was cleaned up");
        meters.happened(&Event::Crashed { client });
        assert_eq!(read(), (2, 0, 0));
        reboot(client, 3);
        assert_eq!(read(), (2, 1, 3), "the same crash");
        reboot(client, 1);
        assert_eq!(read(), (3, 2, 4), "the next one");
        meters.happened(&Event::Crashed { client: other });
        meters.happened(&Event::Reclaimed { client: other });
        reboot(other, 1);
        assert_eq!(read(), (5, 3, 5), "it had come back before");
    }

    #[test]
    fn a_quantile_is_the_bound_that_so_many_are_below() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.99), None);
        (0..99).for_each(|_| histogram.observe(Duration::from_micros(10)));
        histogram.observe(Duration::from_millis(10));
        assert_eq!(histogram.quantile(0.99), Some(Duration::from_micros(16)));
        assert!(histogram.quantile(1.0).unwrap() >= Duration::from_millis(10));
    }
}
