//! A temporary server for `demo` and `bench`: a child process on free ports with export, state and
//! store in a temporary directory. Dropping it kills the process and removes the directory.

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

pub(crate) const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Limit for starting and stopping.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts with other ports, if another process took them first.
const STARTS: usize = 3;
/// Below the ephemeral ports, so that a port stays free while the server restarts.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Settings that differ from the defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChildServerOptions {
    /// `None` is an embedded store in the temporary directory.
    pub store: Option<String>,
    /// Port of the clients' rpcbind.
    pub peer_rpcbind_port: Option<u16>,
    pub window: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct ChildServer {
    // Dropped before the directory, so that nothing writes to it while it is removed.
    child: KillOnDrop,
    dir: TempDir,
    pub at: SocketAddr,
    pub rpcbind: SocketAddr,
}

impl ChildServer {
    /// Starts the server and waits until it answers.
    pub(crate) async fn start(purpose: &str, options: &ChildServerOptions) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix(&format!("lockkeeper-{purpose}-")).tempdir();
        let mut dir = dir.context("cannot create a temporary directory; set TMPDIR to another")?;
        fs::create_dir(dir.path().join("export"))?;
        let mut tries = 1;
        loop {
            let (at, rpcbind) = (free_address(IP)?, free_address(IP)?);
            let config = configuration(dir.path(), options, at, rpcbind.port());
            fs::write(dir.path().join("lockkeeper.toml"), config)?;
            let child = KillOnDrop(spawn(dir.path(), options)?);
            let mut server = Self { child, dir, at, rpcbind };
            match server.wait_until_ready().await {
                Ok(()) => return Ok(server),
                Err(error) if tries == STARTS => return Err(error),
                Err(_) => tries += 1,
            }
            drop(server.child);
            dir = server.dir;
        }
    }

    /// The path clients mount.
    pub(crate) fn export(&self) -> PathBuf {
        let path = self.dir.path().join("export");
        fs::canonicalize(&path).unwrap_or(path)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Sends SIGKILL and waits for the process to end.
    pub(crate) fn kill(&mut self) -> Result<ExitStatus> {
        self.child.0.kill()?;
        Ok(self.child.0.wait()?)
    }

    /// Starts it again with the same ports and directory; returns the process id.
    pub(crate) fn respawn(&mut self, options: &ChildServerOptions) -> Result<u32> {
        self.child = KillOnDrop(spawn(self.dir.path(), options)?);
        Ok(self.id())
    }

    /// Sends SIGTERM and waits for the process to end.
    pub(crate) async fn stop(&mut self) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child.0), Signal::TERM)?;
        let begun = Instant::now();
        while begun.elapsed() < TIMEOUT {
            if let Some(status) = self.child.0.try_wait()? {
                return Ok(status);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the server did not stop within {TIMEOUT:?}")
    }

    /// The last lines of its log.
    pub(crate) fn log_tail(&self, lines: usize) -> Vec<String> {
        let log = fs::read(self.dir.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].iter().map(ToString::to_string).collect()
    }

    /// Waits until it answers.
    pub(crate) async fn wait_until_ready(&mut self) -> Result<()> {
        let options = Options {
            connect_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            ..Options::default()
        };
        let begun = Instant::now();
        while begun.elapsed() < TIMEOUT {
            if let Ok(connection) = Connection::connect(self.at, &options).await
                && connection.call::<wire::nfs3::Null>(&()).await.is_ok()
            {
                return Ok(());
            }
            if let Some(status) = self.child.0.try_wait()? {
                bail!("the server exited ({status}): {}", self.log_tail(3).join(" | "));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the server did not answer within {TIMEOUT:?}: {}", self.log_tail(3).join(" | "))
    }
}

/// Kills the child process when dropped.
#[derive(Debug)]
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(dir: &Path, options: &ChildServerOptions) -> Result<Child> {
    let log: File = OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(&program);
    command.args(["serve", "--end-with-parent", &std::process::id().to_string()]);
    command.args(["--ports", "any", "-c"]);
    command.arg(dir.join("lockkeeper.toml")).arg("--state").arg(dir.join("state"));
    command.arg("--run-directory").arg(dir.join("run"));
    if let Some(store) = &options.store {
        command.args(["--store", store]);
    }
    command
        .env("LOCKKEEPER_LOG", std::env::var_os("LOCKKEEPER_LOG").unwrap_or("warn".into()))
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C must not reach the child; dropping it ends it.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

/// Its configuration file, used instead of the host's.
fn configuration(
    dir: &Path,
    options: &ChildServerOptions,
    at: SocketAddr,
    rpcbind_port: u16,
) -> String {
    let text = |path: PathBuf| toml::Value::String(path.to_string_lossy().into_owned()).to_string();
    let peer = options.peer_rpcbind_port.unwrap_or(wire::rpcbind::PORT);
    let window = options.window.unwrap_or(Duration::from_secs(90)).as_millis();
    format!(
        "[rpc]\nlisten = \"{at}\"\nrpcbind = \"embedded\"\nrpcbind_port = {rpcbind_port}\n\
         peer_rpcbind_port = {peer}\n[recovery]\n\
         window = \"{window}ms\"\n[admin]\nsocket = \"off\"\nlisten = \"off\"\n[[export]]\npath = {}\nclients = [\"127.0.0.0/8\"]\n\
         squash = \"none\"\nports = \"any\"\n",
        text(dir.join("export")),
    )
}

/// A port that is free now for both TCP and UDP.
pub(crate) fn free_address(ip: IpAddr) -> Result<SocketAddr> {
    let count = PORTS.len() as u64;
    let first = RandomState::new().build_hasher().finish() % count;
    for step in 0..count {
        let at = SocketAddr::new(ip, PORTS.start + ((first + step) % count) as u16);
        if TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok() {
            return Ok(at);
        }
    }
    bail!("no free port on {ip} between {} and {}", PORTS.start, PORTS.end)
}

/// Called in the child: the kernel kills it when its parent ends, however that happens.
pub(crate) fn die_with_parent(parent: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    if now != Some(parent) {
        bail!("parent process {parent} has already ended");
    }
    Ok(())
}
