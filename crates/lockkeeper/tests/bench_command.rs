//! `lockkeeper bench` against servers that are there, that are not, and that do not want it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "support/leftovers.rs"]
mod leftovers;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use leftovers::nothing_is_left;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::nlm::{Range, Status};
use wire::record::{Limits, Next, Records, mark};
use wire::rpc::{Accepted, Call, write_accepted};
use wire::rpcbind::Mapping;
use wire::{Decode, Encode, Writer};

const QUICK: [&str; 4] = ["--seconds", "0.3", "--warm-up-seconds", "0.05"];

/// Killed when dropped, by its id.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with an export to write to, one that is read-only, and one that is for others.
struct Served {
    _child: Killed,
    dir: TempDir,
    at: SocketAddr,
    rpcbind: u16,
}

impl Served {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let (port, rpcbind) = (free_port(), free_port());
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
        let mut child = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
            .args(["serve", "--ports", "any", "-c"])
            .arg(&file)
            .arg("--state")
            .arg(dir.path().join("state"))
            .arg("--run-directory")
            .arg(dir.path().join("run"))
            .env("LOCKKEEPER_LOG", "warn")
            .env_remove("NOTIFY_SOCKET")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let started = lines.map_while(Result::ok).any(|line| line.starts_with("mount"));
        let at = SocketAddr::new([127, 0, 0, 1].into(), port);
        let served = Self { _child: Killed(child), dir, at, rpcbind };
        assert!(started, "it did not start");
        served
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

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = long_bench(arguments);
    command.args(QUICK);
    command
}

fn long_bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
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
    let served = Served::start();
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
    assert!(said.contains("a server of our own"), "{said}");
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
    let port = free_port().to_string();
    refused(&["127.0.0.1:/x", "--rpcbind-port", &port], &["does not answer", "--port 2049"]);
    refused(&["127.0.0.1:/x", "--port", &port], &["MOUNT service", "firewall", "--port"]);
    refused(&["no-such-host.invalid:/x"], &["no-such-host.invalid", "its address instead"]);
    let (code, _, said) = run(&["filer"]);
    assert!(code == Some(2) && said.contains("filer:/srv/share"), "{said}");
    let (code, _, said) = run(&["--operations", "fly"]);
    assert!(code == Some(2) && said.contains("lock-unlock"), "{said}");
}

#[test]
fn an_export_that_is_not_there_or_not_for_us_is_said_with_what_to_try() {
    let served = Served::start();
    let port = served.port();
    refused(&["127.0.0.1:/no/such", "--port", &port], &["/no/such", "showmount -e"]);
    refused(&[&served.target("ro"), "--port", &port], &["read-only", "can be written to"]);
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
async fn lockless_rpcbind(port: u16) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let limits = Limits { record_bytes_max: 4096, fragments_max: 1 };
                let (mut records, mut received) = (Records::new(limits), BytesMut::new());
                while stream.read_buf(&mut received).await.unwrap_or(0) > 0 {
                    while let Ok(Next::Record(record)) = records.next(&mut received) {
                        let call = Call::parse(record).unwrap();
                        let asked = Mapping::from_bytes(call.args).unwrap().program;
                        let known = asked != wire::nlm::PROGRAM;
                        let mut out = Writer::new();
                        write_accepted(&mut out, call.xid, Accepted::Success);
                        u32::from(if known { port } else { 0 }).encode(&mut out);
                        let reply = out.finish().to_bytes();
                        let mark = mark(reply.len()).to_be_bytes();
                        stream.write_all(&[&mark[..], &reply].concat()).await.unwrap();
                    }
                }
            });
        }
    });
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_lock_manager_is_measured_without_locks() {
    let served = Served::start();
    let rpcbind = lockless_rpcbind(served.at.port()).await.to_string();
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
    let served = Served::start();
    let (target, port) = (served.target("rw"), served.port());
    let mut command = long_bench(&[&target, "--port", &port, "--operations", "lock-unlock"]);
    // Many a slot of many connections holds a lock whenever it is interrupted.
    command.args(["--shapes", "4x8", "--seconds", "60"]);
    let mut child = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
    let export = served.export("rw");
    let begun = Instant::now();
    let file = loop {
        assert!(begun.elapsed() < Duration::from_secs(20), "it makes nothing");
        assert!(child.0.try_wait().unwrap().is_none(), "it ended");
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
    kill_process(Pid::from_child(&child.0), Signal::INT).unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.0.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(1), "{said}");
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
