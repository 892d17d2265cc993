//! Fences as the file service applies them (B8.71): which addresses and machine names may not change
//! files, and which addresses a machine has mounted from under its name. The keeper decides; this is its
//! copy for the threads that serve files.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use keeper::Keeper;
use keeper::bytes::Name;
use keeper::identity::HostKey;
use wire::rpc::Credential;

use crate::engine::{Input, Reporter};
use crate::transport::{Peer, Transport};

/// The most addresses whose mounts are remembered, and names at each; the oldest go (I10).
const MOUNTED_ADDRESSES_MAX: usize = 10_000;
const MOUNTED_NAMES_MAX: usize = 16;
/// The most addresses that are reported until a fence changes.
const REPORTED_MAX: usize = 1_000;

#[derive(Default)]
pub(crate) struct Fences {
    /// Spares every change the lock while there are none.
    any: AtomicBool,
    fenced: RwLock<Fenced>,
    mounts: Mutex<Mounts>,
    reported: Mutex<HashSet<IpAddr>>,
    reporter: OnceLock<Reporter>,
}

#[derive(Default)]
struct Fenced {
    addresses: HashSet<IpAddr>,
    names: Vec<Name>,
}

/// Under which names machines have mounted, and through which address of the server.
#[derive(Default)]
struct Mounts {
    names: HashMap<IpAddr, VecDeque<(Name, IpAddr)>>,
    /// The addresses, oldest first.
    order: VecDeque<IpAddr>,
}

impl Fences {
    /// To be called once, before the first call is served.
    pub(crate) fn report_to(&self, reporter: Reporter) {
        let _ = self.reporter.set(reporter);
    }

    /// Whether a call may not change files because of a fence of its address, or of the machine that
    /// its credential names. In the latter case the keeper is told of the address.
    pub(crate) fn refuse(&self, peer: &Peer, credential: &Credential) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let fenced = self.fenced();
        if fenced.addresses.contains(&peer.remote.ip()) {
            return true;
        }
        let Some(name) = machine(credential) else { return false };
        let is_named = fenced.names.iter().any(|fenced| fenced.names_same_machine(&name));
        drop(fenced);
        if is_named {
            self.report(peer, name);
        }
        is_named
    }

    /// An unprivileged user does not speak for a machine, and the source of a datagram can be forged.
    fn report(&self, peer: &Peer, name: Name) {
        if !speaks_for_machine(peer) {
            return;
        }
        let Some(reporter) = self.reporter.get() else { return };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < REPORTED_MAX && reported.insert(peer.remote.ip()) {
            drop(reported);
            let host = HostKey::new(peer.remote.ip(), name);
            reporter.report(Input::Appeared { host, ours: peer.local.ip() });
        }
    }

    /// Notes a mount, which may come from an address that the machine does not lock from.
    pub(crate) fn note_mount(&self, peer: &Peer, credential: &Credential) {
        let Some(name) = machine(credential).filter(|_| speaks_for_machine(peer)) else { return };
        self.mounts().note(peer.remote.ip(), name, peer.local.ip());
    }

    /// The addresses from which a machine of this name has mounted, and the server's address there.
    pub(crate) fn mounted_from(&self, name: &Name) -> Vec<(HostKey, IpAddr)> {
        self.mounts().of(name)
    }

    /// Takes over what the keeper says of the address and the name of a host.
    pub(crate) fn update(&self, keeper: &Keeper, address: IpAddr, name: &Name) {
        let mut fenced = self.fenced.write().unwrap_or_else(PoisonError::into_inner);
        match keeper.is_fenced(address) {
            true => fenced.addresses.insert(address),
            false => fenced.addresses.remove(&address),
        };
        fenced.names.retain(|known| !known.bytes().eq_ignore_ascii_case(name.bytes()));
        if keeper.is_name_fenced(name) {
            fenced.names.push(name.clone());
        }
        self.any.store(!fenced.addresses.is_empty(), Ordering::Release);
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn fenced(&self) -> RwLockReadGuard<'_, Fenced> {
        self.fenced.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn mounts(&self) -> MutexGuard<'_, Mounts> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mounts {
    fn note(&mut self, address: IpAddr, name: Name, ours: IpAddr) {
        if !self.names.contains_key(&address) {
            if self.names.len() >= MOUNTED_ADDRESSES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.names.remove(&oldest);
            }
            self.order.push_back(address);
        }
        let names = self.names.entry(address).or_default();
        if names.iter().any(|(known, _)| *known == name) {
            return;
        }
        if names.len() >= MOUNTED_NAMES_MAX {
            names.pop_front();
        }
        names.push_back((name, ours));
    }

    fn of(&self, name: &Name) -> Vec<(HostKey, IpAddr)> {
        let all = self.names.iter().flat_map(|(address, names)| {
            names.iter().map(move |(known, ours)| (*address, known, *ours))
        });
        let same = all.filter(|(_, known, _)| known.names_same_machine(name));
        same.map(|(address, known, ours)| (HostKey::new(address, known.clone()), ours)).collect()
    }
}

fn speaks_for_machine(peer: &Peer) -> bool {
    peer.transport == Transport::Tcp && peer.uses_reserved_port() && !peer.is_local()
}

/// The name that the caller gives its machine; an empty one names none.
fn machine(credential: &Credential) -> Option<Name> {
    match credential {
        Credential::Sys(sys) if !sys.machine.is_empty() => Some(Name::new(&sys.machine)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keeper that has fenced `alice` at 10.0.0.1.
    fn keeper() -> Keeper {
        let row = keeper::change::Client {
            id: keeper::identity::ClientId(1),
            protocol: keeper::change::Protocol::NLM,
            address: [10, 0, 0, 1].into(),
            name: "alice".into(),
            incarnation: keeper::identity::Incarnation(3),
            reboot: None,
            monitored: true,
            fenced: true,
            used: Vec::new(),
            registered_at_ms: 0,
            epoch: keeper::identity::Epoch(1),
            registrant: None,
        };
        let mut saved = keeper::change::Snapshot::default();
        saved.apply(keeper::change::Change::Client(row.into()));
        let now = keeper::time::Time { mono: Default::default(), wall_ms: 0 };
        Keeper::restore(saved, keeper::identity::Epoch(2), Default::default(), now)
    }

    fn peer(last: u8, port: u16, transport: Transport) -> Peer {
        let ours = ([10, 0, 0, 100], 2049).into();
        Peer::new(([10, 0, 0, last], port).into(), ours, transport)
    }

    fn credential(machine: &str) -> Credential {
        Credential::Sys(wire::rpc::SysCredential {
            stamp: 0,
            machine: machine.as_bytes().to_vec().into(),
            uid: 0,
            gid: 0,
            groups: Default::default(),
        })
    }

    #[test]
    fn a_call_is_refused_by_its_address_and_by_the_name_of_its_machine() {
        let fences = Fences::default();
        let calls =
            |name: &str, last| fences.refuse(&peer(last, 700, Transport::Tcp), &credential(name));
        assert!(!calls("alice", 1));
        fences.update(&keeper(), [10, 0, 0, 1].into(), &"alice".into());
        assert!(calls("alice", 1) && calls("mallory", 1) && calls("", 1));
        assert!(calls("ALICE.example", 9));
        assert!(!calls("mallory", 9) && !calls("", 9));
        let mapped = "[::ffff:10.0.0.1]:700".parse().unwrap();
        let mapped = Peer::new(mapped, ([10, 0, 0, 100], 2049).into(), Transport::Tcp);
        assert!(fences.refuse(&mapped, &Credential::None));
    }

    /// Otherwise a datagram with a forged source, or any user of a machine, would fence it.
    #[test]
    fn only_root_on_a_connection_speaks_for_a_machine() {
        assert!(speaks_for_machine(&peer(9, 700, Transport::Tcp)));
        assert!(!speaks_for_machine(&peer(9, 700, Transport::Udp)));
        assert!(!speaks_for_machine(&peer(9, 7_000, Transport::Tcp)));
        assert!(!speaks_for_machine(&peer(100, 700, Transport::Tcp)), "the server itself");
    }

    #[test]
    fn mounts_are_bounded_and_found_by_name() {
        let mut mounts = Mounts::default();
        let ours = IpAddr::from([10, 0, 0, 100]);
        let address = |number: u32| IpAddr::from((0x0a01_0000 + number).to_be_bytes());
        for number in 0..MOUNTED_ADDRESSES_MAX as u32 + 5 {
            mounts.note(address(number), "flood".into(), ours);
        }
        assert_eq!(mounts.of(&"FLOOD.example".into()).len(), MOUNTED_ADDRESSES_MAX);
        assert_eq!(mounts.order.len(), MOUNTED_ADDRESSES_MAX);
        for number in 0..MOUNTED_NAMES_MAX + 3 {
            mounts.note(address(9), Name::from(format!("n{number}").as_str()), ours);
        }
        assert_eq!(mounts.names[&address(9)].len(), MOUNTED_NAMES_MAX);
        mounts.note(address(10), "alice.example".into(), ours);
        assert_eq!(
            mounts.of(&"Alice".into()),
            [(HostKey::new(address(10), "alice.example".into()), ours)]
        );
    }
}
