//! Debian's rpcbind, one for the namespace: nfs-ganesha does not start without it, and servers ask
//! it where a waiter listens ([`crate::grantee`]).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use testbed::process::Process;

pub(crate) const ADDRESS: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), wire::rpcbind::PORT);

/// Returns once it listens.
pub(crate) async fn start() -> Result<Process> {
    let mut command = Command::new("rpcbind");
    command.args(["-f", "-w"]);
    let mut rpcbind = Process::start(&mut command, Path::new("/dev/null"))?;
    for _ in 0..500 {
        rpcbind.check()?;
        if tokio::net::TcpStream::connect(ADDRESS).await.is_ok() {
            return Ok(rpcbind);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("rpcbind does not listen")
}
