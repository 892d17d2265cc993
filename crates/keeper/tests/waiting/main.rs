//! Random blocking requests, several threads to an owner, on the keeper, on a plain model and on the
//! kernel's own POSIX locks: the same requests wait and the same are granted at rest, and the same
//! are refused as deadlocks (B2.13, B2.16).
//!
//! The kernel follows one wait of an owner and one holder of what it wants, and lets waiters race for
//! what is freed. Where that matters the model alone is the reference, or the operation is left out.
//! `LOCKKEEPER_ORACLE_OPERATIONS` and `LOCKKEEPER_ORACLE_SEED` as for the oracle.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may do I/O"
)]

mod keeper;
mod kernel;
mod model;

use std::collections::BTreeSet;

use keeper::KeeperUnderTest;
use kernel::Kernel;
use lockkeeper_keeper::request::Mode;
use model::{BYTES, Model, Request};
use testbed::random::Random;

pub const OWNERS: usize = 10;
/// Threads of an owner that may wait.
pub const THREADS: usize = 2;
/// The operations on one file before the next file begins.
const OPERATIONS_PER_FILE: usize = 100;

/// The answer to a blocking request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted,
    Waits,
    Deadlock,
}

/// How often the generator reached what matters.
#[derive(Debug, Default)]
struct Reached {
    waits: usize,
    grants: usize,
    deadlocks_of_kernel: usize,
    deadlocks_of_model: usize,
    closed_by_grants: usize,
    refused_by_kernel: usize,
    longest_cycle: usize,
}

#[test]
fn blocking_requests_fare_as_in_the_kernel() {
    let variable = |name: &str, otherwise| match std::env::var(name) {
        Ok(value) => value.parse().expect("a number"),
        Err(_) => otherwise,
    };
    let operations = variable("LOCKKEEPER_ORACLE_OPERATIONS", 24_000u64);
    let seed = variable("LOCKKEEPER_ORACLE_SEED", 1);
    let kernel = Kernel::new();
    let mut reached = Reached::default();
    for file in 0..operations.div_ceil(OPERATIONS_PER_FILE as u64) {
        let mut random = Random::new(seed.wrapping_mul(1 << 32) ^ file);
        // Half of the files have one thread to an owner: there the kernel judges all deadlocks.
        let threads = if file.is_multiple_of(2) { 1 } else { THREADS };
        let mut run = Run {
            kernel: &kernel,
            asked: KeeperUnderTest::new(),
            model: Model::default(),
            threads,
            told: Vec::new(),
        };
        for _ in 0..OPERATIONS_PER_FILE {
            if run.operate(&mut random, &mut reached).is_break() {
                break;
            }
        }
        kernel.clear();
    }
    println!("{reached:?}");
    assert!(reached.waits > 500 && reached.grants > 200, "{reached:?}");
    assert!(reached.deadlocks_of_kernel > 50 && reached.deadlocks_of_model > 10, "{reached:?}");
    assert!(reached.closed_by_grants > 0 && reached.longest_cycle > 3, "{reached:?}");
}

/// A search that followed the other waiters first would give up before it found this cycle.
#[test]
fn a_cycle_of_two_is_found_whatever_else_waits() {
    let mut asked = KeeperUnderTest::new();
    let exclusive =
        |owner, byte| Request { owner, thread: 0, first: byte, last: byte, mode: Mode::Exclusive };
    let (one, other, crowd) = (0, 1, 2..992);
    for (owner, byte) in [(one, 0), (other, 1)] {
        assert_eq!(asked.lock(exclusive(owner, byte)), Answer::Granted);
    }
    for owner in crowd.clone() {
        assert_eq!(asked.lock(exclusive(owner, owner)), Answer::Granted);
    }
    // Each of the crowd waits for a byte of the first owner, or of another of the crowd.
    for owner in crowd {
        let byte = if owner.is_multiple_of(2) { 0 } else { owner - 1 };
        assert_eq!(asked.lock(exclusive(owner, byte)), Answer::Waits);
    }
    assert_eq!(asked.lock(exclusive(one, 1)), Answer::Waits);
    assert_eq!(asked.lock(exclusive(other, 0)), Answer::Deadlock);
}

/// The random test rarely closes a long cycle.
#[test]
fn cycles_of_two_to_eight_are_deadlocks_as_in_the_kernel() {
    let kernel = Kernel::new();
    for length in 2..=8 {
        let mut asked = KeeperUnderTest::new();
        let exclusive = |owner, byte| Request {
            owner,
            thread: 0,
            first: byte,
            last: byte,
            mode: Mode::Exclusive,
        };
        let mut both = |request: Request, expected: Answer| {
            assert_eq!(asked.lock(request), expected, "keeper, {length}: {request:?}");
            assert_eq!(kernel.lock(request), expected, "kernel, {length}: {request:?}");
        };
        for owner in 0..length {
            both(exclusive(owner, owner), Answer::Granted);
        }
        for owner in 0..length - 1 {
            both(exclusive(owner, owner + 1), Answer::Waits);
        }
        both(exclusive(length - 1, 0), Answer::Deadlock);
        kernel.clear();
    }
}

/// One file.
struct Run<'a> {
    kernel: &'a Kernel,
    asked: KeeperUnderTest,
    model: Model,
    threads: usize,
    told: Vec<String>,
}

impl Run<'_> {
    /// One operation; breaks if keeper and kernel are allowed to differ from now on.
    fn operate(&mut self, random: &mut Random, reached: &mut Reached) -> std::ops::ControlFlow<()> {
        let mut below = |bound: usize| (random.next() % bound as u64) as usize;
        let owner = below(OWNERS);
        let first = below(BYTES);
        let length = [1, 1, 1, 1, 2, 2, 3, 5][below(8)];
        let last = (first + length - 1).min(BYTES - 1);
        let mode = if below(3) == 0 { Mode::Shared } else { Mode::Exclusive };
        let thread = below(self.threads);
        let unlock = below(3) == 0;
        let request = Request { owner, thread, first, last, mode };
        if unlock {
            self.unlock(request, reached);
        } else if !self.lock(request, reached) {
            return std::ops::ControlFlow::Continue(());
        }
        let waiting: BTreeSet<Request> = self.model.waiting();
        let told = self.told.join("\n");
        assert_eq!(self.asked.waiting(), waiting, "keeper and model differ:\n{told}");
        if let Some(refused) = self.kernel.take_refused() {
            // While the kernel wakes waiters it takes a request behind which others are queued for a
            // lock. Of an owner with several waits it then finds cycles that are none.
            reached.refused_by_kernel += 1;
            assert!(self.threads > 1, "{refused:?} is refused:\n{told}");
            return std::ops::ControlFlow::Break(());
        }
        assert_eq!(self.kernel.waiting(), waiting, "kernel and model differ:\n{told}");
        let held = (0..OWNERS).map(|owner| self.asked.held_by(owner)).collect::<Vec<_>>();
        assert_eq!(held, self.model.held, "keeper and model hold different locks:\n{told}");
        let closed = self.asked.take_closed();
        let cycle = self.model.cycle();
        assert_eq!(closed, cycle.is_some(), "a cycle closed by a grant:\n{told}");
        let Some(request) = cycle else { return std::ops::ControlFlow::Continue(()) };
        reached.closed_by_grants += 1;
        assert_eq!(self.asked.lock(request), Answer::Deadlock, "{request:?}:\n{told}");
        std::ops::ControlFlow::Break(())
    }

    fn unlock(&mut self, request: Request, reached: &mut Reached) {
        let Request { owner, first, last, .. } = request;
        // NLM's UNLOCK also withdraws the owner's requests inside; the kernel's does not.
        let own = self.model.waits.iter().filter(|wait| wait.owner == owner);
        if own.clone().any(|wait| first <= wait.first && wait.last <= last) {
            return;
        }
        let mut after = self.model.clone();
        after.release(owner, first, last);
        if after.is_a_race() {
            return;
        }
        self.told.push(format!("owner {owner} unlocks {first}..={last}"));
        self.model = after;
        reached.grants += self.model.grant();
        self.kernel.unlock(owner, first, last);
        self.asked.unlock(owner, first, last);
    }

    /// False if the operation was left out.
    fn lock(&mut self, request: Request, reached: &mut Reached) -> bool {
        let Request { owner, thread, first, last, mode } = request;
        let of_owner = |wait: &&Request| wait.owner == owner;
        let same = |wait: &Request| (wait.first, wait.last, wait.mode) == (first, last, mode);
        // A thread waits for one lock at a time, and NLM takes equal requests of an owner for one.
        if self.model.waits.iter().filter(of_owner).any(|w| w.thread == thread || same(w)) {
            return false;
        }
        let cycle = self.model.cycle_by(request);
        let expected = match (self.model.holders(request).is_empty(), cycle) {
            (true, _) => Answer::Granted,
            (false, Some(_)) => Answer::Deadlock,
            (false, None) => Answer::Waits,
        };
        let mut after = self.model.clone();
        match expected {
            Answer::Granted => after.take(request),
            Answer::Waits => after.waits.push(request),
            Answer::Deadlock => {}
        }
        // A downgrade may free a range.
        if after.is_a_race() {
            return false;
        }
        self.told.push(format!("{request:?}: {expected:?}"));
        let told = self.told.join("\n");
        assert_eq!(self.asked.lock(request), expected, "keeper:\n{told}");
        if let Some(length) = cycle.filter(|_| expected == Answer::Deadlock) {
            reached.longest_cycle = reached.longest_cycle.max(length);
            if !self.model.is_plain_for_the_kernel(request, length) {
                reached.deadlocks_of_model += 1;
                return true;
            }
            reached.deadlocks_of_kernel += 1;
        }
        assert_eq!(self.kernel.lock(request), expected, "kernel:\n{told}");
        self.model = after;
        reached.grants += self.model.grant();
        reached.waits += usize::from(expected == Answer::Waits);
        true
    }
}
