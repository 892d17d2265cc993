//! Who may hold what at the same time, as programs in two guests see it.

use std::net::IpAddr;

use anyhow::{Result, ensure};

use super::Step;
use super::locker::Locker;
use super::world::{Room, World};
use crate::capture::Capture;
use crate::namespace::{SECOND_V4, SERVER_V6};
use crate::server::Settings;

pub(super) const STEPS: &[Step] = &[
    Step::new("lock-conflict-is-seen-by-getlk", getlk),
    Step::new("lock-conflict-is-refused-by-setlk", setlk),
    Step::new("lock-other-ranges-are-free", ranges),
    Step::new("lock-flock-excludes", flock),
    Step::new("lock-ofd-excludes", ofd),
    Step::new("lock-ends-with-its-process", process_end),
    Step::new("lock-is-of-the-file-not-of-the-export", two_exports),
    Step::new("lock-on-two-addresses-has-two-owners", two_addresses),
    Step::new("lock-over-ipv6", ipv6),
];

/// What most lock steps want: a window that is short enough to see its end.
pub(super) const WINDOW_SECONDS: u64 = 20;

pub(super) fn drill() -> Settings {
    Settings {
        window_seconds: Some(WINDOW_SECONDS),
        grace: Some("strict"),
        unreachable: Some("on-demand"),
        ..Settings::default()
    }
}

pub(super) fn room(world: &World, name: &str) -> Result<Room> {
    world.stage(&drill())?;
    world.room("open", name)
}

fn pair(world: &World, name: &str) -> Result<(Locker, Locker)> {
    let room = room(world, name)?;
    Ok((room.locker(world.alice()?, "file")?, room.locker(world.bob()?, "file")?))
}

pub(super) fn expect_free(locker: &mut Locker, lock: &str) -> Result<()> {
    let told = locker.holder(lock)?;
    ensure!(told == "free", "{lock} should be free; F_GETLK says {told}");
    Ok(())
}

fn getlk(world: &World) -> Result<()> {
    let (mut alice, mut bob) = pair(world, "getlk")?;
    alice.takes("write 0 10")?;
    alice.takes("read 20 10")?;
    let told = bob.holder("write 5 1")?;
    ensure!(told.starts_with("write 0 10 "), "F_GETLK says {told}");
    let told = bob.holder("write 25 100")?;
    ensure!(told.starts_with("read 20 10 "), "F_GETLK says {told}");
    expect_free(&mut bob, "read 20 10")?;
    expect_free(&mut bob, "write 10 10")?;
    alice.unlocks("0 10")?;
    expect_free(&mut bob, "write 0 10")
}

fn setlk(world: &World) -> Result<()> {
    let (mut alice, mut bob) = pair(world, "setlk")?;
    alice.takes("write 0 10")?;
    bob.is_refused("write 9 1")?;
    bob.is_refused("read 0 1")?;
    alice.takes("read 0 10")?;
    bob.takes("read 0 10")?;
    alice.is_refused("write 0 10")?;
    bob.unlocks("0 10")?;
    alice.takes("write 0 10")?;
    alice.unlocks("0 0")?;
    bob.takes("write 0 0")?;
    Ok(())
}

fn ranges(world: &World) -> Result<()> {
    let (mut alice, mut bob) = pair(world, "ranges")?;
    alice.takes("write 0 10")?;
    bob.takes("write 10 10")?;
    alice.takes("write 20 0")?;
    bob.is_refused("write 1099511627776 1")?;
    alice.unlocks("3 4")?;
    bob.takes("write 3 4")?;
    alice.is_refused("read 6 1")?;
    alice.takes("write 0 3")?;
    bob.is_refused("read 7 1")?;
    bob.is_refused("write 9223372036854775806 1")
}

/// Over NFS an flock is a lock on the whole file, so it also excludes those of fcntl elsewhere.
fn flock(world: &World) -> Result<()> {
    let (mut alice, mut bob) = pair(world, "flock")?;
    alice.takes("flock write 0 0")?;
    bob.is_refused("flock read 0 0")?;
    bob.is_refused("write 100 1")?;
    alice.takes("flock read 0 0")?;
    bob.takes("flock read 0 0")?;
    bob.unlocks("flock 0 0")?;
    alice.unlocks("flock 0 0")?;
    bob.takes("flock write 0 0")?;
    Ok(())
}

fn ofd(world: &World) -> Result<()> {
    let room = room(world, "ofd")?;
    let mut first = room.locker(world.alice()?, "file")?;
    let mut second = room.locker(world.alice()?, "file")?;
    let mut bob = room.locker(world.bob()?, "file")?;
    first.takes("ofd write 0 10")?;
    second.is_refused("ofd write 5 10")?;
    bob.is_refused("ofd write 5 10")?;
    bob.is_refused("write 0 1")?;
    second.takes("ofd write 10 10")?;
    first.unlocks("ofd 0 10")?;
    bob.takes("ofd write 0 10")?;
    bob.is_refused("ofd write 0 11")
}

fn process_end(world: &World) -> Result<()> {
    let room = room(world, "process-end")?;
    let mut dying = room.locker(world.alice()?, "file")?;
    let mut staying = room.locker(world.alice()?, "file")?;
    let mut bob = room.locker(world.bob()?, "file")?;
    dying.takes("write 0 10")?;
    staying.takes("write 10 10")?;
    bob.waits("write 0 10")?;
    dying.signal(libc::SIGKILL)?;
    bob.granted(std::time::Duration::from_secs(5))?;
    bob.is_refused("write 10 1")
}

/// One file, reached through an export and through another one above it.
fn two_exports(world: &World) -> Result<()> {
    world.stage(&drill())?;
    let file = world.export("open/inner").join("file");
    std::fs::write(&file, "")?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    world.mount(alice, "open")?;
    world.mount_at(bob, &world.source("open/inner"), "vers=3", "/mnt/inner")?;
    let mut outside = Locker::open(alice, "/mnt/open/inner/file")?;
    let mut inside = Locker::open(bob, "/mnt/inner/file")?;
    outside.takes("write 0 10")?;
    inside.is_refused("write 0 10")?;
    inside.waits("write 5 1")?;
    outside.unlocks("0 10")?;
    inside.granted(std::time::Duration::from_secs(5))?;
    outside.is_refused("read 5 1")
}

/// To each address of the server a Linux client counts its processes from 0: the same number on two
/// of them is two processes.
fn two_addresses(world: &World) -> Result<()> {
    let room = room(world, "two-addresses")?;
    let alice = world.alice()?;
    let source = format!("{SECOND_V4}:{}", room.host.display());
    world.mount_at(alice, &source, "vers=3", "/mnt/second")?;
    let mut first = room.locker(alice, "file")?;
    let mut second = Locker::open(alice, "/mnt/second/file")?;
    first.takes("write 0 10")?;
    second.is_refused("write 0 10")?;
    second.waits("write 0 10")?;
    first.unlocks("0 10")?;
    second.granted(std::time::Duration::from_secs(5))?;
    first.is_refused("read 0 1")?;
    drop(second);
    alice.succeed("sleep 0.3; umount /mnt/second").map(drop)
}

fn ipv6(world: &World) -> Result<()> {
    let room = room(world, "ipv6")?;
    let alice = world.alice()?;
    let source = format!("[{}]:{}", IpAddr::from(SERVER_V6), room.host.display());
    world.mount_at(alice, &source, "vers=3", "/mnt/six")?;
    let mut six = Locker::open(alice, "/mnt/six/file")?;
    let mut four = room.locker(world.bob()?, "file")?;
    four.takes("write 0 10")?;
    six.is_refused("write 0 10")?;
    let capture = Capture::start(&world.lab, "ipv6")?;
    six.waits("write 0 10")?;
    six.still_waits(std::time::Duration::from_secs(1))?;
    let unlocked = four.unlocks("0 10")?;
    let granted = six.granted(std::time::Duration::from_secs(20))?;
    capture.stop()?;
    world.within("granted over IPv6 after", granted - unlocked, super::waiting::CALLBACK)?;
    four.is_refused("write 0 1")?;
    drop(six);
    alice.succeed("sleep 0.3; umount /mnt/six").map(drop)
}
