//! Address translation between clients and this server, as far as it shows here: machines that share an
//! address, and machines that refuse the locks they waited for. On a client, `from_client` sees all of it.
//!
//! A client accepts a GRANTED from the address that it mounted, and the server reaches a lock manager at
//! the address that it saw. A translated address breaks one or the other without an error anywhere.

use std::collections::BTreeMap;
use std::net::IpAddr;

use admin::api;

use super::facts::Facts;
use super::finding::{Finding, ok, warn};
use crate::daemon::{CommandError, Daemon};

/// A machine that was renamed may be known under both names until one has been silent for this long.
const SILENT_MAX_SECONDS: f64 = 3600.0;
/// A waiter may give up while the lock is on its way to it; a client that refuses more does not know the server.
const REFUSED_MIN: usize = 3;
/// Clients named in a finding.
const NAMES_MAX: usize = 5;

#[derive(Debug, Default)]
pub(super) struct Translation {
    shared: Vec<SharedAddress>,
    /// Clients that refused granted locks, and how many.
    refusing: Vec<(String, usize)>,
}

/// An address of several clients.
#[derive(Debug)]
struct SharedAddress {
    address: IpAddr,
    names: Vec<String>,
    /// The address of this server that they use, if they use one.
    ours: Option<String>,
}

impl Translation {
    pub(super) async fn look(daemon: &Daemon, status: &Result<api::Status, CommandError>) -> Self {
        if status.is_err() {
            return Self::default();
        }
        let (clients, events) = tokio::join!(
            daemon.get::<api::Page<api::Client>>("/v1/clients?kind=lock&limit=1000"),
            daemon.get::<Vec<api::Event>>("/v1/events/recent?last=10000"),
        );
        Self {
            shared: clients.map(|page| shared(&page.items)).unwrap_or_default(),
            refusing: events.map(|events| refusing(&events)).unwrap_or_default(),
        }
    }
}

fn shared(clients: &[api::Client]) -> Vec<SharedAddress> {
    let mut found: BTreeMap<IpAddr, SharedAddress> = BTreeMap::new();
    for client in clients {
        let holds = client.locks + client.shares + client.waiting > 0;
        let speaks = client.last_seen_seconds.is_some_and(|age| age <= SILENT_MAX_SECONDS);
        match client.address.parse::<IpAddr>() {
            Ok(address) if !address.is_loopback() && (holds || speaks) => {
                let ours = client.our_addresses.first().cloned();
                let new = SharedAddress { address, names: Vec::new(), ours };
                found.entry(address).or_insert(new).names.push(client.name.clone());
            }
            _ => {}
        }
    }
    found.into_values().filter(|shared| shared.names.len() > 1).collect()
}

fn refusing(events: &[api::Event]) -> Vec<(String, usize)> {
    let undone = events.iter().filter(|event| event.kind == "grant-undone");
    let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
    for client in undone.filter_map(|event| event.client.as_ref()) {
        *refused.entry(&client.name).or_default() += 1;
    }
    let refused = refused.into_iter().filter(|(_, count)| *count >= REFUSED_MIN);
    refused.map(|(name, count)| (name.to_owned(), count)).collect()
}

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    if facts.status.is_err() || facts.is_standby() {
        return Vec::new();
    }
    let Translation { shared, refusing } = &facts.translation;
    let merged = shared.iter().map(|SharedAddress { address, names, ours }| {
        let (count, listed) = (names.len(), listed(names));
        let ours = ours.as_deref().unwrap_or("ADDRESS-OF-THIS-SERVER");
        warn(
            "LK295",
            format!(
                "{count} machines come from {address} ({listed}): a router masquerades them, or they are \
                 containers of one machine. The server reaches one lock manager there: the others are \
                 neither granted the locks they wait for nor notified of a restart"
            ),
            format!(
                "on the router: nft insert rule ip nat POSTROUTING ip daddr {ours} accept; on this host: a route \
                 back to them"
            ),
        )
    });
    let refused = refusing.iter().map(|(name, count)| {
        warn(
            "LK296",
            format!(
                "{name} refused {count} locks that it had waited for: it seems to have mounted another \
                 address than this server's own, which a router translates (DNAT, a published container \
                 port). It gets them by asking again, up to 30 s later"
            ),
            format!("on {name}, as root: lockkeeper doctor --mount SERVER:/EXPORT, as it is mounted there"),
        )
    });
    let mut findings: Vec<Finding> = merged.chain(refused).collect();
    if findings.is_empty() {
        findings.push(ok("no sign of address translation between clients and this server"));
    }
    findings
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_MAX { format!("{shown}, ...") } else { shown }
}
