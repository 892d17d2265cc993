//! A machine on the same network speaks in the name of a client, from a reserved port of its own
//! address. Nothing that it says may change a lock of that client, or be carried to a third machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use client::{Connection, Datagram, Options, mount, nfs::Nfs};
use wire::nlm::v4 as nlm;
use wire::nlm::{CancelArgs, FreeAllArgs, Lock, LockArgs, Range, Status, UnlockArgs};
use wire::nsm::{self, MonArgs, MonId, MyId, NotifyArgs};

use super::Step;
use super::client_crash::FREED;
use super::locks::{expect_free, room};
use super::server_crash::PATIENCE;
use super::world::{Room, World};
use crate::capture::Capture;
use crate::namespace::{Namespace, SERVER_V4};

pub(super) const STEPS: &[Step] = &[
    Step::new("spoof-changes-nothing", changes_nothing),
    Step::long("spoof-reclaim-after-a-server-crash", reclaim_in_grace),
    Step::new("spoof-monitoring-for-a-third-host", third_host),
];

const MALLORY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 66);
const THIRD: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 77);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_V4), 2049);
/// A Linux client numbers its processes from 0: an attacker has few to guess.
const GUESSES: i32 = 12;

/// Root of a machine that is allowed to mount.
struct Mallory {
    post: Namespace,
}

impl Mallory {
    fn new(world: &World) -> Result<Self> {
        Ok(Self { post: world.lab.namespace().outpost(MALLORY)? })
    }

    /// Runs calls on the wire, from that machine.
    fn act<T: Send, F: Future<Output = Result<T>>>(
        &self,
        calls: impl FnOnce() -> F + Send,
    ) -> Result<T> {
        self.post.inside(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(calls())
        })
    }

    /// The handle of a file, as anybody gets it who may mount.
    fn handle(&self, world: &World, room: &Room, name: &str) -> Result<Vec<u8>> {
        let export = world.export("open").display().to_string();
        let path = room.host.strip_prefix(world.export("open"))?.join(name);
        self.act(async || {
            let connection = Connection::connect(SERVER, &options()).await?;
            let root = mount::mount(&connection, &export).await?;
            let path = path.display().to_string();
            let handle = Nfs(connection).lookup_path(&root, path.as_bytes()).await?;
            Ok(handle.to_vec())
        })
    }
}

fn options() -> Options {
    Options { reserved_port: true, timeout: Duration::from_secs(4), ..Options::default() }.user(
        0,
        0,
        &[],
    )
}

fn forged(name: &str, handle: &[u8], svid: i32) -> Lock {
    Lock {
        caller_name: name.as_bytes().to_vec().into(),
        file: handle.to_vec().into(),
        owner: format!("{svid}@{name}").into_bytes().into(),
        svid,
        range: Range { offset: 0, length: 10 },
    }
}

/// UNLOCK, CANCEL, reclaim, FREE_ALL and SM_NOTIFY in the name of alice and bob.
async fn speak_for_others(handle: &[u8]) -> Result<()> {
    let connection = Connection::connect(SERVER, &options()).await?;
    let cookie = || b"forg".to_vec().into();
    for name in ["alice", "bob"] {
        for svid in 0..GUESSES {
            let lock = forged(name, handle, svid);
            let args = UnlockArgs { cookie: cookie(), lock: lock.clone() };
            connection.call::<nlm::Unlock>(&args).await.context("UNLOCK")?;
            for exclusive in [true, false] {
                let lock = lock.clone();
                let args = CancelArgs { cookie: cookie(), block: true, exclusive, lock };
                connection.call::<nlm::Cancel>(&args).await.context("CANCEL")?;
            }
            let (block, exclusive, reclaim) = (false, true, true);
            let args = LockArgs { cookie: cookie(), block, exclusive, lock, reclaim, state: 0 };
            let reply = connection.call::<nlm::Lock>(&args).await.context("reclaim")?;
            ensure!(reply.status != Status::Granted, "a reclaim in the name of {name} was granted");
        }
        for state in [0, 2, 98, 99] {
            let name = name.as_bytes().to_vec();
            // Whether it is answered does not matter.
            let args = FreeAllArgs { name: name.clone().into(), state };
            let _ =
                connection.with_timeout(Duration::from_secs(1)).call::<nlm::FreeAll>(&args).await;
            let quick = Options { timeout: Duration::from_secs(1), ..options() };
            let mut datagram = Datagram::connect(SERVER, &quick).await?;
            let args = NotifyArgs { mon_name: name.into(), state };
            let _ = datagram.call::<nsm::Notify>(&args).await;
        }
    }
    Ok(())
}

fn changes_nothing(world: &World) -> Result<()> {
    let room = room(world, "spoof")?;
    let mut holder = room.locker(world.alice()?, "file")?;
    holder.takes("write 0 10")?;
    let mut waiter = room.locker(world.bob()?, "file")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    let mallory = Mallory::new(world)?;
    let handle = mallory.handle(world, &room, "file")?;
    mallory.act(async || speak_for_others(&handle).await)?;
    waiter.still_waits(world.stillness())?;
    room.locker(world.bob()?, "file")?.is_refused("read 0 10")?;
    // The waiter still is one, too.
    let unlocked = holder.unlocks("0 10")?;
    let granted = waiter.granted(PATIENCE)?;
    world.within("the waiter is granted after", granted - unlocked, super::waiting::CALLBACK)
}

/// While the holder cannot be heard, somebody else reclaims in its name.
fn reclaim_in_grace(world: &World) -> Result<()> {
    let room = room(world, "spoof-grace")?;
    let alice = world.alice()?;
    let mut holder = room.locker(alice, "file")?;
    holder.takes("write 0 10")?;
    let mallory = Mallory::new(world)?;
    let handle = mallory.handle(world, &room, "file")?;
    alice.unplug()?;
    world.server.restart()?;
    mallory.act(async || speak_for_others(&handle).await)?;
    alice.plug()?;
    let mut thief = room.locker(world.bob()?, "file")?;
    thief.tries("write 0 10")?;
    thief.denied(PATIENCE)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

/// Somebody registers as if a third machine wanted to hear of alice. It hears nothing: not when alice
/// reboots, and not when we restart.
fn third_host(world: &World) -> Result<()> {
    let room = room(world, "spoof-third")?;
    let alice = world.alice()?;
    let mut holder = room.locker(alice, "file")?;
    holder.takes("write 0 10")?;
    let mallory = Mallory::new(world)?;
    let _third = world.lab.namespace().outpost(THIRD)?;
    let capture = Capture::start(&world.lab, "third-host")?;
    mallory.act(async || {
        let connection = Connection::connect(SERVER, &options()).await?;
        for (mon_name, my_name) in
            [("alice", "10.77.0.77"), ("10.77.0.77", "alice"), ("10.77.0.77", "10.77.0.77")]
        {
            let my_name = my_name.as_bytes().to_vec().into();
            let my_id = MyId { my_name, program: 100_021, version: 4, procedure: 5 };
            let mon_id = MonId { mon_name: mon_name.as_bytes().to_vec().into(), my_id };
            let args = MonArgs { mon_id, private: [7; 16] };
            connection.call::<nsm::Mon>(&args).await.context("SM_MON")?;
        }
        Ok(())
    })?;
    let mut waiter = room.locker(world.bob()?, "file")?;
    waiter.waits("write 0 10")?;
    alice.crash();
    alice.boot()?;
    let granted = waiter.granted(PATIENCE)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    world.within("free after its statd by", took, FREED)?;
    world.server.restart()?;
    thread::sleep(world.stillness());
    let packets = capture.stop()?;
    let sent =
        packets.show("ip.dst == 10.77.0.77 || arp.dst.proto_ipv4 == 10.77.0.77", "_ws.col.Info")?;
    ensure!(sent.is_empty(), "sent to the third host: {sent:?}");
    waiter.unlocks("0 10")?;
    expect_free(&mut waiter, "write 0 10")
}
