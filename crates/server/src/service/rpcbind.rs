//! rpcbind versions 2 to 4 (RFC 1833), for hosts that run none of their own.
//!
//! CALLIT is not served: it has the server call other programs on behalf of any caller.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use vfs::BlockingMode;
use wire::Writer;
use wire::rpc::{Call, Procedure};
use wire::rpcbind::{
    self, Address, Addresses, Binding, Bindings, Mapping, Mappings, Netid, Text, parse_universal,
    universal, v2, v4,
};

use super::{ServeOutcome, Service, simple};
use crate::rpc::admission::{Action, admit};
use crate::rpc::pending::IncomingCall;
use crate::transport::{Peer, Transport};

/// Other programs of this host may register too.
const REGISTRATIONS_MAX: usize = 1024;

/// A program version at a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    pub program: u32,
    pub version: u32,
    pub netid: Netid,
    pub port: u16,
    pub owner: Text,
}

#[derive(Default)]
pub(crate) struct Rpcbind {
    registrations: Mutex<Vec<Registration>>,
}

impl Rpcbind {
    pub(crate) fn new(registered: Vec<Registration>) -> Self {
        Self { registrations: Mutex::new(registered) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Registration>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a registration. An existing one is not replaced: it must be unset first.
    fn set(&self, peer: &Peer, new: Option<Registration>) -> bool {
        let Some(new) = new.filter(|_| may_register(peer)) else { return false };
        let mut list = self.lock();
        let same = |known: &&Registration| {
            (known.program, known.version, known.netid) == (new.program, new.version, new.netid)
        };
        if let Some(known) = list.iter().find(same) {
            return known.port == new.port;
        }
        if new.port == 0 || list.len() >= REGISTRATIONS_MAX {
            return false;
        }
        list.push(new);
        true
    }

    /// Removes registrations of a program version, for one transport or all. Those of this server
    /// stay.
    fn unset(&self, peer: &Peer, program: u32, version: u32, netid: Option<Netid>) -> bool {
        if !may_register(peer) {
            return false;
        }
        let mut list = self.lock();
        let before = list.len();
        list.retain(|known| {
            known.program != program
                || known.version != version
                || netid.is_some_and(|netid| netid != known.netid)
                || known.owner.0 == OWNER
        });
        list.len() < before
    }

    /// The port of a program version. Unless `exact`, the port of another version if that one is not
    /// registered: the program then answers with the versions that it has.
    fn find(&self, program: u32, version: u32, netid: Netid, exact: bool) -> Option<u16> {
        let list = self.lock();
        let of_program = || list.iter().filter(|r| r.program == program && r.netid == netid);
        of_program()
            .find(|r| r.version == version)
            .or_else(|| of_program().next().filter(|_| !exact))
            .map(|r| r.port)
    }

    fn address_of(&self, peer: &Peer, asked: &Binding, exact: bool) -> Text {
        let netid = Netid::parse(&asked.netid).unwrap_or_else(|| netid_of(peer));
        match self.find(asked.program, asked.version, netid, exact) {
            Some(port) => universal(local_address(peer, netid, port)).into(),
            None => Text::default(),
        }
    }
}

/// The owner of this server's registrations.
pub(crate) const OWNER: &[u8] = b"lockkeeper";

fn netid_of(peer: &Peer) -> Netid {
    match (peer.transport, peer.local.is_ipv6()) {
        (Transport::Tcp, false) => Netid::Tcp,
        (Transport::Tcp, true) => Netid::Tcp6,
        (Transport::Udp, false) => Netid::Udp,
        (Transport::Udp, true) => Netid::Udp6,
    }
}

/// The address at which the call arrived, if it is of the right family.
fn local_address(peer: &Peer, netid: Netid, port: u16) -> SocketAddr {
    let ip = peer.local.ip();
    if ip.is_ipv6() == netid.is_v6() {
        SocketAddr::new(ip, port)
    } else {
        SocketAddr::new(unspecified(netid), port)
    }
}

pub(crate) fn unspecified(netid: Netid) -> IpAddr {
    if netid.is_v6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

fn from_mapping(mapping: &Mapping) -> Option<Registration> {
    let netid = [Netid::Tcp, Netid::Udp].into_iter().find(|n| n.protocol() == mapping.protocol)?;
    let port = u16::try_from(mapping.port).ok()?;
    let (program, version) = (mapping.program, mapping.version);
    Some(Registration { program, version, netid, port, owner: Text::default() })
}

fn from_binding(binding: &Binding) -> Option<Registration> {
    let port = parse_universal(&binding.address)?.port();
    let netid = Netid::parse(&binding.netid)?;
    let (program, version) = (binding.program, binding.version);
    Some(Registration { program, version, netid, port, owner: Text::from(&b"local"[..]) })
}

impl Rpcbind {
    fn serve_v2(&self, call: &Call, peer: &Peer, out: &mut Writer) -> ServeOutcome {
        match call.procedure {
            v2::Null::NUMBER => simple(call, out, |()| ()),
            v2::Set::NUMBER => simple(call, out, |m: Mapping| self.set(peer, from_mapping(&m))),
            v2::Unset::NUMBER => {
                simple(call, out, |m: Mapping| self.unset(peer, m.program, m.version, None))
            }
            v2::GetPort::NUMBER => simple(call, out, |m: Mapping| {
                let asked = from_mapping(&Mapping { port: 0, ..m });
                let found = asked.and_then(|r| self.find(r.program, r.version, r.netid, false));
                u32::from(found.unwrap_or(0))
            }),
            v2::Dump::NUMBER if may_dump(peer) => simple(call, out, |()| {
                let known = self.lock();
                let of_v4 = known.iter().filter(|r| !r.netid.is_v6());
                Mappings(
                    of_v4
                        .map(|r| Mapping {
                            program: r.program,
                            version: r.version,
                            protocol: r.netid.protocol(),
                            port: r.port.into(),
                        })
                        .collect(),
                )
            }),
            _ => ServeOutcome::NO_SUCH_PROCEDURE,
        }
    }

    fn serve_v34(&self, call: &Call, peer: &Peer, out: &mut Writer) -> ServeOutcome {
        let only_v4 = call.version == rpcbind::V4;
        match call.procedure {
            v4::Null::NUMBER => simple(call, out, |()| ()),
            v4::Set::NUMBER => simple(call, out, |b: Binding| self.set(peer, from_binding(&b))),
            v4::Unset::NUMBER => simple(call, out, |b: Binding| {
                let all = b.netid.is_empty();
                let netid = Netid::parse(&b.netid);
                (all || netid.is_some()) && self.unset(peer, b.program, b.version, netid)
            }),
            v4::GetAddr::NUMBER => simple(call, out, |b: Binding| self.address_of(peer, &b, false)),
            v4::GetVersAddr::NUMBER if only_v4 => {
                simple(call, out, |b: Binding| self.address_of(peer, &b, true))
            }
            v4::Dump::NUMBER if may_dump(peer) => simple(call, out, |()| {
                let known = self.lock();
                let item = |r: &Registration| Binding {
                    program: r.program,
                    version: r.version,
                    netid: r.netid.name().into(),
                    address: universal(SocketAddr::new(unspecified(r.netid), r.port)).into(),
                    owner: r.owner.clone(),
                };
                Bindings(known.iter().map(item).collect())
            }),
            v4::GetTime::NUMBER => simple(call, out, |()| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                now.map_or(0, |since| since.as_secs() as u32)
            }),
            v4::GetAddrList::NUMBER if only_v4 && may_dump(peer) => {
                simple(call, out, |b: Binding| {
                    let known = self.lock();
                    let same = |r: &&Registration| r.program == b.program && r.version == b.version;
                    Addresses(known.iter().filter(same).map(|r| address(peer, r)).collect())
                })
            }
            _ => ServeOutcome::NO_SUCH_PROCEDURE,
        }
    }
}

fn address(peer: &Peer, registration: &Registration) -> Address {
    const DATAGRAM: u32 = 1;
    const CONNECTION_ORDERLY: u32 = 3;
    let netid = registration.netid;
    let udp = matches!(netid, Netid::Udp | Netid::Udp6);
    Address {
        address: universal(local_address(peer, netid, registration.port)).into(),
        netid: netid.name().into(),
        semantics: if udp { DATAGRAM } else { CONNECTION_ORDERLY },
        family: if netid.is_v6() { "inet6" } else { "inet" }.into(),
        protocol: if udp { "udp" } else { "tcp" }.into(),
    }
}

fn may_register(peer: &Peer) -> bool {
    admit(Action::ChangeRegistrations, peer, false, true).is_ok()
}

fn may_dump(peer: &Peer) -> bool {
    admit(Action::Dump, peer, false, false).is_ok()
}

impl Service for Rpcbind {
    fn program(&self) -> u32 {
        rpcbind::PROGRAM
    }

    fn versions(&self) -> &'static [u32] {
        &[rpcbind::V2, rpcbind::V3, rpcbind::V4]
    }

    fn serve(
        &self,
        incoming: &mut IncomingCall<'_>,
        _: BlockingMode,
        out: &mut Writer,
    ) -> ServeOutcome {
        let (call, peer) = (incoming.call, incoming.peer);
        match call.version {
            rpcbind::V2 => self.serve_v2(call, peer, out),
            _ => self.serve_v34(call, peer, out),
        }
    }
}
