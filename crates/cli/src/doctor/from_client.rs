//! `doctor --mount SERVER:/EXPORT`, on a client: whether addresses are translated on the way to a server.
//!
//! Only a client knows both ends. The server's side is in standard replies: its rpcbind answers GETADDR with
//! the address at which the call arrived, and its mount table (MOUNT DUMP) has ours as it saw it.

use std::net::{IpAddr, SocketAddr};

use client::rpcbind::{RpcTransport, Rpcbind};
use client::{Connection, Options, mount};
use wire::mount::{Dump, Mounts};

use super::finding::{Finding, fail, ok};
use super::names;
use super::rpc_probe::{self, netid};

const CODE: &str = "LK286";

/// `server` is what is mounted: `filer:/srv`.
pub(super) async fn check(server: &str) -> Vec<Finding> {
    let Some((host, path)) = server.split_once(":/").map(|(host, path)| (host, format!("/{path}")))
    else {
        let fix = "write it as it is mounted, such as filer:/srv/projects";
        return vec![fail(CODE, format!("{server} is not SERVER:/EXPORT"), fix)];
    };
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let found = match name.parse() {
        Ok(address) => Some(address),
        Err(_) => names::forward(name).await.first().copied(),
    };
    let Some(mounted) = found else {
        let fix = format!("use its address, or make {name} resolve: getent hosts {name}");
        return vec![fail(CODE, format!("{name} does not resolve to an address"), fix)];
    };
    match look(mounted, &path).await {
        Ok(ends) => judge(&ends, &path),
        Err(finding) => vec![finding],
    }
}

/// Both addresses of the way, as each end has them.
struct Ends {
    mounted: IpAddr,
    /// Of the server, by its own account.
    arrived: IpAddr,
    ours: IpAddr,
    /// Addresses that the server's mount table has for this machine: one, unless others have mounted the same
    /// directory and this machine was in the table already.
    seen: Vec<IpAddr>,
}

async fn look(mounted: IpAddr, path: &str) -> Result<Ends, Finding> {
    let at = SocketAddr::new(mounted, wire::rpcbind::PORT);
    let no_rpcbind = |error: String| {
        let fix =
            "without rpcbind clients find no lock manager: mount with nolock, or allow port 111";
        fail(CODE, format!("rpcbind of {mounted} cannot be asked: {error}"), fix)
    };
    let reserved_port = rustix::process::geteuid().is_root();
    let options = Options { reserved_port, ..rpc_probe::options() };
    let rpcbind = Rpcbind::connect(at, RpcTransport::Tcp, &options).await;
    let mut rpcbind = rpcbind.map_err(|error| no_rpcbind(error.to_string()))?;
    let netid = netid(at, RpcTransport::Tcp);
    let nfs = rpcbind.get_addr(wire::nfs3::PROGRAM, wire::nfs3::VERSION, netid, at).await;
    let arrived = nfs.map_err(|error| no_rpcbind(error.to_string()))?.ip();
    let mountd = rpcbind.get_addr(wire::mount::PROGRAM, wire::mount::V3, netid, at).await;
    let port = mountd.map_err(|error| no_rpcbind(error.to_string()))?.port();

    let refused = |error: String| {
        let fix = "run it as root, and see who may mount: `admits` in the banner of the server, and its log";
        fail(CODE, format!("{mounted}:{path} cannot be mounted from here: {error}"), fix)
    };
    let connection = Connection::connect(SocketAddr::new(mounted, port), &options).await;
    let connection = connection.map_err(|error| refused(error.to_string()))?;
    let ours = connection.local().ok_or_else(|| refused("no local address".into()))?.ip();
    let table = async || match connection.call::<Dump>(&()).await {
        Ok(mounts) => Ok(addresses(&mounts, path)),
        Err(error) => Err(refused(error.to_string())),
    };
    let before = table().await?;
    mount::mount(&connection, path).await.map_err(|error| refused(error.to_string()))?;
    let after = table().await?;
    let added: Vec<IpAddr> = after.iter().copied().filter(|one| !before.contains(one)).collect();
    if !added.is_empty() {
        // The entry is ours, and nothing is mounted.
        let _ = mount::unmount(&connection, path).await;
    }
    let seen = if added.is_empty() { after } else { added };
    Ok(Ends { mounted, arrived, ours, seen })
}

fn addresses(mounts: &Mounts, path: &str) -> Vec<IpAddr> {
    let of_path = mounts.0.iter().filter(|mount| mount.path[..] == *path.as_bytes());
    let hosts = of_path.filter_map(|mount| std::str::from_utf8(&mount.host).ok()?.parse().ok());
    hosts.map(|address: IpAddr| address.to_canonical()).collect()
}

fn judge(ends: &Ends, path: &str) -> Vec<Finding> {
    let Ends { mounted, arrived, ours, seen } = ends;
    let mut findings = Vec::new();
    if arrived != mounted {
        findings.push(fail(
            "LK298",
            format!(
                "{mounted} is translated on the way: the server is {arrived}. This machine takes no GRANTED \
                 from {arrived}, so that it gets a lock it waits for up to 30 s late, and it ignores the \
                 notice of a restart, so that its locks are lost then"
            ),
            format!(
                "mount {arrived}:{path} by a route without translation; or give the server {mounted} itself \
                 (ip addr add {mounted} dev DEVICE) and forward packets to it unchanged"
            ),
        ));
    }
    if !seen.contains(ours) {
        let shown = seen.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        findings.push(fail(
            "LK297",
            format!(
                "the server sees this machine ({ours}) as {shown}: its calls for granted locks and restarts \
                 go there, and machines behind that address are one for fences and limits"
            ),
            format!(
                "on the router: nft insert rule ip nat POSTROUTING ip daddr {arrived} accept; on the server: a \
                 route back to {ours}"
            ),
        ));
    }
    if findings.is_empty() {
        findings.push(ok(format!(
            "no address is translated between this machine ({ours}) and the server ({mounted})"
        )));
    }
    findings
}
