//! By which names clients may know us (R2.3): some of them believe a notice only if it carries the
//! one they mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use keeper::bytes::Name;

/// A restart waits no longer for a name service: most clients go by the address.
const PATIENCE: Duration = Duration::from_millis(100);
/// A look-up is a thread that may hang for as long as the resolver likes.
const LOOKUPS_MAX: usize = 16;

/// Adds the host name and its short form to the configured ones.
pub fn add_host_names(names: &mut Vec<Name>) {
    let host = rustix::system::uname();
    let host = host.nodename().to_bytes();
    let short = host.split(|byte| *byte == b'.').next().unwrap_or(host);
    for name in [host, short] {
        let name = Name::new(name);
        if !name.bytes().is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
}

/// What the name service calls those of our addresses, as far as it says so soon.
pub fn reverse(addresses: BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Name> {
    reverse_by(ask_system, addresses, PATIENCE)
}

fn reverse_by(
    ask: fn(IpAddr) -> Option<String>,
    addresses: BTreeSet<IpAddr>,
    patience: Duration,
) -> BTreeMap<IpAddr, Name> {
    let until = Instant::now() + patience;
    let (answer, answers) = mpsc::channel();
    for address in addresses.into_iter().take(LOOKUPS_MAX) {
        let answer = answer.clone();
        let look_up = move || {
            let name = ask(address).map(|name| Name::new(name.as_bytes()));
            // Nobody listens to a late one.
            let _ = answer.send((address, name));
        };
        // Without a thread there is no name; that is no reason not to start.
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
    // Who has no name is called by the address again, or by one with a zone.
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
    fn nobody_waits_once_all_have_answered() {
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
