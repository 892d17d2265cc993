//! Which process, or the kernel, listens on a local port.

use std::collections::BTreeSet;
use std::fs;

use client::rpcbind::RpcTransport;

/// `rpc.statd (pid 77)` or `the kernel`; `None` if the port is free or permissions do not suffice.
pub(super) fn of_port(port: u16, over: RpcTransport) -> Option<String> {
    let tables = match over {
        RpcTransport::Tcp => ["/proc/net/tcp", "/proc/net/tcp6"],
        RpcTransport::Udp => ["/proc/net/udp", "/proc/net/udp6"],
    };
    let mut sockets = BTreeSet::new();
    for table in tables {
        let text = fs::read_to_string(table).unwrap_or_default();
        sockets.extend(text.lines().skip(1).filter_map(|line| listening(line, port, over)));
    }
    if sockets.is_empty() {
        return None;
    }
    match holders(&sockets).into_iter().collect::<Vec<_>>().as_slice() {
        [] if rustix::process::geteuid().is_root() => Some("the kernel".into()),
        [] => None,
        // With socket activation systemd has the socket open too; the other process answers.
        [1] => Some("systemd (pid 1)".into()),
        [1, pid, ..] | [pid, ..] => Some(format!("{} (pid {pid})", name(*pid))),
    }
}

/// Parses a line of /proc/net/tcp: the inode of a socket listening on `port`.
fn listening(line: &str, port: u16, over: RpcTransport) -> Option<u64> {
    const LISTEN: &str = "0A";
    let words: Vec<&str> = line.split_whitespace().collect();
    let (_, at) = words.get(1)?.rsplit_once(':')?;
    let here = u16::from_str_radix(at, 16).ok()? == port;
    let open = over == RpcTransport::Udp || *words.get(3)? == LISTEN;
    if here && open { words.get(9)?.parse().ok() } else { None }
}

/// Ids of the processes that have one of these sockets open.
fn holders(sockets: &BTreeSet<u64>) -> BTreeSet<u32> {
    let wanted: BTreeSet<String> =
        sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_one = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.any(|link| link.to_str().is_some_and(|link| wanted.contains(link)))
    };
    numbers.filter(has_one).collect()
}

fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_found_behind_our_own_ports() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let us = format!("(pid {})", std::process::id());
        let owner = of_port(tcp.local_addr().unwrap().port(), RpcTransport::Tcp).unwrap();
        assert!(owner.ends_with(&us), "{owner}");
        let owner = of_port(udp.local_addr().unwrap().port(), RpcTransport::Udp).unwrap();
        assert!(owner.ends_with(&us), "{owner}");
        let port = tcp.local_addr().unwrap().port();
        drop(tcp);
        assert_eq!(of_port(port, RpcTransport::Tcp), None);
    }
}
