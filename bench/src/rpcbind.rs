//! Debian's rpcbind, one for the namespace: nfs-ganesha does not start without it, and servers ask
//! it where a waiter listens ([`crate::grantee`]).

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use testbed::process::Process;

use crate::link::Link;

/// Where the servers' rpcbind is reached.
pub(crate) fn at(link: Link) -> SocketAddr {
    SocketAddr::from((link.server(), wire::rpcbind::PORT))
}

/// Returns once it listens. `program` is the command that runs it; its log is below `state`.
pub(crate) async fn start(link: Link, mut program: Command, state: &Path) -> Result<Process> {
    program.args(["-f", "-w"]);
    let mut rpcbind = Process::start(&mut link.beyond(program), &state.join("rpcbind.log"))?;
    for _ in 0..500 {
        rpcbind.check()?;
        if tokio::net::TcpStream::connect(at(link)).await.is_ok() {
            return Ok(rpcbind);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("rpcbind does not listen")
}
