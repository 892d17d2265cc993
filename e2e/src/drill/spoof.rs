//! A host on the same network forges calls of a client, from a reserved port of its own address. No
//! call may change a lock of that client, or make the server call a third host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use client::{Connection, Datagram, Options, mount, nfs::Nfs};
use testbed::namespace::Namespace;
use wire::nlm::v4 as nlm;
use wire::nlm::{CancelArgs, FreeAllArgs, Lock, LockArgs, Range, Status, UnlockArgs};
use wire::nsm::{self, MonArgs, MonId, MyId, NotifyArgs};

use super::Step;
use super::client_crash::FREED;
use super::context::{Drill, StepDir};
use super::locks::{expect_free, step_dir};
use super::server_crash::TIMEOUT;
use crate::capture::Capture;
use crate::network::SERVER_V4;

pub(super) const STEPS: &[Step] = &[
    Step::new("spoof-changes-nothing", changes_nothing),
    Step::long("spoof-reclaim-after-a-server-crash", reclaim_in_grace),
    Step::new("spoof-monitoring-for-a-third-host", third_host),
];

const ATTACKER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 66);
const THIRD: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 77);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_V4), 2049);
/// A Linux client numbers its processes from 0: an attacker has few to guess.
const GUESSES: i32 = 12;

/// Root on a host that may mount.
struct Attacker {
    host: Namespace,
}

impl Attacker {
    fn new(drill: &Drill) -> Result<Self> {
        Ok(Self { host: drill.lab.network().add_host(ATTACKER)? })
    }

    /// Runs calls from that host.
    fn act<T: Send, F: Future<Output = Result<T>>>(
        &self,
        calls: impl FnOnce() -> F + Send,
    ) -> Result<T> {
        self.host.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(calls())
        })
    }

    /// The handle of a file, available to every host that may mount.
    fn handle(&self, drill: &Drill, dir: &StepDir, name: &str) -> Result<Vec<u8>> {
        let export = drill.export("open").display().to_string();
        let path = dir.host.strip_prefix(drill.export("open"))?.join(name);
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

fn changes_nothing(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "spoof")?;
    let mut holder = dir.locker(drill.alice()?, "file")?;
    holder.takes("write 0 10")?;
    let mut waiter = dir.locker(drill.bob()?, "file")?;
    waiter.waits("write 0 10")?;
    waiter.still_waits(Duration::from_secs(1))?;
    let attacker = Attacker::new(drill)?;
    let handle = attacker.handle(drill, &dir, "file")?;
    attacker.act(async || speak_for_others(&handle).await)?;
    waiter.still_waits(drill.stillness())?;
    dir.locker(drill.bob()?, "file")?.is_refused("read 0 10")?;
    // The waiter still is one, too.
    let unlocked = holder.unlocks("0 10")?;
    let granted = waiter.granted(TIMEOUT)?;
    drill.within("the waiter is granted after", granted - unlocked, super::waiting::CALLBACK)
}

/// While the holder is cut off, another host reclaims in its name.
fn reclaim_in_grace(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "spoof-grace")?;
    let alice = drill.alice()?;
    let mut holder = dir.locker(alice, "file")?;
    holder.takes("write 0 10")?;
    let attacker = Attacker::new(drill)?;
    let handle = attacker.handle(drill, &dir, "file")?;
    alice.unplug()?;
    drill.server.restart()?;
    attacker.act(async || speak_for_others(&handle).await)?;
    alice.plug()?;
    let mut thief = dir.locker(drill.bob()?, "file")?;
    thief.tries("write 0 10")?;
    thief.denied(TIMEOUT)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10").map(drop)
}

/// SM_MON for alice in the name of a third machine. That machine is not called: neither when alice
/// reboots, nor when the server restarts.
fn third_host(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "spoof-third")?;
    let alice = drill.alice()?;
    let mut holder = dir.locker(alice, "file")?;
    holder.takes("write 0 10")?;
    let attacker = Attacker::new(drill)?;
    let _third = drill.lab.network().add_host(THIRD)?;
    let capture = Capture::start(&drill.lab, "third-host")?;
    attacker.act(async || {
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
    let mut waiter = dir.locker(drill.bob()?, "file")?;
    waiter.waits("write 0 10")?;
    alice.crash();
    alice.boot()?;
    let granted = waiter.granted(TIMEOUT)?;
    let took = granted.saturating_duration_since(alice.statd_started()?);
    drill.within("free after its statd by", took, FREED)?;
    drill.server.restart()?;
    thread::sleep(drill.stillness());
    let packets = capture.stop()?;
    let sent =
        packets.show("ip.dst == 10.77.0.77 || arp.dst.proto_ipv4 == 10.77.0.77", "_ws.col.Info")?;
    ensure!(sent.is_empty(), "sent to the third host: {sent:?}");
    waiter.unlocks("0 10")?;
    expect_free(&mut waiter, "write 0 10")
}
