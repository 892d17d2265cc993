//! Name resolution. A client's status monitor accepts a notice of the server's restart if it comes from
//! the address or carries the name that the client mounted. FreeBSD and illumos match the name only;
//! Linux also resolves the address to a name and back.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};

use admin::api;

use super::facts::within;
use super::finding::{Finding, ok, warn};
use super::rpc_probe::TIMEOUT;
use super::settings::ServerSettings;

/// Addresses and names looked up per client.
const ADDRESSES_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Names {
    /// Addresses of this server that the client used.
    pub ours: Vec<OurAddress>,
    /// Names carried by notices, with the addresses they resolve to here.
    pub carried: Vec<(String, Vec<IpAddr>)>,
    /// Addresses of the client's name; empty if it does not resolve.
    pub client: Vec<IpAddr>,
    /// Reverse lookup of the client's address.
    pub client_reverse: Option<String>,
}

#[derive(Debug)]
pub(super) struct OurAddress {
    pub address: IpAddr,
    /// Whether this host has the address now.
    pub is_here: bool,
    pub name: Option<String>,
    /// Addresses that name resolves to.
    pub back: Vec<IpAddr>,
}

impl Names {
    pub(super) async fn look(
        known: &api::Client,
        address: IpAddr,
        settings: &ServerSettings,
    ) -> Self {
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
        for name in settings.names.iter().take(ADDRESSES_MAX) {
            names.carried.push((name.clone(), forward(name).await));
        }
        names.client = forward(&known.name).await;
        names.client_reverse = reverse(address).await;
        names
    }
}

pub(super) async fn forward(name: &str) -> Vec<IpAddr> {
    let name = name.to_owned();
    let work = move || (name.as_str(), 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let found = within(TIMEOUT, work).await.and_then(Result::ok).unwrap_or_default();
    let mut found: Vec<IpAddr> = found.iter().map(|at| at.ip().to_canonical()).collect();
    found.sort();
    found.dedup();
    found
}

async fn reverse(address: IpAddr) -> Option<String> {
    let name = within(TIMEOUT, move || dns_lookup::lookup_addr(&address)).await?.ok()?;
    // Without a name the address itself is returned.
    let bare = name.split('%').next().unwrap_or(&name);
    bare.parse::<IpAddr>().is_err().then_some(name)
}

/// Whether the client's status monitor will recognise this server's notices.
pub(super) fn check(known: &api::Client, address: IpAddr, names: &Names) -> Vec<Finding> {
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
                    "{client} mounted {at}, which this host no longer has: notices cannot be sent \
                     from it"
                ),
                format!("ip addr add {at} dev DEVICE; or remount from another address"),
            ));
        }
        if let Some(name) = &ours.name
            && !ours.back.contains(&at)
        {
            let stands_for = list(&ours.back);
            findings.push(warn(
                "LK290",
                format!(
                    "{at} resolves to {name}, but {name} resolves to {stands_for}: a client with \
                     the same DNS view ignores notices"
                ),
                format!(
                    "make {name} resolve to {at}: in DNS, or {at} {name} in /etc/hosts of {client}"
                ),
            ));
        }
    }
    let used = |found: &IpAddr| names.ours.iter().any(|ours| ours.address == *found);
    let carries_one = names.carried.iter().any(|(_, found)| found.iter().any(used))
        || names.ours.iter().all(|ours| ours.name.is_some() && ours.back.contains(&ours.address));
    // Names that do not resolve here, or only to loopback, prove nothing about clients.
    let mut led_to = names.carried.iter().flat_map(|(_, found)| found);
    let leads_elsewhere = led_to.any(|found| !found.is_loopback());
    if !carries_one && leads_elsewhere && !names.ours.is_empty() {
        let carried: Vec<&str> = names.carried.iter().map(|(name, _)| name.as_str()).collect();
        let addresses: Vec<IpAddr> = names.ours.iter().map(|ours| ours.address).collect();
        findings.push(warn(
            "LK291",
            format!(
                "no name carried by notices ({}) resolves to {}, which {client} mounted: clients \
                 that match names only (FreeBSD, illumos) ignore them",
                carried.join(", "),
                list(&addresses)
            ),
            "names = [\"NAME THEY MOUNT\"] under [rpc], or serve --name NAME",
        ));
    }
    findings.extend(of_the_client(known, address, names));
    if findings.is_empty() {
        findings.push(ok(match carries_one {
            true => format!("names: {client} recognises notices"),
            false => format!(
                "names: {client} recognises notices by address; no name of this server resolves here"
            ),
        }));
    }
    findings
}

fn of_the_client(known: &api::Client, address: IpAddr, names: &Names) -> Option<Finding> {
    let client = &known.name;
    // The client is known by its address only.
    if client.parse::<IpAddr>().is_ok() {
        return None;
    }
    let fix = format!("make {client} resolve to {address}: in DNS, or in /etc/hosts of this host");
    if !names.client.is_empty() && !names.client.contains(&address) {
        let elsewhere = list(&names.client);
        return Some(warn(
            "LK293",
            format!(
                "{client} uses {address}, but its name resolves to {elsewhere}: its reboot notices \
                 from there are not accepted"
            ),
            fix,
        ));
    }
    let short = |name: &str| name.split('.').next().unwrap_or(name).to_ascii_lowercase();
    match &names.client_reverse {
        Some(name) if short(name) != short(client) => Some(warn(
            "LK294",
            format!("{address} calls itself {client}, but resolves to {name}"),
            fix,
        )),
        _ => None,
    }
}

fn list(addresses: &[IpAddr]) -> String {
    if addresses.is_empty() {
        return "nothing".into();
    }
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}
