//! Ethernet frames: IPv4 (RFC 791) with UDP (RFC 768) or TCP (RFC 9293).

use std::net::{Ipv4Addr, SocketAddrV4};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Flags of a TCP segment.
pub mod flags {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
}

/// Source and destination.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
}

impl Path {
    pub fn back(self) -> Self {
        Self { from: self.to, to: self.from }
    }
}

/// A datagram; at most 65,507 bytes of payload fit.
pub fn udp(path: Path, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let mut datagram = Vec::with_capacity(usize::from(length));
    datagram.extend(path.from.port().to_be_bytes());
    datagram.extend(path.to.port().to_be_bytes());
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    // A checksum of zero means "not computed".
    let sum = match transport_checksum(path, UDP, &datagram) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    ethernet(path, UDP, &datagram)
}

/// A segment without options.
pub fn tcp(path: Path, sequence: u32, acknowledged: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    const WORDS_IN_HEADER: u8 = 5;
    const WINDOW: u16 = u16::MAX;
    let mut segment = Vec::with_capacity(20 + payload.len());
    segment.extend(path.from.port().to_be_bytes());
    segment.extend(path.to.port().to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledged.to_be_bytes());
    segment.extend([WORDS_IN_HEADER << 4, flags]);
    segment.extend(WINDOW.to_be_bytes());
    segment.extend([0; 4]);
    segment.extend(payload);
    let sum = transport_checksum(path, TCP, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    ethernet(path, TCP, &segment)
}

fn ethernet(path: Path, protocol: u8, payload: &[u8]) -> Vec<u8> {
    const IPV4: u16 = 0x0800;
    let mut frame = Vec::with_capacity(34 + payload.len());
    frame.extend(station(*path.to.ip()));
    frame.extend(station(*path.from.ip()));
    frame.extend(IPV4.to_be_bytes());

    const VERSION_AND_WORDS: u8 = 0x45;
    const DO_NOT_FRAGMENT: u8 = 0x40;
    const HOPS: u8 = 64;
    let mut header = vec![VERSION_AND_WORDS, 0];
    header.extend(((20 + payload.len()) as u16).to_be_bytes());
    header.extend([0, 0, DO_NOT_FRAGMENT, 0, HOPS, protocol, 0, 0]);
    header.extend(path.from.ip().octets());
    header.extend(path.to.ip().octets());
    let sum = !ones_complement(0, &header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());

    frame.extend(header);
    frame.extend(payload);
    frame
}

/// A locally administered MAC address derived from the IP address.
fn station(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x02, 0, a, b, c, d]
}

/// The checksum over pseudo header and segment.
fn transport_checksum(path: Path, protocol: u8, segment: &[u8]) -> u16 {
    let mut pseudo = Vec::with_capacity(12);
    pseudo.extend(path.from.ip().octets());
    pseudo.extend(path.to.ip().octets());
    pseudo.extend([0, protocol]);
    pseudo.extend((segment.len() as u16).to_be_bytes());
    !ones_complement(ones_complement(0, &pseudo), segment)
}

fn ones_complement(start: u16, bytes: &[u8]) -> u16 {
    let mut sum = u64::from(start);
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_known_header_is_right() {
        let header: [u8; 20] = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x00, 0x00, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(!ones_complement(0, &header), 0xb861);
    }

    #[test]
    fn an_odd_byte_counts_as_the_high_half_of_a_word() {
        assert_eq!(ones_complement(0, &[0x12, 0x34, 0x56]), 0x1234 + 0x5600);
    }
}
