//! What liveness needs of a TCP socket: its state as the kernel sees it, and its keep-alive settings.
//! Implemented by real sockets (`tcp_info.rs`) and by the simulator.

use std::time::{Duration, Instant};

/// A socket that can be inspected while another task reads and writes it.
pub trait Socket: Send + Sync {
    /// `None` if the kernel does not tell.
    fn status(&self) -> Option<SocketStatus>;

    fn set_keep_alive(&self, keep_alive: KeepAlive);

    /// How a closed connection ended: true if by a reset. Each end is reported once, either to the
    /// task that owns the socket or here.
    fn take_end(&self) -> Option<bool>;
}

#[derive(Debug, Clone, Copy)]
pub struct SocketStatus {
    pub state: TcpState,
    /// When the peer last acknowledged anything, by data or by an empty segment.
    pub last_ack: Instant,
    /// Segments since then that went unanswered: keep-alive and window probes, retransmissions.
    pub unanswered: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpState {
    Established,
    /// Ended by a reset or by the kernel's own timeout: the socket's error says which.
    Closed,
    /// One side has sent FIN: further segments prove nothing.
    Closing,
}

/// When the kernel probes an idle peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    pub idle: Duration,
    pub interval: Duration,
    /// So many unanswered probes end the connection.
    pub count: u32,
}

/// Drops a peer that is silent for about a quarter of an hour: as long as a rebooted client repeats
/// its notice, so that its reset can still be seen.
pub const NORMAL: KeepAlive =
    KeepAlive { idle: Duration::from_secs(60), interval: Duration::from_secs(30), count: 30 };

/// Three probes within ten seconds, the first at once unless the peer was heard just now. The count
/// is never reached: probing must not end a connection.
pub const URGENT: KeepAlive =
    KeepAlive { idle: Duration::from_secs(1), interval: Duration::from_secs(3), count: 100 };
