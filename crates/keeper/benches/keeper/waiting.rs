//! How the cost of waiting grows: a blocking LOCK of an owner of many locks for which others wait, and
//! the wake of many waiters.

use std::hint::black_box;
use std::time::Duration;

use crate::child;
use crate::clock::timed;
use crate::report::{Bar, Report};
use crate::world::{Host, World};

/// Cost of a blocking LOCK with 10,000 locks and 1,000 waiters, relative to 100 and 10.
const GROWTH_MAX: f64 = 3.0;
/// Cost for each of 1,000 waiters of a wake, relative to each of 100.
const WAKE_GROWTH_MAX: f64 = 1.5;
/// What any of these may take from the requests of others.
const SECONDS_MAX: f64 = 0.020;

const FEW: u32 = 10;
const MANY: u32 = 1_000;
/// Locks of the owner for each waiter.
const LOCKS_PER_WAITER: u32 = 10;
/// A host that repeats no request is probed after this.
const SILENCE: Duration = Duration::from_secs(60);

const HOLDER: (Host, u32) = (Host(0), 0);
const OTHER: (Host, u32) = (Host(1), 1);
const FILE: u32 = 0;
/// What [`OTHER`] holds.
const WANTED: u64 = 1_000_000;
const REPEATS: u32 = 100;

pub fn instructions(report: &mut Report) -> Result<(), String> {
    let count = |waiters: u32| {
        child::counted("waiting", waiters, ["waiting::counted_waits", "waiting::counted_wake"])
    };
    let ([few, _], [many, many_wake]) = (count(FEW)?, count(MANY)?);
    let name = "blocking lock, 10,000 locks and 1,000 waiters, in costs with 100 and 10";
    report.add(name, many / few, Bar::Max(GROWTH_MAX));
    let [_, some_wake] = count(MANY / 10)?;
    let name = "wake of 1,000 silent waiters, for each, in costs of one of 100";
    report.add(name, many_wake / (10.0 * some_wake), Bar::Max(WAKE_GROWTH_MAX));
    Ok(())
}

pub fn seconds(report: &mut Report) {
    let mut world = world(MANY);
    let (blocked, ()) = timed(|| wait(&mut world));
    let name = "seconds for a blocking lock, 10,000 locks and 1,000 waiters";
    report.add(name, blocked, Bar::Max(SECONDS_MAX));
    world.pass(SILENCE);
    let (woken, granted) = timed(|| wake(&mut world));
    assert_eq!(granted, MANY as usize);
    report.add("seconds to wake 1,000 silent waiters", woken, Bar::Max(SECONDS_MAX));
}

/// The part that valgrind counts.
pub fn count(waiters: u32) {
    let mut world = world(waiters);
    counted_waits(&mut world);
    counted_wake(&mut world);
}

/// The holder has record 0, for which all wait, and many others.
fn world(waiters: u32) -> World {
    let mut world = World::new();
    world.prepare(12, MANY + 2, 1);
    for record in 0..waiters * LOCKS_PER_WAITER {
        world.lock(HOLDER.0, HOLDER.1, FILE, u64::from(record));
    }
    world.lock(OTHER.0, OTHER.1, FILE, WANTED);
    for waiter in 0..waiters {
        world.wait_to_read(Host(2 + waiter % 10), 2 + waiter, FILE, 0);
    }
    world
}

fn wait(world: &mut World) {
    world.wait(HOLDER.0, HOLDER.1, FILE, WANTED);
}

fn wake(world: &mut World) -> usize {
    world.unlock(HOLDER.0, HOLDER.1, FILE, 0);
    world.answer_probes()
}

#[inline(never)]
fn counted_waits(world: &mut World) {
    for _ in 0..REPEATS {
        wait(world);
    }
    world.pass(SILENCE);
    black_box(world);
}

#[inline(never)]
fn counted_wake(world: &mut World) {
    assert!(wake(world) > 0, "no waiter was granted");
    black_box(world);
}
