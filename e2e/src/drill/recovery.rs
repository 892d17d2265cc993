//! The recovery window when not everybody comes back: a holder that is dead, cut off or deaf while
//! the server restarts.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::locker::Locker;
use super::locks::{WINDOW_SECONDS, drill, room};
use super::server_crash::PATIENCE;
use super::world::World;
use crate::guest::Guest;
use crate::server::Settings;

pub(super) const STEPS: &[Step] = &[
    Step::new("recovery-dead-holders-lock-goes-after-the-window", dead_holder),
    Step::long("recovery-crash-during-grace", during_grace),
    Step::long("recovery-instant-serves-others-at-once", instant_with_dead_holder),
    Step::long("recovery-cut-off-holder-on-demand", on_demand),
    Step::long("recovery-cut-off-holder-immediate", immediate),
    Step::long("recovery-cut-off-holder-retain", retain),
    Step::long("recovery-late-holder-keeps-what-nobody-asked-for", late_holder),
    Step::long("recovery-deaf-holder-keeps-its-lock", deaf_holder),
    Step::long("recovery-holder-reboots-inside-the-window", reboot_inside),
];

const WINDOW: Duration = Duration::from_secs(WINDOW_SECONDS);
/// A client that was told of grace asks again 5 s later; a host that must be proven dead gets 10 s.
const AFTERWARDS: Duration = Duration::from_secs(25);

fn scene(world: &World, name: &str, settings: &Settings) -> Result<(Locker, Locker, Locker)> {
    world.stage(settings)?;
    let room = world.room("open", name)?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    let mut holder = room.locker(alice, "file")?;
    holder.takes("write 0 10")?;
    Ok((holder, room.locker(bob, "file")?, room.locker(bob, "free")?))
}

/// When the lock that `heir` asked for went to it: not inside the window, and soon after it.
fn inherits(world: &World, heir: &mut Locker, accepted: Instant) -> Result<()> {
    let granted = heir.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(accepted);
    world.within("the lock goes after", took, WINDOW + AFTERWARDS)?;
    // The window began a moment before the first connection was accepted.
    ensure!(took + Duration::from_secs(1) >= WINDOW, "it went inside the window, after {took:?}");
    Ok(())
}

fn dead_holder(world: &World) -> Result<()> {
    let (_holder, mut heir, _) = scene(world, "dead-holder", &drill())?;
    let alice = world.alice()?;
    alice.crash();
    let accepted = world.server.restart()?;
    heir.tries("write 0 10")?;
    inherits(world, &mut heir, accepted)
}

/// A second SIGKILL inside the grace of the first: the window starts again, nobody gets anything.
fn during_grace(world: &World) -> Result<()> {
    let (mut holder, mut thief, mut newcomer) = scene(world, "during-grace", &drill())?;
    let alice = world.alice()?;
    alice.unplug()?;
    world.server.restart()?;
    thief.tries("write 0 10")?;
    newcomer.tries("write 0 10")?;
    thief.still_waits(Duration::from_secs(WINDOW_SECONDS / 2))?;
    let accepted = world.server.restart()?;
    thread::sleep(Duration::from_secs(3));
    newcomer.still_waits(Duration::ZERO)?;
    alice.plug()?;
    let granted = newcomer.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(accepted);
    world.note(format!("first new lock {:.1} s after the second start", took.as_secs_f64()));
    thief.denied(PATIENCE)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

fn instant_with_dead_holder(world: &World) -> Result<()> {
    let settings = Settings { grace: Some("instant"), ..drill() };
    let (_holder, mut heir, mut newcomer) = scene(world, "instant-dead", &settings)?;
    world.alice()?.crash();
    let accepted = world.server.restart()?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(accepted);
    world.within("first new lock after", took, Duration::from_secs(1))?;
    heir.tries("write 0 10")?;
    inherits(world, &mut heir, accepted)
}

fn cut_off(world: &World, policy: &'static str) -> Result<(Locker, Locker, Instant)> {
    let settings = Settings { unreachable: Some(policy), ..drill() };
    let name = format!("cut-off-{policy}");
    let (holder, mut heir, _) = scene(world, &name, &settings)?;
    world.alice()?.unplug()?;
    let accepted = world.server.restart()?;
    heir.tries("write 0 10")?;
    Ok((holder, heir, accepted))
}

fn plug_again(alice: &Guest) -> Result<()> {
    alice.plug()?;
    // What it believes to hold is gone; the next step shall not meet it.
    alice.crash();
    alice.boot()
}

fn on_demand(world: &World) -> Result<()> {
    let (_holder, mut heir, accepted) = cut_off(world, "on-demand")?;
    inherits(world, &mut heir, accepted)?;
    plug_again(world.alice()?)
}

/// The first notice that fails is enough, once somebody else was heard; the window goes on.
fn immediate(world: &World) -> Result<()> {
    let (_holder, mut heir, accepted) = cut_off(world, "immediate")?;
    let granted = heir.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(accepted);
    world.within("the lock goes after", took, Duration::from_secs(15))?;
    plug_again(world.alice()?)
}

fn retain(world: &World) -> Result<()> {
    let (mut holder, mut heir, accepted) = cut_off(world, "retain")?;
    heir.denied(PATIENCE)?;
    let took = accepted.elapsed();
    ensure!(took + Duration::from_secs(1) >= WINDOW, "decided inside the window, after {took:?}");
    thread::sleep(Duration::from_secs(12));
    heir.is_refused("write 0 10")?;
    world.alice()?.plug()?;
    holder.unlocks("0 10")?;
    heir.takes("write 0 10").map(drop)
}

/// Cut off for the whole window, and back before anybody wants the lock.
fn late_holder(world: &World) -> Result<()> {
    let (mut holder, mut thief, mut newcomer) = scene(world, "late-holder", &drill())?;
    let alice = world.alice()?;
    alice.unplug()?;
    let accepted = world.server.restart()?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(accepted);
    world.within("first new lock after", took, WINDOW + AFTERWARDS)?;
    alice.plug()?;
    alice.succeed_for("ls /mnt/open > /dev/null", PATIENCE)?;
    thief.is_refused("write 0 10")?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

/// Its statd is stopped, so it never hears of the restart. It lives, and its program works on.
fn deaf_holder(world: &World) -> Result<()> {
    let (mut holder, mut thief, _) = scene(world, "deaf-holder", &drill())?;
    let alice = world.alice()?;
    alice.succeed("kill $(pidof rpc.statd)")?;
    let accepted = world.server.restart()?;
    thief.tries("write 0 10")?;
    thief.denied(PATIENCE).context("inside or after the window")?;
    let took = accepted.elapsed();
    ensure!(took + Duration::from_secs(1) >= WINDOW, "decided inside the window, after {took:?}");
    world.note(format!("refused after {:.1} s", took.as_secs_f64()));
    thief.is_refused("write 0 10")?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10")?;
    alice.succeed("rpc.statd --no-notify").map(drop)
}

/// Server and holder die together, and the holder's boot is heard inside the window: that is proof,
/// and nobody waits for the window's end.
fn reboot_inside(world: &World) -> Result<()> {
    let settings = Settings { window_seconds: Some(90), ..drill() };
    let (_holder, mut heir, _) = scene(world, "reboot-inside", &settings)?;
    let alice = world.alice()?;
    alice.crash();
    world.server.restart()?;
    heir.tries("write 0 10")?;
    alice.boot()?;
    let granted = heir.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    // It was told of grace before, and asks again 5 s later.
    world.within("the lock goes after its statd by", took, Duration::from_secs(8))?;
    room(world, "reboot-inside-end").map(drop)
}
