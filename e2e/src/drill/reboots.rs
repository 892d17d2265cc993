//! Misleading reboot notices: late, lost, false, or from a statd in a container. A lock of a live
//! kernel must stay; one of a kernel that is gone must be released, once there is proof.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use client::rpcbind::{self, RpcTransport};
use client::{Datagram, Options};
use wire::nsm;
use wire::rpcbind::{Netid, PORT};

use super::Step;
use super::client_crash::{FREED, TIMEOUT};
use super::context::Drill;
use super::locker::Locker;
use super::locks::{WINDOW_SECONDS, default_settings, expect_free, step_dir};
use crate::capture::Capture;
use crate::guest::{Guest, Order};
use crate::network::PacketFilter;
use crate::server::Settings;
use testbed::process::tail;

pub(super) const STEPS: &[Step] = &[
    Step::long("notice-comes-after-the-next-lock", late_notice),
    Step::long("notice-comes-after-a-lock-with-the-old-state", late_notice_old_state),
    Step::long("notice-is-lost-and-the-next-lock-tells", lost_notice),
    Step::new("notice-comes-after-the-next-mount", mount_before_notice),
    Step::long(
        "notice-comes-after-the-next-mount-with-the-old-state",
        mount_before_notice_old_state,
    ),
    Step::new("notice-of-a-living-client-is-not-believed", false_reboot),
    Step::long("notice-of-a-statd-in-a-container", container),
];

/// How long the kernel that answers at a host may take to reclaim after a notice that its statd
/// confirms.
const UNCLAIMED: Duration = Duration::from_secs(15);
/// A client that is denied by grace retries after 5 s.
const SETTLED: Duration = Duration::from_secs(15);
/// A kernel whose waiter was dropped asks again after 30 s.
const ASKS_AGAIN: Duration = Duration::from_secs(40);

/// Drops the notices of this guest: sm-notify only uses UDP.
fn drop_udp_from<'a>(drill: &'a Drill, guest: &Guest) -> Result<PacketFilter<'a>> {
    drill.lab.network().drop_incoming(&format!("ip saddr {} meta l4proto udp", guest.ipv4()))
}

fn late_notice(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "late-notice")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut old = dir.locker(alice, "old")?;
    old.takes("write 0 10")?;
    let mut waiter = dir.locker(bob, "old")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    let filter = drop_udp_from(drill, alice)?;
    alice.boot_in(Order::NotifyFirst)?;
    drill.mount(alice, "open")?;
    let mut new = dir.locker(alice, "new")?;
    new.takes("write 0 10")?;
    drop(filter);
    waiter.granted(TIMEOUT).context("what the old kernel held")?;
    // sm-notify repeats the notice after 2, 4 and 8 s: by then it has arrived.
    thread::sleep(Duration::from_secs(10));
    dir.locker(bob, "new")?.is_refused("write 0 10").context("what the new kernel holds")
}

/// statd was started before sm-notify, so the new kernel still locks under the old state: the
/// notice then seems to be about those locks too, and they must stay all the same.
fn late_notice_old_state(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "late-notice-old")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut old = dir.locker(alice, "old")?;
    old.takes("write 0 10")?;
    alice.crash();
    let filter = drop_udp_from(drill, alice)?;
    alice.boot_in(Order::StatdFirst)?;
    drill.mount(alice, "open")?;
    let mut new = dir.locker(alice, "new")?;
    new.takes("write 0 10")?;
    drop(filter);
    thread::sleep(Duration::from_secs(12));
    dir.locker(bob, "new")?.is_refused("write 0 10").context("what the new kernel holds")?;
    let mut asking = dir.locker(bob, "old")?;
    let told = asking.holder("write 0 10")?;
    drill
        .note(format!("the old kernel's lock is {}", if told == "free" { "free" } else { "kept" }));
    drop(new);
    // The rest is released by a reboot that is reported.
    alice.crash();
    alice.boot()?;
    asking.waits("write 0 10")?;
    asking.granted(TIMEOUT).map(drop)
}

fn lost_notice(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "lost-notice")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut old = dir.locker(alice, "old")?;
    old.takes("write 0 10")?;
    let mut waiter = dir.locker(bob, "old")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    let _deaf = drop_udp_from(drill, alice)?;
    alice.boot_in(Order::NotifyFirst)?;
    waiter.still_waits(drill.stillness())?;
    drill.mount(alice, "open")?;
    let mut new = dir.locker(alice, "new")?;
    let taken = new.takes("write 0 10")?;
    let granted = waiter.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(taken);
    drill.within("free after the next lock by", took, FREED)?;
    // It would go on for 15 min, and take what a later one must notify off the list.
    alice.succeed("kill $(pidof sm-notify)")?;
    dir.locker(bob, "new")?.is_refused("write 0 10").context("what the new kernel holds")
}

/// statd was started after sm-notify and answers SM_STAT with the notified state: the notice is
/// believed long before the window ends.
fn mount_before_notice(drill: &Drill) -> Result<()> {
    let settings = Settings { window_seconds: Some(300), ..default_settings() };
    mounted_before_notice(drill, "mount-first", Order::NotifyFirst, &settings, UNCLAIMED)
}

/// statd was started before sm-notify and answers SM_STAT with the state of the old kernel, so only a
/// whole window without a reclaim settles it.
fn mount_before_notice_old_state(drill: &Drill) -> Result<()> {
    let window = Duration::from_secs(WINDOW_SECONDS);
    mounted_before_notice(drill, "mount-first-old", Order::StatdFirst, &default_settings(), window)
}

/// Server and client die together. No connection is left that could prove the death, and those of
/// the new kernel are older than its notice: they prove nothing about the old one (B3.11). Without
/// a reclaim within `unclaimed` after the notice, its lock is released.
fn mounted_before_notice(
    drill: &Drill,
    name: &str,
    order: Order,
    settings: &Settings,
    unclaimed: Duration,
) -> Result<()> {
    drill.stage(settings)?;
    let dir = drill.step_dir("open", name)?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    // A kernel numbers its processes from 0: with the number that the new one gives first, the old
    // process would be the same owner.
    let mut first = dir.locker(alice, "elsewhere")?;
    let mut old = dir.locker(alice, "file")?;
    let mut other = dir.locker(bob, "file")?;
    first.takes("write 0 10")?;
    old.takes("write 0 10")?;
    other.is_refused("write 0 10")?;
    alice.crash();
    drill.server.restart()?;
    // sm-notify asks there for the port of the status monitor.
    let port_mapper = format!("ip saddr {} udp dport 111", alice.ipv4());
    let filter = drill.lab.network().drop_incoming(&port_mapper)?;
    alice.boot_in(order)?;
    drill.mount(alice, "open")?;
    let at = &dir.guest;
    let found = alice.succeed(&format!("cd {at} && echo new > written && cat written"))?;
    ensure!(found == "new", "the new kernel reads {found:?}");
    dir.expect_text("written", "new\n")?;
    let (answered, notified) = (statd_state(drill, alice)?, boot_state(alice)?);
    let knows = order == Order::NotifyFirst;
    ensure!((answered == notified) == knows, "statd answers {answered}, sm-notify {notified}");
    drop(filter);
    // Its next repeat may be 16 s away. -n keeps the state of the boot.
    let sent = Instant::now();
    alice.succeed("kill $(pidof sm-notify) && sm-notify -f -n")?;
    wait_until_pending(drill, true)?;
    let mut own = dir.locker(alice, "file")?;
    own.waits("write 0 10")?;
    other.waits("write 0 10")?;
    let timeout = (unclaimed + SETTLED) * drill.size.slack + ASKS_AGAIN;
    let in_turn = |locker: &mut Locker| -> Result<Instant> {
        let granted = locker.granted(timeout)?;
        locker.unlocks("0 10")?;
        Ok(granted)
    };
    let (own, other) = thread::scope(|scope| {
        let other = scope.spawn(|| in_turn(&mut other));
        (in_turn(&mut own), other.join())
    });
    let own = own.context("the dead lock of its own machine")?;
    let other = other.map_err(|_| anyhow!("the thread panicked"))??;
    let took = own.min(other).saturating_duration_since(sent);
    drill.within("free after the notice by", took, unclaimed + SETTLED)?;
    dir.locker(bob, "elsewhere")?.takes("write 0 10").context("another file")?;
    wait_until_pending(drill, false)
}

/// What the status monitor of a guest answers to SM_STAT.
fn statd_state(drill: &Drill, guest: &Guest) -> Result<i32> {
    let options = Options::default();
    let at = SocketAddr::from((guest.ipv4(), PORT));
    let statd = (nsm::PROGRAM, nsm::VERSION);
    drill.lab.network().enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let at = rpcbind::find(at, RpcTransport::Udp, statd, Netid::Udp, &options).await?;
            let mut datagram = Datagram::connect(at, &options).await?;
            let reply = datagram.call::<nsm::Stat>(&b"filer".to_vec().into()).await?;
            Ok(reply.state)
        })
    })
}

/// The state that sm-notify has given this boot of a guest.
fn boot_state(guest: &Guest) -> Result<i32> {
    let text = guest.succeed("od -An -t d4 /var/lib/nfs/state")?;
    text.trim().parse().with_context(|| format!("{text:?}"))
}

/// Waits until a pending report of alice is shown to the operator, or none is.
fn wait_until_pending(drill: &Drill, pending: bool) -> Result<()> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let status = drill.server.says(&["status"])?;
        let clients = drill.server.says(&["clients"])?;
        let shown =
            clients.lines().any(|line| line.contains("alice") && line.contains("reboot-pending"));
        if status.contains("LK107") == pending && shown == pending {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "a pending reboot of alice should be shown: {pending}\n{status}\n{clients}"
        );
        thread::sleep(Duration::from_millis(200));
    }
}

/// `sm-notify -f` by hand, as a restarted container runs it: the kernel lives and keeps its locks.
fn false_reboot(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "false-reboot")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut holder = dir.locker(alice, "file")?;
    holder.takes("write 0 10")?;
    let mut waiter = dir.locker(bob, "file")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    // The real reboot below must find its state on the disk.
    alice.succeed("sm-notify -f && sync")?;
    waiter.still_waits(drill.stillness())?;
    let said = tail(&drill.server.log(), 30);
    ensure!(said.contains("its locks stay"), "the log does not say why:\n{said}");
    // Its next lock carries the new state, which proves nothing either.
    holder.takes("write 20 10")?;
    dir.locker(bob, "file")?.is_refused("write 20 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    alice.crash();
    alice.boot()?;
    let granted = waiter.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    drill.within("really rebooted: free after its statd by", took, FREED)?;
    expect_free(&mut dir.locker(bob, "file")?, "write 20 10")
}

/// A namespace of the client with its own address, rpcbind and statd. Its statd moves the state of
/// the one kernel, and its restart sends notices as after a reboot.
fn container(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "container")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let capture = Capture::start(&drill.lab, "container")?;
    let mut outside = dir.locker(alice, "outside")?;
    outside.takes("write 0 10")?;
    alice.succeed(CONTAINER)?;
    let source = format!("filer:{}", dir.host.display());
    let mut start = alice.spawn(&format!(
        "exec /sbin/ip netns exec box sh -c '{DAEMONS} && mkdir -p /mnt/box && \
         mount -t nfs -o vers=3 {source} /mnt/box && exec lockkeeper-guest locker /mnt/box/inside'"
    ))?;
    let said = start.line(TIMEOUT)?;
    ensure!(said == "open", "in the container: {said}");
    let said = start.ask("try posix write 0 10", TIMEOUT)?;
    ensure!(said == "granted", "in the container: {said}");
    // From here on the kernel's locks carry the container's state.
    outside.takes("write 20 10")?;
    thread::sleep(Duration::from_secs(1));
    alice.succeed("/sbin/ip netns exec box sm-notify -f -P /var/box-nfs")?;
    thread::sleep(drill.stillness());
    let mut judge = dir.locker(bob, "outside")?;
    judge.is_refused("write 0 10").context("taken before the container")?;
    judge.is_refused("write 20 10").context("taken after the container")?;
    dir.locker(bob, "inside")?.is_refused("write 0 10").context("taken in the container")?;
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
