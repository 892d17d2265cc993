//! The store is gone: the server is killed, its store removed, and started with `--store-lost`. It
//! knows the hosts from the copy in its state directory; both get their locks back, also the one that
//! does nothing, and neither gets the other's (B4.90 to B4.93).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::context::Drill;
use super::locker::Locker;
use super::locks::default_settings;
use super::server_crash::TIMEOUT;
use crate::server::Settings;

pub(super) const STEPS: &[Step] = &[
    Step::long("lost-store-holders-get-their-locks-back", with_copy),
    Step::long("lost-store-and-copy-mounted-hosts-get-theirs-back", without_copy),
];

const WINDOW: Duration = Duration::from_secs(20);
/// Grace lasts up to twice the window while hosts come back; a client retries after 5 s.
const AFTERWARDS: Duration = Duration::from_secs(30);

/// Alice holds a lock and does nothing; bob holds another, and wants alice's.
struct Holders {
    idle: Locker,
    busy: Locker,
    thief: Locker,
    robber: Locker,
}

impl Holders {
    fn start(drill: &Drill, name: &str) -> Result<Self> {
        drill.stage(&Settings { window_seconds: Some(WINDOW.as_secs()), ..default_settings() })?;
        let dir = drill.step_dir("open", name)?;
        let (alice, bob) = (drill.alice()?, drill.bob()?);
        let mut holders = Self {
            idle: dir.locker(alice, "file")?,
            busy: dir.locker(bob, "file")?,
            thief: dir.locker(bob, "file")?,
            robber: dir.locker(alice, "other")?,
        };
        holders.idle.takes("write 0 10")?;
        holders.busy.takes("write 10 10")?;
        holders.thief.is_refused("write 0 10")?;
        // The copy of the roster follows a registration within about a second.
        thread::sleep(Duration::from_secs(3));
        Ok(holders)
    }

    fn keep_their_locks(mut self, drill: &Drill, accepted: Instant) -> Result<()> {
        self.thief.tries("write 0 10")?;
        self.thief.denied(TIMEOUT).context("what the idle holder has")?;
        let took = accepted.elapsed();
        drill.within("decided after", took, WINDOW * 2 + AFTERWARDS)?;
        ensure!(took + Duration::from_secs(1) >= WINDOW, "grace ended early, after {took:?}");
        self.robber.takes("write 0 10").context("what is free")?;
        let told = self.thief.holder("write 0 10")?;
        ensure!(told.starts_with("write 0 10 "), "F_GETLK says {told}");
        let locks = drill.server.says(&["locks"])?;
        ensure!(locks.matches("held").count() >= 3, "not all are held:\n{locks}");
        self.idle.unlocks("0 10")?;
        self.thief.takes("write 0 10")?;
        self.busy.unlocks("10 10").map(drop)
    }
}

fn with_copy(drill: &Drill) -> Result<()> {
    let holders = Holders::start(drill, "lost-store")?;
    drill.server.kill();
    drill.server.lose_store()?;
    let refused = drill.server.start().err().context("it started although its store is missing")?;
    drill.server.kill();
    let log = std::fs::read_to_string(drill.server.log())?;
    ensure!(log.contains("--store-lost"), "the log does not say how to go on: {refused}\n{log}");
    let accepted = drill.server.start_with(&["--store-lost"])?;
    let status = drill.server.says(&["status", "--json"])?;
    ensure!(status.contains("\"open\""), "the start is not open:\n{status}");
    holders.keep_their_locks(drill, accepted)
}

/// Even the copy is gone. Both guests use their mounts, so both are told.
fn without_copy(drill: &Drill) -> Result<()> {
    let holders = Holders::start(drill, "lost-copy")?;
    drill.server.kill();
    drill.server.lose_store()?;
    drill.server.lose_roster_copy()?;
    let accepted = drill.server.start_with(&["--store-lost"])?;
    for guest in [drill.alice()?, drill.bob()?] {
        guest.succeed_for("ls /mnt/open > /dev/null", TIMEOUT)?;
    }
    holders.keep_their_locks(drill, accepted)
}
