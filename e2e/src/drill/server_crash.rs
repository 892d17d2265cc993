//! The server dies by SIGKILL and comes back: whoever held a lock still holds it, nobody got it in
//! between, and others need not wait longer than the holders need to reclaim.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::locks::{drill, room};
use super::world::World;
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
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

const RECLAIM: &str = "nlm.procedure_v4 == 2 && rpc.msgtyp == 0 && nlm.reclaim == 1";

fn holder_keeps(world: &World) -> Result<()> {
    world.stage(&drill())?;
    let capture = Capture::start(&world.lab, "server-crash")?;
    survive(world, "holder", 1, STRICT)?;
    let packets = capture.stop()?;
    let reclaims = packets.count(RECLAIM)?;
    ensure!(reclaims > 0, "no lock was reclaimed");
    world.note(format!("{reclaims} reclaims"));
    Ok(())
}

fn instant(world: &World) -> Result<()> {
    world.stage(&Settings { grace: Some("instant"), ..drill() })?;
    survive(world, "instant", 1, INSTANT)
}

fn power(world: &World) -> Result<()> {
    world.stage(&Settings { durability: Some("power"), ..drill() })?;
    survive(world, "power", 1, STRICT)
}

fn twice(world: &World) -> Result<()> {
    world.stage(&drill())?;
    survive(world, "twice", 3, STRICT)
}

/// Kills the server while both guests hold locks. Each time, bob asks for what alice holds, and for
/// something that is free.
fn survive(world: &World, name: &str, times: usize, most: Duration) -> Result<()> {
    let room = world.room("open", name)?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    let mut holder = room.locker(alice, "file")?;
    let mut other_holder = room.locker(bob, "other")?;
    let mut thief = room.locker(bob, "file")?;
    let mut newcomer = room.locker(bob, "free")?;
    holder.takes("write 0 10")?;
    holder.takes("read 20 5")?;
    other_holder.takes("write 0 0")?;
    for _ in 0..times {
        world.server.kill();
        let accepted = world.server.start()?;
        thief.tries("write 5 10")?;
        newcomer.tries("write 0 10")?;
        let granted = newcomer.granted(PATIENCE)?;
        let took = granted.saturating_duration_since(accepted);
        world.within("first new lock after", took, most)?;
        thief.denied(PATIENCE).context("what alice holds")?;
        newcomer.unlocks("0 10")?;
    }
    thief.is_refused("write 20 5")?;
    room.locker(alice, "other")?.is_refused("read 0 1").context("what bob holds")?;
    holder.unlocks("0 0")?;
    thief.takes("write 0 30").map(drop)
}

fn clean_stop(world: &World) -> Result<()> {
    let room = room(world, "clean-stop")?;
    let mut holder = room.locker(world.alice()?, "file")?;
    let mut thief = room.locker(world.bob()?, "file")?;
    let mut newcomer = room.locker(world.bob()?, "free")?;
    holder.takes("write 0 10")?;
    world.server.stop()?;
    let accepted = world.server.start()?;
    thief.tries("write 0 10")?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(PATIENCE)?;
    world.within("first new lock after", granted.saturating_duration_since(accepted), STRICT)?;
    thief.denied(PATIENCE)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

/// A waiter is not remembered; told of the restart, its client asks again.
fn waiter(world: &World) -> Result<()> {
    let room = room(world, "waiter")?;
    let mut holder = room.locker(world.alice()?, "file")?;
    let mut waiter = room.locker(world.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    world.server.restart()?;
    waiter.still_waits(Duration::from_secs(8))?;
    let unlocked = holder.unlocks("0 10")?;
    let granted = waiter.granted(PATIENCE)?;
    world.within("granted after", granted - unlocked, Duration::from_secs(1))?;
    holder.is_refused("write 0 10")
}

/// Who gives up while the server is down must not be granted the lock after all.
fn cancelled_waiter(world: &World) -> Result<()> {
    let room = room(world, "cancelled")?;
    let mut holder = room.locker(world.alice()?, "file")?;
    let mut waiter = room.locker(world.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    world.server.kill();
    waiter.signal(libc::SIGUSR1)?;
    thread::sleep(Duration::from_secs(1));
    world.server.start()?;
    let (answer, _) = waiter.answer(PATIENCE)?;
    ensure!(answer == "interrupted", "the wait ended with {answer}");
    holder.unlocks("0 10")?;
    holder.takes("write 0 10")?;
    let told = waiter.holder("write 0 10")?;
    ensure!(told.starts_with("write 0 10 "), "F_GETLK says {told}");
    Ok(())
}

fn unlock_while_down(world: &World) -> Result<()> {
    let room = room(world, "unlock-down")?;
    let mut holder = room.locker(world.alice()?, "file")?;
    let mut next = room.locker(world.bob()?, "file")?;
    holder.takes("write 0 10")?;
    world.server.kill();
    let unlocking = thread::scope(|scope| -> Result<Instant> {
        let unlock = scope.spawn(|| holder.unlocks("0 10"));
        thread::sleep(Duration::from_secs(2));
        let accepted = world.server.start()?;
        unlock.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
        Ok(accepted)
    })?;
    next.tries("write 0 10")?;
    let granted = next.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(unlocking);
    world.note(format!("taken {:.2} s after the start", took.as_secs_f64()));
    Ok(())
}
