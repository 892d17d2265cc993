//! [`Socket`] for real TCP sockets: status by TCP_INFO (tcp(7)), probes by keep-alive segments.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};

use tokio::net::TcpStream;

use super::socket::{KeepAlive, Socket, SocketStatus, TcpState};

/// The first 104 bytes of `struct tcp_info`, which every kernel fills in.
type Words = [u32; 26];

#[derive(Clone, Copy)]
struct TcpInfo;
nix::getsockopt_impl!(TcpInfo, libc::IPPROTO_TCP, libc::TCP_INFO, Words, GetStruct<Words>);

/// `tcpi_last_ack_recv`, in milliseconds.
const LAST_ACK_RECEIVED: usize = 14;
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 7;

/// An owner of a TCP socket.
pub(crate) trait Stream: Send + Sync {
    fn stream(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn stream(&self) -> &TcpStream {
        self
    }
}

impl<S: Stream> Socket for S {
    fn status(&self) -> Option<SocketStatus> {
        status(self.stream()).ok()
    }

    fn set_keep_alive(&self, keep_alive: KeepAlive) {
        // Fails only on a socket that is about to end. Without keep-alive a silent peer goes
        // unnoticed; that is no reason to refuse it.
        let _ = apply(keep_alive, self.stream());
    }

    fn take_end(&self) -> Option<bool> {
        let error = self.stream().take_error().ok()??;
        Some(is_reset(&error))
    }
}

/// A reset of a connection on which neither side had sent FIN; no other end has this error.
pub(super) fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

fn status(socket: impl AsFd) -> io::Result<SocketStatus> {
    let now = Instant::now();
    let words = getsockopt(&socket, TcpInfo)?;
    let [state, _, retransmits, probes] = words[0].to_ne_bytes();
    let state = match state {
        ESTABLISHED => TcpState::Established,
        CLOSED => TcpState::Closed,
        _ => TcpState::Closing,
    };
    let silent = Duration::from_millis(u64::from(words[LAST_ACK_RECEIVED]));
    let last_ack = now.checked_sub(silent).unwrap_or(now);
    Ok(SocketStatus { state, last_ack, unanswered: u32::from(probes.max(retransmits)) })
}

fn apply(keep_alive: KeepAlive, socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    set_tcp_keepcnt(socket, keep_alive.count)?;
    set_tcp_keepintvl(socket, keep_alive.interval)?;
    set_socket_keepalive(socket, true)?;
    // Last: this restarts the kernel's timer with the other settings.
    set_tcp_keepidle(socket, keep_alive.idle)?;
    Ok(())
}
