//! Blocking locks: granted by a callback, in order, and cancelled without a trace.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::context::Drill;
use super::locks::{expect_free, step_dir};
use crate::capture::Capture;

pub(super) const STEPS: &[Step] = &[
    Step::new("wait-is-granted-by-callback", callback),
    Step::new("wait-of-many-is-granted-one-by-one", many),
    Step::new("wait-of-a-reader-is-not-behind-a-writer", reader),
    Step::new("wait-ends-by-a-signal", signal),
    Step::new("wait-ends-with-its-process", killed),
    Step::new("wait-that-closes-a-circle-is-a-deadlock", deadlock),
    Step::long("wait-of-a-dead-host-is-passed-over", dead_waiter),
];

/// From an unlock until the waiter runs; asking again, a client would need up to 30 s.
pub(super) const CALLBACK: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(20);

/// The two callbacks that a Linux client knows.
const GRANTED_CALL: &str =
    "rpc.msgtyp == 0 && (nlm.procedure_v4 == 5 || nlm.procedure_v4 == 10) && ip.dst == 10.77.0.12";

fn callback(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "callback")?;
    let mut alice = dir.locker(drill.alice()?, "file")?;
    let mut bob = dir.locker(drill.bob()?, "file")?;
    alice.takes("write 0 10")?;
    let capture = Capture::start(&drill.lab, "callback")?;
    bob.waits("write 5 10")?;
    bob.still_waits(Duration::from_secs(1))?;
    let unlocked = alice.unlocks("0 10")?;
    let granted = bob.granted(TIMEOUT)?;
    alice.is_refused("read 7 1")?;
    bob.unlocks("5 10")?;
    let packets = capture.stop()?;
    drill.within("granted after", granted - unlocked, CALLBACK)?;
    ensure!(packets.count(GRANTED_CALL)? > 0, "no GRANTED went to the waiter");
    Ok(())
}

/// Three processes of each guest want the same bytes; each releases them once it has them.
fn many(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "many")?;
    let mut holder = dir.locker(drill.alice()?, "file")?;
    holder.takes("write 0 10")?;
    let mut waiters = Vec::new();
    for guest in [drill.alice()?, drill.bob()?, drill.alice()?, drill.bob()?, drill.bob()?] {
        let mut waiter = dir.locker(guest, "file")?;
        waiter.waits("write 0 10")?;
        waiters.push(Some(waiter));
    }
    thread::sleep(Duration::from_secs(1));
    let start = holder.unlocks("0 10")?;
    while waiters.iter().any(Option::is_some) {
        ensure!(start.elapsed() < TIMEOUT, "after {TIMEOUT:?} somebody still waits");
        let mut ran = None;
        for (number, place) in waiters.iter_mut().enumerate() {
            let Some(waiter) = place else { continue };
            if waiter.still_waits(Duration::from_millis(5)).is_err() {
                ensure!(ran.is_none(), "two hold the same bytes");
                ran = Some(number);
            }
        }
        if let Some(number) = ran {
            // Closing the file gives the lock up.
            waiters[number] = None;
        }
    }
    drill.within("all five after", start.elapsed(), Duration::from_secs(5))?;
    holder.waits("write 0 10")?;
    holder.granted(TIMEOUT).map(drop)
}

/// A parent holds a read lock, and a child that it would wait for takes one, too, while a writer of
/// another host waits for the first.
fn reader(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "reader")?;
    let mut parent = dir.locker(drill.alice()?, "file")?;
    let mut writer = dir.locker(drill.bob()?, "file")?;
    let mut child = dir.locker(drill.alice()?, "file")?;
    parent.takes("read 0 10")?;
    writer.waits("write 0 10")?;
    writer.still_waits(Duration::from_secs(1))?;
    let start = Instant::now();
    child.waits("read 0 10")?;
    let granted = child.granted(TIMEOUT).context("the child waits for the writer")?;
    drill.within("granted after", granted - start, Duration::from_secs(2))?;
    child.unlocks("0 10")?;
    parent.unlocks("0 10")?;
    writer.granted(TIMEOUT).map(drop)
}

fn signal(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "signal")?;
    let mut alice = dir.locker(drill.alice()?, "file")?;
    let mut bob = dir.locker(drill.bob()?, "file")?;
    alice.takes("write 0 10")?;
    bob.waits("write 0 10")?;
    bob.still_waits(Duration::from_secs(1))?;
    let start = Instant::now();
    bob.signal(libc::SIGUSR1)?;
    let (answer, at) = bob.answer(TIMEOUT)?;
    ensure!(answer == "interrupted", "the wait ended with {answer}");
    drill.within("interrupted after", at - start, Duration::from_secs(2))?;
    alice.unlocks("0 10")?;
    // A process that gave up must not hold it now.
    expect_free(&mut alice, "write 0 10")?;
    alice.takes("write 0 10")?;
    bob.is_refused("write 0 10")
}

fn killed(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "killed")?;
    let mut alice = dir.locker(drill.alice()?, "file")?;
    let mut dying = dir.locker(drill.bob()?, "file")?;
    let mut next = dir.locker(drill.bob()?, "file")?;
    alice.takes("write 0 10")?;
    dying.waits("write 0 10")?;
    dying.still_waits(Duration::from_millis(500))?;
    next.waits("write 0 10")?;
    next.still_waits(Duration::from_millis(500))?;
    dying.signal(libc::SIGKILL)?;
    thread::sleep(Duration::from_secs(1));
    let unlocked = alice.unlocks("0 10")?;
    let granted = next.granted(TIMEOUT)?;
    drill.within("the next is granted after", granted - unlocked, CALLBACK)
}

fn deadlock(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "deadlock")?;
    let mut alice = dir.locker(drill.alice()?, "file")?;
    let mut bob = dir.locker(drill.bob()?, "file")?;
    alice.takes("write 0 10")?;
    bob.takes("write 10 10")?;
    alice.waits("write 10 10")?;
    alice.still_waits(Duration::from_secs(1))?;
    bob.waits("write 0 10")?;
    let (answer, _) = bob.answer(TIMEOUT)?;
    ensure!(answer == "deadlock", "closing the circle gave {answer}");
    alice.still_waits(Duration::from_millis(500))?;
    bob.unlocks("10 10")?;
    alice.granted(TIMEOUT).map(drop)
}

/// A waiter that has not asked again for 45 s and does not answer keeps its place, and others pass.
fn dead_waiter(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "dead-waiter")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut holder = dir.locker(alice, "file")?;
    let mut next = dir.locker(alice, "file")?;
    let mut dying = dir.locker(bob, "file")?;
    holder.takes("write 0 10")?;
    dying.waits("write 0 10")?;
    dying.still_waits(Duration::from_secs(1))?;
    bob.crash();
    next.waits("write 0 10")?;
    next.still_waits(Duration::from_secs(48))?;
    let unlocked = holder.unlocks("0 10")?;
    let granted = next.granted(Duration::from_secs(60))?;
    drill.within("the next is granted after", granted - unlocked, Duration::from_secs(15))?;
    next.unlocks("0 10")?;
    bob.boot()?;
    // Its waiter was removed with the old kernel: nothing is granted to it.
    thread::sleep(Duration::from_secs(3));
    holder.takes("write 0 10").context("after the boot of the dead waiter's host")?;
    Ok(())
}
