//! The machine of the server restarted, as far as its store can tell: the mark that proves the
//! locks complete is gone. Then only the hosts are known, and grace lasts the whole window (B4.14),
//! which begins with the first host that reaches the server (B4.7).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::context::Drill;
use super::locker::Locker;
use super::locks::{WINDOW_SECONDS, default_settings};
use super::server_crash::TIMEOUT;
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
/// A client that is denied by grace retries after 5 s.
const AFTERWARDS: Duration = Duration::from_secs(10);
/// Grace lasts up to twice the window while hosts come back, and a host that must be proven dead
/// gets 10 s.
const AFTER_OUTAGE: Duration = Duration::from_secs(25);

fn once(drill: &Drill) -> Result<()> {
    full_window(drill, "roster", |_| Ok(()))
}

/// The second start finds a mark, but still must not treat its locks as complete.
fn twice(drill: &Drill) -> Result<()> {
    full_window(drill, "roster-twice", |accepted| {
        thread::sleep(Duration::from_secs(WINDOW_SECONDS / 3));
        *accepted = drill.server.restart()?;
        Ok(())
    })
}

fn full_window(
    drill: &Drill,
    name: &str,
    trouble: impl FnOnce(&mut Instant) -> Result<()>,
) -> Result<()> {
    let mut contenders = Contenders::start(drill, name, WINDOW)?;
    let mut accepted = start_without_mark(drill)?;
    contenders.ask()?;
    trouble(&mut accepted)?;
    contenders.holder_keeps(drill, accepted, WINDOW + AFTERWARDS)
}

/// A power cut and a slow switch: the server is up for longer than its window before any host can
/// reach it. The holder comes last, and must still be able to reclaim its lock.
fn outage(drill: &Drill) -> Result<()> {
    let mut contenders = Contenders::start(drill, "roster-outage", SHORT_WINDOW)?;
    let reached = contenders.reached_after_outage(drill, SHORT_WINDOW + Duration::from_secs(2))?;
    contenders.nobody_decides_until(reached + SHORT_WINDOW / 5)?;
    drill.alice()?.plug()?;
    contenders.holder_keeps(drill, reached, SHORT_WINDOW * 2 + AFTER_OUTAGE)
}

/// Notices have failed often, and the next one may be far away; the holder is heard in the window.
fn outage_holder_late(drill: &Drill) -> Result<()> {
    let mut contenders = Contenders::start(drill, "roster-outage-late", WINDOW)?;
    let reached = contenders.reached_after_outage(drill, WINDOW * 2)?;
    contenders.nobody_decides_until(reached + WINDOW * 3 / 4)?;
    let alice = drill.alice()?;
    alice.plug()?;
    alice.succeed_for("ls /mnt/open > /dev/null", TIMEOUT)?;
    contenders.holder_keeps(drill, reached, WINDOW * 2 + AFTER_OUTAGE)
}

/// A host that does not come back in the restarted window either does not block others for ever.
fn outage_holder_dead(drill: &Drill) -> Result<()> {
    let mut contenders = Contenders::start(drill, "roster-outage-dead", SHORT_WINDOW)?;
    let reached = contenders.reached_after_outage(drill, SHORT_WINDOW + Duration::from_secs(2))?;
    let alice = drill.alice()?;
    alice.crash();
    alice.plug()?;
    contenders.nobody_decides_until(reached + SHORT_WINDOW / 2)?;
    let granted = contenders.thief.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(reached);
    drill.within("the lock goes after", took, SHORT_WINDOW * 2 + AFTER_OUTAGE)?;
    ensure!(took + Duration::from_secs(1) >= SHORT_WINDOW, "inside the window, after {took:?}");
    contenders.newcomer.granted(TIMEOUT).map(drop)
}

/// Alice holds a lock; bob wants it, and another one that is free.
struct Contenders {
    holder: Locker,
    thief: Locker,
    newcomer: Locker,
    window: Duration,
}

impl Contenders {
    fn start(drill: &Drill, name: &str, window: Duration) -> Result<Self> {
        drill.stage(&Settings { window_seconds: Some(window.as_secs()), ..default_settings() })?;
        let dir = drill.step_dir("open", name)?;
        let mut contenders = Self {
            holder: dir.locker(drill.alice()?, "file")?,
            thief: dir.locker(drill.bob()?, "file")?,
            newcomer: dir.locker(drill.bob()?, "free")?,
            window,
        };
        contenders.holder.takes("write 0 10")?;
        contenders.thief.is_refused("write 0 10")?;
        Ok(contenders)
    }

    fn ask(&mut self) -> Result<()> {
        self.thief.tries("write 0 10")?;
        self.newcomer.tries("write 0 10")
    }

    /// The server starts without its mark while both guests are cut off; then bob is connected, and
    /// asks. When that was.
    fn reached_after_outage(&mut self, drill: &Drill, outage: Duration) -> Result<Instant> {
        for guest in drill.lab.guests() {
            guest.unplug()?;
        }
        start_without_mark(drill)?;
        thread::sleep(outage);
        drill.bob()?.plug()?;
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
    fn holder_keeps(mut self, drill: &Drill, since: Instant, most: Duration) -> Result<()> {
        let granted = self.newcomer.granted(TIMEOUT)?;
        let took = granted.saturating_duration_since(since);
        drill.within("first new lock after", took, most)?;
        ensure!(took + Duration::from_secs(1) >= self.window, "grace ended early, after {took:?}");
        self.thief.denied(TIMEOUT).context("what alice holds")?;
        let told = self.thief.holder("write 0 10")?;
        ensure!(told.starts_with("write 0 10 "), "F_GETLK says {told}");
        self.holder.unlocks("0 10")?;
        self.thief.takes("write 0 10").map(drop)
    }
}

/// As after a power cut; when it first accepted a connection.
fn start_without_mark(drill: &Drill) -> Result<Instant> {
    drill.server.kill();
    drill.server.forget_mark()?;
    drill.server.start()
}
