//! The log as programs read it: JSON by a JSON parser, the journal by systemd-journald and journalctl.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use client::{Connection, Locker, Options};
use serde_json::Value;
use tempfile::TempDir;
use testbed::ports::free_port;
use testbed::process::Process;
use testbed::server::serve;
use testbed::wait;
use wire::nlm::{Range, Status};

use support::PROGRAM;

/// `$1` is where the log of journald goes; the rest is run with the streams and the variable that systemd
/// gives a service.
const UNDER_JOURNALD: &str = "set -e
mount -t tmpfs run /run
mkdir -p /run/systemd/journal /run/log/journal
if ! [ -s /etc/machine-id ]; then
    echo 0123456789abcdef0123456789abcdef > /run/machine-id
    mount --bind /run/machine-id /etc/machine-id
fi
/lib/systemd/systemd-journald > \"$1\" 2>&1 &
shift
until [ -S /run/systemd/journal/socket ] && [ -S /run/systemd/journal/stdout ]; do sleep 0.05; done
exec systemd-cat --identifier=stdout sh -c '
    export JOURNAL_STREAM=$(stat --dereference --format=%d:%i /proc/self/fd/2)
    exec \"$@\"' sh \"$@\"";

struct Filer {
    home: TempDir,
    at: SocketAddr,
}

impl Filer {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("export")).unwrap();
        Self { home, at: ([127, 0, 0, 1], free_port().unwrap()).into() }
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).to_str().unwrap().to_owned()
    }

    fn serve(&self) -> Command {
        let mut command = serve(PROGRAM, self.home.path(), self.at);
        command.args(["--admin", "off", "--run-directory", &self.path("run"), "memory:/files"]);
        command.env_remove("LOCKKEEPER_LOG").env_remove("JOURNAL_STREAM");
        command
    }

    /// What three kinds of events are made of: a client that asks for what is not exported, takes a lock and is
    /// fenced.
    async fn live_a_day(&self) {
        let socket = self.home.path().join("admin.sock");
        wait::until("it serves", || UnixStream::connect(&socket).is_ok()).await;
        wait::until("it answers", || self.ask(&["status", "--exit-code"]).status.success()).await;
        let connection = Connection::connect(self.at, &Options::default()).await.unwrap();
        assert!(client::mount::mount(&connection, "/not/exported").await.is_err());
        let root = client::mount::mount(&connection, "/files").await.unwrap();
        let nfs = client::nfs::Nfs(connection.clone());
        let new = wire::nfs3::NewAttributes { mode: Some(0o666), ..Default::default() };
        let file = nfs.create(&root, b"a.db", new).await.unwrap();
        let alice = Locker::new(connection, "alice", 1);
        let granted = alice.lock(&file.0, Range { offset: 0, length: 1 }).await.unwrap();
        assert_eq!(granted, Status::Granted);
        assert!(self.ask(&["fence", "alice", "--yes"]).status.success());
    }

    fn ask(&self, words: &[&str]) -> Output {
        let socket = self.path("admin.sock");
        Command::new(PROGRAM).args(words).args(["--server", &socket]).output().unwrap()
    }
}

/// The entry about an event of this kind. `name` gives a field its name in this format.
fn event<'a>(entries: &'a [Value], kind: &str, name: fn(&str) -> String) -> &'a Value {
    let found = entries.iter().find(|entry| entry[&name("kind")] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {entries:#?}"))
}

fn assert_the_day_is_told(entries: &[Value], message: &str, name: fn(&str) -> String) {
    let refused = event(entries, "mount-refused", name);
    assert_eq!(refused[&name("export")], "/not/exported", "{refused:#}");
    assert_eq!(refused[&name("address")], "127.0.0.1", "{refused:#}");
    let fenced = event(entries, "fenced", name);
    assert_eq!(fenced[&name("client")], "alice", "{fenced:#}");
    assert_eq!(fenced[&name("address")], "127.0.0.1", "{fenced:#}");
    assert_eq!(fenced[&name("operator")], "root (uid 0)", "{fenced:#}");
    let sentence = fenced[message].as_str().unwrap();
    assert!(sentence.starts_with("alice (127.0.0.1) was fenced by root"), "{fenced:#}");
    let started = event(entries, "started", name);
    assert!(started[&name("locks")] == 0 || started[&name("locks")] == "0", "{started:#}");
}

#[tokio::test]
async fn with_json_every_line_is_an_object_with_the_parts_of_its_event() {
    let filer = Filer::new();
    let log = filer.home.path().join("log");
    let mut server = Process::start(filer.serve().args(["--log-format", "json"]), &log).unwrap();
    filer.live_a_day().await;
    server.stop(wait::LIMIT).unwrap();
    let parse = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    let entries: Vec<Value> = server.output().lines().map(parse).collect();
    assert_the_day_is_told(&entries, "message", |field| format!("event.{field}"));
    for entry in &entries {
        assert!(entry["timestamp"].is_string() && entry["level"].is_string(), "{entry:#}");
    }
    let is_mount = |entry: &&Value| entry["message"].as_str().unwrap().starts_with("mount ");
    assert!(entries.iter().any(|entry| is_mount(&entry)), "the banner is among them");

    let mut failing = filer.serve();
    failing.args(["--log-format", "json", "-c", "/missing.toml"]);
    let output = failing.output().unwrap();
    let last = parse(String::from_utf8(output.stderr).unwrap().trim());
    assert_eq!((&last["level"], &last["event.kind"]), (&"ERROR".into(), &"failed".into()));
    assert!(last["message"].as_str().unwrap().starts_with("/missing.toml: "), "{last:#}");
}

/// The child of a process.
fn child_of(process: &Process) -> String {
    let path = format!("/proc/{0}/task/{0}/children", process.id());
    fs::read_to_string(path).unwrap().split(' ').next().unwrap().to_owned()
}

/// The entries of the server in the journal of this mount namespace.
fn journal_of(pid: &str) -> Vec<Value> {
    let mut command = Command::new("nsenter");
    command.args([
        "--target",
        pid,
        "--mount",
        "--",
        "journalctl",
        "--directory",
        "/run/log/journal",
    ]);
    command.args(["--output", "json", "--no-pager", "SYSLOG_IDENTIFIER=lockkeeper"]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn under_systemd_the_journal_gets_priorities_and_fields_and_no_second_time() {
    testbed::packages::install(&["systemd", "util-linux"]).unwrap();
    let filer = Filer::new();
    let inside = |server: &Command| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", UNDER_JOURNALD, "sh", &filer.path("journald.log")]);
        command.arg(server.get_program()).args(server.get_args());
        command.env_remove("LOCKKEEPER_LOG").env_remove("NOTIFY_SOCKET");
        Process::start(&mut command, &filer.home.path().join("log")).unwrap()
    };
    let machine = inside(&filer.serve());
    filer.live_a_day().await;
    let pid = child_of(&machine);
    let named = |field: &str| format!("LOCKKEEPER_EVENT_{}", field.to_uppercase());
    let is_there = || journal_of(&pid).iter().any(|entry| entry[&named("kind")] == "fenced");
    wait::until("journald has written it", is_there).await;
    let entries = journal_of(&pid);
    assert_the_day_is_told(&entries, "MESSAGE", named);
    for (kind, priority) in [("started", "6"), ("mount-refused", "4"), ("fenced", "4")] {
        let entry = event(&entries, kind, named);
        assert_eq!(entry["PRIORITY"], priority, "{entry:#}");
    }
    for entry in &entries {
        assert_eq!(entry["_TRANSPORT"], "journal", "{entry:#}");
        let message = entry["MESSAGE"].as_str().unwrap();
        let has_time =
            message.starts_with("20") || message.contains("INFO") || message.contains("WARN");
        assert!(!has_time, "the journal has its own: {message}");
    }
    assert!(!Path::new(&filer.path("log")).exists() || machine.output().is_empty());
    drop(machine);

    // What ends the server is an error for the journal too.
    let mut wrong = filer.serve();
    wrong.args(["-c", "/missing.toml"]);
    let mut kept = Command::new("sh");
    kept.args(["-c", "\"$@\"; sleep 600", "sh"]).arg(wrong.get_program()).args(wrong.get_args());
    let machine = inside(&kept);
    let failed = || match fs::read_to_string(filer.path("journald.log")) {
        Ok(_) => {
            journal_of(&child_of(&machine)).into_iter().find(|e| e[&named("kind")] == "failed")
        }
        Err(_) => None,
    };
    wait::until("the error is there", || failed().is_some()).await;
    let failed = failed().unwrap();
    assert_eq!(failed["PRIORITY"], "3", "{failed:#}");
}
