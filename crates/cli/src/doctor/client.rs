//! Facts and checks of one client: its RPC services, and what the server knows about it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use admin::api;
use client::rpcbind::{RpcTransport, Rpcbind};
use wire::rpcbind::{v3, v4};

use super::facts::Facts;
use super::finding::{Finding, fail, ok, warn};
use super::host::rough;
use super::names::{self, Names};
use super::rpc_probe::{self, ProbeResult};
use super::settings::ServerSettings;
use crate::daemon::{CommandError, Daemon, encoded, query};

const STATD: (u32, u32) = (wire::nsm::PROGRAM, wire::nsm::VERSION);
const LOCKD: (u32, u32) = (wire::nlm::PROGRAM, wire::nlm::V4);
/// File timestamps are compared across machines; differences below this are harmless.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(60);

pub(super) struct Client {
    /// The value of `--client`.
    pub asked: String,
    /// The server's record of it, or why there is none.
    pub known: Result<api::Client, String>,
    /// Several clients match.
    pub ambiguous: bool,
    pub address: Option<IpAddr>,
    pub rpcbind: TransportResults,
    pub statd: TransportResults,
    pub lockd: TransportResults,
    /// Difference between its clock and this host's.
    pub apart: Option<Duration>,
    pub names: Names,
    /// The local address used to reach it.
    pub from: Option<IpAddr>,
}

/// Probe results of one program over both transports.
#[derive(Debug, Clone)]
pub(super) struct TransportResults {
    pub tcp: ProbeResult,
    pub udp: ProbeResult,
}

impl Client {
    pub(super) async fn look(
        asked: &str,
        daemon: &Daemon,
        status: &Result<api::Status, CommandError>,
        settings: &ServerSettings,
    ) -> Self {
        let path = query(&format!("/v1/clients/{}", encoded(asked)), &[("probe", yes())]);
        let known = match status {
            Ok(_) => daemon.get::<api::Client>(&path).await,
            Err(_) => Err(CommandError::Other("the server could not be queried".into())),
        };
        let ambiguous = matches!(&known, Err(failed) if failed.code() == Some("ambiguous-client"));
        let address = match &known {
            Ok(known) => known.address.parse().ok(),
            Err(_) if ambiguous => None,
            Err(_) => match asked.parse() {
                Ok(address) => Some(address),
                Err(_) => names::forward(asked).await.first().copied(),
            },
        };
        let silent = TransportResults { tcp: ProbeResult::Silent, udp: ProbeResult::Silent };
        let mut client = Self {
            asked: asked.to_owned(),
            known: known.map_err(|failed| failed.to_string()),
            ambiguous,
            address,
            rpcbind: silent.clone(),
            statd: silent.clone(),
            lockd: silent,
            apart: None,
            names: Names::default(),
            from: None,
        };
        if let Some(address) = address {
            client.ask(SocketAddr::new(address, settings.peer_rpcbind_port), settings).await;
        }
        client
    }

    async fn ask(&mut self, rpcbind: SocketAddr, settings: &ServerSettings) {
        self.from = speaks_from(rpcbind);
        let null = (wire::rpcbind::PROGRAM, wire::rpcbind::V2);
        let (tcp, udp) = tokio::join!(
            rpc_probe::null_call(rpcbind, RpcTransport::Tcp, null),
            rpc_probe::null_call(rpcbind, RpcTransport::Udp, null)
        );
        self.rpcbind = TransportResults { tcp, udp };
        let by = if self.rpcbind.tcp.is_answer() { RpcTransport::Tcp } else { RpcTransport::Udp };
        if self.rpcbind.is_there() {
            let ask = |over, program| rpc_probe::look_up_and_probe(rpcbind, by, over, program);
            let ((statd, statd_udp), (lockd, lockd_udp), apart) = tokio::join!(
                async {
                    tokio::join!(ask(RpcTransport::Tcp, STATD), ask(RpcTransport::Udp, STATD))
                },
                async {
                    tokio::join!(ask(RpcTransport::Tcp, LOCKD), ask(RpcTransport::Udp, LOCKD))
                },
                clocks_apart(rpcbind, by),
            );
            self.statd = TransportResults { tcp: statd, udp: statd_udp };
            self.lockd = TransportResults { tcp: lockd, udp: lockd_udp };
            self.apart = apart;
        }
        if let Ok(known) = &self.known {
            self.names = Names::look(known, rpcbind.ip(), settings).await;
        }
    }

    /// `alice (10.0.0.7)`.
    pub(super) fn shown(&self) -> String {
        let name = self.known.as_ref().map_or(&self.asked, |known| &known.name);
        match self.address {
            Some(address) if address.to_string() != *name => format!("{name} ({address})"),
            _ => name.clone(),
        }
    }
}

impl TransportResults {
    /// Over at least one transport.
    pub(super) fn is_there(&self) -> bool {
        self.tcp.is_answer() || self.udp.is_answer()
    }
}

fn yes() -> Option<String> {
    Some("true".into())
}

/// The source address the system selects for this peer; nothing is sent.
fn speaks_from(to: SocketAddr) -> Option<IpAddr> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Read from its rpcbind.
async fn clocks_apart(rpcbind: SocketAddr, by: RpcTransport) -> Option<Duration> {
    let mut rpcbind = Rpcbind::connect(rpcbind, by, &rpc_probe::options()).await.ok()?;
    let theirs = match rpcbind.call::<v4::GetTime>(&()).await {
        Ok(time) => time,
        Err(_) => rpcbind.call::<v3::GetTime>(&()).await.ok()?,
    };
    let theirs = UNIX_EPOCH + Duration::from_secs(theirs.into());
    let now = SystemTime::now();
    let apart = now.duration_since(theirs).or_else(|_| theirs.duration_since(now));
    Some(apart.unwrap_or_default())
}

/// Identifies the client, and reports the server's view of it.
pub(super) fn known(facts: &Facts) -> Vec<Finding> {
    let Some(client) = &facts.client else { return Vec::new() };
    let who = client.shown();
    let known = match &client.known {
        Ok(known) => known,
        Err(why) if client.ambiguous => {
            return vec![fail(
                "LK261",
                why.clone(),
                "use its id; to list clients: lockkeeper clients",
            )];
        }
        Err(why) if client.address.is_some() => {
            return vec![ok(format!("{who} is checked by address only: {why}"))];
        }
        Err(why) => {
            return vec![fail(
                "LK260",
                format!("{who} is neither a known client nor a resolvable name: {why}"),
                "list clients with lockkeeper clients, or use the address",
            )];
        }
    };
    let mut findings = client_findings(known, &who);
    if findings.is_empty() {
        let (locks, waiting) = (known.locks, known.waiting);
        findings.push(ok(format!("{who} is registered: {locks} held, {waiting} waiting")));
    }
    findings
}

fn client_findings(known: &api::Client, who: &str) -> Vec<Finding> {
    let id = &known.id;
    let mut findings = Vec::new();
    if known.fenced {
        let text = format!("{who} is fenced: its locks and writes are refused");
        findings.push(warn("LK282", text, format!("lockkeeper unfence {id}")));
    }
    if let Some(pending) = &known.pending_reboot {
        let mut fix = format!("if it has rebooted: lockkeeper confirm-reboot {id}");
        if pending.source != known.address {
            fix.push_str("; if clients change their addresses: roaming = true in [nsm]");
        }
        findings.push(warn(
            "LK280",
            format!("{who} reported a reboot that was not accepted: {}", pending.why),
            fix,
        ));
    }
    if let Some(notice) = &known.notice
        && !notice.answered
    {
        let attempts = notice.attempts;
        findings.push(warn(
            "LK281",
            format!("{who} has not answered {attempts} notices of the server's restart"),
            format!("fix the problems below, then: lockkeeper notify {id}"),
        ));
    }
    if known.crashed {
        let text = format!("{who} did not contact the server during the recovery window");
        let fix = format!("if it is gone for good, free its locks: lockkeeper fence {id}");
        findings.push(warn("LK283", text, fix));
    }
    if known.suspect {
        let text = format!("{who} may have rebooted, but there is no proof");
        let fix = format!("if it has rebooted: lockkeeper confirm-reboot {id}");
        findings.push(warn("LK284", text, fix));
    }
    if known.answers == Some(false) {
        let text = format!("{who}: lock manager did not answer the server");
        let fix = "see below; if lockd answers there, outgoing calls of the server are blocked";
        findings.push(warn("LK285", text, fix));
    }
    findings
}

pub(super) fn clock(facts: &Facts) -> Vec<Finding> {
    let Some((client, _)) = reachable(facts) else { return Vec::new() };
    let (who, Some(apart)) = (client.shown(), client.apart) else { return Vec::new() };
    vec![match apart > CLOCKS_APART_MAX {
        true => warn(
            "LK222",
            format!("{who}: its clock differs from this host's by {}", rough(apart)),
            "compare timedatectl on both; on the wrong one: timedatectl set-ntp true",
        ),
        false => ok(format!("{who}: clock agrees with this host's")),
    }]
}

pub(super) fn names(facts: &Facts) -> Vec<Finding> {
    match reachable(facts) {
        Some((Client { known: Ok(known), names, .. }, address)) => {
            names::check(known, address, names)
        }
        _ => Vec::new(),
    }
}

/// The client and its address, if known.
pub(super) fn reachable(facts: &Facts) -> Option<(&Client, IpAddr)> {
    let client = facts.client.as_ref()?;
    Some((client, client.address?))
}
