//! Whether a client's rpcbind, statd and lockd can be called from here.

use std::net::IpAddr;

use super::client::{Both, Client, reachable};
use super::facts::Facts;
use super::finding::{Finding, fail, ok, warn};
use super::reach::Reach;

pub fn rpcbind(facts: &Facts) -> Vec<Finding> {
    let Some((client, address)) = reachable(facts) else { return Vec::new() };
    let who = client.shown();
    let port = facts.plan.peer_rpcbind_port;
    let from = match client.from {
        Some(from @ IpAddr::V4(_)) => format!("ip saddr {from} "),
        Some(from @ IpAddr::V6(_)) => format!("ip6 saddr {from} "),
        None => String::new(),
    };
    let open = |transport: &str| {
        format!("on {who}: nft insert rule inet filter input {from}{transport} dport {port} accept")
    };
    let Both { tcp, udp } = &client.rpcbind;
    vec![match (tcp, udp) {
        (Reach::Answers, Reach::Answers) => {
            ok(format!("{who}: rpcbind answers at port {port}, over TCP and UDP"))
        }
        (Reach::Answers, other) => warn(
            "LK265",
            format!("{who}: rpcbind answers over TCP, but over UDP it {}", other.words()),
            open("udp"),
        ),
        (other, Reach::Answers) => warn(
            "LK265",
            format!("{who}: rpcbind answers over UDP, but over TCP it {}", other.words()),
            open("tcp"),
        ),
        (Reach::Refused, _) => fail(
            "LK262",
            format!("{who}: port {port} is refused: rpcbind does not run there"),
            format!("on {who}: systemctl enable --now rpcbind.socket"),
        ),
        (Reach::Silent, _) => fail(
            "LK263",
            format!(
                "{who}: port {port} is silent: the machine is off, or a firewall drops what we send"
            ),
            format!("ping it; {}", open("tcp")),
        ),
        (Reach::NoWay(why), _) => fail(
            "LK264",
            format!("{who}: no way to it ({why}): the machine is off, or a firewall rejects us"),
            format!("ip route get {}; {}", address, open("tcp")),
        ),
        (other, _) => fail(
            "LK266",
            format!("{who}: rpcbind {}", other.words()),
            format!("on {who}: look for us in /etc/hosts.deny, then systemctl restart rpcbind"),
        ),
    }]
}

/// A program of the client: what hangs on it, and how the findings are numbered and mended.
struct Program {
    name: &'static str,
    purpose: &'static str,
    not_registered: &'static str,
    start: &'static str,
    refused: &'static str,
    restart: &'static str,
    silent: &'static str,
    /// A port of its own, so that a firewall can let it through.
    open: &'static str,
    half: &'static str,
}

const STATD: Program = Program {
    name: "statd",
    purpose: "it cannot be told of a restart, and will not take its locks back",
    not_registered: "LK270",
    start: "systemctl enable --now rpc-statd",
    refused: "LK271",
    restart: "systemctl restart rpc-statd",
    silent: "LK272",
    open: "port=662 under [statd] in /etc/nfs.conf, systemctl restart rpc-statd, and let the \
           firewall pass 662 over TCP and UDP",
    half: "LK273",
};

const LOCKD: Program = Program {
    name: "lockd",
    purpose: "a lock that it waits for reaches it late, when it asks again",
    not_registered: "LK275",
    start: "mount by NFS version 3 and without nolock; the first such mount starts lockd",
    refused: "LK276",
    restart: "umount all of NFS version 3 and mount it again, which restarts lockd",
    silent: "LK277",
    open: "port=32803 and udp-port=32769 under [lockd] in /etc/nfs.conf, reboot, and let the \
           firewall pass both",
    half: "LK278",
};

pub fn statd(facts: &Facts) -> Vec<Finding> {
    let client = reachable(facts).map(|(client, _)| client);
    client.and_then(|client| program(client, &client.statd, &STATD)).into_iter().collect()
}

pub fn lockd(facts: &Facts) -> Vec<Finding> {
    let client = reachable(facts).map(|(client, _)| client);
    client.and_then(|client| program(client, &client.lockd, &LOCKD)).into_iter().collect()
}

fn program(client: &Client, found: &Both, program: &Program) -> Option<Finding> {
    if !client.rpcbind.is_there() {
        // Nobody to ask where it is; that was said.
        return None;
    }
    let who = client.shown();
    let Program { name, purpose, .. } = program;
    let on = |what: &str| format!("on {who}: {what}");
    let registered = [&found.tcp, &found.udp].into_iter().find(|r| **r != Reach::NotRegistered);
    Some(match (&found.tcp, &found.udp) {
        (Reach::Answers, Reach::Answers) => ok(format!("{who}: {name} answers, over TCP and UDP")),
        (Reach::Answers, other) | (other, Reach::Answers) => {
            let over = if found.tcp.is_fine() { "UDP" } else { "TCP" };
            warn(
                program.half,
                format!("{who}: {name} answers, but over {over} it {}", other.words()),
                on(if *other == Reach::NotRegistered { program.restart } else { program.open }),
            )
        }
        _ => match registered {
            None => fail(
                program.not_registered,
                format!("{who}: {name} is not registered with its rpcbind: {purpose}"),
                on(program.start),
            ),
            Some(Reach::Refused | Reach::OtherProgram) => fail(
                program.refused,
                format!("{who}: {name} is registered, but nobody listens at its port: {purpose}"),
                on(program.restart),
            ),
            Some(other) => fail(
                program.silent,
                format!("{who}: {name} {}: {purpose}", other.words()),
                on(program.open),
            ),
        },
    })
}
