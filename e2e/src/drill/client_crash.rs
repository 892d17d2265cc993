//! A client dies. While it is only silent, its locks stay; when its next boot reports the crash,
//! they are released and their waiters are granted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Step;
use super::context::Drill;
use super::locker::Locker;
use super::locks::{default_settings, step_dir};
use crate::capture::Capture;
use crate::guest::Order;

pub(super) const STEPS: &[Step] = &[
    Step::new("client-only-gone-keeps-its-locks", gone),
    Step::new("client-reboot-frees-its-locks", reboot),
    Step::long("client-reboot-with-sm-notify-first", reboot_notify_first),
    Step::long("client-reboot-after-its-connections-were-cut", connections_cut),
    Step::long("client-reboot-over-ipv6", reboot_ipv6),
    Step::long("client-reboot-with-its-notice-over-ipv6", notice_over_ipv6),
    Step::long("client-reboot-frees-what-it-was-granted", granted_to_the_dead),
];

/// From the start of the client's statd until its locks are free.
pub(super) const FREED: Duration = Duration::from_secs(2);
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// A cut cable, a hung machine and a long power failure look the same, so nothing is released.
fn gone(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "gone")?;
    let alice = drill.alice()?;
    let mut holder = dir.locker(alice, "file")?;
    let mut waiter = dir.locker(drill.bob()?, "file")?;
    let mut other = dir.locker(drill.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    alice.crash();
    waiter.still_waits(drill.stillness())?;
    other.is_refused("write 5 1")?;
    let told = other.holder("write 0 10")?;
    ensure!(told.starts_with("write 0 10 "), "F_GETLK says {told}");
    alice.boot()?;
    waiter.granted(TIMEOUT).map(drop)
}

fn reboot(drill: &Drill) -> Result<()> {
    reboot_in(drill, Order::StatdFirst)
}

fn reboot_notify_first(drill: &Drill) -> Result<()> {
    reboot_in(drill, Order::NotifyFirst)
}

/// Locks on two exports, held by several processes; the other guest waits for one and asks for all.
fn reboot_in(drill: &Drill, order: Order) -> Result<()> {
    let (first, second) = (step_dir(drill, "reboot")?, drill.step_dir("home", "reboot")?);
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut holders = [
        first.locker(alice, "file")?,
        first.locker(alice, "file")?,
        first.locker(alice, "elsewhere")?,
        second.locker(alice, "file")?,
    ];
    for (start, holder) in (0..).map(|number| number * 10).zip(&mut holders) {
        holder.takes(&format!("write {start} 10"))?;
    }
    let mut waiter = first.locker(bob, "file")?;
    waiter.waits("write 0 20")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    waiter.still_waits(Duration::from_secs(1))?;
    alice.boot_in(order)?;
    let granted = waiter.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    drill.within("free after its statd by", took, FREED)?;
    first.locker(bob, "elsewhere")?.takes("write 0 0").context("another file")?;
    second.locker(bob, "file")?.takes("write 0 0").context("another export")?;
    Ok(())
}

/// No connection is left that could show whether the old kernel is alive.
fn connections_cut(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "connections-cut")?;
    let alice = drill.alice()?;
    let mut holder = dir.locker(alice, "file")?;
    let mut waiter = dir.locker(drill.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    drill.lab.network().reset_connections(alice.ipv4().into())?;
    waiter.still_waits(drill.stillness())?;
    alice.boot()?;
    let granted = waiter.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    drill.within("free after its statd by", took, FREED)
}

fn reboot_ipv6(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "reboot-six")?;
    let source = format!("filer6:{}", dir.host.display());
    reboot_mounted(drill, "reboot-six", &source, "vers=3", FREED)
}

/// It locks over IPv4, and sm-notify prefers the other address of the same name: only a reset of its
/// own connection proves that it is the one that rebooted.
fn notice_over_ipv6(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "notice-six")?;
    let source = format!("dual:{}", dir.host.display());
    let capture = Capture::start(&drill.lab, "notice-six")?;
    // sm-notify changes the address when the first one does not answer.
    reboot_mounted(drill, "notice-six", &source, "vers=3,proto=tcp", Duration::from_secs(10))?;
    let packets = capture.stop()?;
    let notices = packets.count("stat.procedure_v1 == 6 && ipv6.src == fd77::11")?;
    ensure!(notices > 0, "no notice came over IPv6, so this step shows nothing");
    let locks = packets.count("nlm.procedure_v4 == 2 && ipv6.src == fd77::11")?;
    ensure!(locks == 0, "it locked over IPv6, so this step shows nothing");
    Ok(())
}

fn reboot_mounted(
    drill: &Drill,
    name: &str,
    source: &str,
    options: &str,
    most: Duration,
) -> Result<()> {
    let dir = step_dir(drill, name)?;
    let alice = drill.alice()?;
    // The kernel monitors a server under the first name it hears.
    alice.crash();
    alice.boot()?;
    drill.mount_at(alice, source, options, "/mnt/other")?;
    let mut holder = Locker::open(alice, "/mnt/other/file")?;
    let mut waiter = dir.locker(drill.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    alice.boot()?;
    let granted = waiter.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    drill.within("free after its statd by", took, most)
}

/// A lock that was granted by callback also stays while its host is silent.
fn granted_to_the_dead(drill: &Drill) -> Result<()> {
    drill.stage(&default_settings())?;
    let dir = step_dir(drill, "granted-dead")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut holder = dir.locker(bob, "file")?;
    let mut dying = dir.locker(alice, "file")?;
    let mut next = dir.locker(bob, "file")?;
    holder.takes("write 0 10")?;
    dying.waits("write 0 10")?;
    dying.still_waits(Duration::from_secs(1))?;
    alice.crash();
    next.waits("write 0 10")?;
    next.still_waits(Duration::from_secs(1))?;
    // It polled recently, so it is granted, although it no longer receives the callback.
    holder.unlocks("0 10")?;
    next.still_waits(drill.stillness())?;
    alice.boot()?;
    let granted = next.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    drill.within("free after its statd by", took, FREED)
}
