//! UDP: one datagram, one record. Replies leave from the address that was asked.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use nix::sys::socket::{setsockopt, sockopt::Ipv6DontFrag};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tracing::debug;

use wire::Message;

use super::{Peer, ReplyTo, Transport, stopping};
use crate::rpc::dispatch::Dispatcher;
use crate::tenure::Tenure;

/// The largest datagram that IPv4 can carry.
pub const DATAGRAM_MAX: usize = 65_507;
const BUFFER: usize = 64 << 10;
const BATCH: usize = 8;

/// A UDP socket that knows to which of our addresses each datagram was sent.
pub struct Datagrams {
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    /// Requests handed to workers and not yet answered.
    unanswered: AtomicUsize,
    tenure: Tenure,
}

impl Datagrams {
    pub fn new(socket: UdpSocket, tenure: Tenure) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let local = socket.local_addr()?;
        // Replies are larger than a packet: let the network fragment them. The line above has
        // forbidden it and would drop such replies without a word.
        if local.is_ipv4() {
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT)?;
        } else {
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DONT)?;
            setsockopt(&socket, Ipv6DontFrag, &false)?;
        }
        Ok(Self { socket, state, local, unanswered: AtomicUsize::new(0), tenure })
    }

    pub fn started(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    pub fn finished(&self) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
    }

    /// A datagram that cannot be sent now is lost, as datagrams are: the client asks again.
    pub fn send(&self, peer: &Peer, message: &Message) {
        if !self.tenure.holds() {
            return;
        }
        if message.len() > DATAGRAM_MAX {
            debug!("a reply of {} bytes to {} does not fit a datagram", message.len(), peer.remote);
            return;
        }
        let bytes = message.to_bytes();
        let transmit = Transmit {
            destination: peer.remote,
            ecn: None,
            contents: &bytes,
            segment_size: None,
            src_ip: Some(peer.local.ip()),
        };
        let sent = self
            .socket
            .try_io(Interest::WRITABLE, || self.state.try_send((&self.socket).into(), &transmit));
        if let Err(error) = sent {
            debug!("a reply to {} was not sent: {error}", peer.remote);
        }
    }
}

/// Serves one socket until `stop` changes.
pub async fn serve(
    datagrams: Arc<Datagrams>,
    dispatcher: Arc<Dispatcher>,
    mut stop: watch::Receiver<bool>,
) {
    let in_flight_max = dispatcher.limits().requests_in_flight_max;
    let mut storage = vec![[0u8; BUFFER]; BATCH];
    loop {
        tokio::select! {
            ready = datagrams.socket.readable() => if ready.is_err() { return },
            () = stopping(&mut stop) => return,
        }
        let mut meta = [RecvMeta::default(); BATCH];
        let mut buffers: Vec<IoSliceMut<'_>> =
            storage.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let received = datagrams.socket.try_io(Interest::READABLE, || {
            datagrams.state.recv((&datagrams.socket).into(), &mut buffers, &mut meta)
        });
        let Ok(count) = received else { continue };
        for (meta, buffer) in meta.iter().zip(&storage).take(count) {
            let local = meta
                .dst_ip
                .map_or(datagrams.local, |ip| SocketAddr::new(ip, datagrams.local.port()));
            let peer = Peer::new(meta.addr, local, Transport::Udp);
            // The kernel may have put several datagrams of one sender into one buffer.
            for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                if datagrams.unanswered.load(Ordering::Relaxed) >= in_flight_max {
                    debug!("dropped a datagram of {}: too many are being worked on", peer.remote);
                    continue;
                }
                let to = ReplyTo::Datagram(datagrams.clone(), peer);
                let record = Bytes::copy_from_slice(datagram);
                if let Some(reply) = dispatcher.receive(record, &peer, &to) {
                    datagrams.send(&peer, &reply);
                }
            }
        }
        dispatcher.flush();
    }
}
