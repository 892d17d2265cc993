//! Two servers, one PostgreSQL, one address: each server is in namespaces of its own, as if on its
//! own machine. A hook moves the address, and takes it from the other machine first.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testbed::postgres;
use testbed::process::{Pid, Process, Signal, kill_process, tail};

use crate::network::Network;
use testbed::namespace::Namespace;

/// The address that clients mount.
pub const SERVICE_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const TIMEOUT: Duration = Duration::from_secs(60);
/// Each machine has its own `/run`. In its own PID namespace a server's death shows by silence only.
const AS_A_MACHINE: &str = r#"mount -t tmpfs run /run/lockkeeper && exec "$@""#;

/// The script that operators get.
static MOVE_ADDRESS: LazyLock<PathBuf> = LazyLock::new(|| {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/takeover/move-address")
});

pub struct Pair {
    pub nodes: [Node; 2],
    network: Arc<Network>,
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
    /// Neither is started.
    pub fn new(
        network: &Arc<Network>,
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
            let machine = network.add_host(Ipv4Addr::new(10, 77, 0, last))?;
            let directory = directory.join(name);
            fs::create_dir_all(&directory)?;
            let program = program.to_path_buf();
            Ok(Node { name, machine, program, directory, process: None })
        };
        let nodes = [node("left", 21)?, node("right", 22)?];
        for (one, other) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
            one.configure(&store, export, other.machine.name())?;
        }
        Ok(Self { nodes, network: Arc::clone(network), _database: database })
    }

    /// Waits until the service address accepts a connection; when that was.
    pub fn wait_until_serving(&self) -> Result<Instant> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let accepted = self.network.enter(|| {
                let to = SocketAddr::from((SERVICE_V4, 2049));
                TcpStream::connect_timeout(&to, Duration::from_millis(200)).is_ok()
            });
            if accepted {
                return Ok(Instant::now());
            }
            ensure!(Instant::now() < end, "no server accepts at {SERVICE_V4}:\n{}", self.logs());
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

    /// Starts it as a standby and waits until its log contains `text`.
    pub fn start(&mut self, text: &str) -> Result<()> {
        let mut command = self.machine.command("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        command.args(["sh", "-c", AS_A_MACHINE, "sh"]).arg(&self.program);
        command.args(["serve", "--standby", "-c"]).arg(self.directory.join("lockkeeper.toml"));
        command.arg("--state").arg(self.directory.join("state"));
        let _ = fs::remove_file(self.log());
        self.process = Some(Process::start(&mut command, &self.log())?);
        self.wait_for_log(text)
    }

    pub fn wait_for_log(&mut self, text: &str) -> Result<()> {
        let process = self.process.as_mut().context("it is not running")?;
        process.wait_for_output(|output| output.contains(text)).with_context(|| text.to_owned())
    }

    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// Signals the server itself, not `unshare`.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let outer = self.process.as_ref().context("it is not running")?.id();
        let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"))?;
        let inner: i32 = children.trim().parse().context("it has no process")?;
        let inner = Pid::from_raw(inner).context("it has no process")?;
        kill_process(inner, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Waits for it to exit.
    pub fn wait_until_ended(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.wait().map(drop))
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }
}
