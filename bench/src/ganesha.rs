//! The server to compare with: Debian's nfs-ganesha on a local directory.
//!
//! What it needs to start, found by trying: rpcbind, since without one it exits after "Cannot
//! register NFS V3 on TCP"; it is reached through a socket in /run. It does without D-Bus and
//! Kerberos, about which it complains in its log. `Bind_addr = 127.0.0.1` makes it exit if
//! loopback is the only interface, so it listens on all addresses of its namespace.
//!
//! The configuration is what an administrator would write for a trusted local network: number of
//! threads, caches and transfer sizes are its defaults, nothing is logged but warnings. Quotas and
//! ACLs are off, and so are locks unless they are measured, which it can only gain from. File data
//! is not synchronised more often than the protocol asks, by either server.
//!
//! For locks it needs rpc.statd, which it tells of every client (address) whose first lock it grants
//! and whose last lock is released: a lone client that locks and unlocks pays for that each time.
//! The processor time of rpcbind and rpc.statd counts as its own. It would grant no lock until its
//! grace period of 90 s is over, even if it never had a client; `Graceless` spares us that, except
//! where a restart is measured.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::Options;
use client::rpcbind::{RpcTransport, find};
use testbed::process::{Process, tail};
use wire::rpcbind::Netid;

use crate::rpcbind;
use crate::server::Server;
use load::Target;

pub(crate) const PROGRAM: &str = "ganesha.nfsd";
pub(crate) const NFS_PORT: u16 = 20_490;
pub(crate) const MOUNT_PORT: u16 = 20_491;
pub(crate) const NLM_PORT: u16 = 20_492;

#[derive(Debug)]
pub(crate) struct Ganesha {
    pub(crate) server: Server,
    dir: PathBuf,
    config: PathBuf,
    log: PathBuf,
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
    /// Serves `dir`; `state` takes its configuration and log. Only inside a namespace of our own,
    /// where port 111, /run and /var/lib/nfs are free.
    pub(crate) async fn start(
        dir: &Path,
        state: &Path,
        options: &Options,
        locks: bool,
    ) -> Result<Self> {
        let rpcbind = rpcbind::start().await?;
        let statd = if locks { Some(start_statd().await?) } else { None };
        let config = state.join("ganesha.conf");
        let mode = if locks { Locks::Now } else { Locks::Off };
        fs::write(&config, configuration(dir, mode))?;
        let log = state.join("ganesha.log");
        let mut command = Command::new(PROGRAM);
        command.args(["-F", "-L"]).arg(&log).arg("-f").arg(&config);
        command.arg("-p").arg(state.join("ganesha.pid"));
        let target = Target {
            nfs: SocketAddr::from((Ipv4Addr::LOCALHOST, NFS_PORT)),
            mount: SocketAddr::from((Ipv4Addr::LOCALHOST, MOUNT_PORT)),
            nlm: locks.then_some(SocketAddr::from((Ipv4Addr::LOCALHOST, NLM_PORT))),
            export: dir.to_string_lossy().into_owned(),
            options: options.clone(),
        };
        let mut server = Server::start("ganesha", command, Path::new("/dev/null"), target)
            .await
            .with_context(|| log_tail(&log))?;
        server.helpers.extend(statd);
        server.helpers.push(rpcbind);
        Ok(Self { server, dir: dir.to_owned(), config, log })
    }

    /// The end of its log, for an error.
    pub(crate) fn log_tail(&self) -> String {
        log_tail(&self.log)
    }

    /// Configures a grace period, as other servers have, from its next start on.
    pub(crate) fn grace(&self) -> impl FnOnce() -> Result<()> + use<> {
        let (config, text) = (self.config.clone(), configuration(&self.dir, Locks::AfterGrace));
        move || fs::write(&config, text).context("its configuration")
    }
}

fn log_tail(log: &Path) -> String {
    format!("its log ends:\n{}", tail(log, 5))
}

/// Without it nfs-ganesha refuses locks (DENIED_NOLOCKS).
async fn start_statd() -> Result<Process> {
    let mut command = Command::new("rpc.statd");
    command.args(["--foreground", "--no-notify"]);
    let mut statd = Process::start(&mut command, Path::new("/dev/null"))?;
    let service = (wire::nsm::PROGRAM, wire::nsm::VERSION);
    for _ in 0..500 {
        statd.check()?;
        if find(rpcbind::ADDRESS, RpcTransport::Tcp, service, Netid::Tcp, &Options::default())
            .await
            .is_ok()
        {
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
LOG {{ Default_Log_Level = WARN; }}
"
    )
}
