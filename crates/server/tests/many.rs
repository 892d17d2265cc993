//! A restart of the whole server with many clients (B4.2): all are told in little time though a
//! tenth of them is dead, and the file service does not notice.
//!
//! `LOCKKEEPER_HOSTS=10000` makes it many more; that wants a release build, and a machine that does
//! little else.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use client::nfs::Nfs;
use client::{Connection, Options, mount};
use keeper::bytes::Name;
use keeper::change::{Change, Client, Protocol};
use keeper::identity::{ClientId, Epoch, Incarnation};
use lockkeeper_server::engine::Engine;
use lockkeeper_server::{Limits, LockConfig, Server};
use store::{CommitOutcome, Memory, Store, Token};
use support::{PATH, config, export, key, memory, open_rules};
use testbed::peer::{HostState, Population, host_states, raise_descriptor_limit};
use testbed::process::own_resident_kilobytes;
use tokio::runtime::Builder;
use tokio::time::sleep;
use vfs::Exports;
use wire::nfs3::{GetAttr, GetAttrArgs, Handle};

const OURS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A store that knows these hosts, as the run before left it.
fn prefilled(population: &Population) -> Memory {
    let mut store = Memory::new();
    let mut changes = vec![Change::Started { epoch: Epoch(1), grace: None }];
    for (number, (address, _)) in (1..).zip(&population.hosts) {
        changes.push(Change::Client(Arc::new(Client {
            id: ClientId(number),
            protocol: Protocol::NLM,
            address: *address,
            name: Name::from(format!("host{number}").as_str()),
            incarnation: Incarnation(3),
            reboot: None,
            monitored: true,
            fenced: false,
            used: vec![OURS],
            registered_at_ms: 0,
            epoch: Epoch(1),
            registrant: None,
        })));
    }
    changes.push(Change::IdsBelow(population.hosts.len() as u64 + 1));
    changes.push(Change::GraceEnded);
    assert!(matches!(store.commit(&changes, Token(1)), CommitOutcome::Done));
    store
}

/// Whether each has been told, or has not answered: nothing is under way.
async fn all_are_tried(engine: &Engine, dead: usize) -> bool {
    let now = engine.clock().now().mono;
    let left = engine.read(move |keeper| {
        let under_way = |next: Option<Duration>| {
            next.is_some_and(|next| UNDER_WAY.contains(&next.saturating_sub(now)))
        };
        keeper.notices().map(|notice| notice.attempts > 1 || !under_way(notice.next)).collect()
    });
    let left: Vec<bool> = left.await.unwrap();
    left.len() <= dead && left.iter().all(|is_tried| *is_tried)
}

/// So many have a middle that does not depend on one of them.
const GETATTRS_MIN: usize = 20;

/// An attempt without a result ends after 30 s; after a failed one, the next follows in 2 s.
const UNDER_WAY: RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(31);

/// How long a GETATTR takes, again and again until `done`, and [`GETATTRS_MIN`] times in any case: all
/// hosts may have been told before this began.
async fn getattrs(nfs: &Nfs, root: &Handle, done: &AtomicBool) -> Vec<Duration> {
    let mut took = Vec::new();
    while took.len() < GETATTRS_MIN || !done.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let args = GetAttrArgs { object: root.clone() };
        nfs.0.call::<GetAttr>(&args).await.unwrap().unwrap();
        took.push(begun.elapsed());
        sleep(Duration::from_micros(200)).await;
    }
    took.sort();
    took
}

fn middle(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() / 2]
}

struct RestartMeasurement {
    told: Duration,
    tried: Duration,
    kilobytes: usize,
    before: Duration,
    meanwhile: Duration,
}

async fn restart(population: &Population) -> RestartMeasurement {
    let at_rest = own_resident_kilobytes().unwrap();
    let exports = || Exports::new(vec![export(PATH, memory(), open_rules())]).unwrap();
    let config = || config(Limits::default()).with_peer_rpcbind_port(population.rpcbind_port);
    // The baseline: GETATTR latency with no host to notify.
    let quiet = Server::start(config(), exports(), key(), LockConfig::in_memory()).await.unwrap();
    let before = getattrs_of(quiet, Duration::from_millis(500)).await;

    let locks = LockConfig::new(Box::new(prefilled(population)));
    let begun = Instant::now();
    let server = Server::start(config(), exports(), key(), locks).await.unwrap();
    let (engine, at) = (server.engine().clone(), server.addresses()[0]);
    let (handle, running) = (server.handle(), tokio::spawn(server.run()));
    let connection = Connection::connect(at, &Options::default().user(0, 0, &[])).await.unwrap();
    let root = mount::mount(&connection, PATH).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let files = tokio::spawn({
        let (nfs, done) = (Nfs(connection), done.clone());
        async move { getattrs(&nfs, &root, &done).await }
    });
    let dead = population.hosts.iter().filter(|(_, kind)| *kind != HostState::Alive).count();
    let mut kilobytes = 0;
    while !all_are_tried(&engine, dead).await || population.all_notified().is_none() {
        kilobytes = kilobytes.max(own_resident_kilobytes().unwrap());
        assert!(begun.elapsed() < Duration::from_secs(60), "not all were tried");
        sleep(Duration::from_millis(20)).await;
    }
    let tried = begun.elapsed();
    done.store(true, Ordering::Relaxed);
    let meanwhile = middle(&files.await.unwrap());
    handle.stop();
    let _stopped = running.await.unwrap().unwrap();
    let told = population.all_notified().unwrap().duration_since(begun);
    RestartMeasurement {
        told,
        tried,
        kilobytes: kilobytes.saturating_sub(at_rest),
        before,
        meanwhile,
    }
}

async fn getattrs_of(server: Server, how_long: Duration) -> Duration {
    let at = server.addresses()[0];
    let (handle, running) = (server.handle(), tokio::spawn(server.run()));
    let connection = Connection::connect(at, &Options::default().user(0, 0, &[])).await.unwrap();
    let root = mount::mount(&connection, PATH).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let ends = done.clone();
    tokio::spawn(async move {
        sleep(how_long).await;
        ends.store(true, Ordering::Relaxed);
    });
    let took = middle(&getattrs(&Nfs(connection), &root, &done).await);
    handle.stop();
    let _stopped = running.await.unwrap().unwrap();
    took
}

/// An address of loopback that no other host has.
fn address() -> IpAddr {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let [.., high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let own = 192 + (std::process::id() % 60) as u8;
    Ipv4Addr::new(127, own, high, low).into()
}

#[test]
fn a_restart_with_many_clients_takes_little_time_and_disturbs_nobody() {
    let hosts: usize =
        std::env::var("LOCKKEEPER_HOSTS").map_or(300, |count| count.parse().unwrap());
    raise_descriptor_limit();
    for with_dead in [false, true] {
        let population = Population::new(&host_states(hosts, with_dead), address);
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let RestartMeasurement { told, tried, kilobytes, before, meanwhile } =
            runtime.block_on(restart(&population));
        println!(
            "{hosts} hosts, a tenth dead: {with_dead}; the living told after {told:.1?}, all tried \
             after {tried:.1?}; {kilobytes} kB more in use; GETATTR {before:?} before, {meanwhile:?} \
             meanwhile (p50)"
        );
        assert!(tried < Duration::from_secs(30), "{tried:?}");
        assert!(kilobytes < 32_000 + 32 * hosts, "{kilobytes} kB");
        let noticed = (5 * before).max(Duration::from_millis(5));
        assert!(meanwhile < noticed, "GETATTR {before:?} before, {meanwhile:?} meanwhile");
    }
}
