//! The counters and histograms behind the metrics: plain atomics, with the label values of their
//! enums. The names of the metrics are in `admin/src/metrics.rs`, which writes them for Prometheus.
//! If metrics are switched off there is no [`Metrics`], and counting costs one branch.

mod peers;
mod procedures;
mod refusals;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keeper::event::{Event, Release};
use keeper::identity::ClientId;
use keeper::request::{GrantAnswer, NoticeResult};
use keeper::step::{CancelOutcome, Outcome, Reply, TestResult};

use wire::rpc::Procedure;

use crate::engine::request::{Request, StallPolicy};

use peers::PeerCounts;
pub use peers::{EvictionReason, RefusedConnection};
use refusals::RefusalCounts;
pub use refusals::{RefusalReason, RefusedCall};

/// A counter.
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

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Durations, in buckets whose bounds are powers of two from 16 microseconds to 67 seconds.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Not cumulative. The last bucket is for durations above all bounds.
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
        // The exponent of the smallest power of two that is not less.
        let bucket = (u128::BITS - (units - 1).leading_zeros()) as usize;
        self.buckets[bucket.min(Self::BOUNDS)].add(1);
        self.nanoseconds.add(took.as_nanos() as u64);
    }

    /// The number of observations in each bucket (not cumulative), and their sum in seconds.
    pub fn read(&self) -> ([u64; Self::BOUNDS + 1], f64) {
        let counts = std::array::from_fn(|bucket| self.buckets[bucket].get());
        (counts, self.nanoseconds.get() as f64 / 1e9)
    }

    /// The bound of the bucket with this quantile; `None` without observations.
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

/// The RPC programs that are served; the label `program`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Nfs,
    Mount,
    Nlm,
    Nsm,
    Rpcbind,
}

impl Program {
    pub const LABELS: [(Self, &'static str); 5] = [
        (Self::Nfs, "nfs"),
        (Self::Mount, "mount"),
        (Self::Nlm, "nlm"),
        (Self::Nsm, "nsm"),
        (Self::Rpcbind, "rpcbind"),
    ];

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

/// How a call ended; the label `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    Success,
    /// Answered by the program's own error: STAT_FAIL of the status monitor. The other programs count
    /// such replies as success.
    Failed,
    /// Garbage arguments, no such procedure, or an internal error.
    NotRun,
    /// Rejected for its credential.
    Denied,
    /// Without a reply: the client retransmits.
    Dropped,
}

impl CallOutcome {
    pub const LABELS: [(Self, &'static str); 5] = [
        (Self::Success, "success"),
        (Self::Failed, "failed"),
        (Self::NotRun, "not_run"),
        (Self::Denied, "denied"),
        (Self::Dropped, "dropped"),
    ];
}

/// One for each number up to the largest of any program, NLM's FREE_ALL, and one for all others.
const PROCEDURE_SLOTS: usize = wire::nlm::v4::FreeAll::NUMBER as usize + 2;

/// The kind of a lock request; the label `op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOperation {
    Lock,
    Test,
    Unlock,
    Cancel,
    Share,
    Unshare,
}

impl LockOperation {
    pub const LABELS: [(Self, &'static str); 6] = [
        (Self::Lock, "lock"),
        (Self::Test, "test"),
        (Self::Unlock, "unlock"),
        (Self::Cancel, "cancel"),
        (Self::Share, "share"),
        (Self::Unshare, "unshare"),
    ];
}

/// The answer to a lock request; the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockResult {
    Granted,
    Denied,
    Blocked,
    Grace,
    Deadlock,
    Refused,
}

impl LockResult {
    pub const LABELS: [(Self, &'static str); 6] = [
        (Self::Granted, "granted"),
        (Self::Denied, "denied"),
        (Self::Blocked, "blocked"),
        (Self::Grace, "grace"),
        (Self::Deadlock, "deadlock"),
        (Self::Refused, "refused"),
    ];
}

#[derive(Debug, Default)]
pub struct Metrics {
    calls: [[[Count; CallOutcome::LABELS.len()]; PROCEDURE_SLOTS]; Program::LABELS.len()],
    durations: [Histogram; Program::LABELS.len()],
    /// By procedure number (B8.8).
    nsm_durations: [Histogram; wire::nsm::Notify::NUMBER as usize + 1],
    lock_requests: [[Count; LockResult::LABELS.len()]; LockOperation::LABELS.len()],
    reclaims: [Count; LockResult::LABELS.len()],
    /// From the first BLOCKED reply to the first GRANTED callback.
    pub lock_wait: Histogram,
    pub callbacks_accepted: Count,
    pub callbacks_denied: Count,
    pub callbacks_unclear: Count,
    pub callbacks_unsent: Count,
    pub commits: Histogram,
    pub store_errors: Count,
    pub notices_started: Count,
    pub notices_answered: Count,
    pub notices_failed: Count,
    pub notice_duration: Histogram,
    pub crashes: Count,
    /// Hosts that were counted in `crashes` when the recovery window ended, so that their reboot is
    /// not counted again. Bounded by the number of clients.
    silent: Mutex<BTreeSet<ClientId>>,
    /// Reboots and releases that freed at least one lock; an operator's are not counted.
    pub clean_ups: Count,
    pub locks_cleaned: Count,
    /// File systems none of whose calls end.
    pub stalled_file_systems: Gauge,
    refusals: RefusalCounts,
    peers: PeerCounts,
    /// From addresses that no export admits.
    pub dropped_datagrams: Count,
}

impl Metrics {
    pub fn calls(&self, program: Program, procedure: u32, outcome: CallOutcome) -> u64 {
        self.calls[program as usize][slot(procedure)][outcome as usize].get()
    }

    /// Calls whose number is not among [`Program::procedures`].
    pub fn other_calls(&self, program: Program, outcome: CallOutcome) -> u64 {
        let is_known = |slot: usize| program.procedures().iter().any(|p| p.0 as usize == slot);
        let slots = self.calls[program as usize].iter().enumerate();
        let others = slots.filter(|(slot, _)| !is_known(*slot));
        others.map(|(_, counts)| counts[outcome as usize].get()).sum()
    }

    /// Calls to the status monitor: those that succeeded, and all others.
    pub fn nsm_requests(&self, procedure: u32) -> (u64, u64) {
        let count = |outcome| self.calls(Program::Nsm, procedure, outcome);
        let all: u64 = CallOutcome::LABELS.iter().map(|(outcome, _)| count(*outcome)).sum();
        let success = count(CallOutcome::Success);
        (success, all - success)
    }

    pub fn duration(&self, program: Program) -> &Histogram {
        &self.durations[program as usize]
    }

    pub fn nsm_duration(&self, procedure: u32) -> Option<&Histogram> {
        self.nsm_durations.get(procedure as usize)
    }

    pub fn lock_requests(&self, operation: LockOperation, result: LockResult) -> u64 {
        self.lock_requests[operation as usize][result as usize].get()
    }

    pub fn reclaims(&self, result: LockResult) -> u64 {
        self.reclaims[result as usize].get()
    }

    pub fn count_call(&self, call: CallStart, outcome: CallOutcome) {
        let took = call.since.elapsed();
        self.calls[call.program as usize][slot(call.procedure)][outcome as usize].add(1);
        self.durations[call.program as usize].observe(took);
        if call.program == Program::Nsm
            && let Some(histogram) = self.nsm_durations.get(call.procedure as usize)
        {
            histogram.observe(took);
        }
    }

    pub(crate) fn count_reply(&self, reply: &Reply, reclaim: bool) {
        let (operation, result) = match reply {
            Reply::Lock(outcome) => (LockOperation::Lock, result(*outcome)),
            Reply::Share(outcome) => (LockOperation::Share, result(*outcome)),
            Reply::Test(TestResult::Free) => (LockOperation::Test, LockResult::Granted),
            Reply::Test(TestResult::Held(_)) => (LockOperation::Test, LockResult::Denied),
            Reply::Test(TestResult::Grace) => (LockOperation::Test, LockResult::Grace),
            Reply::Unlock => (LockOperation::Unlock, LockResult::Granted),
            Reply::Cancel(CancelOutcome::Done) => (LockOperation::Cancel, LockResult::Granted),
            Reply::Cancel(CancelOutcome::TooLate) => (LockOperation::Cancel, LockResult::Denied),
            Reply::Unshare => (LockOperation::Unshare, LockResult::Granted),
            _ => return,
        };
        self.count_decision(operation, result, reclaim);
    }

    /// Counts a request that a failing store kept waiting for too long, if it is refused.
    pub(crate) fn count_stalled(&self, request: &Request) {
        let operation = match request {
            request if request.stall_policy() == StallPolicy::NoReply => return,
            Request::Lock(_) => LockOperation::Lock,
            Request::Test(_) => LockOperation::Test,
            Request::Share(_) => LockOperation::Share,
            _ => return,
        };
        self.count_decision(operation, LockResult::Refused, false);
    }

    fn count_decision(&self, operation: LockOperation, result: LockResult, reclaim: bool) {
        self.lock_requests[operation as usize][result as usize].add(1);
        if reclaim {
            self.reclaims[result as usize].add(1);
        }
    }

    pub(crate) fn count_callback(&self, answer: GrantAnswer) {
        let count = match answer {
            GrantAnswer::Accepted => &self.callbacks_accepted,
            GrantAnswer::Denied => &self.callbacks_denied,
            GrantAnswer::Unclear => &self.callbacks_unclear,
            GrantAnswer::Unsent => &self.callbacks_unsent,
        };
        count.add(1);
    }

    /// Counts an attempt that left. Whether it failed is the keeper's decision (`count_event`): once
    /// the host has everything back, a missing answer does not matter.
    pub(crate) fn count_notice(&self, result: NoticeResult, took: Duration) {
        if result == NoticeResult::Answered {
            self.notices_answered.add(1);
        }
        if result != NoticeResult::Unsent {
            self.notice_duration.observe(took);
        }
    }

    pub(crate) fn count_event(&self, event: &Event) {
        match event {
            Event::NoticeSent { .. } => self.notices_started.add(1),
            Event::NoticeFailed { .. } => self.notices_failed.add(1),
            Event::Crashed { client } => {
                self.crashes.add(1);
                self.silent().insert(*client);
            }
            Event::Rebooted { client, released, .. } => {
                let known = self.silent().remove(client);
                self.crashes.add(u64::from(!known));
                self.count_clean_up(*released);
            }
            Event::WatchedRebooted { .. } => self.crashes.add(1),
            // An operator's release is no clean-up.
            Event::Released { why: Release::Operator(_), .. } => {}
            Event::Released { count, .. } => self.count_clean_up(*count),
            // The host is back, or no longer a client.
            Event::Reclaimed { client }
            | Event::Registered { client }
            | Event::Unregistered { client }
            | Event::Forgotten { client, .. } => {
                self.silent().remove(client);
            }
            _ => {}
        }
    }

    fn count_clean_up(&self, locks: u64) {
        self.clean_ups.add(u64::from(locks > 0));
        self.locks_cleaned.add(locks);
    }

    fn silent(&self) -> MutexGuard<'_, BTreeSet<ClientId>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_store_error(&self) {
        self.store_errors.add(1);
    }
}

fn result(outcome: Outcome) -> LockResult {
    match outcome {
        Outcome::Granted => LockResult::Granted,
        Outcome::Denied => LockResult::Denied,
        Outcome::Blocked => LockResult::Blocked,
        Outcome::Grace => LockResult::Grace,
        Outcome::Deadlock => LockResult::Deadlock,
        Outcome::Refused(_) => LockResult::Refused,
    }
}

fn slot(procedure: u32) -> usize {
    (procedure as usize).min(PROCEDURE_SLOTS - 1)
}

/// A call that is being served, and when it arrived.
#[derive(Debug, Clone, Copy)]
pub struct CallStart {
    program: Program,
    procedure: u32,
    since: Instant,
}

impl CallStart {
    /// `None` for programs that are not served.
    pub fn now(program: u32, procedure: u32) -> Option<Self> {
        Some(Self { program: Program::of(program)?, procedure, since: Instant::now() })
    }
}

#[cfg(test)]
mod tests {
    use keeper::event::Proof;
    use keeper::identity::{Incarnation, NoticeId};

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
    fn numbers_that_the_program_does_not_have_are_counted_together() {
        let metrics = Metrics::default();
        for procedure in [23, 24, 99, 1000, u32::MAX] {
            let call = CallStart::now(wire::nlm::PROGRAM, procedure).unwrap();
            metrics.count_call(call, CallOutcome::NotRun);
        }
        assert_eq!(metrics.calls(Program::Nlm, 23, CallOutcome::NotRun), 1, "FREE_ALL alone");
        assert_eq!(metrics.other_calls(Program::Nlm, CallOutcome::NotRun), 4);
    }

    #[test]
    fn a_crash_is_counted_once_and_a_clean_up_only_if_something_went() {
        let metrics = Metrics::default();
        let (client, other) = (ClientId(1), ClientId(2));
        let reboot = |client, released| {
            let (to, proof) = (Incarnation(5), Proof::Notice);
            metrics.count_event(&Event::Rebooted { client, to, proof, released });
        };
        let read = || (metrics.crashes.get(), metrics.clean_ups.get(), metrics.locks_cleaned.get());
        reboot(client, 0);
        assert_eq!(read(), (1, 0, 0), "nothing was cleaned up");
        metrics.count_event(&Event::Crashed { client });
        assert_eq!(read(), (2, 0, 0));
        reboot(client, 3);
        assert_eq!(read(), (2, 1, 3), "the same crash");
        reboot(client, 1);
        assert_eq!(read(), (3, 2, 4), "the next one");
        metrics.count_event(&Event::Crashed { client: other });
        metrics.count_event(&Event::Reclaimed { client: other });
        reboot(other, 1);
        assert_eq!(read(), (5, 3, 5), "it had come back before");
    }

    #[test]
    fn every_release_but_an_operators_is_a_clean_up() {
        use keeper::bytes::Name;
        let metrics = Metrics::default();
        let read = || (metrics.crashes.get(), metrics.clean_ups.get(), metrics.locks_cleaned.get());
        let release = |why| {
            metrics.count_event(&Event::Released { client: ClientId(1), count: 2, why });
        };
        release(Release::Operator(Name::from("root")));
        assert_eq!(read(), (0, 0, 0));
        for why in [
            Release::FreeAll,
            Release::Unanswered,
            Release::Unreachable,
            Release::Unreclaimed,
            Release::OldKernel,
            Release::RosterEnd,
        ] {
            release(why);
        }
        assert_eq!(read(), (0, 6, 12), "none of them is a crash that was detected");
    }

    #[test]
    fn an_attempt_failed_if_the_keeper_says_so() {
        let metrics = Metrics::default();
        let read = || (metrics.notices_answered.get(), metrics.notices_failed.get());
        metrics.count_notice(NoticeResult::Failed, Duration::from_secs(5));
        metrics.count_notice(NoticeResult::Unsent, Duration::from_secs(5));
        assert_eq!(read(), (0, 0));
        let (notice, client, to) = (NoticeId(1), Some(ClientId(1)), [10, 0, 0, 1].into());
        metrics.count_event(&Event::NoticeFailed { notice, client, to });
        metrics.count_notice(NoticeResult::Answered, Duration::from_secs(1));
        assert_eq!(read(), (1, 1));
        assert_eq!(metrics.notice_duration.read().0.iter().sum::<u64>(), 2);
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.99), None);
        (0..99).for_each(|_| histogram.observe(Duration::from_micros(10)));
        histogram.observe(Duration::from_millis(10));
        assert_eq!(histogram.quantile(0.99), Some(Duration::from_micros(16)));
        assert!(histogram.quantile(1.0).unwrap() >= Duration::from_millis(10));
    }
}
