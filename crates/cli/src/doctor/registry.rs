//! Registrations of the server's programs with this host's rpcbind, and the owner of port 111.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use client::rpcbind::{RpcTransport, Rpcbind};
use tokio::task::JoinSet;
use wire::rpcbind::{Binding, Netid, parse_universal, v2, v4};

use super::facts::Facts;
use super::finding::{Finding, fail, ok, service, warn};
use super::port_owner;
use super::rpc_probe::{self, ProbeResult};
use super::settings::ServerSettings;
use crate::cli;

/// Program, versions that clients look up, and name.
const PROGRAMS: [(u32, &[u32], &str); 4] = [
    (wire::nfs3::PROGRAM, &[3], "NFS"),
    (wire::mount::PROGRAM, &[1, 3], "MOUNT"),
    (wire::nlm::PROGRAM, &[1, 3, 4], "the lock manager"),
    (wire::nsm::PROGRAM, &[1], "the status monitor"),
];

pub(super) struct Registry {
    pub result: ProbeResult,
    /// Process listening on port 111.
    pub owner: Option<String>,
    /// Registrations of the four programs.
    pub entries: Vec<Registration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registration {
    pub program: u32,
    pub version: u32,
    pub netid: Netid,
    pub port: u16,
    /// If it is not this server's port: whether a program answers there, and its process.
    pub other_server: Option<(ProbeResult, Option<String>)>,
}

impl Registry {
    pub(super) async fn ask(settings: &ServerSettings) -> Self {
        let null = (wire::rpcbind::PROGRAM, wire::rpcbind::V2);
        let (mut result, mut entries) = (ProbeResult::Refused, Vec::new());
        for at in settings.rpcbind_addresses() {
            result = rpc_probe::null_call(at, RpcTransport::Tcp, null).await;
            if result == ProbeResult::Refused {
                continue;
            }
            if result.is_answer() {
                entries = listed(at).await;
            }
            break;
        }
        let owner = port_owner::of_port(wire::rpcbind::PORT, RpcTransport::Tcp);
        Self { result, owner, entries: probe_other_ports(entries, settings).await }
    }

    fn has(&self, program: u32, version: u32, netid: Netid) -> bool {
        let wanted = (program, version, netid);
        self.entries.iter().any(|entry| (entry.program, entry.version, entry.netid) == wanted)
    }
}

async fn listed(at: SocketAddr) -> Vec<Registration> {
    let Ok(mut rpcbind) = Rpcbind::connect(at, RpcTransport::Tcp, &rpc_probe::options()).await
    else {
        return Vec::new();
    };
    let mut entries: Vec<Registration> = match rpcbind.call::<v4::Dump>(&()).await {
        Ok(list) => list.0.iter().filter_map(of_binding).collect(),
        // rpcbind version 2 lists IPv4 only.
        Err(_) => match rpcbind.call::<v2::Dump>(&()).await {
            Ok(list) => list.0.iter().filter_map(of_mapping).collect(),
            Err(_) => Vec::new(),
        },
    };
    entries.retain(|entry| PROGRAMS.iter().any(|(program, ..)| *program == entry.program));
    entries
}

fn of_binding(binding: &Binding) -> Option<Registration> {
    let netid = Netid::parse(&binding.netid)?;
    let port = parse_universal(&binding.address)?.port();
    let (program, version) = (binding.program, binding.version);
    Some(Registration { program, version, netid, port, other_server: None })
}

fn of_mapping(mapping: &wire::rpcbind::Mapping) -> Option<Registration> {
    let netid = [Netid::Tcp, Netid::Udp].into_iter().find(|n| n.protocol() == mapping.protocol)?;
    let port = u16::try_from(mapping.port).ok()?;
    let (program, version) = (mapping.program, mapping.version);
    Some(Registration { program, version, netid, port, other_server: None })
}

/// Probes registrations with other ports than this server's.
async fn probe_other_ports(
    entries: Vec<Registration>,
    settings: &ServerSettings,
) -> Vec<Registration> {
    let ours = settings.port();
    let mut asked = JoinSet::new();
    for (index, mut entry) in entries.into_iter().enumerate() {
        asked.spawn(async move {
            // Port 0 was chosen by the system and is unknown here.
            if ours != 0 && entry.port != ours {
                let loopback: IpAddr = match entry.netid.is_v6() {
                    true => Ipv6Addr::LOCALHOST.into(),
                    false => Ipv4Addr::LOCALHOST.into(),
                };
                let at = SocketAddr::new(loopback, entry.port);
                let over = over(entry.netid);
                let result = rpc_probe::null_call(at, over, (entry.program, entry.version)).await;
                entry.other_server = Some((result, port_owner::of_port(entry.port, over)));
            }
            (index, entry)
        });
    }
    let mut entries = asked.join_all().await;
    entries.sort_by_key(|(index, _)| *index);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

fn over(netid: Netid) -> RpcTransport {
    match netid {
        Netid::Tcp | Netid::Tcp6 => RpcTransport::Tcp,
        Netid::Udp | Netid::Udp6 => RpcTransport::Udp,
    }
}

/// Port 111 and the registrations that clients find there.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    if facts.settings.rpcbind == cli::Rpcbind::Off {
        return vec![warn(
            "LK240",
            "rpcbind is off: Linux clients cannot find the lock manager",
            "remove --rpcbind off (rpcbind = \"auto\" under [rpc]); until then mount with nolock",
        )];
    }
    let other_servers = other_servers(facts);
    let mut findings = other_servers;
    findings.extend(who_has_111(facts));
    if facts.registry.result.is_answer() && findings.is_empty() {
        findings.extend(registrations(facts));
    }
    findings
}

fn who_has_111(facts: &Facts) -> Option<Finding> {
    let Registry { result, owner, .. } = &facts.registry;
    let who = owner.as_deref().unwrap_or("another program");
    let is_ours = facts.process.as_ref().is_some_and(|server| Some(server.shown()) == *owner);
    let serves = facts.is_running() && !facts.is_standby();
    let wants_it = facts.settings.rpcbind == cli::Rpcbind::Embedded;
    match result {
        ProbeResult::Answers if wants_it && !is_ours => Some(fail(
            "LK243",
            format!("port 111 is in use by {who}, but rpcbind = \"embedded\" requires it"),
            "set rpcbind = \"auto\" under [rpc]; or systemctl disable --now rpcbind.socket \
             rpcbind.service",
        )),
        ProbeResult::Answers => None,
        ProbeResult::Refused if serves => Some(fail(
            "LK241",
            "nothing answers on port 111 of this host: clients cannot find the lock manager",
            format!(
                "{}; if its log reports no permission for port 111, run it as root, or start \
                 rpcbind: systemctl enable --now rpcbind.socket",
                service("restart")
            ),
        )),
        ProbeResult::Refused if facts.settings.rpcbind == cli::Rpcbind::System => Some(fail(
            "LK241",
            "nothing answers on port 111, but rpcbind = \"system\" requires the host's rpcbind",
            "systemctl enable --now rpcbind.socket; or set rpcbind = \"auto\" under [rpc]",
        )),
        ProbeResult::Refused => Some(ok("port 111 is free: the server will use it")),
        result => Some(fail(
            "LK242",
            format!("port 111 of this host ({who}) {}", result.describe()),
            "allow loopback in the firewall: nft insert rule inet filter input iif lo accept; if \
             that does not help: systemctl restart rpcbind",
        )),
    }
}

/// Registrations of other servers, alive or dead.
fn other_servers(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (program, _, name) in PROGRAMS {
        let of_program = || facts.registry.entries.iter().filter(|e| e.program == program);
        let alive = of_program().find_map(|entry| match &entry.other_server {
            Some((ProbeResult::Answers, owner)) => Some((entry, owner)),
            _ => None,
        });
        if let Some((entry, owner)) = alive {
            let who = whose(program, owner.as_deref());
            let port = entry.port;
            findings.push(fail(
                "LK244",
                format!("{name} (program {program}) is registered for {who} on port {port}, not this server"),
                how_to_stop(program, owner.as_deref()),
            ));
        } else if let Some(dead) = of_program().find(|entry| entry.other_server.is_some()) {
            let (port, ours) = (dead.port, facts.settings.port());
            findings.push(fail(
                "LK246",
                format!(
                    "{name} (program {program}) is registered on port {port}, where nothing answers; \
                     the server uses {ours}"
                ),
                format!(
                    "{} (it replaces stale registrations); or rpcinfo -d {program} {}",
                    service("restart"),
                    dead.version
                ),
            ));
        }
    }
    findings
}

fn whose(program: u32, owner: Option<&str>) -> String {
    match (owner, program) {
        (Some("the kernel"), wire::nlm::PROGRAM) => "the kernel's lockd".into(),
        (Some("the kernel"), _) => "the kernel's server".into(),
        (Some(owner), _) => owner.into(),
        (None, _) => "another program".into(),
    }
}

fn how_to_stop(program: u32, owner: Option<&str>) -> String {
    match (program, owner) {
        (wire::nlm::PROGRAM, Some("the kernel") | None) => {
            "unmount NFS version 3 mounts of this host, or mount them with nolock; and systemctl \
             disable --now nfs-server"
        }
        (wire::nsm::PROGRAM, Some("the kernel") | None) => "systemctl disable --now rpc-statd",
        (wire::nsm::PROGRAM, Some(who)) if who.starts_with("rpc.statd") => {
            "systemctl disable --now rpc-statd"
        }
        (wire::mount::PROGRAM, Some(who)) if who.starts_with("rpc.mountd") => {
            "systemctl disable --now nfs-mountd nfs-server"
        }
        (wire::nfs3::PROGRAM | wire::mount::PROGRAM, Some("the kernel") | None) => {
            "systemctl disable --now nfs-server"
        }
        (_, Some(who)) if who.starts_with("ganesha") => "systemctl disable --now nfs-ganesha",
        (_, Some(who)) => return format!("stop {who}, then {}", service("restart")),
        (_, None) => "find it with rpcinfo -p and stop it, then restart the server",
    }
    .into()
}

fn registrations(facts: &Facts) -> Option<Finding> {
    let registry = &facts.registry;
    let by = registry.owner.as_deref().unwrap_or("rpcbind");
    if !facts.is_running() || facts.is_standby() {
        return Some(ok(format!("port 111 is served by {by}; the server will register there")));
    }
    let netids: &[Netid] = match facts.settings.listen {
        SocketAddr::V4(_) => &[Netid::Tcp, Netid::Udp],
        SocketAddr::V6(at) if at.ip().is_unspecified() => &[Netid::Tcp, Netid::Udp],
        SocketAddr::V6(_) => &[Netid::Tcp6, Netid::Udp6],
    };
    let mut missing = Vec::new();
    for (program, versions, name) in PROGRAMS {
        let lacks = |version: &&u32| netids.iter().any(|n| !registry.has(program, **version, *n));
        if versions.iter().any(|version| lacks(&version)) {
            missing.push(format!("{name} ({program})"));
        }
    }
    if missing.is_empty() {
        let port = facts.settings.port();
        return Some(ok(format!("port 111 is served by {by} and directs clients to port {port}")));
    }
    Some(fail(
        "LK245",
        format!("not registered with this host's rpcbind: {}", missing.join(", ")),
        format!("wait 30 s for the server to register again; else {}", service("restart")),
    ))
}
