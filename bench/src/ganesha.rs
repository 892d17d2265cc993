//! The server to compare with: Debian's nfs-ganesha on a local directory.
//!
//! What it needs to start, found by trying: rpcbind, since without one it exits after "Cannot
//! register NFS V3 on TCP"; it is reached through a socket in /run. It does without D-Bus and
//! Kerberos, about which it complains in its log. `Bind_addr = 127.0.0.1` makes it exit if
//! loopback is the only interface, so it listens on all addresses of its namespace.
//!
//! The configuration is what an administrator would write for a trusted local network: number of
//! threads, caches and transfer sizes are its defaults, nothing is logged but warnings. Locks,
//! quotas and ACLs are off, which it can only gain from. File data is not synchronised more
//! often than the protocol asks, by either server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use client::Options;

use crate::Target;
use crate::server::{Process, Server};

pub(crate) const PROGRAM: &str = "ganesha.nfsd";
const NFS_PORT: u16 = 20_490;
const MOUNT_PORT: u16 = 20_491;

#[derive(Debug)]
pub(crate) struct Ganesha {
    pub(crate) server: Server,
    _rpcbind: Process,
}

impl Ganesha {
    /// Serves `dir`; `state` takes its configuration and log. Only inside a namespace of our own,
    /// where port 111 and /run are free.
    pub(crate) async fn start(dir: &Path, state: &Path, options: &Options) -> Result<Self> {
        let rpcbind = start_rpcbind().await?;
        let config = state.join("ganesha.conf");
        fs::write(&config, configuration(dir))?;
        let log = state.join("ganesha.log");
        let mut command = Command::new(PROGRAM);
        command.args(["-F", "-L"]).arg(&log).arg("-f").arg(&config);
        command.arg("-p").arg(state.join("ganesha.pid"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let target = Target {
            nfs: SocketAddr::from((Ipv4Addr::LOCALHOST, NFS_PORT)),
            mount: SocketAddr::from((Ipv4Addr::LOCALHOST, MOUNT_PORT)),
            export: dir.to_string_lossy().into_owned(),
            options: options.clone(),
        };
        let server = Server::start("ganesha", command, target).await.with_context(|| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            format!("its log ends, last line first: {last:#?}")
        })?;
        Ok(Self { server, _rpcbind: rpcbind })
    }
}

async fn start_rpcbind() -> Result<Process> {
    let mut command = Command::new("rpcbind");
    command.args(["-f", "-w"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut rpcbind = Process::spawn(command)?;
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, wire::rpcbind::PORT));
    for _ in 0..500 {
        rpcbind.check()?;
        if tokio::net::TcpStream::connect(at).await.is_ok() {
            return Ok(rpcbind);
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    anyhow::bail!("rpcbind does not listen")
}

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "NFS_CORE_PARAM {{
  Protocols = 3;
  NFS_Port = {NFS_PORT};
  MNT_Port = {MOUNT_PORT};
  Enable_NLM = false;
  Enable_RQUOTA = false;
  Enable_UDP = false;
}}
NFS_KRB5 {{ Active_krb5 = false; }}
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
