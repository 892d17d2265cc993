//! The traps around a reboot notice: late, lost, false, or from a statd in a container. A lock of a
//! kernel that lives must stay; one of a kernel that is gone must go, once there is proof.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Step;
use super::client_crash::{FREED, PATIENCE};
use super::locks::{expect_free, room};
use super::world::World;
use crate::capture::Capture;
use crate::guest::{Guest, Order};
use crate::namespace::Deaf;
use crate::process::tail;

pub(super) const STEPS: &[Step] = &[
    Step::long("notice-comes-after-the-next-lock", late_notice),
    Step::long("notice-comes-after-a-lock-with-the-old-state", late_notice_old_state),
    Step::long("notice-is-lost-and-the-next-lock-tells", lost_notice),
    Step::new("notice-of-a-living-client-is-not-believed", false_reboot),
    Step::long("notice-of-a-statd-in-a-container", container),
];

/// The server does not hear sm-notify of this guest, which only speaks UDP.
fn mute<'a>(world: &'a World, guest: &Guest) -> Result<Deaf<'a>> {
    world.lab.namespace().deafen(&format!("ip saddr {} meta l4proto udp", guest.ipv4()))
}

fn late_notice(world: &World) -> Result<()> {
    let room = room(world, "late-notice")?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    let mut old = room.locker(alice, "old")?;
    old.takes("write 0 10")?;
    let mut waiter = room.locker(bob, "old")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    let deaf = mute(world, alice)?;
    alice.boot_in(Order::NotifyFirst)?;
    world.mount(alice, "open")?;
    let mut new = room.locker(alice, "new")?;
    new.takes("write 0 10")?;
    drop(deaf);
    waiter.granted(PATIENCE).context("what the old kernel held")?;
    // sm-notify repeats itself 2, 4, 8 s later: by then it was heard.
    thread::sleep(Duration::from_secs(10));
    room.locker(bob, "new")?.is_refused("write 0 10").context("what the new kernel holds")
}

/// statd was started before sm-notify, so the new kernel still locks under the old state: the
/// notice then seems to be about those locks too, and they must stay all the same.
fn late_notice_old_state(world: &World) -> Result<()> {
    let room = room(world, "late-notice-old")?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    let mut old = room.locker(alice, "old")?;
    old.takes("write 0 10")?;
    alice.crash();
    let deaf = mute(world, alice)?;
    alice.boot_in(Order::StatdFirst)?;
    world.mount(alice, "open")?;
    let mut new = room.locker(alice, "new")?;
    new.takes("write 0 10")?;
    drop(deaf);
    thread::sleep(Duration::from_secs(12));
    room.locker(bob, "new")?.is_refused("write 0 10").context("what the new kernel holds")?;
    let mut asking = room.locker(bob, "old")?;
    let told = asking.holder("write 0 10")?;
    world
        .note(format!("the old kernel's lock is {}", if told == "free" { "free" } else { "kept" }));
    drop(new);
    // What is left goes with a reboot that is heard.
    alice.crash();
    alice.boot()?;
    asking.waits("write 0 10")?;
    asking.granted(PATIENCE).map(drop)
}

fn lost_notice(world: &World) -> Result<()> {
    let room = room(world, "lost-notice")?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    let mut old = room.locker(alice, "old")?;
    old.takes("write 0 10")?;
    let mut waiter = room.locker(bob, "old")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    let _deaf = mute(world, alice)?;
    alice.boot_in(Order::NotifyFirst)?;
    waiter.still_waits(world.stillness())?;
    world.mount(alice, "open")?;
    let mut new = room.locker(alice, "new")?;
    let taken = new.takes("write 0 10")?;
    let granted = waiter.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(taken);
    world.within("free after the next lock by", took, FREED)?;
    // It would go on for 15 min, and take what a later one must notify off the list.
    alice.succeed("kill $(pidof sm-notify)")?;
    room.locker(bob, "new")?.is_refused("write 0 10").context("what the new kernel holds")
}

/// `sm-notify -f` by hand, as a restarted container does: the kernel lives, and keeps its locks.
fn false_reboot(world: &World) -> Result<()> {
    let room = room(world, "false-reboot")?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    let mut holder = room.locker(alice, "file")?;
    holder.takes("write 0 10")?;
    let mut waiter = room.locker(bob, "file")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    // The real reboot below must find its state on the disk.
    alice.succeed("sm-notify -f && sync")?;
    waiter.still_waits(world.stillness())?;
    let said = tail(&world.server.log(), 30);
    ensure!(said.contains("its locks stay"), "the log does not say why:\n{said}");
    // Its next lock carries the new state, which proves nothing either.
    holder.takes("write 20 10")?;
    room.locker(bob, "file")?.is_refused("write 20 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    alice.boot()?;
    let granted = waiter.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    world.within("really rebooted: free after its statd by", took, FREED)?;
    expect_free(&mut room.locker(bob, "file")?, "write 20 10")
}

/// A namespace of the client with its own address, rpcbind and statd. Its statd moves the state of
/// the one kernel, and its restart sends notices as after a reboot.
fn container(world: &World) -> Result<()> {
    let room = room(world, "container")?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    let capture = Capture::start(&world.lab, "container")?;
    let mut outside = room.locker(alice, "outside")?;
    outside.takes("write 0 10")?;
    alice.succeed(CONTAINER)?;
    let source = format!("filer:{}", room.host.display());
    let mut start = alice.spawn(&format!(
        "exec /sbin/ip netns exec box sh -c '{DAEMONS} && mkdir -p /mnt/box && \
         mount -t nfs -o vers=3 {source} /mnt/box && exec lockkeeper-guest locker /mnt/box/inside'"
    ))?;
    let said = start.line(PATIENCE)?;
    ensure!(said == "open", "in the container: {said}");
    let said = start.ask("try posix write 0 10", PATIENCE)?;
    ensure!(said == "granted", "in the container: {said}");
    // From here on the kernel locks under the container's state.
    outside.takes("write 20 10")?;
    thread::sleep(Duration::from_secs(1));
    alice.succeed("/sbin/ip netns exec box sm-notify -f -P /var/box-nfs")?;
    thread::sleep(world.stillness());
    let mut judge = room.locker(bob, "outside")?;
    judge.is_refused("write 0 10").context("taken before the container")?;
    judge.is_refused("write 20 10").context("taken after the container")?;
    room.locker(bob, "inside")?.is_refused("write 0 10").context("taken in the container")?;
    let mut states = capture.stop()?.show(LOCKS_OF_ALICE, "nlm.state")?;
    states.sort();
    states.dedup();
    ensure!(states.len() > 1, "the container did not move the kernel's state: {states:?}");
    Ok(())
}

const LOCKS_OF_ALICE: &str = "nlm.procedure_v4 == 2 && rpc.msgtyp == 0 && ip.src == 10.77.0.11";

const CONTAINER: &str = "/sbin/ip netns add box && \
     /sbin/ip link add box0 link eth0 netns box type macvlan mode bridge && \
     /sbin/ip -n box link set lo up && \
     /sbin/ip -n box addr add 10.77.0.31/24 dev box0 && /sbin/ip -n box link set box0 up";

/// Sockets, locks and lists of its own: those of the guest itself are in use.
const DAEMONS: &str = "mkdir -p /var/box-nfs/sm /var/box-nfs/sm.bak && \
     chown -R statd /var/box-nfs && mount -t tmpfs tmpfs /run && \
     mkdir -p /run/rpcbind /run/sendsigs.omit.d && rpcbind -w && \
     rpc.statd --no-notify -P /var/box-nfs";
