//! The recovery window when a host does not come back: a holder that is dead, cut off or without a
//! status monitor while the server restarts.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::context::Drill;
use super::locker::Locker;
use super::locks::{WINDOW_SECONDS, default_settings, step_dir};
use super::server_crash::TIMEOUT;
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
/// A client that is denied by grace retries after 5 s; a probe of a dead host takes 10 s.
const AFTERWARDS: Duration = Duration::from_secs(25);

fn lockers(drill: &Drill, name: &str, settings: &Settings) -> Result<(Locker, Locker, Locker)> {
    drill.stage(settings)?;
    let dir = drill.step_dir("open", name)?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut holder = dir.locker(alice, "file")?;
    holder.takes("write 0 10")?;
    Ok((holder, dir.locker(bob, "file")?, dir.locker(bob, "free")?))
}

/// Checks that `heir` gets the lock it requested: not inside the window, but soon after it.
fn inherits(drill: &Drill, heir: &mut Locker, accepted: Instant) -> Result<()> {
    let granted = heir.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(accepted);
    drill.within("the lock goes after", took, WINDOW + AFTERWARDS)?;
    // The window began a moment before the first connection was accepted.
    ensure!(took + Duration::from_secs(1) >= WINDOW, "it went inside the window, after {took:?}");
    Ok(())
}

fn dead_holder(drill: &Drill) -> Result<()> {
    let (_holder, mut heir, _) = lockers(drill, "dead-holder", &default_settings())?;
    let alice = drill.alice()?;
    alice.crash();
    let accepted = drill.server.restart()?;
    heir.tries("write 0 10")?;
    inherits(drill, &mut heir, accepted)
}

/// A second SIGKILL inside the grace of the first: the window starts again, nothing is granted.
fn during_grace(drill: &Drill) -> Result<()> {
    let (mut holder, mut thief, mut newcomer) =
        lockers(drill, "during-grace", &default_settings())?;
    let alice = drill.alice()?;
    alice.unplug()?;
    drill.server.restart()?;
    thief.tries("write 0 10")?;
    newcomer.tries("write 0 10")?;
    thief.still_waits(Duration::from_secs(WINDOW_SECONDS / 2))?;
    let accepted = drill.server.restart()?;
    thread::sleep(Duration::from_secs(3));
    newcomer.still_waits(Duration::ZERO)?;
    alice.plug()?;
    let granted = newcomer.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(accepted);
    drill.note(format!("first new lock {:.1} s after the second start", took.as_secs_f64()));
    thief.denied(TIMEOUT)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

fn instant_with_dead_holder(drill: &Drill) -> Result<()> {
    let settings = Settings { grace: Some("instant"), ..default_settings() };
    let (_holder, mut heir, mut newcomer) = lockers(drill, "instant-dead", &settings)?;
    drill.alice()?.crash();
    let accepted = drill.server.restart()?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(accepted);
    drill.within("first new lock after", took, Duration::from_secs(1))?;
    heir.tries("write 0 10")?;
    inherits(drill, &mut heir, accepted)
}

fn cut_off(drill: &Drill, policy: &'static str) -> Result<(Locker, Locker, Instant)> {
    let settings = Settings { unreachable: Some(policy), ..default_settings() };
    let name = format!("cut-off-{policy}");
    let (holder, mut heir, _) = lockers(drill, &name, &settings)?;
    drill.alice()?.unplug()?;
    let accepted = drill.server.restart()?;
    heir.tries("write 0 10")?;
    Ok((holder, heir, accepted))
}

fn plug_again(alice: &Guest) -> Result<()> {
    alice.plug()?;
    // The client still believes that it holds the lock; the next step must start without it.
    alice.crash();
    alice.boot()
}

fn on_demand(drill: &Drill) -> Result<()> {
    let (_holder, mut heir, accepted) = cut_off(drill, "on-demand")?;
    inherits(drill, &mut heir, accepted)?;
    plug_again(drill.alice()?)
}

/// The first failed notice is enough, once another peer was heard; the window continues.
fn immediate(drill: &Drill) -> Result<()> {
    let (_holder, mut heir, accepted) = cut_off(drill, "immediate")?;
    let granted = heir.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(accepted);
    drill.within("the lock goes after", took, Duration::from_secs(15))?;
    plug_again(drill.alice()?)
}

fn retain(drill: &Drill) -> Result<()> {
    let (mut holder, mut heir, accepted) = cut_off(drill, "retain")?;
    heir.denied(TIMEOUT)?;
    let took = accepted.elapsed();
    ensure!(took + Duration::from_secs(1) >= WINDOW, "decided inside the window, after {took:?}");
    thread::sleep(Duration::from_secs(12));
    heir.is_refused("write 0 10")?;
    drill.alice()?.plug()?;
    holder.unlocks("0 10")?;
    heir.takes("write 0 10").map(drop)
}

/// Cut off for the whole window, and back before the lock is requested.
fn late_holder(drill: &Drill) -> Result<()> {
    let (mut holder, mut thief, mut newcomer) = lockers(drill, "late-holder", &default_settings())?;
    let alice = drill.alice()?;
    alice.unplug()?;
    let accepted = drill.server.restart()?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(accepted);
    drill.within("first new lock after", took, WINDOW + AFTERWARDS)?;
    alice.plug()?;
    alice.succeed_for("ls /mnt/open > /dev/null", TIMEOUT)?;
    thief.is_refused("write 0 10")?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

/// Its statd is stopped, so it never receives the notice. The host and its program keep running.
fn deaf_holder(drill: &Drill) -> Result<()> {
    let (mut holder, mut thief, _) = lockers(drill, "deaf-holder", &default_settings())?;
    let alice = drill.alice()?;
    alice.succeed("kill $(pidof rpc.statd)")?;
    let accepted = drill.server.restart()?;
    thief.tries("write 0 10")?;
    thief.denied(TIMEOUT).context("inside or after the window")?;
    let took = accepted.elapsed();
    ensure!(took + Duration::from_secs(1) >= WINDOW, "decided inside the window, after {took:?}");
    drill.note(format!("refused after {:.1} s", took.as_secs_f64()));
    thief.is_refused("write 0 10")?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10")?;
    alice.succeed("rpc.statd --no-notify").map(drop)
}

/// Server and holder die together, and the holder's reboot notice arrives inside the window: that
/// is proof, and the lock is released before the window ends.
fn reboot_inside(drill: &Drill) -> Result<()> {
    let settings = Settings { window_seconds: Some(90), ..default_settings() };
    let (_holder, mut heir, _) = lockers(drill, "reboot-inside", &settings)?;
    let alice = drill.alice()?;
    alice.crash();
    drill.server.restart()?;
    heir.tries("write 0 10")?;
    alice.boot()?;
    let granted = heir.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    // It was denied by grace before, and retries after 5 s.
    drill.within("the lock goes after its statd by", took, Duration::from_secs(8))?;
    step_dir(drill, "reboot-inside-end").map(drop)
}
