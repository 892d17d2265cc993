//! A client understands the notices by whatever name or address it mounted; and the server resolves
//! no names: the only name server that it knows in the lab does not answer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::context::Drill;
use super::locker::Locker;
use super::locks::{default_settings, step_dir};
use super::server_crash::{STRICT, TIMEOUT};
use crate::network::{SECOND_V4, SERVER_V4, SERVER_V6};
use crate::server::Settings;

pub(super) const STEPS: &[Step] = &[
    Step::new("naming-without-any-name-service", no_names),
    Step::long("naming-mounted-by-full-name", |drill| recover_by(drill, "filer.lab.example")),
    Step::long("naming-mounted-by-short-name", |drill| recover_by(drill, "filer")),
    Step::long("naming-mounted-by-address", |drill| recover_by(drill, &SERVER_V4.to_string())),
    Step::long("naming-mounted-by-second-address", |drill| {
        recover_by(drill, &SECOND_V4.to_string())
    }),
    Step::long("naming-mounted-by-ipv6-address", |drill| {
        recover_by(drill, &format!("[{SERVER_V6}]"))
    }),
    Step::long("naming-mounted-by-two-addresses", two_addresses),
];

/// The server cannot resolve 10.77.0.11, and no request waits for that.
fn no_names(drill: &Drill) -> Result<()> {
    let mut lookup = drill.lab.command("getent");
    lookup.args(["ahosts", "alice"]);
    let found = lookup.output().context("getent")?.status.success();
    ensure!(!found, "the server's side can resolve a client's name, so this step shows nothing");
    let dir = step_dir(drill, "no-names")?;
    let mut first = dir.locker(drill.alice()?, "file")?;
    let start = Instant::now();
    first.takes("write 0 10")?;
    drill.within("a lock takes", start.elapsed(), Duration::from_secs(1))?;
    let accepted = drill.server.restart()?;
    let mut newcomer = dir.locker(drill.bob()?, "free")?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(TIMEOUT)?;
    drill.within("first new lock after", granted.saturating_duration_since(accepted), STRICT)?;
    dir.locker(drill.bob()?, "file")?.is_refused("write 0 10")
}

/// Mounts under one name only, in a kernel that has never heard another, and crashes the server.
fn recover_by(drill: &Drill, name: &str) -> Result<()> {
    drill.stage(&Settings { names: vec!["filer.lab.example"], ..default_settings() })?;
    let dir = drill.step_dir("open", "by-name")?;
    let alice = drill.alice()?;
    alice.crash();
    alice.boot()?;
    let source = format!("{name}:{}", dir.host.display());
    drill.mount_at(alice, &source, "vers=3", "/mnt/named")?;
    let mut holder = Locker::open(alice, "/mnt/named/file")?;
    let mut thief = dir.locker(drill.bob()?, "file")?;
    let mut newcomer = dir.locker(drill.bob()?, "free")?;
    holder.takes("write 0 10")?;
    let accepted = drill.server.restart()?;
    thief.tries("write 0 10")?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(TIMEOUT)?;
    drill.within("first new lock after", granted.saturating_duration_since(accepted), STRICT)?;
    thief.denied(TIMEOUT)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

/// Locks through two of our addresses: the notice must come from each of them.
fn two_addresses(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "two-names")?;
    let alice = drill.alice()?;
    drill.mount_at(alice, &format!("{SECOND_V4}:{}", dir.host.display()), "vers=3", "/mnt/two")?;
    let mut first = dir.locker(alice, "one")?;
    let mut second = Locker::open(alice, "/mnt/two/two")?;
    let mut newcomer = dir.locker(drill.bob()?, "free")?;
    first.takes("write 0 10")?;
    second.takes("write 0 10")?;
    let accepted = drill.server.restart()?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(TIMEOUT)?;
    drill.within("first new lock after", granted.saturating_duration_since(accepted), STRICT)?;
    for (name, holder) in [("one", &mut first), ("two", &mut second)] {
        let mut thief = dir.locker(drill.bob()?, name)?;
        thief.is_refused("write 0 10")?;
        holder.unlocks("0 10")?;
        thief.takes("write 0 10")?;
    }
    drop(second);
    alice.succeed("sleep 0.3; umount /mnt/two").map(drop)
}
