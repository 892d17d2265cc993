//! Two servers, one PostgreSQL, one address: each server on a machine of its own, as far as it can
//! tell. A hook moves the address, and takes it from the other machine first.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testbed::postgres;

use crate::namespace::Namespace;
use crate::process::{self, Process, tail};

/// The address that clients mount.
pub const SERVICE_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const PATIENCE: Duration = Duration::from_secs(60);
/// `/run` is for each machine alone; and in a process namespace of its own a server's death shows by
/// its silence only.
const AS_A_MACHINE: &str = r#"mount -t tmpfs run /run/lockkeeper && exec "$@""#;

/// The one that operators get.
static MOVE_ADDRESS: LazyLock<PathBuf> = LazyLock::new(|| {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/takeover/move-address")
});

pub struct Pair {
    pub nodes: [Node; 2],
    wire: Arc<Namespace>,
    _database: postgres::Server,
}

pub struct Node {
    pub name: &'static str,
    machine: Namespace,
    program: PathBuf,
    directory: PathBuf,
    process: Option<Process>,
}

impl Pair {
    /// Serves `export` from whichever of the two is alive.
    pub fn new(
        wire: &Arc<Namespace>,
        program: &Path,
        directory: &Path,
        export: &Path,
    ) -> Result<Self> {
        let database = postgres::Server::start()?;
        let url = database.url();
        let sockets = url.split_whitespace().find_map(|word| word.strip_prefix("host="));
        let sockets = sockets.context("PostgreSQL has no socket")?;
        let store = format!("postgres:///postgres?user=postgres&host={sockets}");
        fs::create_dir_all("/run/lockkeeper")?;
        let node = |name, last| -> Result<Node> {
            let machine = wire.outpost(Ipv4Addr::new(10, 77, 0, last))?;
            let directory = directory.join(name);
            fs::create_dir_all(&directory)?;
            let program = program.to_path_buf();
            Ok(Node { name, machine, program, directory, process: None })
        };
        let nodes = [node("left", 21)?, node("right", 22)?];
        for (one, other) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
            one.configure(&store, export, other.machine.name())?;
        }
        Ok(Self { nodes, wire: Arc::clone(wire), _database: database })
    }

    /// Waits until somebody answers at the address of the service; when that was.
    pub fn wait_until_serving(&self) -> Result<Instant> {
        let end = Instant::now() + PATIENCE;
        loop {
            let accepted = self.wire.inside(|| {
                let to = SocketAddr::from((SERVICE_V4, 2049));
                Ok(TcpStream::connect_timeout(&to, Duration::from_millis(200)).is_ok())
            })?;
            if accepted {
                return Ok(Instant::now());
            }
            ensure!(Instant::now() < end, "nobody serves:\n{}", self.logs());
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn logs(&self) -> String {
        let log = |node: &Node| format!("--- {} ---\n{}\n", node.name, tail(&node.log(), 30));
        self.nodes.iter().map(log).collect()
    }
}

impl Node {
    fn configure(&self, store: &str, export: &Path, other: &str) -> Result<()> {
        let hook = self.directory.join("takeover");
        let script = format!(
            "#!/bin/sh\n\
             export ADDRESS={SERVICE_V4}/24 DEVICE=eth0\n\
             export TAKE_AWAY='ip -n {other} addr del {SERVICE_V4}/24 dev eth0 || true'\n\
             exec {}\n",
            MOVE_ADDRESS.display()
        );
        fs::write(&hook, script)?;
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755))?;
        let config = format!(
            "[store]\nurl = {store:?}\n[recovery]\nwindow = \"20s\"\n\
             [standby]\nnode = {:?}\non_takeover = {hook:?}\n\
             [[export]]\npath = {export:?}\nfilesystem_id = 77\nsquash = \"none\"\n\
             clients = [\"10.77.0.0/24\"]\n",
            self.name
        );
        fs::write(self.directory.join("lockkeeper.toml"), config).context("configuration")
    }

    /// Starts it as a standby and waits until it says `text`.
    pub fn start(&mut self, text: &str) -> Result<()> {
        let mut command = self.machine.command("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        command.args(["sh", "-c", AS_A_MACHINE, "sh"]).arg(&self.program);
        command.args(["serve", "--standby", "-c"]).arg(self.directory.join("lockkeeper.toml"));
        command.arg("--state").arg(self.directory.join("state"));
        let _ = fs::remove_file(self.log());
        self.process = Some(Process::start(&mut command, &self.log())?);
        self.wait_until_it_says(text)
    }

    pub fn wait_until_it_says(&mut self, text: &str) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !self.said().contains(text) {
            self.process.as_mut().context("it is not running")?.check()?;
            ensure!(Instant::now() < end, "no {text:?} in:\n{}", self.said());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// The server itself, not what keeps it apart from others.
    pub fn signal(&self, number: i32) -> Result<()> {
        let outer = self.process.as_ref().context("it is not running")?.id();
        let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"))?;
        let inner: i32 = children.trim().parse().context("it has no process")?;
        process::signal(inner, number).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Waits for its end.
    pub fn wait_until_ended(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.process.as_mut().is_some_and(Process::is_running) {
            ensure!(Instant::now() < end, "it does not end:\n{}", self.said());
            thread::sleep(Duration::from_millis(10));
        }
        self.process = None;
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }
}
