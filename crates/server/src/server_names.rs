//! The names by which clients may know this server (B4.4): some accept a notice only if it carries
//! the name that they mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use keeper::bytes::Name;

/// How long a start waits for the name service. Without an answer notices still carry the address,
/// which most clients go by.
const LOOKUP_MAX: Duration = Duration::from_millis(100);
/// The most threads that look up names; each may hang for as long as the resolver does.
const LOOKUPS_MAX: usize = 16;

/// The host name of this machine.
pub(crate) fn host_name() -> Name {
    Name::new(rustix::system::uname().nodename().to_bytes())
}

/// Adds the host name and its first label to the configured names.
pub(crate) fn add_host_names(names: &mut Vec<Name>, host: &Name) {
    let host = host.bytes();
    let short = host.split(|byte| *byte == b'.').next().unwrap_or(host);
    for name in [host, short] {
        let name = Name::new(name);
        if !name.bytes().is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
}

/// The names of the server's own addresses, as far as the name service answers within [`LOOKUP_MAX`].
pub(crate) fn reverse(addresses: BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Name> {
    reverse_by(ask_system, addresses, LOOKUP_MAX)
}

fn reverse_by(
    ask: fn(IpAddr) -> Option<String>,
    addresses: BTreeSet<IpAddr>,
    wait_max: Duration,
) -> BTreeMap<IpAddr, Name> {
    let until = Instant::now() + wait_max;
    let (answer, answers) = mpsc::channel();
    for address in addresses.into_iter().take(LOOKUPS_MAX) {
        let answer = answer.clone();
        let look_up = move || {
            let name = ask(address).map(|name| Name::new(name.as_bytes()));
            // Fails if the answer is late.
            let _ = answer.send((address, name));
        };
        // If no thread can be started the name stays unknown.
        let _ = thread::Builder::new().name("reverse name".into()).spawn(look_up);
    }
    drop(answer);
    let mut names = BTreeMap::new();
    while let Ok((address, name)) =
        answers.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        names.extend(name.map(|name| (address, name)));
    }
    names
}

fn ask_system(address: IpAddr) -> Option<String> {
    let name = dns_lookup::lookup_addr(&address).ok()?;
    // Without a name the resolver returns the address itself, perhaps with a zone.
    let address_again = name.split('%').next().is_some_and(|name| name.parse::<IpAddr>().is_ok());
    (!address_again && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn names_that_come_late_are_not_waited_for() {
        let slow_for_b = |address| {
            if address == B {
                thread::sleep(Duration::from_secs(20));
            }
            Some("filer.example".to_owned())
        };
        let start = Instant::now();
        let names = reverse_by(slow_for_b, BTreeSet::from([A, B]), Duration::from_millis(500));
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(names, BTreeMap::from([(A, Name::from("filer.example"))]));
    }

    #[test]
    fn the_wait_ends_once_all_have_answered() {
        let start = Instant::now();
        let names = reverse_by(|_| None, BTreeSet::from([A, B]), Duration::from_secs(20));
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(names.is_empty());
    }

    #[test]
    fn the_system_knows_its_own_loopback_by_name() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let names = reverse_by(ask_system, BTreeSet::from([loopback]), Duration::from_secs(20));
        let name = names.get(&loopback).map(Name::bytes).unwrap_or_default();
        assert!(name.starts_with(b"localhost"), "{names:?}");
    }
}
