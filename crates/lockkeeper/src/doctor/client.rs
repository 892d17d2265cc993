//! One client: can it be told of a restart, can it be given a lock that it waits for, and what does
//! the server know of it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use admin::api;
use client::rpcbind::{Over, Rpcbind};
use wire::rpcbind::{v3, v4};

use super::facts::Facts;
use super::finding::{Finding, fail, ok, warn};
use super::host::rough;
use super::names::{self, Names};
use super::plan::Plan;
use super::reach::{self, Reach};
use crate::daemon::{Daemon, Failed, encoded, query};

const STATD: (u32, u32) = (wire::nsm::PROGRAM, wire::nsm::VERSION);
const LOCKD: (u32, u32) = (wire::nlm::PROGRAM, wire::nlm::V4);
/// Time stamps of files are compared across machines; this much confuses nobody.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(60);

pub struct Client {
    /// What the operator called it.
    pub asked: String,
    /// What the server knows of it; or why nothing.
    pub known: Result<api::Client, String>,
    /// More than one is called so.
    pub ambiguous: bool,
    pub address: Option<IpAddr>,
    pub rpcbind: Both,
    pub statd: Both,
    pub lockd: Both,
    /// How far its clock is from ours.
    pub apart: Option<Duration>,
    pub names: Names,
    /// From where we speak to it.
    pub from: Option<IpAddr>,
}

/// The same thing over two transports.
#[derive(Debug, Clone)]
pub struct Both {
    pub tcp: Reach,
    pub udp: Reach,
}

impl Client {
    pub async fn look(
        asked: &str,
        daemon: &Daemon,
        status: &Result<api::Status, Failed>,
        plan: &Plan,
    ) -> Self {
        let path = query(&format!("/v1/clients/{}", encoded(asked)), &[("probe", yes())]);
        let known = match status {
            Ok(_) => daemon.get::<api::Client>(&path).await,
            Err(_) => Err(Failed::Other("the server was not asked".into())),
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
        let silent = Both { tcp: Reach::Silent, udp: Reach::Silent };
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
            client.ask(SocketAddr::new(address, plan.peer_rpcbind_port), plan).await;
        }
        client
    }

    async fn ask(&mut self, rpcbind: SocketAddr, plan: &Plan) {
        self.from = speaks_from(rpcbind);
        let null = (wire::rpcbind::PROGRAM, wire::rpcbind::V2);
        let (tcp, udp) = tokio::join!(
            reach::ask(rpcbind, Over::Tcp, null),
            reach::ask(rpcbind, Over::Udp, null)
        );
        self.rpcbind = Both { tcp, udp };
        let by = if self.rpcbind.tcp.is_fine() { Over::Tcp } else { Over::Udp };
        if self.rpcbind.is_there() {
            let ask = |over, program| reach::look_up_and_ask(rpcbind, by, over, program);
            let ((statd, statd_udp), (lockd, lockd_udp), apart) = tokio::join!(
                async { tokio::join!(ask(Over::Tcp, STATD), ask(Over::Udp, STATD)) },
                async { tokio::join!(ask(Over::Tcp, LOCKD), ask(Over::Udp, LOCKD)) },
                clocks_apart(rpcbind, by),
            );
            self.statd = Both { tcp: statd, udp: statd_udp };
            self.lockd = Both { tcp: lockd, udp: lockd_udp };
            self.apart = apart;
        }
        if let Ok(known) = &self.known {
            self.names = Names::look(known, rpcbind.ip(), plan).await;
        }
    }

    /// `alice (10.0.0.7)`.
    pub fn shown(&self) -> String {
        let name = self.known.as_ref().map_or(&self.asked, |known| &known.name);
        match self.address {
            Some(address) if address.to_string() != *name => format!("{name} ({address})"),
            _ => name.clone(),
        }
    }
}

impl Both {
    /// Over one of them at least.
    pub fn is_there(&self) -> bool {
        self.tcp.is_fine() || self.udp.is_fine()
    }
}

fn yes() -> Option<String> {
    Some("true".into())
}

/// The system's choice of an address for this peer; nothing is sent.
fn speaks_from(to: SocketAddr) -> Option<IpAddr> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// rpcbind tells the time to whoever asks.
async fn clocks_apart(rpcbind: SocketAddr, by: Over) -> Option<Duration> {
    let mut rpcbind = Rpcbind::connect(rpcbind, by, &reach::options()).await.ok()?;
    let theirs = match rpcbind.call::<v4::GetTime>(&()).await {
        Ok(time) => time,
        Err(_) => rpcbind.call::<v3::GetTime>(&()).await.ok()?,
    };
    let theirs = UNIX_EPOCH + Duration::from_secs(theirs.into());
    let now = SystemTime::now();
    let apart = now.duration_since(theirs).or_else(|_| theirs.duration_since(now));
    Some(apart.unwrap_or_default())
}

/// Who it is, and what the server says about it.
pub fn known(facts: &Facts) -> Vec<Finding> {
    let Some(client) = &facts.client else { return Vec::new() };
    let who = client.shown();
    let known = match &client.known {
        Ok(known) => known,
        Err(why) if client.ambiguous => {
            return vec![fail("LK261", why.clone(), "name it by its id: lockkeeper clients")];
        }
        Err(why) if client.address.is_some() => {
            return vec![ok(format!("{who} is looked at by its address alone: {why}"))];
        }
        Err(why) => {
            return vec![fail(
                "LK260",
                format!("{who} is no client and no name that resolves: {why}"),
                "lockkeeper clients shows who is known; or name it by its address",
            )];
        }
    };
    let mut findings = worries(known, &who);
    if findings.is_empty() {
        let (locks, waiting) = (known.locks, known.waiting);
        findings.push(ok(format!("{who} is known: {locks} locks, {waiting} waiting")));
    }
    findings
}

fn worries(known: &api::Client, who: &str) -> Vec<Finding> {
    let id = &known.id;
    let mut findings = Vec::new();
    if known.fenced {
        let text = format!("{who} is fenced: its locks and writes are refused");
        findings.push(warn("LK282", text, format!("lockkeeper unfence {id}")));
    }
    if let Some(pending) = &known.pending_reboot {
        findings.push(warn(
            "LK280",
            format!("{who} is said to have rebooted, which was not believed: {}", pending.why),
            format!("if it has rebooted: lockkeeper confirm-reboot {id}"),
        ));
    }
    if let Some(notice) = &known.notice
        && !notice.answered
    {
        let attempts = notice.attempts;
        findings.push(warn(
            "LK281",
            format!("{who} has not answered {attempts} notices of our restart"),
            format!("mend what follows, then: lockkeeper notify {id}"),
        ));
    }
    if known.crashed {
        let text = format!("{who} was not heard of in the whole recovery window");
        let fix = format!("if it is gone for good: lockkeeper fence {id} frees its locks");
        findings.push(warn("LK283", text, fix));
    }
    if known.suspect {
        let text = format!("{who} shows signs of a reboot without proof");
        let fix = format!("if it has rebooted: lockkeeper confirm-reboot {id}");
        findings.push(warn("LK284", text, fix));
    }
    if known.answers == Some(false) {
        let text = format!("{who}: its lock manager did not answer the server");
        let fix = "see below; if all is well there, the server itself may not call out";
        findings.push(warn("LK285", text, fix));
    }
    findings
}

pub fn clock(facts: &Facts) -> Vec<Finding> {
    let Some((client, _)) = reachable(facts) else { return Vec::new() };
    let (who, Some(apart)) = (client.shown(), client.apart) else { return Vec::new() };
    vec![match apart > CLOCKS_APART_MAX {
        true => warn(
            "LK222",
            format!("{who}: its clock and ours are {} apart", rough(apart)),
            "timedatectl on both shows which is wrong; there: timedatectl set-ntp true",
        ),
        false => ok(format!("{who}: its clock agrees with ours")),
    }]
}

pub fn names(facts: &Facts) -> Vec<Finding> {
    match reachable(facts) {
        Some((Client { known: Ok(known), names, .. }, address)) => {
            names::check(known, address, names)
        }
        _ => Vec::new(),
    }
}

/// One that we know where to look for.
pub fn reachable(facts: &Facts) -> Option<(&Client, IpAddr)> {
    let client = facts.client.as_ref()?;
    Some((client, client.address?))
}
