//! By whatever name or address a client mounted, it understands our notices; and we need no name of
//! anybody: the only name server that the lab's server knows does not answer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::locker::Locker;
use super::locks::{drill, room};
use super::server_crash::{PATIENCE, STRICT};
use super::world::World;
use crate::namespace::{SECOND_V4, SERVER_V4, SERVER_V6};
use crate::server::Settings;

pub(super) const STEPS: &[Step] = &[
    Step::new("naming-without-any-name-service", no_names),
    Step::long("naming-mounted-by-full-name", |world| recover_by(world, "filer.lab.example")),
    Step::long("naming-mounted-by-short-name", |world| recover_by(world, "filer")),
    Step::long("naming-mounted-by-address", |world| recover_by(world, &SERVER_V4.to_string())),
    Step::long("naming-mounted-by-second-address", |world| {
        recover_by(world, &SECOND_V4.to_string())
    }),
    Step::long("naming-mounted-by-ipv6-address", |world| {
        recover_by(world, &format!("[{SERVER_V6}]"))
    }),
    Step::long("naming-mounted-by-two-addresses", two_addresses),
];

/// Nobody tells this server who 10.77.0.11 is, and nobody has to wait for that.
fn no_names(world: &World) -> Result<()> {
    let mut lookup = world.lab.command("getent");
    lookup.args(["ahosts", "alice"]);
    let found = lookup.output().context("getent")?.status.success();
    ensure!(!found, "the server's side can resolve a client's name, so this step shows nothing");
    let room = room(world, "no-names")?;
    let mut first = room.locker(world.alice()?, "file")?;
    let start = Instant::now();
    first.takes("write 0 10")?;
    world.within("a lock takes", start.elapsed(), Duration::from_secs(1))?;
    let accepted = world.server.restart()?;
    let mut newcomer = room.locker(world.bob()?, "free")?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(PATIENCE)?;
    world.within("first new lock after", granted.saturating_duration_since(accepted), STRICT)?;
    room.locker(world.bob()?, "file")?.is_refused("write 0 10")
}

/// Mounts under one name only, in a kernel that has never heard another, and crashes the server.
fn recover_by(world: &World, name: &str) -> Result<()> {
    world.stage(&Settings { names: vec!["filer.lab.example"], ..drill() })?;
    let room = world.room("open", "by-name")?;
    let alice = world.alice()?;
    alice.crash();
    alice.boot()?;
    let source = format!("{name}:{}", room.host.display());
    world.mount_at(alice, &source, "vers=3", "/mnt/named")?;
    let mut holder = Locker::open(alice, "/mnt/named/file")?;
    let mut thief = room.locker(world.bob()?, "file")?;
    let mut newcomer = room.locker(world.bob()?, "free")?;
    holder.takes("write 0 10")?;
    let accepted = world.server.restart()?;
    thief.tries("write 0 10")?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(PATIENCE)?;
    world.within("first new lock after", granted.saturating_duration_since(accepted), STRICT)?;
    thief.denied(PATIENCE)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

/// Locks through two of our addresses: the notice must come from each of them.
fn two_addresses(world: &World) -> Result<()> {
    let room = room(world, "two-names")?;
    let alice = world.alice()?;
    world.mount_at(alice, &format!("{SECOND_V4}:{}", room.host.display()), "vers=3", "/mnt/two")?;
    let mut first = room.locker(alice, "one")?;
    let mut second = Locker::open(alice, "/mnt/two/two")?;
    let mut newcomer = room.locker(world.bob()?, "free")?;
    first.takes("write 0 10")?;
    second.takes("write 0 10")?;
    let accepted = world.server.restart()?;
    newcomer.tries("write 0 10")?;
    let granted = newcomer.granted(PATIENCE)?;
    world.within("first new lock after", granted.saturating_duration_since(accepted), STRICT)?;
    for (name, holder) in [("one", &mut first), ("two", &mut second)] {
        let mut thief = room.locker(world.bob()?, name)?;
        thief.is_refused("write 0 10")?;
        holder.unlocks("0 10")?;
        thief.takes("write 0 10")?;
    }
    drop(second);
    alice.succeed("sleep 0.3; umount /mnt/two").map(drop)
}
