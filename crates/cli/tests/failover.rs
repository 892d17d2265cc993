//! PostgreSQL fails over under lock load: to a replica that lags, or to a synchronous one; the server
//! lives, dies with the primary and is started again, or is replaced by a standby. No lock of a live
//! client is given to another owner. Two failovers; LOCKKEEPER_FAILOVERS sets another number.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Locker, Options as ClientOptions};
use rustix::process::Signal;
use store::{Durability, Postgres, PostgresSettings, Store};
use support::node::Node;
use support::recorder::{self, Beliefs, FILES, HOSTS, PROCESSES};
use tempfile::TempDir;
use testbed::ports::free_port;
use testbed::postgres::{Options, Server, Stop};
use testbed::random::Random;
use tokio::task::{JoinHandle, block_in_place};
use wire::nlm::{Range, Status};

fn failovers() -> usize {
    std::env::var("LOCKKEEPER_FAILOVERS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// What becomes of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Lives,
    /// Killed with the primary, and started again.
    Restarts,
    /// Lives, and another one stands by.
    LivesInPair,
    /// Killed with the primary; the standby takes over.
    Replaced,
}

/// One failover.
#[derive(Debug, Clone, Copy)]
struct Round {
    number: usize,
    fate: Fate,
    /// The replica has everything.
    synchronous: bool,
    /// The last host that locks does nothing more, and neither do the others.
    idle: bool,
}

impl Round {
    fn new(number: usize) -> Self {
        let fates = [Fate::Lives, Fate::Replaced, Fate::Restarts, Fate::LivesInPair];
        Self {
            number,
            fate: fates[number % 4],
            synchronous: number / 4 % 2 == 1,
            idle: number % 3 == 1,
        }
    }

    fn pair(self) -> bool {
        matches!(self.fate, Fate::LivesInPair | Fate::Replaced)
    }
}

/// Two databases, two servers and their clients.
struct World {
    round: Round,
    primary: Server,
    replica: Server,
    dir: TempDir,
    export: PathBuf,
    ports: [u16; 2],
    beliefs: Beliefs,
}

impl World {
    fn new(round: Round) -> Self {
        let options = Options { tcp: true, fsync: true, ..Options::default() };
        let primary = Server::start_with(&options).unwrap();
        let replica = primary.replica(&[]).unwrap();
        if round.synchronous {
            let set = "ALTER SYSTEM SET synchronous_standby_names = '*'; SELECT pg_reload_conf()";
            primary.psql(set).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let export = dir.path().join("export");
        recorder::export(&export);
        let failover = if round.synchronous { "synchronous" } else { "asynchronous" };
        let config = format!(
            "[store]\nfailover = {failover:?}\n[[export]]\npath = {export:?}\nfilesystem_id = 7\n"
        );
        fs::write(dir.path().join("lockkeeper.toml"), config).unwrap();
        let ports = [free_port().unwrap(), free_port().unwrap()];
        let beliefs = recorder::no_beliefs();
        Self { round, primary, replica, dir, export, ports, beliefs }
    }

    fn url(&self) -> String {
        let [first, second] = [&self.primary, &self.replica].map(|one| one.port().unwrap());
        format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres")
    }

    fn start(&self, which: usize) -> Node {
        let (url, config) = (self.url(), self.dir.path().join("lockkeeper.toml"));
        let run = self.dir.path().join("run");
        let name = ["a", "b"][which];
        let mut options = vec!["--store", &url, "--node", name, "-c", config.to_str().unwrap()];
        options.extend(["--run-directory", run.to_str().unwrap()]);
        options.extend(self.round.pair().then_some("--standby"));
        Node::start(&self.dir.path().join(name), self.ports[which], &options)
    }

    /// The replica has everything so far, and nothing that follows.
    fn cut(&self) {
        let at = self.primary.psql("SELECT pg_current_wal_insert_lsn()").unwrap();
        let has = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'");
        testbed::wait::until_blocking("the replica", || self.replica.psql(&has).unwrap() == "t");
        self.replica.stop_streaming().unwrap();
    }

    /// Starts the load of one host.
    async fn work(&self, at: SocketAddr, host: usize, handles: &Arc<Vec<Vec<u8>>>) -> Tasks {
        let options = ClientOptions::default().user(0, 0, &[]);
        let one = Locker::connect(at, &format!("host{host}"), 0, &options).await.unwrap();
        let tasks = (0..PROCESSES).map(|process| {
            let index = host * PROCESSES + process;
            let seed = (self.round.number * 1000 + index) as u64 * 7919 + 1;
            let locker = one.process(process as i32);
            let (beliefs, handles) = (self.beliefs.clone(), handles.clone());
            tokio::spawn(recorder::load(locker, beliefs, index, handles, seed))
        });
        Tasks(tasks.collect())
    }

    /// What each process holds for certain.
    fn held(&self) -> Vec<[u32; FILES]> {
        let certain = |belief: &std::sync::Mutex<recorder::Belief>| {
            let belief = belief.lock().unwrap();
            let mut held = belief.held;
            if let Some((file, mask, _)) = belief.open {
                held[file] &= !mask;
            }
            held
        };
        self.beliefs.iter().map(certain).collect()
    }

    /// Processes of other hosts ask for what is held; none gets it. In grace a request is held back.
    async fn steal(&self, at: SocketAddr, handles: &Arc<Vec<Vec<u8>>>) -> usize {
        let mut lockers = recorder::lockers(at).await;
        // Each asks for what the same process of the host before it holds.
        lockers.rotate_left(PROCESSES);
        let thieves =
            lockers.into_iter().zip(self.held()).enumerate().map(|(index, (thief, held))| {
                let (handles, round) = (handles.clone(), self.round);
                tokio::spawn(async move {
                    let mut asked = 0;
                    for (file, mask) in held.iter().enumerate() {
                        let Some(run) = recorder::runs(*mask).into_iter().next() else { continue };
                        let answer = thief.lock(&handles[file], run);
                        let answer = tokio::time::timeout(Duration::from_millis(300), answer).await;
                        let granted = matches!(answer, Ok(Ok(Status::Granted)));
                        assert!(!granted, "{round:?}: {run:?} of file {file} of process {index}");
                        asked += 1;
                    }
                    asked
                })
            });
        let mut asked = 0;
        for thief in thieves.collect::<Vec<_>>() {
            asked += thief.await.unwrap();
        }
        asked
    }

    /// Every process reclaims what it holds; how many reclaims are not granted.
    async fn reclaim(&self, at: SocketAddr, handles: &[Vec<u8>]) -> usize {
        let lockers = recorder::lockers(at).await;
        let mut refused = 0;
        for (locker, held) in lockers.iter().zip(self.held()) {
            for (mask, handle) in held.iter().zip(handles) {
                for run in recorder::runs(*mask) {
                    let status = locker.reclaim(handle, run).await.unwrap();
                    refused += usize::from(status != Status::Granted);
                }
            }
        }
        refused
    }

    /// Whether the store has what the clients were told.
    fn compare(&self, handles: &[Vec<u8>]) {
        let reader =
            PostgresSettings::new(&self.replica.tcp_url().unwrap(), "x", Durability::Process);
        let saved = Postgres::connect(reader).unwrap().load().unwrap();
        recorder::compare(&self.beliefs, &recorder::stored(&saved, handles), self.round.number);
    }

    fn trust(&self) -> String {
        self.replica.psql("SELECT trust FROM lockkeeper.state").unwrap()
    }
}

struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Waits until one of the servers decides locks; which one.
async fn serving(nodes: &mut [Node], handles: &[Vec<u8>], round: Round) -> usize {
    let beyond = Range { offset: 5000, length: 1 };
    let begun = Instant::now();
    loop {
        for (which, node) in nodes.iter().enumerate() {
            if !node.answers().await {
                continue;
            }
            // One that has started serves; one that lives may wait for its store.
            if which == 1 || round.fate == Fate::Restarts {
                return which;
            }
            let options = ClientOptions::default().user(0, 0, &[]);
            let Ok(probe) = Locker::connect(node.at, "host0", 77, &options).await else { continue };
            if matches!(probe.lock(&handles[0], beyond).await, Ok(Status::Granted)) {
                assert_eq!(probe.unlock(&handles[0], beyond).await.unwrap(), Status::Granted);
                return which;
            }
        }
        let logs: Vec<String> = nodes.iter().map(Node::log).collect();
        assert!(begun.elapsed() < Duration::from_secs(60), "{round:?}: none serves: {logs:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The trust of the start or of the server that went on, and how many reclaims were refused.
async fn fail_over(round: Round) -> (String, usize, usize) {
    let world = block_in_place(|| World::new(round));
    let mut random = Random::new(round.number as u64 + 5);
    let mut nodes = vec![world.start(0)];
    nodes[0].wait_until_serving().await;
    if round.pair() {
        nodes.push(world.start(1));
        nodes[1].wait_for_log("standing by: a serves").await;
    }
    let at = nodes[0].at;
    let handles = recorder::files(at, &world.export).await;
    let mut tasks = Vec::new();
    for host in 0..HOSTS - 1 {
        tasks.push(world.work(at, host, &handles).await);
    }
    tokio::time::sleep(Duration::from_millis(150 + random.below(150))).await;
    if !round.synchronous {
        block_in_place(|| world.cut());
    }
    // The first locks of a host fall into the lag.
    tasks.push(world.work(at, HOSTS - 1, &handles).await);
    tokio::time::sleep(Duration::from_millis(150 + random.below(150))).await;
    if round.idle {
        tasks.clear();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    block_in_place(|| world.primary.stop(Stop::Immediate).unwrap());
    if matches!(round.fate, Fate::Restarts | Fate::Replaced) {
        nodes[0].signal(Signal::KILL);
        nodes[0].exit_status().await;
    }
    block_in_place(|| world.replica.promote().unwrap());
    if round.fate == Fate::Restarts {
        nodes[0] = world.start(0);
        nodes[0].wait_until_serving().await;
    }
    let which = serving(&mut nodes, &handles, round).await;
    tasks.clear();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let goes_on = which == 0 && matches!(round.fate, Fate::Lives | Fate::LivesInPair);
    let trust = if goes_on { "goes on".to_owned() } else { world.trust() };
    if goes_on || trust == "exact" {
        block_in_place(|| world.compare(&handles));
    }
    let at = nodes[which].at;
    let mut asked = world.steal(at, &handles).await;
    let mut refused = 0;
    if !goes_on {
        refused = world.reclaim(at, &handles).await;
        asked += world.steal(at, &handles).await;
        assert_eq!(refused, 0, "{round:?}: reclaims were refused");
    }
    assert!(asked > 0, "{round:?}: there was no lock to lose");
    (trust, refused, asked)
}

/// B6.60, B6.62
#[tokio::test(flavor = "multi_thread")]
async fn failovers_of_the_database_give_no_lock_away() {
    let mut counts: BTreeMap<(Fate, bool, String), usize> = BTreeMap::new();
    let (mut refused, mut asked) = (0, 0);
    for round in (0..failovers()).map(Round::new) {
        let begun = Instant::now();
        let (trust, not_granted, attempts) = fail_over(round).await;
        println!("{round:?}: {trust}, {not_granted} reclaims refused, {:?}", begun.elapsed());
        if round.synchronous {
            assert!(["exact", "goes on"].contains(&trust.as_str()), "{round:?}: {trust}");
        }
        *counts.entry((round.fate, round.synchronous, trust)).or_default() += 1;
        refused += not_granted;
        asked += attempts;
    }
    println!("{} failovers, {asked} attempts to take a held lock, none granted", failovers());
    println!("{refused} reclaims refused; by fate, synchronous, trust: {counts:#?}");
}
