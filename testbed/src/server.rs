//! The program under test, `lockkeeper serve`, as a child process.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::process::Process;

/// `lockkeeper serve` on `listen`, without rpcbind and for clients on any port. The state directory
/// and the admin socket are `state` and `admin.sock` below `home`.
pub fn serve(program: impl AsRef<Path>, home: &Path, listen: SocketAddr) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(["serve", "--rpcbind", "off", "--ports", "any"]);
    command.args(["--listen", &listen.to_string(), "--state"]).arg(home.join("state"));
    command.arg("--admin-socket").arg(home.join("admin.sock"));
    command.env_remove("NOTIFY_SOCKET");
    command
}

/// A server process; killed when dropped.
#[derive(Debug)]
pub struct Server(Process);

impl Server {
    /// Runs a `serve` command without waiting for it: a standby, or one that will fail.
    pub fn spawn(command: &mut Command, log: &Path) -> Result<Self> {
        Process::start(command, log).map(Self)
    }

    /// Runs a `serve` command and returns when it serves.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let mut server = Self::spawn(command, log)?;
        server.wait_until_serving()?;
        Ok(server)
    }

    /// Like [`Self::start`], with the log elsewhere; the banner still goes to `banner`.
    pub fn start_with_log(
        command: &mut Command,
        banner: &Path,
        log: impl Into<Stdio>,
    ) -> Result<Self> {
        let mut server = Self(Process::start_with_stderr(command, banner, log)?);
        server.wait_until_serving()?;
        Ok(server)
    }

    /// Waits for the last line of the banner, which tells how to mount.
    pub fn wait_until_serving(&mut self) -> Result<()> {
        let serving = |output: &str| {
            output.lines().any(|line| line.starts_with("mount ")) && output.ends_with('\n')
        };
        self.0.wait_for_output(serving).context("the server did not start")
    }

    /// The lines up to the one that tells how to mount. Log lines may be among them.
    pub fn banner(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for line in self.output().lines() {
            lines.push(line.to_owned());
            if line.starts_with("mount ") {
                break;
            }
        }
        lines
    }

    /// Where it serves NFS, on loopback.
    pub fn address(&self) -> Result<SocketAddr> {
        let banner = self.banner();
        let line = banner.iter().find_map(|line| line.split_once(" nfs mount nlm nsm on "));
        let port = line.and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        let port: u16 = port.with_context(|| format!("no port in {banner:?}"))?;
        Ok(([127, 0, 0, 1], port).into())
    }

    /// Where it serves its web page.
    pub fn web_address(&self) -> Result<SocketAddr> {
        let banner = self.banner();
        let line = banner.iter().find_map(|line| line.split_once("web http://"));
        let (_, address) = line.with_context(|| format!("no web address in {banner:?}"))?;
        let address = address.split_whitespace().next().unwrap_or_default();
        address.parse().with_context(|| address.to_owned())
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.0
    }
}
