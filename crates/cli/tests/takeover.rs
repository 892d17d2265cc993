//! Two servers share a PostgreSQL store: the active one is repeatedly killed, paused or stopped, under
//! load. The standby takes over with every lock in place, and the former server sends nothing more.
//! Six takeovers; LOCKKEEPER_TAKEOVERS sets another number.
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
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use client::nfs::{Nfs, NfsError};
use client::{Connection, Options};
use keeper::change::Exactness;
use rustix::process::Signal;
use store::{Durability, Postgres, PostgresSettings, Store};
use support::node::Node;
use support::recorder;
use tempfile::TempDir;
use testbed::ports::free_port;
use testbed::postgres::{Options as DatabaseOptions, Server, Stop};
use testbed::random::Random;
use testbed::wait::until;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use wire::nfs3::{self, Handle, Stability};
use wire::nlm::{Range, Status};

fn takeovers() -> usize {
    std::env::var("LOCKKEEPER_TAKEOVERS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// A database and an export that servers share.
struct Cluster {
    database: Server,
    url: String,
    dir: TempDir,
    export: PathBuf,
}

impl Cluster {
    fn new() -> Self {
        Self::with(&DatabaseOptions { tcp: true, ..DatabaseOptions::default() })
    }

    fn with(options: &DatabaseOptions) -> Self {
        let database = Server::start_with(options).unwrap();
        let url = database.tcp_url().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let export = dir.path().join("export");
        recorder::export(&export);
        let cluster = Self { database, url, dir, export };
        cluster.config("plain", "");
        cluster
    }

    /// A configuration file with this text, and the export. Both must make the same handles of the
    /// same files.
    fn config(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name).with_extension("toml");
        let export = format!("[[export]]\npath = {:?}\nfilesystem_id = 7\n", self.export);
        fs::write(&path, format!("{text}\n{export}")).unwrap();
        path
    }

    /// What the database has, for each process.
    fn stored(&self, handles: &[Vec<u8>]) -> Vec<[u32; recorder::FILES]> {
        let reader = PostgresSettings::new(&self.url, "reader", Durability::Process);
        let saved = Postgres::connect(reader).unwrap().load().unwrap();
        assert_eq!(saved.exactness, Exactness::Exact);
        recorder::stored(&saved, handles)
    }

    /// Starts a server on a port of its own.
    fn start(&self, name: &str, more: &[&str]) -> Node {
        let plain = self.dir.path().join("plain.toml");
        let mut options = vec!["-c", plain.to_str().unwrap()];
        if more.contains(&"-c") {
            options.clear();
        }
        options.extend(more);
        self.start_on(free_port().unwrap(), name, &options)
    }

    fn start_on(&self, port: u16, name: &str, more: &[&str]) -> Node {
        let mut options = vec!["--store", &self.url, "--node", name];
        if more.contains(&"--store") {
            options.clear();
        }
        options.extend(more);
        Node::start(&self.dir.path().join(name), port, &options)
    }
}

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Kill,
    /// SIGSTOP, and SIGCONT when the other serves: a machine that paused.
    Stop,
    Leave,
}

#[tokio::test(flavor = "multi_thread")]
async fn takeovers_lose_nothing_and_steal_nothing() {
    let cluster = Cluster::new();
    let config = cluster.config("plain", "");
    let config = config.to_str().unwrap();
    let names = ["a", "b"];
    let ports = [free_port().unwrap(), free_port().unwrap()];
    let node =
        |which: usize| cluster.start_on(ports[which], names[which], &["--standby", "-c", config]);
    let mut serving = 0;
    let mut server = node(0);
    server.wait_until_serving().await;
    let mut standby = node(1);
    standby.wait_for_log("standing by: a serves").await;
    let handles = recorder::files(server.at, &cluster.export).await;
    let beliefs = recorder::no_beliefs();
    let mut random = Random::new(11);
    let (mut held, mut in_between) = (0, 0);
    let mut slowest: BTreeMap<End, Duration> = BTreeMap::new();
    for round in 0..takeovers() {
        let end = match round % 3 {
            0 => End::Kill,
            1 => End::Stop,
            _ => End::Leave,
        };
        let tasks = recorder::work(server.at, &beliefs, &handles, round).await;
        tokio::time::sleep(Duration::from_millis(20 + random.below(150))).await;
        let begun = Instant::now();
        server.signal(match end {
            End::Kill => Signal::KILL,
            End::Stop => Signal::STOP,
            End::Leave => Signal::TERM,
        });
        standby.wait_until_serving().await;
        let took = begun.elapsed();
        slowest.entry(end).and_modify(|slowest| *slowest = took.max(*slowest)).or_insert(took);
        assert!(took < Duration::from_secs(25), "{end:?} took {took:?}");
        if end == End::Stop {
            let continued = Instant::now();
            server.signal(Signal::CONT);
            let status = server.exit_status().await;
            assert_eq!(status.code(), Some(1), "{}", server.log());
            let by = format!("{} ", names[1 - serving]);
            let said = server.log();
            assert!(said.contains("took over") || said.contains("has taken over"), "{said}");
            assert!(said.contains(&by), "{said}");
            // Between the last look at the lease and the system call after it each thread may have
            // been stopped once. What such a reply says must be true all the same: see below.
            let late = |at: Option<Instant>| at.is_some_and(|at| at >= continued);
            let stale = beliefs.iter().filter(|belief| late(belief.lock().unwrap().answered));
            let (stale, threads) = (stale.count(), std::thread::available_parallelism().unwrap());
            assert!(stale <= threads.get() + 1, "{stale} stale replies in round {round}");
            in_between += stale;
        }
        for task in tasks {
            task.await.unwrap();
        }
        let status = server.exit_status().await;
        assert!(end != End::Leave || status.success(), "{}", server.log());

        let found = cluster.stored(&handles);
        held += recorder::compare(&beliefs, &found, round);
        recorder::reclaim(&recorder::lockers(standby.at).await, &found, &handles).await;
        let fresh = node(serving);
        server = std::mem::replace(&mut standby, fresh);
        serving = 1 - serving;
        standby.wait_for_log(&format!("standing by: {} serves", names[serving])).await;
    }
    assert!(held > takeovers() as u32, "there was hardly a lock to lose");
    println!(
        "{} takeovers, {held} bytes were held at them, {in_between} true replies came late; slowest: \
         {slowest:?}",
        takeovers()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_is_refused_and_told_of_the_standby() {
    let cluster = Cluster::new();
    let mut first = cluster.start("first", &[]);
    first.wait_until_serving().await;
    let mut second = cluster.start("second", &[]);
    assert_eq!(second.exit_status().await.code(), Some(1));
    let said = second.log();
    assert!(said.contains("in use by first") && said.contains("--standby"), "{said}");
    // After a kill on the same machine it takes over at once: its process is known to have exited.
    first.signal(Signal::KILL);
    first.exit_status().await;
    let begun = Instant::now();
    let mut again = cluster.start("first", &[]);
    again.wait_until_serving().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // A standby that is told to end does.
    let mut standby = cluster.start("second", &["--standby"]);
    standby.wait_for_log("standing by").await;
    standby.signal(Signal::TERM);
    assert!(standby.exit_status().await.success());
    assert!(again.answers().await);
}

/// B6.65
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_with_the_name_of_the_server_that_serves_is_refused() {
    let cluster = Cluster::new();
    let config = cluster.config("plain", "");
    let start = |home: &str| {
        let mut options = vec!["--store", &cluster.url, "--node", "filer", "--standby"];
        options.extend(["-c", config.to_str().unwrap()]);
        Node::start(&cluster.dir.path().join(home), free_port().unwrap(), &options)
    };
    let mut first = start("first");
    first.wait_until_serving().await;
    let mut second = start("second");
    assert_eq!(second.exit_status().await.code(), Some(1));
    let said = second.log();
    assert!(said.contains("\"filer\"") && said.contains("--node NAME"), "{said}");
    // Its own former process, which was killed, is no such server.
    first.signal(Signal::KILL);
    first.exit_status().await;
    let mut again = start("first");
    again.wait_until_serving().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_database_makes_locks_wait_and_files_go_on() {
    let cluster = Cluster::new();
    let mut server = cluster.start("alone", &[]);
    server.wait_until_serving().await;
    let handles = recorder::files(server.at, &cluster.export).await;
    let lockers = recorder::lockers(server.at).await;
    let range = Range { offset: 0, length: 8 };
    assert_eq!(lockers[0].lock(&handles[0], range).await.unwrap(), Status::Granted);
    // Until a heartbeat has shown that no standby waits, one is assumed to.
    tokio::time::sleep(Duration::from_secs(2)).await;

    cluster.database.stop(Stop::Immediate).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        assert!(server.answers().await, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(lockers[1].lock(&handles[1], range).await.unwrap(), Status::DeniedNoLocks);
    // It holds this lock, but without the database another server may have granted it by now.
    assert_eq!(lockers[0].lock(&handles[0], range).await.unwrap(), Status::DeniedNoLocks);
    cluster.database.start_again().unwrap();
    let begun = Instant::now();
    while lockers[1].lock(&handles[1], range).await.unwrap() != Status::Granted {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", server.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(server.log().contains("locks wait"), "{}", server.log());
    // The log follows within a tick.
    until("the log says that locks go on", || server.log().contains("locks go on")).await;
    assert_eq!(lockers[2].lock(&handles[0], range).await.unwrap(), Status::Denied);
}

/// A paused server must be fenced by the one that takes over, also if the first attempt failed.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_be_paused_is_not_forgotten_until_it_is_fenced() {
    let cluster = Cluster::new();
    let (hook, heard) = (cluster.dir.path().join("hook"), cluster.dir.path().join("heard"));
    let config = cluster.config("hook", &format!("[standby]\non_takeover = {hook:?}\n"));
    let standby = ["--standby", "-c", config.to_str().unwrap()];
    let mut paused = cluster.start("paused", &[]);
    paused.wait_until_serving().await;
    script(&hook, "exit 1");
    let mut failing = cluster.start("failing", &standby);
    failing.wait_for_log("standing by").await;
    paused.signal(Signal::STOP);
    assert_eq!(failing.exit_status().await.code(), Some(1));

    let told = format!("echo $LOCKKEEPER_FORMER_STATE $LOCKKEEPER_UNFENCED >> {}", heard.display());
    script(&hook, &told);
    let mut second = cluster.start("second", &standby);
    second.wait_until_serving().await;
    second.signal(Signal::TERM);
    assert!(second.exit_status().await.success());
    let mut third = cluster.start("third", &standby);
    third.wait_until_serving().await;
    assert_eq!(fs::read_to_string(&heard).unwrap(), "dead paused\nleft\n");
    paused.signal(Signal::CONT);
    assert_eq!(paused.exit_status().await.code(), Some(1));
}

/// B6.50
#[tokio::test(flavor = "multi_thread")]
async fn without_a_hook_a_paused_server_stays_unfenced_until_an_operator_says_otherwise() {
    let cluster = Cluster::new();
    let (hook, heard) = (cluster.dir.path().join("hook"), cluster.dir.path().join("heard"));
    let config = cluster.dir.path().join("lockkeeper.toml");
    fs::write(&config, format!("[store]\nurl = {:?}\n", cluster.url)).unwrap();
    let store = |arguments: &[&str]| {
        let mut command = std::process::Command::new(support::PROGRAM);
        let output = command.arg("store").args(arguments).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), said)
    };
    let mut paused = cluster.start("paused", &[]);
    paused.wait_until_serving().await;
    let mut second = cluster.start("second", &["--standby"]);
    second.wait_for_log("standing by").await;
    paused.signal(Signal::STOP);
    second.wait_until_serving().await;
    assert!(second.log().contains("lockkeeper store fenced paused"), "{}", second.log());
    let (_, said) = store(&["check", &cluster.url]);
    assert!(said.contains("\nunfenced   paused: presumed dead"), "{said}");

    // A hook of the next server is told of it, as it was never fenced.
    let told = format!("echo $LOCKKEEPER_UNFENCED >> {}; exit 1", heard.display());
    script(&hook, &told);
    let with_hook = cluster.config("hook", &format!("[standby]\non_takeover = {hook:?}\n"));
    second.signal(Signal::TERM);
    assert!(second.exit_status().await.success());
    let standby = ["--standby", "-c", with_hook.to_str().unwrap()];
    let mut third = cluster.start("third", &standby);
    assert_eq!(third.exit_status().await.code(), Some(1));
    assert_eq!(fs::read_to_string(&heard).unwrap(), "paused\n".repeat(3));

    let file = config.to_str().unwrap();
    let (done, said) = store(&["fenced", "second", "-c", file]);
    assert!(!done && said.contains("these are: paused"), "{said}");
    let (done, said) = store(&["fenced", "paused", "-c", file]);
    assert!(done && said.contains("recorded that paused is fenced, by uid "), "{said}");
    let (_, said) = store(&["check", &cluster.url]);
    assert!(!said.contains("unfenced") && said.contains("\nfenced     paused, by uid "), "{said}");
    let (done, said) = store(&["fenced", "paused", "--store", &cluster.url]);
    assert!(!done && said.contains("no server is recorded as unfenced"), "{said}");
    script(&hook, &told.replace("exit 1", "exit 0"));
    let mut fourth = cluster.start("fourth", &standby);
    fourth.wait_until_serving().await;
    assert_eq!(fs::read_to_string(&heard).unwrap(), "paused\npaused\npaused\n\n");
    paused.signal(Signal::KILL);
    paused.exit_status().await;
}

/// Passes a connection on until it is cut, as a network does.
struct Proxy {
    at: SocketAddr,
    cut: watch::Sender<bool>,
}

impl Proxy {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, (cut, is_cut)) = (listener.local_addr().unwrap(), watch::channel(false));
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut is_cut = is_cut.clone();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(target).await.unwrap();
                    let both = tokio::io::copy_bidirectional(&mut near, &mut far);
                    let cut = async { is_cut.wait_for(|cut| *cut).await.is_ok() };
                    tokio::select! {
                        _ = both => return,
                        _ = cut => {}
                    }
                    // Neither end hears of it.
                    std::future::pending().await
                });
            }
        });
        Self { at, cut }
    }
}

/// B6.80: the server that lost the database cannot know of a standby that registers later.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_cut_off_changes_no_file_after_it_was_replaced() {
    let cluster = Cluster::new();
    let config = cluster.config("plain", "[standby]\nlease = \"2s\"\n");
    let (_, rest) = cluster.url.split_once("127.0.0.1:").unwrap();
    let (port, database) = rest.split_once('/').unwrap();
    let proxy = Proxy::to(SocketAddr::new([127, 0, 0, 1].into(), port.parse().unwrap())).await;
    let through = cluster
        .url
        .replace(&format!("127.0.0.1:{port}/{database}"), &format!("{}/{database}", proxy.at));
    let options = ["--store", &through, "--node", "cut", "-c", config.to_str().unwrap()];
    let mut cut = Node::start(&cluster.dir.path().join("cut"), free_port().unwrap(), &options);
    cut.wait_until_serving().await;
    let handles = recorder::files(cut.at, &cluster.export).await;
    let connection =
        Connection::connect(cut.at, &Options::default().user(0, 0, &[])).await.unwrap();
    let (nfs, file) = (Nfs(connection), Handle(handles[0].clone().into()));
    let write = async || nfs.write(&file, 0, b"x"[..].into(), Stability::FileSync).await;
    assert!(write().await.is_ok());
    // The first heartbeat has shown that there is no standby.
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.cut.send_replace(true);
    let mut standby = cluster.start("standby", &["--standby", "-c", config.to_str().unwrap()]);
    standby.wait_until_serving().await;
    assert!(cut.answers().await, "it does not know: {}", cut.log());
    let refused = write().await.unwrap_err();
    assert!(matches!(refused, NfsError::Status(nfs3::Status::Jukebox)), "{refused}");
    assert!(cut.log().contains("locks wait and files are not changed: the lease"), "{}", cut.log());
}

/// B4.107, B6.81: the database is lost with the server, and the standby knows what is needed.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_keeps_copies_of_roster_and_key() {
    let cluster = Cluster::new();
    let mut server = cluster.start("a", &[]);
    server.wait_until_serving().await;
    let handles = recorder::files(server.at, &cluster.export).await;
    let lockers = recorder::lockers(server.at).await;
    let range = Range { offset: 0, length: 8 };
    assert_eq!(lockers[0].lock(&handles[0], range).await.unwrap(), Status::Granted);
    // It has served an embedded store before, with a key of its own.
    let state = cluster.dir.path().join("b/state");
    let mut standby = cluster.start("b", &["--store", "memory:"]);
    standby.wait_until_serving().await;
    standby.signal(Signal::TERM);
    standby.exit_status().await;
    let own = fs::read(state.join("handle.key")).unwrap();
    let mut standby = cluster.start("b", &["--standby"]);
    standby.wait_for_log("standing by: a serves").await;
    let host: String = "host0".bytes().map(|byte| format!("{byte:02x}")).collect();
    until("the standby has the roster", || {
        fs::read_to_string(state.join("roster")).is_ok_and(|text| text.contains(&host))
    })
    .await;
    standby.signal(Signal::KILL);
    standby.exit_status().await;
    server.signal(Signal::KILL);
    server.exit_status().await;
    cluster.database.psql("DROP SCHEMA lockkeeper CASCADE").unwrap();

    let mut refused = cluster.start("b", &[]);
    assert_eq!(refused.exit_status().await.code(), Some(1));
    assert!(refused.log().contains("1 client at epoch"), "{}", refused.log());
    let mut lost = cluster.start("b", &["--store-lost"]);
    lost.wait_until_serving().await;
    assert_eq!(fs::read(state.join("handle.key")).unwrap(), own, "that of an embedded store");
    let connection =
        Connection::connect(lost.at, &Options::default().user(0, 0, &[])).await.unwrap();
    let file = Handle(handles[0].clone().into());
    assert!(Nfs(connection).attributes(&file).await.is_ok(), "the handle is still good");
}

/// What happens to the database while clients lock.
fn trouble(database: &Server, round: usize) {
    match round % 3 {
        0 => {
            database.stop(Stop::Immediate).unwrap();
            database.start_again().unwrap();
        }
        1 => {
            database.stop(Stop::Fast).unwrap();
            database.start_again().unwrap();
        }
        _ => {
            for _ in 0..10 {
                let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                           WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
                database.psql(sql).unwrap();
                std::thread::sleep(Duration::from_millis(30));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_breaks_off_in_the_middle_has_what_clients_were_told() {
    let cluster =
        Cluster::with(&DatabaseOptions { tcp: true, fsync: true, ..DatabaseOptions::default() });
    let mut server = cluster.start("alone", &[]);
    server.wait_until_serving().await;
    let handles = recorder::files(server.at, &cluster.export).await;
    let beliefs = recorder::no_beliefs();
    let mut held = 0;
    for round in 0..takeovers() {
        let tasks = recorder::work(server.at, &beliefs, &handles, round).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        tokio::task::block_in_place(|| trouble(&cluster.database, round));
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.signal(Signal::KILL);
        server.exit_status().await;
        for task in tasks {
            task.await.unwrap();
        }
        let found = cluster.stored(&handles);
        held += recorder::compare(&beliefs, &found, round);
        server = cluster.start("alone", &[]);
        server.wait_until_serving().await;
        recorder::reclaim(&recorder::lockers(server.at).await, &found, &handles).await;
    }
    assert!(held > takeovers() as u32, "there was hardly a lock to lose");
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_before_the_hook_has_succeeded() {
    let cluster = Cluster::new();
    let (hook, heard) = (cluster.dir.path().join("hook"), cluster.dir.path().join("heard"));
    let config = cluster.config("hook", &format!("[standby]\non_takeover = {hook:?}\n"));
    let configuration = config.to_str().unwrap();
    let mut first = cluster.start("first", &[]);
    first.wait_until_serving().await;

    script(&hook, "echo no fence agent >&2; exit 3");
    let mut failing = cluster.start("failing", &["--standby", "-c", configuration]);
    failing.wait_for_log("standing by").await;
    first.signal(Signal::TERM);
    assert!(first.exit_status().await.success());
    assert_eq!(failing.exit_status().await.code(), Some(1));
    let said = failing.log();
    assert!(said.contains("no clients admitted") && said.contains("no fence agent"), "{said}");
    assert!(!said.contains("\nmount "), "{said}");

    let heard = heard.display();
    script(&hook, &format!("env | grep LOCKKEEPER_ | sort > {heard}; sleep 1"));
    let begun = Instant::now();
    let mut second = cluster.start("second", &["--standby", "-c", configuration]);
    second.wait_until_serving().await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "it did not wait for the hook");
    let heard = fs::read_to_string(heard.to_string()).unwrap();
    let expected = "LOCKKEEPER_FORMER_NODE=failing\nLOCKKEEPER_FORMER_STATE=left\n\
                    LOCKKEEPER_NODE=second\nLOCKKEEPER_UNFENCED=\n";
    assert!(heard.contains(expected), "{heard}");
}
