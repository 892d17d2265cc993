//! The machine of the server restarted, as far as its store can tell: the mark that proves the locks
//! complete is gone. Only the hosts are known then, and all of the window is theirs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::locks::{WINDOW_SECONDS, room};
use super::server_crash::PATIENCE;
use super::world::World;

pub(super) const STEPS: &[Step] = &[
    Step::long("roster-holder-reclaims-in-a-full-window", once),
    Step::long("roster-crash-inside-its-grace-is-a-roster-again", twice),
];

const WINDOW: Duration = Duration::from_secs(WINDOW_SECONDS);

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
    let room = room(world, name)?;
    let mut holder = room.locker(world.alice()?, "file")?;
    let mut thief = room.locker(world.bob()?, "file")?;
    let mut newcomer = room.locker(world.bob()?, "free")?;
    holder.takes("write 0 10")?;
    world.server.kill();
    world.server.forget_mark()?;
    let mut accepted = world.server.start()?;
    thief.tries("write 0 10")?;
    newcomer.tries("write 0 10")?;
    trouble(&mut accepted)?;
    let granted = newcomer.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(accepted);
    world.within("first new lock after", took, WINDOW + Duration::from_secs(10))?;
    ensure!(took + Duration::from_secs(1) >= WINDOW, "grace ended early, after {took:?}");
    thief.denied(PATIENCE).context("what alice holds")?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}
