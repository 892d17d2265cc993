//! A server of our own for a demonstration or a measurement: a child process on free ports, whose
//! export, state and store are in a temporary directory. All of it goes when this is dropped.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use client::{Connection, Options};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

pub const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// How long the server may take until it answers, and to stop.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often other ports are tried if somebody was quicker to take them.
const STARTS: usize = 3;
/// Below the ports that systems give to outgoing connections: one that was free a moment ago, when
/// the server was killed, still is.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// How the server differs from one that is started by hand.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// In the directory if `None`.
    pub store: Option<String>,
    /// Where clients have their rpcbind.
    pub peer_rpcbind_port: Option<u16>,
    pub window: Option<Duration>,
}

#[derive(Debug)]
pub struct OwnServer {
    // Dropped first, so that nobody writes to the directory any more when that goes.
    child: Running,
    dir: TempDir,
    pub at: SocketAddr,
    pub rpcbind: SocketAddr,
}

impl OwnServer {
    /// Starts it and waits until it answers.
    pub async fn start(purpose: &str, wish: &Wish) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix(&format!("lockkeeper-{purpose}-")).tempdir();
        let mut dir =
            dir.context("cannot make a temporary directory; name another place by TMPDIR")?;
        fs::create_dir(dir.path().join("export"))?;
        let mut tries = 1;
        loop {
            let (at, rpcbind) = (free_address(IP)?, free_address(IP)?);
            let config = configuration(dir.path(), wish, at, rpcbind.port());
            fs::write(dir.path().join("lockkeeper.toml"), config)?;
            let child = Running(spawn(dir.path(), wish)?);
            let mut server = Self { child, dir, at, rpcbind };
            match server.answers().await {
                Ok(()) => return Ok(server),
                Err(error) if tries == STARTS => return Err(error),
                Err(_) => tries += 1,
            }
            drop(server.child);
            dir = server.dir;
        }
    }

    /// The path by which the export is mounted.
    pub fn export(&self) -> PathBuf {
        let path = self.dir.path().join("export");
        fs::canonicalize(&path).unwrap_or(path)
    }

    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// `kill -9`; when it returns, the process is gone.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.0.kill()?;
        Ok(self.child.0.wait()?)
    }

    /// Starts it again in the same place; says by which id.
    pub fn spawn_again(&mut self, wish: &Wish) -> Result<u32> {
        self.child = Running(spawn(self.dir.path(), wish)?);
        Ok(self.id())
    }

    /// Asks it to stop, as an operator does, and waits for that.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child.0), Signal::TERM)?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.0.try_wait()? {
                return Ok(status);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("it does not stop")
    }

    /// The end of what it said.
    pub fn last_words(&self, lines: usize) -> Vec<String> {
        let log = fs::read(self.dir.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].iter().map(ToString::to_string).collect()
    }

    /// Waits until it answers.
    pub async fn answers(&mut self) -> Result<()> {
        let options = Options {
            connect_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            ..Options::default()
        };
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Ok(connection) = Connection::connect(self.at, &options).await
                && connection.call::<wire::nfs3::Null>(&()).await.is_ok()
            {
                return Ok(());
            }
            if let Some(status) = self.child.0.try_wait()? {
                bail!("the server ended ({status}): {}", self.last_words(3).join(" | "));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the server did not answer within {PATIENCE:?}: {}", self.last_words(3).join(" | "))
    }
}

/// Killed, by its id, when dropped.
#[derive(Debug)]
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(dir: &Path, wish: &Wish) -> Result<Child> {
    let log: File = OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(&program);
    command.args(["serve", "--end-with-parent", &std::process::id().to_string()]);
    command.args(["--ports", "any", "-c"]);
    command.arg(dir.join("lockkeeper.toml")).arg("--state").arg(dir.join("state"));
    command.arg("--run-directory").arg(dir.join("run"));
    if let Some(store) = &wish.store {
        command.args(["--store", store]);
    }
    command
        .env("LOCKKEEPER_LOG", std::env::var_os("LOCKKEEPER_LOG").unwrap_or("warn".into()))
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A Ctrl-C is meant for us: we end it, in order.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

/// A file of its own, so that the one of the host is not read.
fn configuration(dir: &Path, wish: &Wish, at: SocketAddr, rpcbind_port: u16) -> String {
    let text = |path: PathBuf| toml::Value::String(path.to_string_lossy().into_owned()).to_string();
    let peer = wish.peer_rpcbind_port.unwrap_or(wire::rpcbind::PORT);
    let window = wish.window.unwrap_or(Duration::from_secs(90)).as_millis();
    format!(
        "[rpc]\nlisten = \"{at}\"\nrpcbind = \"embedded\"\nrpcbind_port = {rpcbind_port}\n\
         peer_rpcbind_port = {peer}\n[recovery]\n\
         window = \"{window}ms\"\n[admin]\nsocket = \"off\"\nlisten = \"off\"\n[[export]]\npath = {}\nclients = [\"127.0.0.0/8\"]\n\
         squash = \"none\"\nports = \"any\"\n",
        text(dir.join("export")),
    )
}

/// A port that is free now, over TCP and UDP.
pub fn free_address(ip: IpAddr) -> Result<SocketAddr> {
    let count = PORTS.len() as u64;
    let first = RandomState::new().build_hasher().finish() % count;
    for step in 0..count {
        let at = SocketAddr::new(ip, PORTS.start + ((first + step) % count) as u16);
        if TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok() {
            return Ok(at);
        }
    }
    bail!("no port of {ip} from {} to {} is free", PORTS.start, PORTS.end)
}

/// For the server itself: it ends as by `kill -9` when the process that started it does, whatever
/// way that was.
pub fn end_with(parent: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    if now != Some(parent) {
        bail!("process {parent}, which this server was to end with, has ended");
    }
    Ok(())
}
