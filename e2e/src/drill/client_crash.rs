//! A client dies. While it is only gone, its locks stay; when its next boot says so, they go, and
//! whoever waits for them runs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Step;
use super::locker::Locker;
use super::locks::{drill, room};
use super::world::World;
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
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A cut cable, a hung machine, a power cut that lasts: nobody can tell, so nothing goes.
fn gone(world: &World) -> Result<()> {
    let room = room(world, "gone")?;
    let alice = world.alice()?;
    let mut holder = room.locker(alice, "file")?;
    let mut waiter = room.locker(world.bob()?, "file")?;
    let mut other = room.locker(world.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    alice.crash();
    waiter.still_waits(world.stillness())?;
    other.is_refused("write 5 1")?;
    let told = other.holder("write 0 10")?;
    ensure!(told.starts_with("write 0 10 "), "F_GETLK says {told}");
    alice.boot()?;
    waiter.granted(PATIENCE).map(drop)
}

fn reboot(world: &World) -> Result<()> {
    reboot_in(world, Order::StatdFirst)
}

fn reboot_notify_first(world: &World) -> Result<()> {
    reboot_in(world, Order::NotifyFirst)
}

/// Locks on two exports, held by several processes; the other guest waits for one and asks for all.
fn reboot_in(world: &World, order: Order) -> Result<()> {
    let (first, second) = (room(world, "reboot")?, world.room("home", "reboot")?);
    let (alice, bob) = (world.alice()?, world.bob()?);
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
    let granted = waiter.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    world.within("free after its statd by", took, FREED)?;
    first.locker(bob, "elsewhere")?.takes("write 0 0").context("another file")?;
    second.locker(bob, "file")?.takes("write 0 0").context("another export")?;
    Ok(())
}

/// Nothing is left that could show whether the old kernel lives, and nothing shows that it does.
fn connections_cut(world: &World) -> Result<()> {
    let room = room(world, "connections-cut")?;
    let alice = world.alice()?;
    let mut holder = room.locker(alice, "file")?;
    let mut waiter = room.locker(world.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    world.lab.namespace().cut(alice.ipv4().into())?;
    waiter.still_waits(world.stillness())?;
    alice.boot()?;
    let granted = waiter.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    world.within("free after its statd by", took, FREED)
}

fn reboot_ipv6(world: &World) -> Result<()> {
    let room = room(world, "reboot-six")?;
    let source = format!("filer6:{}", room.host.display());
    reboot_mounted(world, "reboot-six", &source, "vers=3", FREED)
}

/// It locks over IPv4, and sm-notify prefers the other address of the same name: only a reset of its
/// own connection proves that it is the one that rebooted.
fn notice_over_ipv6(world: &World) -> Result<()> {
    let room = room(world, "notice-six")?;
    let source = format!("dual:{}", room.host.display());
    let capture = Capture::start(&world.lab, "notice-six")?;
    // sm-notify changes the address when the first one does not answer.
    reboot_mounted(world, "notice-six", &source, "vers=3,proto=tcp", Duration::from_secs(10))?;
    let packets = capture.stop()?;
    let notices = packets.count("stat.procedure_v1 == 6 && ipv6.src == fd77::11")?;
    ensure!(notices > 0, "no notice came over IPv6, so this step shows nothing");
    let locks = packets.count("nlm.procedure_v4 == 2 && ipv6.src == fd77::11")?;
    ensure!(locks == 0, "it locked over IPv6, so this step shows nothing");
    Ok(())
}

fn reboot_mounted(
    world: &World,
    name: &str,
    source: &str,
    options: &str,
    most: Duration,
) -> Result<()> {
    let room = room(world, name)?;
    let alice = world.alice()?;
    // The kernel monitors a server under the first name it hears.
    alice.crash();
    alice.boot()?;
    world.mount_at(alice, source, options, "/mnt/other")?;
    let mut holder = Locker::open(alice, "/mnt/other/file")?;
    let mut waiter = room.locker(world.bob()?, "file")?;
    holder.takes("write 0 10")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    alice.boot()?;
    let granted = waiter.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    world.within("free after its statd by", took, most)
}

/// A lock that was granted by callback is no less a lock: it stays while its host is gone.
fn granted_to_the_dead(world: &World) -> Result<()> {
    world.stage(&drill())?;
    let room = room(world, "granted-dead")?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    let mut holder = room.locker(bob, "file")?;
    let mut dying = room.locker(alice, "file")?;
    let mut next = room.locker(bob, "file")?;
    holder.takes("write 0 10")?;
    dying.waits("write 0 10")?;
    dying.still_waits(Duration::from_secs(1))?;
    alice.crash();
    next.waits("write 0 10")?;
    next.still_waits(Duration::from_secs(1))?;
    // Its last word is recent, so it is granted, though it cannot hear it any more.
    holder.unlocks("0 10")?;
    next.still_waits(world.stillness())?;
    alice.boot()?;
    let granted = next.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    world.within("free after its statd by", took, FREED)
}
