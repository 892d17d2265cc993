//! A connection's pulse: what the kernel knows of the other end (TCP_INFO, tcp(7)), and how to make
//! it ask (keep-alive segments).

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};

/// The first 104 bytes of `struct tcp_info`: every kernel fills them.
type Words = [u32; 26];

#[derive(Clone, Copy)]
struct TcpInfo;
nix::getsockopt_impl!(TcpInfo, libc::IPPROTO_TCP, libc::TCP_INFO, Words, GetStruct<Words>);

/// `tcpi_last_ack_recv`, in milliseconds.
const LAST_ACK_RECEIVED: usize = 14;
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 7;

#[derive(Debug, Clone, Copy)]
pub struct Pulse {
    pub state: State,
    /// When the other end last acknowledged anything, by data or by an empty segment.
    pub life: Instant,
    /// Questions since then that nobody answered: keep-alive and window probes, retransmissions.
    pub unanswered: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Established,
    /// Ended by a reset or by the kernel's own patience: the socket's error says which.
    Closed,
    /// One side has said goodbye (FIN): what comes now proves nothing.
    Closing,
}

impl Pulse {
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let now = Instant::now();
        let words = getsockopt(&socket, TcpInfo)?;
        let [state, _, retransmits, probes] = words[0].to_ne_bytes();
        let state = match state {
            ESTABLISHED => State::Established,
            CLOSED => State::Closed,
            _ => State::Closing,
        };
        let silent = Duration::from_millis(u64::from(words[LAST_ACK_RECEIVED]));
        let life = now.checked_sub(silent).unwrap_or(now);
        Ok(Self { state, life, unanswered: u32::from(probes.max(retransmits)) })
    }
}

/// How often the kernel asks a silent peer whether it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rhythm {
    pub idle: Duration,
    pub every: Duration,
    /// So many questions without an answer end the connection.
    pub count: u32,
}

/// A peer that is silent for about a quarter of an hour is dropped: as long as a rebooted client
/// repeats its notice, so that its reset can still be seen.
pub const CALM: Rhythm =
    Rhythm { idle: Duration::from_secs(60), every: Duration::from_secs(30), count: 30 };

/// Three questions within ten seconds, the first at once unless something came just now. The count
/// is out of reach: asking must not end a connection.
pub const URGENT: Rhythm =
    Rhythm { idle: Duration::from_secs(1), every: Duration::from_secs(3), count: 100 };

impl Rhythm {
    pub fn apply(self, socket: impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd();
        set_tcp_keepcnt(socket, self.count)?;
        set_tcp_keepintvl(socket, self.every)?;
        set_socket_keepalive(socket, true)?;
        // Last: setting this starts the kernel's timer anew, with what was set before.
        set_tcp_keepidle(socket, self.idle)?;
        Ok(())
    }
}
