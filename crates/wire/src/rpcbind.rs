//! rpcbind versions 2 (portmap), 3 and 4, RFC 1833: the ports of RPC programs.

use std::net::{IpAddr, SocketAddr};

use crate::rpc::procedures;
use crate::xdr::{Decode, Encode, Reader, Result, Writer, xdr_bytes, xdr_struct};

pub const PROGRAM: u32 = 100_000;
pub const PORT: u16 = 111;
pub const V2: u32 = 2;
pub const V3: u32 = 3;
pub const V4: u32 = 4;

pub const PROTOCOL_TCP: u32 = 6;
pub const PROTOCOL_UDP: u32 = 17;

/// Version 2: IPv4 and port numbers only.
pub mod v2 {
    use super::*;

    procedures! { PROGRAM, V2;
        Null = 0 (()) -> ();
        Set = 1 (Mapping) -> bool;
        Unset = 2 (Mapping) -> bool;
        GetPort = 3 (Mapping) -> u32;
        Dump = 4 (()) -> Mappings;
    }
    pub const CALLIT: u32 = 5;
}

/// Version 3: transports by name, addresses as text.
pub mod v3 {
    use super::*;

    procedures! { PROGRAM, V3;
        Null = 0 (()) -> ();
        Set = 1 (Binding) -> bool;
        Unset = 2 (Binding) -> bool;
        GetAddr = 3 (Binding) -> Text;
        Dump = 4 (()) -> Bindings;
        GetTime = 6 (()) -> u32;
    }
}

/// Version 4: as 3, with more procedures.
pub mod v4 {
    use super::*;

    procedures! { PROGRAM, V4;
        Null = 0 (()) -> ();
        Set = 1 (Binding) -> bool;
        Unset = 2 (Binding) -> bool;
        GetAddr = 3 (Binding) -> Text;
        Dump = 4 (()) -> Bindings;
        GetTime = 6 (()) -> u32;
        GetVersAddr = 9 (Binding) -> Text;
        GetAddrList = 11 (Binding) -> Addresses;
    }
}

xdr_bytes! {
    /// A netid, a universal address or an owner.
    pub struct Text(max 256);
}

xdr_struct! {
    /// Version 2: program, version, protocol number and port.
    #[derive(Copy, Hash)]
    pub struct Mapping {
        pub program: u32,
        pub version: u32,
        pub protocol: u32,
        pub port: u32,
    }

    /// Versions 3 and 4: program, version, transport and address.
    pub struct Binding {
        pub program: u32,
        pub version: u32,
        pub netid: Text,
        pub address: Text,
        pub owner: Text,
    }

    /// One entry of GETADDRLIST.
    pub struct Address {
        pub address: Text,
        pub netid: Text,
        /// 1 datagram, 3 connection.
        pub semantics: u32,
        pub family: Text,
        pub protocol: Text,
    }
}

const LIST_MAX: u32 = 4_096;

macro_rules! lists {
    ($($name:ident of $item:ty;)*) => {$(
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $name(pub Vec<$item>);

        impl Encode for $name {
            fn encode(&self, out: &mut Writer) {
                out.list(&self.0);
            }
        }

        impl Decode for $name {
            fn decode(input: &mut Reader) -> Result<Self> {
                input.list(LIST_MAX).map(Self)
            }
        }
    )*};
}

lists! {
    Mappings of Mapping;
    Bindings of Binding;
    Addresses of Address;
}

/// The transports of version 3 and 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Netid {
    Tcp,
    Udp,
    Tcp6,
    Udp6,
}

impl Netid {
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Tcp6, Self::Udp6];

    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Tcp6 => "tcp6",
            Self::Udp6 => "udp6",
        }
    }

    pub fn parse(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|netid| netid.name().as_bytes() == name)
    }

    pub fn is_udp(self) -> bool {
        matches!(self, Self::Udp | Self::Udp6)
    }

    pub fn is_v6(self) -> bool {
        matches!(self, Self::Tcp6 | Self::Udp6)
    }

    /// The protocol number that version 2 uses.
    pub fn protocol(self) -> u32 {
        match self {
            Self::Tcp | Self::Tcp6 => PROTOCOL_TCP,
            Self::Udp | Self::Udp6 => PROTOCOL_UDP,
        }
    }
}

/// "10.0.0.1.8.1" or "fd00::1.8.1": the address, then the two bytes of the port.
pub fn universal(address: SocketAddr) -> String {
    let port = address.port();
    format!("{}.{}.{}", address.ip(), port >> 8, port & 0xff)
}

pub fn parse_universal(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let (ip, high, low): (IpAddr, u8, u8) =
        (ip.parse().ok()?, high.parse().ok()?, low.parse().ok()?);
    Some(SocketAddr::new(ip, u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn universal_addresses_come_back() {
        for text in ["10.0.0.1:2049", "[fd00::1]:111", "0.0.0.0:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(parse_universal(universal(address).as_bytes()), Some(address));
        }
        assert_eq!(universal("10.0.0.1:2049".parse().unwrap()), "10.0.0.1.8.1");
    }

    #[test]
    fn what_is_no_universal_address_is_refused() {
        for text in ["", "1.2", "10.0.0.1", "10.0.0.1.8", "10.0.0.1.256.1", "a.b.c.d.e.f"] {
            assert_eq!(parse_universal(text.as_bytes()), None, "{text}");
        }
    }
}
