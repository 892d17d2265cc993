//! The server to compare with: nfs-ganesha on a local directory, the newest that Debian has or that of
//! this machine's suite.
//!
//! What it needs to start, found by trying: rpcbind, since without one it exits after "Cannot
//! register NFS V3 on TCP"; it is reached through a socket in /run. It does without D-Bus and
//! Kerberos, about which it complains in its log. `Bind_addr = 127.0.0.1` makes it exit if
//! loopback is the only interface, so it listens on all addresses of its namespace. Where root lacks
//! CAP_SYS_RESOURCE, the newer one must be allowed to go on without being an I/O flusher.
//!
//! The configuration is what an administrator would write for a trusted local network: number of
//! threads, caches, transfer sizes and logging are its defaults. Quotas and ACLs are off, and so are locks unless they are measured, which it can only gain from. File data
//! is not synchronised more often than the protocol asks, by either server.
//!
//! For locks it needs rpc.statd, which it tells of every client (address) whose first lock it grants
//! and whose last lock is released: a lone client that locks and unlocks pays for that each time.
//! The processor time of rpcbind and rpc.statd counts as its own. It would grant no lock until its
//! grace period of 90 s is over, even if it never had a client; `Graceless` spares us that, except
//! where a restart is measured.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use client::Options;
use client::rpcbind::{RpcTransport, find};
use serde::Serialize;
use testbed::process::{Process, run, tail};
use wire::rpcbind::Netid;

use crate::chroot::Chroot;
use crate::link::Link;
use crate::server::Server;
use crate::{packages, rpcbind};
use load::Target;

pub(crate) const PROGRAM: &str = "ganesha.nfsd";
pub(crate) const NFS_PORT: u16 = 20_490;
pub(crate) const MOUNT_PORT: u16 = 20_491;
pub(crate) const NLM_PORT: u16 = 20_492;

/// What it logs when its services are ready.
const READY: &str = "NFS SERVER INITIALIZED";
const READY_MAX: Duration = Duration::from_secs(60);

/// Which one is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Edition {
    /// That of Debian unstable
    Newest,
    /// That of this machine's suite
    Debian,
}

/// Where it is installed, with the daemons that it needs.
#[derive(Debug, Clone)]
pub(crate) enum Installation {
    Machine,
    Chroot(Chroot),
}

impl Installation {
    /// Installs what is missing: on the machine, or in a directory below `cache`.
    pub(crate) fn make(edition: Edition, cache: &Path) -> Result<Self> {
        match edition {
            Edition::Debian => {
                testbed::packages::install(packages::GANESHA)?;
                Ok(Self::Machine)
            }
            Edition::Newest => {
                testbed::packages::install(packages::DEBOOTSTRAP)?;
                Ok(Self::Chroot(Chroot::make(cache, packages::GANESHA)?))
            }
        }
    }

    /// Prepares it in the namespaces of the comparison.
    pub(crate) fn mount(&self, scratch: &Path) -> Result<()> {
        match self {
            Self::Machine => Ok(()),
            Self::Chroot(chroot) => chroot.mount(scratch),
        }
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        match self {
            Self::Machine => Command::new(program),
            Self::Chroot(chroot) => chroot.command(program),
        }
    }

    fn path(&self, path: &Path, scratch: &Path) -> Result<PathBuf> {
        match self {
            Self::Machine => Ok(path.to_owned()),
            Self::Chroot(chroot) => chroot.path(path, scratch),
        }
    }

    fn version(&self) -> Result<String> {
        let query = ["-W", "-f", "${Version}", "nfs-ganesha"];
        run(self.command("dpkg-query").args(query))
    }
}

/// What it serves, and to whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Parent of all directories of the comparison.
    pub(crate) scratch: &'a Path,
    pub(crate) dir: &'a Path,
    /// For its configuration and log.
    pub(crate) state: &'a Path,
    pub(crate) options: &'a Options,
    pub(crate) link: Link,
}

#[derive(Debug)]
pub(crate) struct Ganesha {
    pub(crate) server: Server,
    /// As it knows it.
    export: PathBuf,
    config: PathBuf,
}

/// What it does with locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Locks {
    Off,
    /// From the start.
    Now,
    /// After a grace period, in which earlier holders reclaim.
    AfterGrace,
}

impl Ganesha {
    /// Only inside a namespace of our own, where port 111, /run and /var/lib/nfs are free.
    pub(crate) async fn start(
        installation: &Installation,
        place: Place<'_>,
        locks: bool,
    ) -> Result<Self> {
        let Place { scratch, dir, state, options, link } = place;
        let rpcbind = rpcbind::start(link, installation.command("rpcbind"), state).await?;
        let statd = if locks { Some(start_statd(installation, place).await?) } else { None };
        let (config, log) = (state.join("ganesha.conf"), state.join("ganesha.log"));
        let export = installation.path(dir, scratch)?;
        let mode = if locks { Locks::Now } else { Locks::Off };
        fs::write(&config, configuration(&export, mode))?;
        let inside = |path: &Path| installation.path(path, scratch);
        let mut command = installation.command(PROGRAM);
        command.args(["-F", "-L"]).arg(inside(&log)?).arg("-f").arg(inside(&config)?);
        command.arg("-p").arg(inside(&state.join("ganesha.pid"))?);
        let at = |port| SocketAddr::from((link.server(), port));
        let target = Target {
            nfs: at(NFS_PORT),
            mount: at(MOUNT_PORT),
            nlm: locks.then_some(at(NLM_PORT)),
            export: export.to_string_lossy().into_owned(),
            options: options.clone(),
        };
        let mut server = Server::start("ganesha", link.beyond(command), &log, target).await?;
        server.helpers.extend(statd);
        server.helpers.push(rpcbind);
        server.version = Some(installation.version()?);
        // It answers NULL before it serves locks.
        let started = Instant::now();
        while !fs::read_to_string(&log).is_ok_and(|log| log.contains(READY)) {
            server.check()?;
            if started.elapsed() > READY_MAX {
                bail!(
                    "nfs-ganesha is not ready after {READY_MAX:?}; its log ends:\n{}",
                    tail(&log, 10)
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Self { server, export, config })
    }

    /// Configures a grace period, as other servers have, from its next start on.
    pub(crate) fn grace(&self) -> impl FnOnce() -> Result<()> + use<> {
        let config = self.config.clone();
        let text = configuration(&self.export, Locks::AfterGrace);
        move || fs::write(&config, text).context("its configuration")
    }
}

/// Without it nfs-ganesha refuses locks (DENIED_NOLOCKS).
async fn start_statd(
    installation: &Installation,
    Place { state, link, .. }: Place<'_>,
) -> Result<Process> {
    let mut command = installation.command("rpc.statd");
    command.args(["--foreground", "--no-notify"]);
    let mut statd = Process::start(&mut link.beyond(command), &state.join("statd.log"))?;
    let service = (wire::nsm::PROGRAM, wire::nsm::VERSION);
    let (rpcbind, options) = (rpcbind::at(link), Options::default());
    for _ in 0..500 {
        statd.check()?;
        if find(rpcbind, RpcTransport::Tcp, service, Netid::Tcp, &options).await.is_ok() {
            return Ok(statd);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("rpc.statd does not register with rpcbind")
}

fn configuration(dir: &Path, locks: Locks) -> String {
    let dir = dir.display();
    let enabled = locks != Locks::Off;
    let graceless = locks != Locks::AfterGrace;
    format!(
        "NFS_CORE_PARAM {{
  Protocols = 3;
  NFS_Port = {NFS_PORT};
  MNT_Port = {MOUNT_PORT};
  NLM_Port = {NLM_PORT};
  Enable_NLM = {enabled};
  Enable_RQUOTA = false;
  Enable_UDP = false;
  Allow_Set_Io_Flusher_Fail = true;
}}
NFS_KRB5 {{ Active_krb5 = false; }}
NFSV4 {{ Graceless = {graceless}; }}
EXPORT {{
  Export_Id = 1;
  Path = {dir};
  Pseudo = /export;
  Protocols = 3;
  Transports = TCP;
  SecType = sys;
  Access_Type = RW;
  Squash = No_Root_Squash;
  Disable_ACL = true;
  FSAL {{ Name = VFS; }}
}}
"
    )
}
