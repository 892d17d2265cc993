//! `lockkeeper serve` as a process: start, mount, reload, stop and misuse.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use client::{Connection, Options, mount};
use tempfile::NamedTempFile;
use testbed::ports::free_port;
use testbed::process::Signal;
use testbed::server::Server;
use wire::mount::Exports;
use wire::nsm;

struct RunningServer {
    server: Server,
    address: SocketAddr,
    _log: NamedTempFile,
}

impl RunningServer {
    fn start(command: &mut Command) -> Self {
        let log = NamedTempFile::new().unwrap();
        let server = Server::start(command, log.path()).unwrap();
        let address = server.address().unwrap();
        Self { server, address, _log: log }
    }

    fn signal(&mut self, signal: Signal) {
        self.server.signal(signal).unwrap();
    }

    /// Waits for the process to exit; returns its exit code and everything that it printed.
    fn ended(mut self) -> (Option<i32>, String) {
        let code = self.server.wait().unwrap().code();
        (code, self.server.output())
    }

    async fn exports(&self) -> Vec<String> {
        let connection = Connection::connect(self.address, &Options::default()).await.unwrap();
        let list = connection.call::<Exports>(&()).await.unwrap();
        list.0.iter().map(|export| export.path.escape_ascii().to_string()).collect()
    }
}

fn serve(state: &Path) -> Command {
    serve_on(0, state)
}

fn serve_on(port: u16, state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--rpcbind", "off"]);
    command.args(["--ports", "any", "--state"]).arg(state);
    command.env_remove("NOTIFY_SOCKET");
    command
}

fn run(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[tokio::test]
async fn a_directory_is_served_and_a_clean_stop_ends_with_success() {
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    fs::create_dir(&share).unwrap();
    let mut server = RunningServer::start(serve(&dir.path().join("state")).arg(&share));
    let share = share.canonicalize().unwrap();
    let shown = share.to_str().unwrap();
    assert!(
        server
            .server
            .banner()
            .iter()
            .any(|line| line.starts_with("export") && line.contains(shown))
    );
    assert!(
        server.server.banner().last().unwrap().contains(&format!("port={}", server.address.port()))
    );

    let connection = Connection::connect(server.address, &Options::default()).await.unwrap();
    mount::mount(&connection, shown).await.unwrap();
    server.signal(Signal::TERM);
    let (code, said) = server.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("stopping on SIGTERM") && said.contains("stopped"), "{said}");
}

#[tokio::test]
async fn a_simulated_crash_starts_it_again_in_place_if_that_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port().unwrap();
    let config = dir.path().join("lockkeeper.toml");
    fs::write(&config, "[nsm]\nsimu_crash = true\n").unwrap();
    let mut command = serve_on(port, &dir.path().join("state"));
    let mut server = RunningServer::start(command.arg("-c").arg(&config).arg(dir.path()));
    let state = async || {
        let connection = Connection::connect(server.address, &Options::default()).await.ok()?;
        Some(connection.call::<nsm::Stat>(&b"me"[..].into()).await.ok()?.state)
    };
    let before = state().await.unwrap();
    let connection = Connection::connect(server.address, &Options::default()).await.unwrap();
    connection.call::<nsm::SimuCrash>(&()).await.unwrap();
    let start = Instant::now();
    while state().await.is_none_or(|state| state == before) {
        assert!(start.elapsed() < Duration::from_secs(20), "it did not start again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(server.server.is_running(), "it is another process");
}

#[tokio::test]
async fn a_handle_is_good_after_a_kill_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let share = dir.path().canonicalize().unwrap().join("share");
    fs::create_dir(&share).unwrap();
    let mut first = RunningServer::start(serve(&state).arg(&share));
    let connection = Connection::connect(first.address, &Options::default()).await.unwrap();
    let root = mount::mount(&connection, share.to_str().unwrap()).await.unwrap();
    let nfs = client::nfs::Nfs(connection);
    let before = nfs.attributes(&root).await.unwrap();
    first.signal(Signal::KILL);
    drop(first);

    let second = RunningServer::start(serve(&state).arg(&share));
    let connection = Connection::connect(second.address, &Options::default()).await.unwrap();
    let after = client::nfs::Nfs(connection).attributes(&root).await.unwrap();
    assert_eq!((before.filesystem, before.fileid), (after.filesystem, after.fileid));
}

#[tokio::test]
async fn a_hangup_reads_the_exports_again_and_keeps_the_old_ones_if_they_are_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    for name in ["a", "b"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    let config = root.join("lockkeeper.toml");
    let export = |name: &str| format!("[[export]]\npath = {:?}\n", root.join(name));
    fs::write(&config, export("a")).unwrap();
    let mut server = RunningServer::start(serve(&root.join("state")).arg("-c").arg(&config));
    let path = |name: &str| root.join(name).to_str().unwrap().to_string();
    assert_eq!(server.exports().await, [path("a")]);

    fs::write(&config, export("a") + &export("b")).unwrap();
    server.signal(Signal::HUP);
    for _ in 0..100 {
        if server.exports().await.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(server.exports().await, [path("a"), path("b")]);

    fs::write(&config, "[[export]]\npaht = \"/b\"\n").unwrap();
    server.signal(Signal::HUP);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.exports().await, [path("a"), path("b")]);
    server.signal(Signal::TERM);
    let (code, said) = server.ended();
    assert_eq!(code, Some(0));
    assert!(
        said.contains("keeping the old exports") && said.contains("did you mean `path`"),
        "{said}"
    );
}

/// B1.51
#[tokio::test]
async fn a_file_system_in_memory_is_served_beside_a_directory_until_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().canonicalize().unwrap().join("share");
    fs::create_dir(&share).unwrap();
    let state = dir.path().join("state");
    let start = || RunningServer::start(serve(&state).arg(&share).args(["memory:", "memory:/b"]));
    let mut server = start();
    let path = share.to_str().unwrap().to_string();
    assert_eq!(server.exports().await, [path, "/memory".into(), "/b".into()]);
    let connection = Connection::connect(server.address, &Options::default()).await.unwrap();
    let root = mount::mount(&connection, "/memory").await.unwrap();
    let nfs = client::nfs::Nfs(connection);
    let file = nfs.create(&root, b"a.db", wire::nfs3::NewAttributes::default()).await.unwrap();
    let options = Options::default();
    let alice = client::Locker::connect(server.address, "alice", 1, &options).await.unwrap();
    let all = wire::nlm::Range { offset: 0, length: 0 };
    assert_eq!(alice.lock(&file, all).await.unwrap(), wire::nlm::Status::Granted);
    assert_eq!(alice.unlock(&file, all).await.unwrap(), wire::nlm::Status::Granted);
    // A reload keeps its files.
    server.signal(Signal::HUP);
    server.server.wait_for_output(|output| output.contains("reloaded the configuration")).unwrap();
    assert!(nfs.lookup(&root, b"a.db").await.is_ok());
    server.signal(Signal::TERM);
    let (code, said) = server.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("/memory: its files are in memory and end with the server"), "{said}");
    // The next server has none of them, and old handles are stale.
    let next = start();
    let connection = Connection::connect(next.address, &Options::default()).await.unwrap();
    let nfs = client::nfs::Nfs(connection);
    let stale = nfs.lookup(&root, b"a.db").await.unwrap_err().to_string();
    assert!(stale.to_lowercase().contains("stale"), "{stale}");
}

#[test]
fn the_flag_for_ports_holds_for_every_export() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("lockkeeper.toml");
    let path = dir.path().to_str().unwrap();
    for (key, flag, shown) in
        [("any", "reserved", "reserved ports"), ("reserved", "any", "any port")]
    {
        fs::write(&config, format!("[[export]]\npath = {path:?}\nports = {key:?}\n")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--rpcbind", "off", "--ports", flag]);
        command.arg("-c").arg(&config).arg("--state").arg(dir.path().join("state"));
        command.args(["--admin", "off", "--admin-socket"]).arg(dir.path().join("socket"));
        let server = RunningServer::start(command.env_remove("NOTIFY_SOCKET"));
        let banner = server.server.banner();
        let export = banner.iter().find(|line| line.starts_with("export")).unwrap();
        assert!(export.ends_with(shown), "{export}");
    }
}

/// B1.50
#[test]
fn a_link_local_network_is_logged_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("lockkeeper.toml");
    let share = dir.path().to_str().unwrap();
    let text = format!("[[export]]\npath = {share:?}\nclients = [\"fe80::/10\"]\n");
    fs::write(&config, text).unwrap();
    let mut server = RunningServer::start(serve(&dir.path().join("state")).arg("-c").arg(&config));
    server.signal(Signal::TERM);
    let (code, said) = server.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("fe80::/10 is link-local"), "{said}");
}

/// B7.130
#[test]
fn an_export_without_clients_is_logged_if_it_is_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("lockkeeper.toml");
    let share = dir.path().to_str().unwrap();
    fs::write(&config, format!("[[export]]\npath = {share:?}\n")).unwrap();
    let state = dir.path().join("state");
    for (args, logged) in [(["-c", config.to_str().unwrap()], true), (["--", share], false)] {
        let mut server = RunningServer::start(serve(&state).args(args));
        server.signal(Signal::TERM);
        let (code, said) = server.ended();
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said.contains("has no `clients`"), logged, "{said}");
    }
}

#[test]
fn systemd_is_told_when_it_is_ready_and_when_it_stops() {
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut command = serve(&dir.path().join("state"));
    let mut server = RunningServer::start(
        command.arg(dir.path()).env("NOTIFY_SOCKET", dir.path().join("notify")),
    );
    let heard = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    assert!(heard().contains("READY=1"));
    server.signal(Signal::INT);
    assert!(heard().contains("STOPPING=1"));
    assert_eq!(server.ended().0, Some(0));
}

#[test]
fn misuse_is_answered_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let (code, said) = run(&mut serve(&state));
    assert_eq!(code, Some(78));
    assert!(said.contains("lockkeeper serve /srv/share"), "{said}");

    let (code, said) = run(serve(&state).arg(dir.path().join("nowhere")));
    assert_eq!(code, Some(1));
    assert!(said.contains("mkdir -p"), "{said}");

    let (code, said) = run(Command::new(env!("CARGO_BIN_EXE_lockkeeper")).arg("sevre"));
    assert_eq!(code, Some(2));
    assert!(said.contains("serve"), "{said}");

    let running = RunningServer::start(serve(&state).arg(dir.path()));
    let (code, said) = run(serve(&state).arg(dir.path()));
    assert_eq!(code, Some(1));
    assert!(said.contains("another lockkeeper is using the state directory"), "{said}");

    let taken = running.address.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["serve", "--listen", &taken, "--rpcbind", "off", "--state"]);
    let (code, said) = run(command.arg(dir.path().join("other")).arg(dir.path()));
    assert_eq!(code, Some(1));
    assert!(said.contains("ss -lptun"), "{said}");
}
