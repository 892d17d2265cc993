//! The systemd unit: systemd accepts it, and the server does its work with exactly the powers and
//! the system calls that the unit leaves it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testbed::server::Server;
use wire::nfs3::{
    Device, DirOpArgs, Handle, MkNod, MkNodArgs, NewAttributes, Node, SetAttr, SetAttrArgs,
    Stability,
};
use wire::nlm;

const UNIT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd/lockkeeper.service");
const DROP_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd/takeover.conf");

/// The values of a key, all of its lines together.
fn values(key: &str) -> Vec<String> {
    let text = fs::read_to_string(UNIT).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_string).collect()
}

fn powers() -> Vec<String> {
    let names = values("CapabilityBoundingSet");
    names.iter().map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase()).collect()
}

/// A server with these capabilities only.
struct Confined {
    server: Server,
    address: SocketAddr,
}

impl Confined {
    /// Through `wrapper`, a command that runs the one that follows it. `None` if it did not start.
    fn start(wrapper: &[String], state: &Path, config: &Path) -> Option<Self> {
        let address = free_reserved_port();
        let mut command = Command::new(&wrapper[0]);
        command.args(&wrapper[1..]).arg(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(["serve", "--listen", &address.to_string(), "--rpcbind", "off"]);
        command.args(["--ports", "any", "--admin", "127.0.0.1:0", "--admin-socket"]);
        command.arg(state.join("admin.sock")).arg("--store");
        command.arg(format!("embedded:{}", state.join("store").display())).arg("--state");
        command.arg(state).arg("-c").arg(config).env_remove("NOTIFY_SOCKET");
        let server = Server::start(&mut command, &state.with_extension("log")).ok()?;
        Some(Self { server, address })
    }

    async fn user(&self, uid: u32, gid: u32, groups: &[u32]) -> Nfs {
        let options = Options::default().user(uid, gid, groups);
        Nfs(Connection::connect(self.address, &options).await.unwrap())
    }

    fn stop(&mut self) {
        // strace runs it as its child.
        let pid = self.server.id();
        let below = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let child = below.split_whitespace().next().and_then(|pid| pid.parse().ok());
        match child.and_then(Pid::from_raw) {
            Some(child) => kill_process(child, Signal::TERM).unwrap(),
            None => self.server.signal(Signal::TERM).unwrap(),
        }
        self.server.wait().unwrap();
    }
}

/// One below 1024, so that binding it needs a capability.
fn free_reserved_port() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 300) as u16;
    let mut tried = (0..300).map(|_| 600 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 300);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    SocketAddr::from(([127, 0, 0, 1], tried.find(free).unwrap()))
}

/// A directory with two exports: `squashed` with the defaults and a file of alice's with mode 000,
/// and `trusted`, where root is root.
fn exports() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let root = dir.path().canonicalize().unwrap();
    let mut text = String::new();
    for (name, squash) in [("squashed", "root"), ("trusted", "none")] {
        fs::create_dir(root.join(name)).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o1777)).unwrap();
        let path = root.join(name);
        let clients = "clients = [\"127.0.0.0/8\"]";
        text += &format!("[[export]]\npath = {path:?}\nsquash = {squash:?}\n{clients}\n");
    }
    let closed = root.join("squashed/closed");
    fs::write(&closed, "").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    std::os::unix::fs::chown(&closed, Some(1001), Some(1001)).unwrap();
    fs::write(root.join("lockkeeper.toml"), text).unwrap();
    (dir, root)
}

fn mode(mode: u32) -> NewAttributes {
    NewAttributes { mode: Some(mode), ..NewAttributes::default() }
}

fn claim(right: bool, what: &str) -> Result<(), String> {
    if right { Ok(()) } else { Err(what.into()) }
}

/// What a file server does in a day, as several users. Says what did not work.
async fn work(server: &Confined, root: &Path) -> Result<(), String> {
    let failed = |what: &'static str| move |error| format!("{what}: {error}");

    // An owner, in a group of hers, reads and writes what her own mode bits forbid.
    let alice = server.user(1001, 1001, &[1500]).await;
    let squashed = mount::mount(&alice.0, root.join("squashed").to_str().unwrap()).await;
    let squashed = squashed.map_err(|error| error.to_string())?;
    let file = alice.lookup(&squashed, b"closed").await.map_err(failed("lookup"))?.object;
    let data = Bytes::from_static(b"hello");
    alice.write(&file, 0, data, Stability::FileSync).await.map_err(failed("write"))?;
    alice.read(&file, 0, 5).await.map_err(failed("read"))?;
    let shared = NewAttributes { gid: Some(1500), ..mode(0o2770) };
    let dir = alice.make_dir(&squashed, b"d", shared).await.map_err(failed("mkdir"))?;
    alice.create(&squashed, b"a", mode(0o600)).await.map_err(failed("create"))?;
    let found = fs::metadata(root.join("squashed/a")).unwrap();
    claim((found.uid(), found.gid()) == (1001, 1001), "a file belongs to who made it")?;

    // Other users are refused, group members are admitted, root is squashed to nobody.
    let bob = server.user(1002, 1002, &[1500]).await;
    claim(bob.read(&file, 0, 5).await.is_err(), "bob reads what is alice's")?;
    bob.create(&dir, b"b", mode(0o600)).await.map_err(failed("create by the group"))?;
    let nobody = server.user(0, 0, &[]).await;
    claim(nobody.create(&dir, b"c", mode(0o600)).await.is_err(), "root is not squashed")?;

    // Root of a trusted client.
    let root_of_client = server.user(0, 0, &[]).await;
    let trusted = mount::mount(&root_of_client.0, root.join("trusted").to_str().unwrap()).await;
    let trusted = trusted.map_err(|error| error.to_string())?;
    let set = async |object: &Handle, new: NewAttributes| {
        let args = SetAttrArgs { object: object.clone(), new, guard: None };
        root_of_client.call::<SetAttr, _, _>(&args).await
    };
    let file = alice.create(&trusted, b"a", mode(0o600)).await.map_err(failed("create"))?;
    let owner = NewAttributes { uid: Some(1003), gid: Some(1003), ..NewAttributes::default() };
    set(&file, owner).await.map_err(failed("chown"))?;
    set(&file, mode(0o2755)).await.map_err(failed("chmod"))?;
    let kept = fs::metadata(root.join("trusted/a")).unwrap().mode() & 0o7777;
    claim(kept == 0o2755, "the set-group bit stays")?;
    let at = DirOpArgs { dir: trusted.clone(), name: b"null".to_vec().into() };
    let null = Node::Character(mode(0o666), Device { major: 1, minor: 3 });
    let made = root_of_client.call::<MkNod, _, _>(&MkNodArgs { at, what: null }).await;
    made.map_err(failed("mknod"))?;

    // And a lock, which goes to the store.
    let locker = Locker::new(alice.0.clone(), "alice", 1);
    let granted = locker.lock(&file.0, nlm::Range { offset: 0, length: 0 }).await;
    let _ = granted.map_err(|error| error.to_string())?;
    Ok(())
}

fn confined_by(powers: &[String]) -> Vec<String> {
    let set: String = powers.iter().map(|power| format!(",+{power}")).collect();
    let bounding = format!("--bounding-set=-all{set}");
    ["setpriv", "--no-new-privs", "--inh-caps=-all", &bounding, "--"].map(str::to_string).into()
}

/// Starts, works, stops; says what did not work.
async fn a_day(wrapper: &[String]) -> Result<(), String> {
    let (_dir, root) = exports();
    let config = root.join("lockkeeper.toml");
    let server = Confined::start(wrapper, &root.join("state"), &config);
    let mut server = server.ok_or("it does not start")?;
    work(&server, &root).await?;
    server.stop();
    let said = server.server.output();
    claim(!said.contains("WARN"), &said)
}

#[tokio::test]
async fn the_powers_of_the_unit_are_enough_and_each_of_them_is_needed() {
    testbed::packages::install(&["util-linux"]).unwrap();
    let powers = powers();
    assert_eq!(a_day(&confined_by(&powers)).await, Ok(()));
    for (at, name) in powers.iter().enumerate() {
        let mut fewer = powers.clone();
        fewer.remove(at);
        let missed = a_day(&confined_by(&fewer)).await;
        println!("without {name}: {missed:?}");
        assert!(missed.is_err(), "{name} is not needed: take it out of the unit");
    }
}

/// The names of the system calls that these words of a SystemCallFilter allow.
fn allowed(words: &[String]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for word in words {
        if !word.starts_with('@') {
            names.insert(word.clone());
            continue;
        }
        let output = Command::new("systemd-analyze").args(["syscall-filter", word]).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let inside = text.lines().filter_map(|line| line.strip_prefix("    "));
        let inside: Vec<String> =
            inside.filter(|line| !line.starts_with('#')).map(str::to_string).collect();
        assert!(!inside.is_empty(), "systemd knows no {word}");
        names.extend(allowed(&inside));
    }
    names
}

/// `cachestat`, by number, as this strace does not know it either. It tells more about READs that would
/// wait; refused, it is done without.
const DISPENSABLE: &str = "syscall_0x1c3";

#[tokio::test]
async fn the_server_makes_no_system_call_that_the_unit_forbids() {
    testbed::packages::install(&["strace", "systemd"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let wrapper = ["strace", "-f", "-qq", "-o", trace.to_str().unwrap(), "--"];
    assert_eq!(a_day(&wrapper.map(str::to_string)).await, Ok(()));
    let allowed = allowed(&values("SystemCallFilter"));
    let text = fs::read_to_string(&trace).unwrap();
    // `123  openat(AT_FDCWD, ...`, `123  <... read resumed> ...`
    let calls: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace)?.1.trim().split_once('('))
        .map(|(name, _)| name)
        .filter(|name| {
            name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        })
        .collect();
    for needed in ["openat", "open_by_handle_at", "setfsuid", "accept4"] {
        assert!(calls.contains(needed), "the trace has no {needed}: {calls:?}");
    }
    let is_forbidden = |call: &&&str| **call != DISPENSABLE && !allowed.contains(**call);
    let forbidden: Vec<_> = calls.iter().filter(is_forbidden).collect();
    assert!(forbidden.is_empty(), "the unit forbids {forbidden:?}");
}

/// The most that the server holds with the default limits.
fn bytes_max() -> usize {
    /// The bar of the keeper's benchmark.
    const LOCK: usize = 200;
    /// What a connection may hold beside the budget, received, in progress and unsent, and its state.
    const CONNECTION: usize = 4 * (16 << 10);
    /// A reply in the duplicate request cache without its bytes; a remembered name.
    const ENTRY: usize = 256;
    let (limits, locks) = (server::Limits::default(), keeper::config::Limits::default());
    let connections = limits.connections_max + limits.of_rpcbind().connections_max;
    let duplicates = (limits.duplicates_max * ENTRY + limits.duplicates_bytes_max) * 5 / 2;
    let names = limits.names_max * ENTRY;
    locks.locks * LOCK + limits.total_bytes_max + connections * CONNECTION + duplicates + names
}

/// B7.142
#[test]
fn the_unit_leaves_what_the_default_limits_allow() {
    let unit = fs::read_to_string(UNIT).unwrap();
    let comment = format!("takes at most {} GiB", bytes_max().div_ceil(1 << 30));
    assert!(unit.contains(&comment), "the unit does not say: {comment}");
    let memory: u32 = values("MemoryMax")[0].strip_suffix('%').unwrap().parse().unwrap();
    assert!(
        (50..=90).contains(&memory),
        "page cache counts, and the rest of the machine needs some"
    );
    let tasks: usize = values("TasksMax")[0].parse().unwrap();
    let workers = server::Limits::default().workers;
    // `server/src/rpc/workers/schedule.rs`: half as many and four more for each that hangs.
    let (hung, processors) = (100, 256);
    assert!(tasks >= workers + hung * (workers / 2 + 4) + processors, "{tasks}");
}

#[test]
fn systemd_accepts_the_unit_and_finds_it_hardened() {
    testbed::packages::install(&["systemd"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // It looks for the program; the one that was just built will do.
    let unit = dir.path().join("lockkeeper.service");
    let text = fs::read_to_string(UNIT).unwrap();
    let text = text.replace("/usr/bin/lockkeeper", env!("CARGO_BIN_EXE_lockkeeper"));
    fs::write(&unit, text).unwrap();
    fs::create_dir(dir.path().join("lockkeeper.service.d")).unwrap();
    fs::copy(DROP_IN, dir.path().join("lockkeeper.service.d/takeover.conf")).unwrap();
    let verify = |unit: &Path| {
        let output =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit).output();
        let output = output.unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(verify(&unit), (true, String::new()));

    fs::remove_dir_all(dir.path().join("lockkeeper.service.d")).unwrap();
    let judge = ["security", "--offline=true", "--no-pager", "--threshold=40"];
    let output = Command::new("systemd-analyze").args(judge).arg(&unit).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    println!("{}", said.lines().last().unwrap_or_default());
    assert!(output.status.success(), "worse than 4.0: {said}");

    let broken = dir.path().join("broken.service");
    let text = fs::read_to_string(&unit).unwrap().replace("Type=notify", "Type=notfiy");
    fs::write(&broken, text).unwrap();
    assert!(!verify(&broken).1.is_empty(), "this judge finds nothing");
}
