//! The pulse of a real connection: what the kernel knows of the other end (TCP_INFO, tcp(7)), and
//! how to make it ask (keep-alive segments).

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

use super::line::Socket;
use super::pulse::{Pulse, Rhythm, State};

/// The first 104 bytes of `struct tcp_info`: every kernel fills them.
type Words = [u32; 26];

#[derive(Clone, Copy)]
struct TcpInfo;
nix::getsockopt_impl!(TcpInfo, libc::IPPROTO_TCP, libc::TCP_INFO, Words, GetStruct<Words>);

/// `tcpi_last_ack_recv`, in milliseconds.
const LAST_ACK_RECEIVED: usize = 14;
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 7;

/// Whatever owns a TCP socket and lets it be looked at.
pub trait Stream: Send + Sync {
    fn stream(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn stream(&self) -> &TcpStream {
        self
    }
}

impl<S: Stream> Socket for S {
    fn pulse(&self) -> Option<Pulse> {
        pulse(self.stream()).ok()
    }

    fn set_rhythm(&self, rhythm: Rhythm) {
        // A socket on which this cannot be set is about to end, and will be seen to. Without
        // keep-alive a silent peer is not found out; that is no reason to refuse it.
        let _ = apply(rhythm, self.stream());
    }

    fn take_end(&self) -> Option<bool> {
        let error = self.stream().take_error().ok()??;
        Some(is_reset(&error))
    }
}

/// Only a reset of a connection in which neither side had said goodbye has this error.
pub fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

fn pulse(socket: impl AsFd) -> io::Result<Pulse> {
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
    Ok(Pulse { state, life, unanswered: u32::from(probes.max(retransmits)) })
}

fn apply(rhythm: Rhythm, socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    set_tcp_keepcnt(socket, rhythm.count)?;
    set_tcp_keepintvl(socket, rhythm.every)?;
    set_socket_keepalive(socket, true)?;
    // Last: setting this starts the kernel's timer anew, with what was set before.
    set_tcp_keepidle(socket, rhythm.idle)?;
    Ok(())
}
