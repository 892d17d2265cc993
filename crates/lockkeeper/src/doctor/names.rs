//! Names. A client's status monitor believes a notice of our restart if it comes from the address
//! that the client mounted, or carries the name that it mounted by; some systems go by the name
//! alone, and Linux looks the address up, there and back, before it believes it.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};

use admin::api;

use super::facts::within;
use super::finding::{Finding, ok, warn};
use super::plan::Plan;
use super::reach::PATIENCE;

/// A client uses few of our addresses; more are not looked up.
const ADDRESSES_MAX: usize = 8;

#[derive(Debug, Default)]
pub struct Names {
    /// Those of our addresses that the client used.
    pub ours: Vec<OurAddress>,
    /// The names that our notices carry, and what they stand for here.
    pub carried: Vec<(String, Vec<IpAddr>)>,
    /// What the client's own name stands for; empty if nothing.
    pub client: Vec<IpAddr>,
    /// What the client's address is called here.
    pub client_reverse: Option<String>,
}

#[derive(Debug)]
pub struct OurAddress {
    pub address: IpAddr,
    /// Whether this host has it now.
    pub is_here: bool,
    pub name: Option<String>,
    /// What that name stands for.
    pub back: Vec<IpAddr>,
}

impl Names {
    pub async fn look(known: &api::Client, address: IpAddr, plan: &Plan) -> Self {
        let mut names = Self::default();
        let used = known.our_addresses.iter().filter_map(|text| text.parse().ok());
        for address in used.take(ADDRESSES_MAX) {
            let name = reverse(address).await;
            let back = match &name {
                Some(name) => forward(name).await,
                None => Vec::new(),
            };
            let is_here = UdpSocket::bind(SocketAddr::new(address, 0)).is_ok();
            names.ours.push(OurAddress { address, is_here, name, back });
        }
        for name in plan.names.iter().take(ADDRESSES_MAX) {
            names.carried.push((name.clone(), forward(name).await));
        }
        names.client = forward(&known.name).await;
        names.client_reverse = reverse(address).await;
        names
    }
}

pub async fn forward(name: &str) -> Vec<IpAddr> {
    let name = name.to_owned();
    let work = move || (name.as_str(), 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let found = within(PATIENCE, work).await.and_then(Result::ok).unwrap_or_default();
    let mut found: Vec<IpAddr> = found.iter().map(|at| at.ip().to_canonical()).collect();
    found.sort();
    found.dedup();
    found
}

async fn reverse(address: IpAddr) -> Option<String> {
    let name = within(PATIENCE, move || dns_lookup::lookup_addr(&address)).await?.ok()?;
    // One without a name is called by its address.
    let bare = name.split('%').next().unwrap_or(&name);
    bare.parse::<IpAddr>().is_err().then_some(name)
}

/// Whether the client's status monitor can tell that a notice is ours.
pub fn check(known: &api::Client, address: IpAddr, names: &Names) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let client = &known.name;
    if address.is_loopback() {
        return vec![ok(format!("names: {client} is this host"))];
    }
    for ours in &names.ours {
        let at = ours.address;
        if !ours.is_here {
            findings.push(warn(
                "LK292",
                format!(
                    "{client} mounted {at}, which this host no longer has: notices cannot come \
                     from it"
                ),
                format!("ip addr add {at} dev DEVICE; or mount again by another address"),
            ));
        }
        if let Some(name) = &ours.name
            && !ours.back.contains(&at)
        {
            let stands_for = list(&ours.back);
            findings.push(warn(
                "LK290",
                format!(
                    "{at} is called {name}, but {name} is {stands_for}: a client that sees it so \
                     does not know our notices"
                ),
                format!(
                    "let {name} resolve to {at}: in DNS, or {at} {name} in /etc/hosts of {client}"
                ),
            ));
        }
    }
    let used = |found: &IpAddr| names.ours.iter().any(|ours| ours.address == *found);
    let carries_one = names.carried.iter().any(|(_, found)| found.iter().any(used))
        || names.ours.iter().all(|ours| ours.name.is_some() && ours.back.contains(&ours.address));
    // Names that lead nowhere here, or to this host's own loopback, say nothing about clients.
    let mut led_to = names.carried.iter().flat_map(|(_, found)| found);
    let leads_elsewhere = led_to.any(|found| !found.is_loopback());
    if !carries_one && leads_elsewhere && !names.ours.is_empty() {
        let carried: Vec<&str> = names.carried.iter().map(|(name, _)| name.as_str()).collect();
        let addresses: Vec<IpAddr> = names.ours.iter().map(|ours| ours.address).collect();
        findings.push(warn(
            "LK291",
            format!(
                "no name that notices carry ({}) stands for {}, which {client} mounted: clients \
                 that go by the name alone (FreeBSD, illumos) do not know them",
                carried.join(", "),
                list(&addresses)
            ),
            "names = [\"THE NAME THEY MOUNT\"] under [rpc], or serve --name NAME",
        ));
    }
    findings.extend(of_the_client(known, address, names));
    if findings.is_empty() {
        findings.push(ok(match carries_one {
            true => format!("names: {client} can tell our notices"),
            false => format!(
                "names: {client} can tell our notices by their address; no name of ours is known \
                 here"
            ),
        }));
    }
    findings
}

fn of_the_client(known: &api::Client, address: IpAddr, names: &Names) -> Option<Finding> {
    let client = &known.name;
    // One that goes by its address has no name to be wrong.
    if client.parse::<IpAddr>().is_ok() {
        return None;
    }
    let fix = format!("let {client} resolve to {address}: in DNS, or in /etc/hosts of this host");
    if !names.client.is_empty() && !names.client.contains(&address) {
        let elsewhere = list(&names.client);
        return Some(warn(
            "LK293",
            format!(
                "{client} speaks from {address}, but its name is {elsewhere} here: a notice of its \
                 reboot from there is not believed"
            ),
            fix,
        ));
    }
    let short = |name: &str| name.split('.').next().unwrap_or(name).to_ascii_lowercase();
    match &names.client_reverse {
        Some(name) if short(name) != short(client) => {
            Some(warn("LK294", format!("{address} calls itself {client}, but is {name} here"), fix))
        }
        _ => None,
    }
}

fn list(addresses: &[IpAddr]) -> String {
    if addresses.is_empty() {
        return "nothing".into();
    }
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}
