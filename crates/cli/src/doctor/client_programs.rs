//! Checks whether a client's rpcbind, statd and lockd answer.

use std::net::IpAddr;

use super::client::{Client, TransportResults, reachable};
use super::facts::Facts;
use super::finding::{Finding, fail, ok, warn};
use super::rpc_probe::ProbeResult;

pub(super) fn rpcbind(facts: &Facts) -> Vec<Finding> {
    let Some((client, address)) = reachable(facts) else { return Vec::new() };
    let who = client.shown();
    let port = facts.settings.peer_rpcbind_port;
    let from = match client.from {
        Some(from @ IpAddr::V4(_)) => format!("ip saddr {from} "),
        Some(from @ IpAddr::V6(_)) => format!("ip6 saddr {from} "),
        None => String::new(),
    };
    let open = |transport: &str| {
        format!("on {who}: nft insert rule inet filter input {from}{transport} dport {port} accept")
    };
    let TransportResults { tcp, udp } = &client.rpcbind;
    vec![match (tcp, udp) {
        (ProbeResult::Answers, ProbeResult::Answers) => {
            ok(format!("{who}: rpcbind answers on port {port} over TCP and UDP"))
        }
        (ProbeResult::Answers, other) => warn(
            "LK265",
            format!("{who}: rpcbind answers over TCP, but over UDP it {}", other.describe()),
            open("udp"),
        ),
        (other, ProbeResult::Answers) => warn(
            "LK265",
            format!("{who}: rpcbind answers over UDP, but over TCP it {}", other.describe()),
            open("tcp"),
        ),
        (ProbeResult::Refused, _) => fail(
            "LK262",
            format!("{who}: port {port} refused: rpcbind is not running"),
            format!("on {who}: systemctl enable --now rpcbind.socket"),
        ),
        (ProbeResult::Silent, _) => fail(
            "LK263",
            format!(
                "{who}: port {port} does not respond: the machine is off, or a firewall drops packets"
            ),
            format!("ping it; {}", open("tcp")),
        ),
        (ProbeResult::NoWay(why), _) => fail(
            "LK264",
            format!(
                "{who}: unreachable ({why}): the machine is off, or a firewall rejects packets"
            ),
            format!("ip route get {}; {}", address, open("tcp")),
        ),
        (other, _) => fail(
            "LK266",
            format!("{who}: rpcbind {}", other.describe()),
            format!("on {who}: check /etc/hosts.deny, then systemctl restart rpcbind"),
        ),
    }]
}

/// A program of the client: what depends on it, and the codes and fixes of its findings.
struct Program {
    name: &'static str,
    purpose: &'static str,
    not_registered: &'static str,
    start: &'static str,
    refused: &'static str,
    restart: &'static str,
    silent: &'static str,
    /// How to give it a fixed port for the firewall.
    open: &'static str,
    half: &'static str,
}

const STATD: Program = Program {
    name: "statd",
    purpose: "it cannot be notified of a restart and will not reclaim its locks",
    not_registered: "LK270",
    start: "systemctl enable --now rpc-statd",
    refused: "LK271",
    restart: "systemctl restart rpc-statd",
    silent: "LK272",
    open: "port=662 under [statd] in /etc/nfs.conf, systemctl restart rpc-statd, and allow port \
           662 over TCP and UDP in the firewall",
    half: "LK273",
};

const LOCKD: Program = Program {
    name: "lockd",
    purpose: "a lock it waits for is granted only when it retries",
    not_registered: "LK275",
    start: "mount with NFS version 3 and without nolock; the first such mount starts lockd",
    refused: "LK276",
    restart: "unmount and remount everything of NFS version 3, which restarts lockd",
    silent: "LK277",
    open: "port=32803 and udp-port=32769 under [lockd] in /etc/nfs.conf, reboot, and allow both \
           in the firewall",
    half: "LK278",
};

pub(super) fn statd(facts: &Facts) -> Vec<Finding> {
    let client = reachable(facts).map(|(client, _)| client);
    client.and_then(|client| program(client, &client.statd, &STATD)).into_iter().collect()
}

pub(super) fn lockd(facts: &Facts) -> Vec<Finding> {
    let client = reachable(facts).map(|(client, _)| client);
    client.and_then(|client| program(client, &client.lockd, &LOCKD)).into_iter().collect()
}

fn program(client: &Client, found: &TransportResults, program: &Program) -> Option<Finding> {
    if !client.rpcbind.is_there() {
        // Without rpcbind its port is unknown; that has its own finding.
        return None;
    }
    let who = client.shown();
    let Program { name, purpose, .. } = program;
    let on = |what: &str| format!("on {who}: {what}");
    let registered =
        [&found.tcp, &found.udp].into_iter().find(|r| **r != ProbeResult::NotRegistered);
    Some(match (&found.tcp, &found.udp) {
        (ProbeResult::Answers, ProbeResult::Answers) => {
            ok(format!("{who}: {name} answers over TCP and UDP"))
        }
        (ProbeResult::Answers, other) | (other, ProbeResult::Answers) => {
            let over = if found.tcp.is_answer() { "UDP" } else { "TCP" };
            warn(
                program.half,
                format!("{who}: {name} answers, but over {over} it {}", other.describe()),
                on(if *other == ProbeResult::NotRegistered {
                    program.restart
                } else {
                    program.open
                }),
            )
        }
        _ => match registered {
            None => fail(
                program.not_registered,
                format!("{who}: {name} is not registered with its rpcbind: {purpose}"),
                on(program.start),
            ),
            Some(ProbeResult::Refused | ProbeResult::OtherProgram) => fail(
                program.refused,
                format!("{who}: {name} is registered, but not listening on its port: {purpose}"),
                on(program.restart),
            ),
            Some(other) => fail(
                program.silent,
                format!("{who}: {name} {}: {purpose}", other.describe()),
                on(program.open),
            ),
        },
    })
}
