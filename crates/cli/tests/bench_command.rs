//! `lockkeeper bench` against servers that are there, that are not, and that do not want it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use serde_json::Value;
use support::PROGRAM;
use support::leftovers::nothing_is_left;
use tempfile::TempDir;
use testbed::peer::{Host, RpcbindKind};
use testbed::ports::free_port;
use testbed::process::{Process, Signal};
use testbed::server::Server;
use wire::nlm::{Range, Status};

const QUICK: [&str; 4] = ["--seconds", "0.3", "--warm-up-seconds", "0.05"];

/// A server with an export to write to, one that is read-only, and one that is for others.
struct BenchTarget {
    _server: Server,
    dir: TempDir,
    at: SocketAddr,
    rpcbind: u16,
}

impl BenchTarget {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let (port, rpcbind) = (free_port().unwrap(), free_port().unwrap());
        for name in ["rw", "ro", "theirs"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        if rustix::process::geteuid().is_root() {
            chown(dir.path().join("rw"), Some(1000), Some(1000)).unwrap();
        }
        let export = |name: &str, rest: &str| {
            let path = dir.path().join(name);
            format!("[[export]]\npath = {path:?}\n{rest}\n")
        };
        let config = format!(
            "[rpc]\nlisten = \"127.0.0.1:{port}\"\nrpcbind = \"embedded\"\nrpcbind_port = {rpcbind}\n\
             [admin]\nsocket = \"off\"\nlisten = \"off\"\n{}{}{}",
            // Tests share their disk.
            export("rw", "metadata = \"async\""),
            export("ro", "access = \"ro\""),
            export("theirs", "clients = [\"192.0.2.0/24\"]"),
        );
        let file = dir.path().join("lockkeeper.toml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--ports", "any", "-c"]).arg(&file).arg("--state");
        command.arg(dir.path().join("state")).arg("--run-directory").arg(dir.path().join("run"));
        command.env("LOCKKEEPER_LOG", "warn").env_remove("NOTIFY_SOCKET");
        let server = Server::start(&mut command, &dir.path().join("log")).unwrap();
        let at = SocketAddr::new([127, 0, 0, 1].into(), port);
        Self { _server: server, dir, at, rpcbind }
    }

    fn export(&self, name: &str) -> PathBuf {
        self.dir.path().join(name).canonicalize().unwrap()
    }

    fn target(&self, name: &str) -> String {
        format!("127.0.0.1:{}", self.export(name).display())
    }

    fn port(&self) -> String {
        self.at.port().to_string()
    }
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = long_bench(arguments);
    command.args(QUICK);
    command
}

fn long_bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("bench").args(arguments).env_remove("LOCKKEEPER_LOG");
    if rustix::process::geteuid().is_root() && arguments.iter().any(|word| word.contains(':')) {
        command.args(["--uid", "1000"]);
    }
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = bench(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// It must fail, in one line that has all of these words.
fn refused(arguments: &[&str], words: &[&str]) {
    let (code, told, said) = run(arguments);
    assert_eq!((code, told.as_str()), (Some(1), ""), "{said}");
    let line = said.lines().last().unwrap();
    assert!(line.starts_with("error: "), "{said}");
    assert!(words.iter().all(|word| line.contains(word)), "{words:?} are not all in: {line}");
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn a_live_server_is_measured_and_left_as_it_was() {
    let served = BenchTarget::start();
    let (target, rpcbind) = (served.target("rw"), served.rpcbind.to_string());
    let arguments = [&target, "--json", "--rpcbind-port", &rpcbind, "--shapes", "1x1,2x4"];
    let (code, told, said) = run(&arguments);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.is_empty(), "a bar where nobody sees it: {said}");
    let report: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&report["server"], &report["own_server"]), (&target.into(), &false.into()));
    let measurements = report["measurements"].as_array().unwrap();
    let name = |m: &Value| format!("{} {}", m["operation"], m["shape"]).replace('"', "");
    let names: Vec<String> = measurements.iter().map(name).collect();
    assert_eq!(names.len(), 18);
    assert_eq!((names[0].as_str(), names[17].as_str()), ("null 1x1", "lock-unlock 2x4"));
    for measurement in measurements {
        for number in ["ops_per_second", "p50_us", "p99_us", "answered"] {
            assert!(measurement[number].as_f64().unwrap() > 0.0, "{number}: {measurement}");
        }
    }
    assert!(is_empty(&served.export("rw")));
}

#[test]
fn without_a_server_one_of_its_own_is_measured() {
    let temporary = TempDir::new().unwrap();
    let mut command = bench(&["--operations", "lock-unlock,getattr", "--shapes", "2x2"]);
    let Output { status, stdout, stderr } =
        command.env("TMPDIR", temporary.path()).output().unwrap();
    let (told, said) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("a temporary server"), "{said}");
    let words: Vec<Vec<&str>> = told.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(words[0][..3], ["operation", "shape", "ops/s"]);
    for (line, operation) in words[1..].iter().zip(["lock-unlock", "getattr"]) {
        assert_eq!(line[..2], [operation, "2x2"]);
        assert!(line[2].parse::<f64>().unwrap() > 0.0, "{told}");
    }
    assert_eq!(words.len(), 3, "{told}");
    nothing_is_left(temporary.path());
}

#[test]
fn who_is_not_there_is_said_with_what_to_try() {
    let port = free_port().unwrap().to_string();
    refused(&["127.0.0.1:/x", "--rpcbind-port", &port], &["does not answer", "--port 2049"]);
    refused(&["127.0.0.1:/x", "--port", &port], &["MOUNT service", "firewall", "--port"]);
    refused(&["no-such-host.invalid:/x"], &["no-such-host.invalid", "use its address"]);
    let (code, _, said) = run(&["filer"]);
    assert!(code == Some(2) && said.contains("filer:/srv/share"), "{said}");
    let (code, _, said) = run(&["--operations", "fly"]);
    assert!(code == Some(2) && said.contains("lock-unlock"), "{said}");
}

#[test]
fn an_export_that_is_not_there_or_not_for_us_is_said_with_what_to_try() {
    let served = BenchTarget::start();
    let port = served.port();
    refused(&["127.0.0.1:/no/such", "--port", &port], &["/no/such", "showmount -e"]);
    refused(&[&served.target("ro"), "--port", &port], &["read-only", "use a writable one"]);
    refused(&[&served.target("theirs"), "--port", &port], &["may not mount", "clients"]);
    if rustix::process::geteuid().is_root() {
        let target = served.target("rw");
        let stranger = bench(&[&target, "--port", &port]).args(["--uid", "1001"]).output().unwrap();
        let said = String::from_utf8(stranger.stderr).unwrap();
        assert!(!stranger.status.success() && said.contains("--uid"), "{said}");
    }
    assert!(is_empty(&served.export("rw")));
}

/// An rpcbind that knows NFS and MOUNT and no lock manager.
async fn lockless_rpcbind(port: u16) -> Host {
    let host = Host::bind([127, 0, 0, 1].into(), 0, RpcbindKind::Full).await;
    for program in [wire::nfs3::PROGRAM, wire::mount::PROGRAM] {
        host.register(program, 3, true, port);
    }
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_lock_manager_is_measured_without_locks() {
    let served = BenchTarget::start();
    let host = lockless_rpcbind(served.at.port()).await;
    let rpcbind = host.rpcbind_port.to_string();
    let target = served.target("rw");
    let arguments = [&target, "--rpcbind-port", &rpcbind, "--shapes", "1x1", "--operations"];
    let with = |operations| [&arguments[..], &[operations]].concat();
    tokio::task::block_in_place(|| {
        refused(&with("null,lock-unlock"), &["no lock manager", "--nlm-port", "--operations"]);
        let (code, told, said) = run(&with("null,getattr"));
        assert!(code == Some(0) && told.contains("getattr"), "{said}");
    });
}

#[tokio::test]
async fn interrupted_it_gives_its_locks_back_and_removes_its_files() {
    let served = BenchTarget::start();
    let (target, port) = (served.target("rw"), served.port());
    let mut command = long_bench(&[&target, "--port", &port, "--operations", "lock-unlock"]);
    // Many a slot of many connections holds a lock whenever it is interrupted.
    command.args(["--shapes", "4x8", "--seconds", "60"]);
    let mut bench = Process::start(&mut command, &served.dir.path().join("bench.log")).unwrap();
    let export = served.export("rw");
    let begun = Instant::now();
    let file = loop {
        assert!(begun.elapsed() < Duration::from_secs(20), "it makes nothing");
        bench.check().unwrap();
        let made = fs::read_dir(&export).unwrap().next().map(|entry| entry.unwrap().path());
        match made.map(|dir| dir.join("write-3")) {
            Some(file) if file.exists() => break file,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    // A second name by which the file stays reachable when the first is gone.
    let kept = export.join("kept");
    fs::hard_link(&file, &kept).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    bench.signal(Signal::INT).unwrap();
    let code = bench.wait().unwrap().code();
    let said = bench.output();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("stopped by SIGINT"), "{said}");
    assert!(!file.parent().unwrap().exists(), "its directory is left");

    let options = Options::default().user(1000, 1000, &[]);
    let connection = Connection::connect(served.at, &options).await.unwrap();
    let root = mount::mount(&connection, export.to_str().unwrap()).await.unwrap();
    let handle = Nfs(connection.clone()).lookup(&root, b"kept").await.unwrap().object;
    let locker = Locker::new(connection, "somebody-else", 1);
    let all = Range { offset: 0, length: 0 };
    assert_eq!(locker.lock(&handle, all).await.unwrap(), Status::Granted);
}
