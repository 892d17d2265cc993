//! Which locks exclude each other, as programs in two guests see it.

use std::net::IpAddr;

use anyhow::{Result, ensure};

use super::Step;
use super::context::{Drill, StepDir};
use super::locker::Locker;
use crate::capture::Capture;
use crate::network::{SECOND_V4, SERVER_V6};
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

pub(super) fn default_settings() -> Settings {
    Settings {
        window_seconds: Some(WINDOW_SECONDS),
        grace: Some("strict"),
        unreachable: Some("on-demand"),
        ..Settings::default()
    }
}

pub(super) fn step_dir(drill: &Drill, name: &str) -> Result<StepDir> {
    drill.stage(&default_settings())?;
    drill.step_dir("open", name)
}

fn pair(drill: &Drill, name: &str) -> Result<(Locker, Locker)> {
    let dir = step_dir(drill, name)?;
    Ok((dir.locker(drill.alice()?, "file")?, dir.locker(drill.bob()?, "file")?))
}

pub(super) fn expect_free(locker: &mut Locker, lock: &str) -> Result<()> {
    let told = locker.holder(lock)?;
    ensure!(told == "free", "{lock} should be free; F_GETLK says {told}");
    Ok(())
}

fn getlk(drill: &Drill) -> Result<()> {
    let (mut alice, mut bob) = pair(drill, "getlk")?;
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

fn setlk(drill: &Drill) -> Result<()> {
    let (mut alice, mut bob) = pair(drill, "setlk")?;
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

fn ranges(drill: &Drill) -> Result<()> {
    let (mut alice, mut bob) = pair(drill, "ranges")?;
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
fn flock(drill: &Drill) -> Result<()> {
    let (mut alice, mut bob) = pair(drill, "flock")?;
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

fn ofd(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "ofd")?;
    let mut first = dir.locker(drill.alice()?, "file")?;
    let mut second = dir.locker(drill.alice()?, "file")?;
    let mut bob = dir.locker(drill.bob()?, "file")?;
    first.takes("ofd write 0 10")?;
    second.is_refused("ofd write 5 10")?;
    bob.is_refused("ofd write 5 10")?;
    bob.is_refused("write 0 1")?;
    second.takes("ofd write 10 10")?;
    first.unlocks("ofd 0 10")?;
    bob.takes("ofd write 0 10")?;
    bob.is_refused("ofd write 0 11")
}

fn process_end(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "process-end")?;
    let mut dying = dir.locker(drill.alice()?, "file")?;
    let mut staying = dir.locker(drill.alice()?, "file")?;
    let mut bob = dir.locker(drill.bob()?, "file")?;
    dying.takes("write 0 10")?;
    staying.takes("write 10 10")?;
    bob.waits("write 0 10")?;
    dying.signal(libc::SIGKILL)?;
    bob.granted(std::time::Duration::from_secs(5))?;
    bob.is_refused("write 10 1")
}

/// One file, reached through an export and through another one above it.
fn two_exports(drill: &Drill) -> Result<()> {
    drill.stage(&default_settings())?;
    let file = drill.export("open/inner").join("file");
    std::fs::write(&file, "")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    drill.mount(alice, "open")?;
    drill.mount_at(bob, &drill.source("open/inner"), "vers=3", "/mnt/inner")?;
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
fn two_addresses(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "two-addresses")?;
    let alice = drill.alice()?;
    let source = format!("{SECOND_V4}:{}", dir.host.display());
    drill.mount_at(alice, &source, "vers=3", "/mnt/second")?;
    let mut first = dir.locker(alice, "file")?;
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

fn ipv6(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "ipv6")?;
    let alice = drill.alice()?;
    let source = format!("[{}]:{}", IpAddr::from(SERVER_V6), dir.host.display());
    drill.mount_at(alice, &source, "vers=3", "/mnt/six")?;
    let mut six = Locker::open(alice, "/mnt/six/file")?;
    let mut four = dir.locker(drill.bob()?, "file")?;
    four.takes("write 0 10")?;
    six.is_refused("write 0 10")?;
    let capture = Capture::start(&drill.lab, "ipv6")?;
    six.waits("write 0 10")?;
    six.still_waits(std::time::Duration::from_secs(1))?;
    let unlocked = four.unlocks("0 10")?;
    let granted = six.granted(std::time::Duration::from_secs(20))?;
    capture.stop()?;
    drill.within("granted over IPv6 after", granted - unlocked, super::waiting::CALLBACK)?;
    four.is_refused("write 0 1")?;
    drop(six);
    alice.succeed("sleep 0.3; umount /mnt/six").map(drop)
}
