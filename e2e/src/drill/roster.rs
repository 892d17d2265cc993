//! The machine of the server restarted, as far as its store can tell: the mark that proves the locks
//! complete is gone. Only the hosts are known then, and all of the window is theirs. It begins with
//! the first who can reach the server (R2.6).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::locker::Locker;
use super::locks::{WINDOW_SECONDS, drill};
use super::server_crash::PATIENCE;
use super::world::World;
use crate::server::Settings;

pub(super) const STEPS: &[Step] = &[
    Step::long("roster-holder-reclaims-in-a-full-window", once),
    Step::long("roster-crash-inside-its-grace-is-a-roster-again", twice),
    Step::new("roster-window-waits-for-the-network", outage),
    Step::long("roster-window-waits-for-the-network-holder-late", outage_holder_late),
    Step::long("roster-window-waits-for-the-network-holder-dead", outage_holder_dead),
];

const WINDOW: Duration = Duration::from_secs(WINDOW_SECONDS);
/// For what waits until a whole window has passed unused.
const SHORT_WINDOW: Duration = Duration::from_secs(8);
/// A client that was told of grace asks again 5 s later.
const AFTERWARDS: Duration = Duration::from_secs(10);
/// Grace lasts up to twice the window while hosts come back, and a host that must be proven dead
/// gets 10 s.
const AFTER_OUTAGE: Duration = Duration::from_secs(25);

fn once(world: &World) -> Result<()> {
    full_window(world, "roster", |_| Ok(()))
}

/// The second start finds a mark, and still must not take its locks for complete.
fn twice(world: &World) -> Result<()> {
    full_window(world, "roster-twice", |accepted| {
        thread::sleep(Duration::from_secs(WINDOW_SECONDS / 3));
        *accepted = world.server.restart()?;
        Ok(())
    })
}

fn full_window(
    world: &World,
    name: &str,
    trouble: impl FnOnce(&mut Instant) -> Result<()>,
) -> Result<()> {
    let mut scene = Scene::set(world, name, WINDOW)?;
    let mut accepted = start_without_mark(world)?;
    scene.ask()?;
    trouble(&mut accepted)?;
    scene.holder_keeps(world, accepted, WINDOW + AFTERWARDS)
}

/// A power cut and a slow switch: the server is up for longer than its window before anybody can
/// reach it. The holder comes last, and must still find its lock.
fn outage(world: &World) -> Result<()> {
    let mut scene = Scene::set(world, "roster-outage", SHORT_WINDOW)?;
    let reached = scene.reached_after_outage(world, SHORT_WINDOW + Duration::from_secs(2))?;
    scene.nobody_decides_until(reached + SHORT_WINDOW / 5)?;
    world.alice()?.plug()?;
    scene.holder_keeps(world, reached, SHORT_WINDOW * 2 + AFTER_OUTAGE)
}

/// Notices have failed often, and the next one may be far away; the holder is heard in the window.
fn outage_holder_late(world: &World) -> Result<()> {
    let mut scene = Scene::set(world, "roster-outage-late", WINDOW)?;
    let reached = scene.reached_after_outage(world, WINDOW * 2)?;
    scene.nobody_decides_until(reached + WINDOW * 3 / 4)?;
    let alice = world.alice()?;
    alice.plug()?;
    alice.succeed_for("ls /mnt/open > /dev/null", PATIENCE)?;
    scene.holder_keeps(world, reached, WINDOW * 2 + AFTER_OUTAGE)
}

/// Who does not come in the restarted window either does not stand in the way for ever.
fn outage_holder_dead(world: &World) -> Result<()> {
    let mut scene = Scene::set(world, "roster-outage-dead", SHORT_WINDOW)?;
    let reached = scene.reached_after_outage(world, SHORT_WINDOW + Duration::from_secs(2))?;
    let alice = world.alice()?;
    alice.crash();
    alice.plug()?;
    scene.nobody_decides_until(reached + SHORT_WINDOW / 2)?;
    let granted = scene.thief.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(reached);
    world.within("the lock goes after", took, SHORT_WINDOW * 2 + AFTER_OUTAGE)?;
    ensure!(took + Duration::from_secs(1) >= SHORT_WINDOW, "inside the window, after {took:?}");
    scene.newcomer.granted(PATIENCE).map(drop)
}

/// Alice holds a lock; bob wants it, and another one that is free.
struct Scene {
    holder: Locker,
    thief: Locker,
    newcomer: Locker,
    window: Duration,
}

impl Scene {
    fn set(world: &World, name: &str, window: Duration) -> Result<Self> {
        world.stage(&Settings { window_seconds: Some(window.as_secs()), ..drill() })?;
        let room = world.room("open", name)?;
        let mut scene = Self {
            holder: room.locker(world.alice()?, "file")?,
            thief: room.locker(world.bob()?, "file")?,
            newcomer: room.locker(world.bob()?, "free")?,
            window,
        };
        scene.holder.takes("write 0 10")?;
        scene.thief.is_refused("write 0 10")?;
        Ok(scene)
    }

    fn ask(&mut self) -> Result<()> {
        self.thief.tries("write 0 10")?;
        self.newcomer.tries("write 0 10")
    }

    /// The server starts without its mark while both guests are cut off; then bob is connected, and
    /// asks. When that was.
    fn reached_after_outage(&mut self, world: &World, outage: Duration) -> Result<Instant> {
        for guest in world.lab.guests() {
            guest.unplug()?;
        }
        start_without_mark(world)?;
        thread::sleep(outage);
        world.bob()?.plug()?;
        let reached = Instant::now();
        self.ask()?;
        Ok(reached)
    }

    fn nobody_decides_until(&mut self, end: Instant) -> Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        self.thief.still_waits(left).context("what alice holds, in the window")?;
        self.newcomer.still_waits(Duration::ZERO).context("what is free, in the window")
    }

    /// The window that began at `since` ends with alice's lock in its place; it goes when she gives
    /// it up.
    fn holder_keeps(mut self, world: &World, since: Instant, most: Duration) -> Result<()> {
        let granted = self.newcomer.granted(PATIENCE)?;
        let took = granted.saturating_duration_since(since);
        world.within("first new lock after", took, most)?;
        ensure!(took + Duration::from_secs(1) >= self.window, "grace ended early, after {took:?}");
        self.thief.denied(PATIENCE).context("what alice holds")?;
        let told = self.thief.holder("write 0 10")?;
        ensure!(told.starts_with("write 0 10 "), "F_GETLK says {told}");
        self.holder.unlocks("0 10")?;
        self.thief.takes("write 0 10").map(drop)
    }
}

/// As after a power cut; when it first accepted a connection.
fn start_without_mark(world: &World) -> Result<Instant> {
    world.server.kill();
    world.server.forget_mark()?;
    world.server.start()
}
