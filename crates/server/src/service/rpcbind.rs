//! rpcbind versions 2 to 4 (RFC 1833), for hosts that run none of their own.
//!
//! No CALLIT: it makes a server call others on a stranger's behalf.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use vfs::Patience;
use wire::Writer;
use wire::rpc::{Call, Procedure};
use wire::rpcbind::{
    self, Address, Addresses, Binding, Bindings, Mapping, Mappings, Netid, Text, parse_universal,
    universal, v2, v4,
};

use super::{Served, Service, simple};
use crate::rpc::pending::Incoming;
use crate::transport::{Peer, Transport};

/// Other programs of this host may register too, but not without end.
const REGISTERED_MAX: usize = 1024;

/// A program at a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    pub program: u32,
    pub version: u32,
    pub netid: Netid,
    pub port: u16,
    pub owner: Text,
}

#[derive(Default)]
pub struct Rpcbind {
    registered: Mutex<Vec<Registered>>,
}

impl Rpcbind {
    pub fn new(registered: Vec<Registered>) -> Self {
        Self { registered: Mutex::new(registered) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Registered>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name that is taken stays taken: whoever wants it must unset it first.
    fn set(&self, peer: &Peer, new: Option<Registered>) -> bool {
        let Some(new) = new.filter(|_| may_register(peer)) else { return false };
        let mut list = self.lock();
        let same = |known: &&Registered| {
            (known.program, known.version, known.netid) == (new.program, new.version, new.netid)
        };
        if let Some(known) = list.iter().find(same) {
            return known.port == new.port;
        }
        if new.port == 0 || list.len() >= REGISTERED_MAX {
            return false;
        }
        list.push(new);
        true
    }

    /// Without a transport, all of the program's version go. Our own services stay: they are
    /// there as long as this answer is.
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
                || known.owner.0 == OWN
        });
        list.len() < before
    }

    /// The port of the version asked for; of another version if that one is not there, because
    /// the program then answers with the versions it has.
    fn find(&self, program: u32, version: u32, netid: Netid, exact: bool) -> Option<u16> {
        let list = self.lock();
        let of_program = || list.iter().filter(|r| r.program == program && r.netid == netid);
        of_program()
            .find(|r| r.version == version)
            .or_else(|| of_program().next().filter(|_| !exact))
            .map(|r| r.port)
    }

    fn get_addr(&self, peer: &Peer, asked: &Binding, exact: bool) -> Text {
        let netid = Netid::parse(&asked.netid).unwrap_or_else(|| arrived_by(peer));
        match self.find(asked.program, asked.version, netid, exact) {
            Some(port) => universal(near(peer, netid, port)).into(),
            None => Text::default(),
        }
    }
}

/// Marks what this server registers of itself.
pub const OWN: &[u8] = b"lockkeeper";

fn arrived_by(peer: &Peer) -> Netid {
    match (peer.transport, peer.local.is_ipv6()) {
        (Transport::Tcp, false) => Netid::Tcp,
        (Transport::Tcp, true) => Netid::Tcp6,
        (Transport::Udp, false) => Netid::Udp,
        (Transport::Udp, true) => Netid::Udp6,
    }
}

/// The address that was asked, if it is of the family that was asked for.
fn near(peer: &Peer, netid: Netid, port: u16) -> SocketAddr {
    let ip = peer.local.ip();
    if ip.is_ipv6() == netid.is_v6() {
        SocketAddr::new(ip, port)
    } else {
        SocketAddr::new(unspecified(netid), port)
    }
}

fn unspecified(netid: Netid) -> IpAddr {
    if netid.is_v6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

fn from_mapping(mapping: &Mapping) -> Option<Registered> {
    let netid = [Netid::Tcp, Netid::Udp].into_iter().find(|n| n.protocol() == mapping.protocol)?;
    let port = u16::try_from(mapping.port).ok()?;
    let (program, version) = (mapping.program, mapping.version);
    Some(Registered { program, version, netid, port, owner: Text::default() })
}

fn from_binding(binding: &Binding) -> Option<Registered> {
    let port = parse_universal(&binding.address)?.port();
    let netid = Netid::parse(&binding.netid)?;
    let (program, version) = (binding.program, binding.version);
    Some(Registered { program, version, netid, port, owner: Text::from(&b"local"[..]) })
}

impl Rpcbind {
    fn serve_v2(&self, call: &Call, peer: &Peer, out: &mut Writer) -> Served {
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
            _ => Served::NO_SUCH_PROCEDURE,
        }
    }

    fn serve_v34(&self, call: &Call, peer: &Peer, out: &mut Writer) -> Served {
        let only_v4 = call.version == rpcbind::V4;
        match call.procedure {
            v4::Null::NUMBER => simple(call, out, |()| ()),
            v4::Set::NUMBER => simple(call, out, |b: Binding| self.set(peer, from_binding(&b))),
            v4::Unset::NUMBER => simple(call, out, |b: Binding| {
                let all = b.netid.is_empty();
                let netid = Netid::parse(&b.netid);
                (all || netid.is_some()) && self.unset(peer, b.program, b.version, netid)
            }),
            v4::GetAddr::NUMBER => simple(call, out, |b: Binding| self.get_addr(peer, &b, false)),
            v4::GetVersAddr::NUMBER if only_v4 => {
                simple(call, out, |b: Binding| self.get_addr(peer, &b, true))
            }
            v4::Dump::NUMBER if may_dump(peer) => simple(call, out, |()| {
                let known = self.lock();
                let line = |r: &Registered| Binding {
                    program: r.program,
                    version: r.version,
                    netid: r.netid.name().into(),
                    address: universal(SocketAddr::new(unspecified(r.netid), r.port)).into(),
                    owner: r.owner.clone(),
                };
                Bindings(known.iter().map(line).collect())
            }),
            v4::GetTime::NUMBER => simple(call, out, |()| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                now.map_or(0, |since| since.as_secs() as u32)
            }),
            v4::GetAddrList::NUMBER if only_v4 => simple(call, out, |b: Binding| {
                let known = self.lock();
                let same = |r: &&Registered| r.program == b.program && r.version == b.version;
                Addresses(known.iter().filter(same).map(|r| address(peer, r)).collect())
            }),
            _ => Served::NO_SUCH_PROCEDURE,
        }
    }
}

fn address(peer: &Peer, registered: &Registered) -> Address {
    const DATAGRAM: u32 = 1;
    const CONNECTION_ORDERLY: u32 = 3;
    let netid = registered.netid;
    let udp = matches!(netid, Netid::Udp | Netid::Udp6);
    Address {
        address: universal(near(peer, netid, registered.port)).into(),
        netid: netid.name().into(),
        semantics: if udp { DATAGRAM } else { CONNECTION_ORDERLY },
        family: if netid.is_v6() { "inet6" } else { "inet" }.into(),
        protocol: if udp { "udp" } else { "tcp" }.into(),
    }
}

/// An administrator of this host: another user must not be able to speak for its services.
fn may_register(peer: &Peer) -> bool {
    peer.is_loopback() && peer.uses_reserved_port()
}

/// A small question with a long answer, over a transport that lets anybody forge who asked.
fn may_dump(peer: &Peer) -> bool {
    peer.transport == Transport::Tcp || peer.is_loopback()
}

impl Service for Rpcbind {
    fn program(&self) -> u32 {
        rpcbind::PROGRAM
    }

    fn versions(&self) -> &'static [u32] {
        &[rpcbind::V2, rpcbind::V3, rpcbind::V4]
    }

    fn serve(&self, incoming: &mut Incoming<'_>, _: Patience, out: &mut Writer) -> Served {
        let (call, peer) = (incoming.call, incoming.peer);
        match call.version {
            rpcbind::V2 => self.serve_v2(call, peer, out),
            _ => self.serve_v34(call, peer, out),
        }
    }
}
