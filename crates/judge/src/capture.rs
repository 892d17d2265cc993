//! Synthetic capture files: connections and datagrams in the pcap format.

use std::io;
use std::net::SocketAddrV4;
use std::path::Path as FilePath;

use crate::packet::{self, Path, flags};

/// Packets in the order in which they were sent, one millisecond apart.
#[derive(Debug, Default)]
pub struct Capture {
    packets: Vec<Vec<u8>>,
}

/// The sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// A TCP connection in a capture, with the sequence numbers of both sides.
#[derive(Debug)]
pub struct Connection {
    /// From the client to the server.
    path: Path,
    client_sequence: u32,
    server_sequence: u32,
}

/// The maximum segment size on Ethernet.
const SEGMENT_BYTES_MAX: usize = 1_460;

impl Capture {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn datagram(&mut self, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
        self.packets.push(packet::udp(Path { from, to }, payload));
    }

    /// The three-way handshake. The sequence numbers begin shortly before they wrap around.
    pub fn connect(&mut self, client: SocketAddrV4, server: SocketAddrV4) -> Connection {
        let path = Path { from: client, to: server };
        let mut connection =
            Connection { path, client_sequence: 0xffff_f000, server_sequence: 0x7fff_f000 };
        self.segment(&mut connection, Side::Client, flags::SYN, &[]);
        self.segment(&mut connection, Side::Server, flags::SYN | flags::ACK, &[]);
        self.segment(&mut connection, Side::Client, flags::ACK, &[]);
        connection
    }

    /// Sends bytes in segments, each acknowledged by the other side.
    pub fn send(&mut self, connection: &mut Connection, side: Side, bytes: &[u8]) {
        for segment in bytes.chunks(SEGMENT_BYTES_MAX) {
            self.segment(connection, side, flags::PSH | flags::ACK, segment);
            self.segment(connection, side.other(), flags::ACK, &[]);
        }
    }

    /// One RPC message as a record of one fragment.
    pub fn send_record(&mut self, connection: &mut Connection, side: Side, message: &[u8]) {
        let mut record = wire::record::mark(message.len()).to_be_bytes().to_vec();
        record.extend(message);
        self.send(connection, side, &record);
    }

    pub fn close(&mut self, mut connection: Connection) {
        self.segment(&mut connection, Side::Client, flags::FIN | flags::ACK, &[]);
        self.segment(&mut connection, Side::Server, flags::FIN | flags::ACK, &[]);
        self.segment(&mut connection, Side::Client, flags::ACK, &[]);
    }

    fn segment(&mut self, connection: &mut Connection, side: Side, flags: u8, payload: &[u8]) {
        let Connection { path, client_sequence, server_sequence } = connection;
        let (path, mine, theirs) = match side {
            Side::Client => (*path, client_sequence, server_sequence),
            Side::Server => (path.back(), server_sequence, client_sequence),
        };
        let acknowledged = if flags & flags::ACK == 0 { 0 } else { *theirs };
        self.packets.push(packet::tcp(path, *mine, acknowledged, flags, payload));
        let phantom = u32::from(flags & (flags::SYN | flags::FIN) != 0);
        *mine = mine.wrapping_add(payload.len() as u32 + phantom);
    }

    pub fn save(&self, to: &FilePath) -> io::Result<()> {
        std::fs::write(to, self.to_pcap())
    }

    /// The classic format: a header, then each packet with its time and length.
    pub fn to_pcap(&self) -> Vec<u8> {
        const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
        const SNAPSHOT_BYTES_MAX: u32 = 262_144;
        const ETHERNET: u32 = 1;
        let mut file = Vec::new();
        file.extend(MAGIC_MICROSECONDS.to_le_bytes());
        file.extend(2u16.to_le_bytes());
        file.extend(4u16.to_le_bytes());
        for word in [0, 0, SNAPSHOT_BYTES_MAX, ETHERNET] {
            file.extend(word.to_le_bytes());
        }
        for (millisecond, packet) in (0u32..).zip(&self.packets) {
            let length = packet.len() as u32;
            let microseconds = millisecond % 1_000 * 1_000;
            for word in [1_000_000_000 + millisecond / 1_000, microseconds, length, length] {
                file.extend(word.to_le_bytes());
            }
            file.extend(packet);
        }
        file
    }
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
