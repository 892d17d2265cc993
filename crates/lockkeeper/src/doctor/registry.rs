//! What this host's rpcbind says about our programs, and who has its port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use client::rpcbind::{Over, Rpcbind};
use tokio::task::JoinSet;
use wire::rpcbind::{Binding, Netid, parse_universal, v2, v4};

use super::facts::Facts;
use super::finding::{Finding, fail, ok, service, warn};
use super::owner;
use super::plan::Plan;
use super::reach::{self, Reach};
use crate::cli;

/// What a client must find, and what it is called.
const PROGRAMS: [(u32, &[u32], &str); 4] = [
    (wire::nfs3::PROGRAM, &[3], "NFS"),
    (wire::mount::PROGRAM, &[1, 3], "MOUNT"),
    (wire::nlm::PROGRAM, &[1, 3, 4], "the lock manager"),
    (wire::nsm::PROGRAM, &[1], "the status monitor"),
];

pub struct Registry {
    pub reach: Reach,
    /// Who listens on port 111.
    pub owner: Option<String>,
    /// Registrations of our programs.
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub program: u32,
    pub version: u32,
    pub netid: Netid,
    pub port: u16,
    /// If it is not our port: whether somebody answers there, and who.
    pub stranger: Option<(Reach, Option<String>)>,
}

impl Registry {
    pub async fn ask(plan: &Plan) -> Self {
        let null = (wire::rpcbind::PROGRAM, wire::rpcbind::V2);
        let (mut reach, mut entries) = (Reach::Refused, Vec::new());
        for at in plan.rpcbind_places() {
            reach = reach::ask(at, Over::Tcp, null).await;
            if reach == Reach::Refused {
                continue;
            }
            if reach.is_fine() {
                entries = listed(at).await;
            }
            break;
        }
        let owner = owner::of_port(wire::rpcbind::PORT, Over::Tcp);
        Self { reach, owner, entries: with_strangers(entries, plan).await }
    }

    fn has(&self, program: u32, version: u32, netid: Netid) -> bool {
        let wanted = (program, version, netid);
        self.entries.iter().any(|entry| (entry.program, entry.version, entry.netid) == wanted)
    }
}

async fn listed(at: SocketAddr) -> Vec<Entry> {
    let Ok(mut rpcbind) = Rpcbind::connect(at, Over::Tcp, &reach::options()).await else {
        return Vec::new();
    };
    let mut entries: Vec<Entry> = match rpcbind.call::<v4::Dump>(&()).await {
        Ok(list) => list.0.iter().filter_map(of_binding).collect(),
        // An old one knows IPv4 alone.
        Err(_) => match rpcbind.call::<v2::Dump>(&()).await {
            Ok(list) => list.0.iter().filter_map(of_mapping).collect(),
            Err(_) => Vec::new(),
        },
    };
    entries.retain(|entry| PROGRAMS.iter().any(|(program, ..)| *program == entry.program));
    entries
}

fn of_binding(binding: &Binding) -> Option<Entry> {
    let netid = Netid::parse(&binding.netid)?;
    let port = parse_universal(&binding.address)?.port();
    let (program, version) = (binding.program, binding.version);
    Some(Entry { program, version, netid, port, stranger: None })
}

fn of_mapping(mapping: &wire::rpcbind::Mapping) -> Option<Entry> {
    let netid = [Netid::Tcp, Netid::Udp].into_iter().find(|n| n.protocol() == mapping.protocol)?;
    let port = u16::try_from(mapping.port).ok()?;
    let (program, version) = (mapping.program, mapping.version);
    Some(Entry { program, version, netid, port, stranger: None })
}

/// Asks those at other ports whether they live.
async fn with_strangers(entries: Vec<Entry>, plan: &Plan) -> Vec<Entry> {
    let ours = plan.port();
    let mut asked = JoinSet::new();
    for (place, mut entry) in entries.into_iter().enumerate() {
        asked.spawn(async move {
            // Port 0 was the system's choice, and nobody here knows it.
            if ours != 0 && entry.port != ours {
                let loopback: IpAddr = match entry.netid.is_v6() {
                    true => Ipv6Addr::LOCALHOST.into(),
                    false => Ipv4Addr::LOCALHOST.into(),
                };
                let at = SocketAddr::new(loopback, entry.port);
                let over = over(entry.netid);
                let reach = reach::ask(at, over, (entry.program, entry.version)).await;
                entry.stranger = Some((reach, owner::of_port(entry.port, over)));
            }
            (place, entry)
        });
    }
    let mut entries = asked.join_all().await;
    entries.sort_by_key(|(place, _)| *place);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

fn over(netid: Netid) -> Over {
    match netid {
        Netid::Tcp | Netid::Tcp6 => Over::Tcp,
        Netid::Udp | Netid::Udp6 => Over::Udp,
    }
}

/// Port 111, and what clients are told there.
pub fn check(facts: &Facts) -> Vec<Finding> {
    if facts.plan.rpcbind == cli::Rpcbind::Off {
        return vec![warn(
            "LK240",
            "rpcbind is switched off: Linux clients ask port 111 where to lock, and find nothing",
            "serve without --rpcbind off (rpcbind = \"auto\" under [rpc]); until then mount with \
             nolock",
        )];
    }
    let strangers = strangers(facts);
    let mut findings = strangers;
    findings.extend(who_has_111(facts));
    if facts.registry.reach.is_fine() && findings.is_empty() {
        findings.extend(registrations(facts));
    }
    findings
}

fn who_has_111(facts: &Facts) -> Option<Finding> {
    let Registry { reach, owner, .. } = &facts.registry;
    let who = owner.as_deref().unwrap_or("another program");
    let is_ours = facts.process.as_ref().is_some_and(|server| Some(server.shown()) == *owner);
    let serves = facts.is_running() && !facts.is_standby();
    let wants_it = facts.plan.rpcbind == cli::Rpcbind::Embedded;
    match reach {
        Reach::Answers if wants_it && !is_ours => Some(fail(
            "LK243",
            format!("port 111 is taken by {who}, and rpcbind = \"embedded\" wants it"),
            "set rpcbind = \"auto\" under [rpc]; or systemctl disable --now rpcbind.socket \
             rpcbind.service",
        )),
        Reach::Answers => None,
        Reach::Refused if serves => Some(fail(
            "LK241",
            "nobody answers at port 111 of this host: clients cannot find the lock manager",
            format!(
                "{}; if its log says that it may not have port 111, run it as root, or start \
                 rpcbind: systemctl enable --now rpcbind.socket",
                service("restart")
            ),
        )),
        Reach::Refused if facts.plan.rpcbind == cli::Rpcbind::System => Some(fail(
            "LK241",
            "nobody answers at port 111, and rpcbind = \"system\" needs the host's",
            "systemctl enable --now rpcbind.socket; or set rpcbind = \"auto\" under [rpc]",
        )),
        Reach::Refused => Some(ok("port 111 is free: the server will serve it")),
        reach => Some(fail(
            "LK242",
            format!("port 111 of this host ({who}) {}", reach.words()),
            "let loopback through the firewall: nft insert rule inet filter input iif lo accept; \
             if it is through, systemctl restart rpcbind",
        )),
    }
}

/// Others that serve our programs, alive or dead.
fn strangers(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (program, _, name) in PROGRAMS {
        let of_program = || facts.registry.entries.iter().filter(|e| e.program == program);
        let alive = of_program().find_map(|entry| match &entry.stranger {
            Some((Reach::Answers, owner)) => Some((entry, owner)),
            _ => None,
        });
        if let Some((entry, owner)) = alive {
            let who = whose(program, owner.as_deref());
            let port = entry.port;
            findings.push(fail(
                "LK244",
                format!("{name} (program {program}) of this host is {who} at port {port}, not us"),
                how_to_stop(program, owner.as_deref()),
            ));
        } else if let Some(dead) = of_program().find(|entry| entry.stranger.is_some()) {
            let (port, ours) = (dead.port, facts.plan.port());
            findings.push(fail(
                "LK246",
                format!(
                    "{name} (program {program}) is registered at port {port}, where nobody \
                     answers; we are at {ours}"
                ),
                format!(
                    "{} (it replaces what a dead one left); or rpcinfo -d {program} {}",
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
        (Some("the kernel"), _) => "the kernel's own server".into(),
        (Some(owner), _) => owner.into(),
        (None, _) => "another program".into(),
    }
}

fn how_to_stop(program: u32, owner: Option<&str>) -> String {
    match (program, owner) {
        (wire::nlm::PROGRAM, Some("the kernel") | None) => {
            "umount what this host mounts by NFS version 3, or mount it with nolock; and systemctl \
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
        (_, None) => "rpcinfo -p shows it; stop it, then restart the server",
    }
    .into()
}

fn registrations(facts: &Facts) -> Option<Finding> {
    let registry = &facts.registry;
    let by = registry.owner.as_deref().unwrap_or("rpcbind");
    if !facts.is_running() || facts.is_standby() {
        return Some(ok(format!("port 111 is served by {by}: the server will register there")));
    }
    let netids: &[Netid] = match facts.plan.listen {
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
        let port = facts.plan.port();
        return Some(ok(format!("port 111 is served by {by}, which sends clients to {port}")));
    }
    Some(fail(
        "LK245",
        format!("not registered with rpcbind of this host: {}", missing.join(", ")),
        format!("wait 30 s: the server looks again by itself; else {}", service("restart")),
    ))
}
