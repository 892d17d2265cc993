//! The server dies by SIGKILL and comes back: every holder still has its lock, no other client got
//! it in between, and new locks wait no longer than the holders need to reclaim.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::context::Drill;
use super::locks::{default_settings, step_dir};
use crate::capture::Capture;
use crate::server::Settings;

pub(super) const STEPS: &[Step] = &[
    Step::new("server-crash-holder-keeps-its-lock", holder_keeps),
    Step::new("server-crash-with-instant-grace", instant),
    Step::long("server-crash-with-durability-power", power),
    Step::long("server-crash-twice-in-a-row", twice),
    Step::new("server-stop-holder-keeps-its-lock", clean_stop),
    Step::new("server-crash-waiter-is-granted-afterwards", waiter),
    Step::long("server-crash-cancelled-waiter-stays-away", cancelled_waiter),
    Step::long("server-crash-unlock-while-it-is-down", unlock_while_down),
];

/// From the first accepted connection until another client has a new lock, when all holders reclaim.
pub(super) const STRICT: Duration = Duration::from_secs(4);
const INSTANT: Duration = Duration::from_secs(1);
pub(super) const TIMEOUT: Duration = Duration::from_secs(90);

const RECLAIM: &str = "nlm.procedure_v4 == 2 && rpc.msgtyp == 0 && nlm.reclaim == 1";

fn holder_keeps(drill: &Drill) -> Result<()> {
    drill.stage(&default_settings())?;
    let capture = Capture::start(&drill.lab, "server-crash")?;
    survive(drill, "holder", 1, STRICT)?;
    let packets = capture.stop()?;
    let reclaims = packets.count(RECLAIM)?;
    ensure!(reclaims > 0, "no lock was reclaimed");
    drill.note(format!("{reclaims} reclaims"));
    Ok(())
}

fn instant(drill: &Drill) -> Result<()> {
    drill.stage(&Settings { grace: Some("instant"), ..default_settings() })?;
    survive(drill, "instant", 1, INSTANT)
}

fn power(drill: &Drill) -> Result<()> {
    drill.stage(&Settings { durability: Some("power"), ..default_settings() })?;
    survive(drill, "power", 1, STRICT)
}

fn twice(drill: &Drill) -> Result<()> {
    drill.stage(&default_settings())?;
    survive(drill, "twice", 3, STRICT)
}

/// Kills the server while both guests hold locks. Each time, bob asks for what alice holds, and for
/// something that is free.
fn survive(drill: &Drill, name: &str, times: usize, most: Duration) -> Result<()> {
    let dir = drill.step_dir("open", name)?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut holder = dir.locker(alice, "file")?;
    let mut other_holder = dir.locker(bob, "other")?;
    let mut thief = dir.locker(bob, "file")?;
    let mut newcomer = dir.locker(bob, "free")?;
    holder.takes("write 0 10")?;
    holder.takes("read 20 5")?;
    other_holder.takes("write 0 0")?;
    for _ in 0..times {
        drill.server.kill();
        let accepted = drill.server.start()?;
        thief.tries("write 5 10")?;
        newcomer.tries("write 0 10")?;
        let granted = newcomer.granted(TIMEOUT)?;
        let took = granted.saturating_duration_since(accepted);
        drill.within("first new lock after", took, most)?;
        thief.denied(TIMEOUT).context("what alice holds")?;
        newcomer.unlocks("0 10")?;
    }
    thief.is_refused("write 20 5")?;
    dir.locker(alice, "other")?.is_refused("read 0 1").context("what bob holds")?;
    holder.unlocks("0 0")?;
    thief.takes("write 0 30").map(drop)
}

fn clean_stop(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "clean-stop")?;
    let mut holder = dir.locker(drill.alice()?, "file")?;
    let mut thief = dir.locker(drill.bob()?, "file")?;
    let mut newcomer = dir.locker(drill.bob()?, "free")?;
    holder.takes("write 0 10")?;
    drill.server.stop()?;
    let accepted = drill.server.start()?;
    thief.tries("write 0 10")?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(TIMEOUT)?;
    drill.within("first new lock after", granted.saturating_duration_since(accepted), STRICT)?;
    thief.denied(TIMEOUT)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

/// Waiters are not durable; notified of the restart, the client requests the lock again.
fn waiter(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "waiter")?;
    let mut holder = dir.locker(drill.alice()?, "file")?;
    let mut waiter = dir.locker(drill.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    drill.server.restart()?;
    waiter.still_waits(Duration::from_secs(8))?;
    let unlocked = holder.unlocks("0 10")?;
    let granted = waiter.granted(TIMEOUT)?;
    drill.within("granted after", granted - unlocked, Duration::from_secs(1))?;
    holder.is_refused("write 0 10")
}

/// A waiter that gives up while the server is down must not be granted the lock later.
fn cancelled_waiter(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "cancelled")?;
    let mut holder = dir.locker(drill.alice()?, "file")?;
    let mut waiter = dir.locker(drill.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    drill.server.kill();
    waiter.signal(libc::SIGUSR1)?;
    thread::sleep(Duration::from_secs(1));
    drill.server.start()?;
    let (answer, _) = waiter.answer(TIMEOUT)?;
    ensure!(answer == "interrupted", "the wait ended with {answer}");
    holder.unlocks("0 10")?;
    holder.takes("write 0 10")?;
    let told = waiter.holder("write 0 10")?;
    ensure!(told.starts_with("write 0 10 "), "F_GETLK says {told}");
    Ok(())
}

fn unlock_while_down(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "unlock-down")?;
    let mut holder = dir.locker(drill.alice()?, "file")?;
    let mut next = dir.locker(drill.bob()?, "file")?;
    holder.takes("write 0 10")?;
    drill.server.kill();
    let unlocking = thread::scope(|scope| -> Result<Instant> {
        let unlock = scope.spawn(|| holder.unlocks("0 10"));
        thread::sleep(Duration::from_secs(2));
        let accepted = drill.server.start()?;
        unlock.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
        Ok(accepted)
    })?;
    next.tries("write 0 10")?;
    let granted = next.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(unlocking);
    drill.note(format!("taken {:.2} s after the start", took.as_secs_f64()));
    Ok(())
}
