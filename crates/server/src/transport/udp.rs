//! UDP: one datagram is one record. A reply is sent from the address that the request was sent to.
//!
//! The socket belongs to the task that reads it, and to the server for the last callbacks. Requests
//! refer to it weakly ([`Answering`]), so that a request that hangs in a file system cannot keep the port
//! of a stopped server.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::socket::{setsockopt, sockopt::Ipv6DontFrag};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use wire::Message;

use super::{AnswersMax, Peer, ReplyTo, Transport, stopping};
use crate::log_rate_limit::LogRateLimit;
use crate::rpc::dispatch::Dispatcher;
use crate::service_lease::ServiceLease;

/// The largest datagram that IPv4 can carry.
pub(crate) const DATAGRAM_MAX: usize = 65_507;
const BUFFER_BYTES: usize = 64 << 10;
/// Datagrams that are received by one system call.
const BUFFERS: usize = 8;
const POLL_EVERY: Duration = Duration::from_millis(5);

static STRANGER_DROPPED: LogRateLimit = LogRateLimit::new();

/// A UDP socket that knows to which local address each datagram was sent.
pub(crate) struct Datagrams {
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    /// Requests that wait for a worker or run on one.
    on_workers: AtomicUsize,
    /// Requests that are under way, lock requests that wait included.
    unanswered: AtomicUsize,
    lease: ServiceLease,
}

impl Datagrams {
    pub(crate) fn new(socket: UdpSocket, lease: ServiceLease) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let local = socket.local_addr()?;
        // Allow fragmentation, which `UdpSocketState::new` has disabled: a reply larger than the MTU
        // would be dropped silently.
        if local.is_ipv4() {
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT)?;
        } else {
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DONT)?;
            setsockopt(&socket, Ipv6DontFrag, &false)?;
        }
        let (on_workers, unanswered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Self { socket, state, local, on_workers, unanswered, lease })
    }

    /// Resolves when no request is under way, or they have had their time.
    async fn answered(&self, answers_max: Duration) {
        let answered = async {
            while self.unanswered.load(Ordering::Acquire) > 0 {
                sleep(POLL_EVERY).await;
            }
        };
        let _ = timeout(answers_max, answered).await;
    }

    /// Sends a datagram, or drops it if the socket is full: the client retransmits. Never blocks.
    pub(crate) fn send(&self, peer: &Peer, message: &Message) {
        if !self.lease.is_held() {
            return;
        }
        if message.len() > DATAGRAM_MAX {
            debug!("reply of {} bytes to {} does not fit a datagram", message.len(), peer.remote);
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
            debug!("reply to {} not sent: {error}", peer.remote);
        }
    }
}

/// The socket that answers a request; sends nothing once it is closed.
#[derive(Clone)]
pub(crate) struct Answering(Weak<Datagrams>);

impl Answering {
    pub(crate) fn through(datagrams: &Arc<Datagrams>) -> Self {
        Self(Arc::downgrade(datagrams))
    }

    /// A socket that is closed already.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn nowhere() -> Self {
        Self(Weak::new())
    }

    pub(crate) fn send(&self, peer: &Peer, message: &Message) {
        self.with(|datagrams| datagrams.send(peer, message));
    }

    /// A request is under way: the socket is not closed before it was answered.
    pub(crate) fn started(&self) {
        self.with(|datagrams| datagrams.unanswered.fetch_add(1, Ordering::AcqRel));
    }

    pub(crate) fn finished(&self) {
        self.with(|datagrams| datagrams.unanswered.fetch_sub(1, Ordering::AcqRel));
    }

    /// It goes to a worker.
    pub(crate) fn started_on_worker(&self) {
        self.with(|datagrams| datagrams.on_workers.fetch_add(1, Ordering::Relaxed));
    }

    pub(crate) fn finished_on_worker(&self) {
        self.with(|datagrams| datagrams.on_workers.fetch_sub(1, Ordering::Relaxed));
    }

    fn with<T>(&self, act: impl FnOnce(&Datagrams) -> T) {
        self.0.upgrade().as_deref().map(act);
    }
}

/// Passes the datagrams of one socket to the dispatcher until a stop, then answers what is under way.
pub(crate) async fn serve(
    datagrams: Arc<Datagrams>,
    dispatcher: Arc<Dispatcher>,
    mut stop: watch::Receiver<AnswersMax>,
) {
    let in_flight_max = dispatcher.limits().requests_in_flight_max;
    let mut storage = vec![[0u8; BUFFER_BYTES]; BUFFERS];
    loop {
        tokio::select! {
            ready = datagrams.socket.readable() => if ready.is_err() { return },
            answers_max = stopping(&mut stop) => {
                return datagrams.answered(answers_max).await;
            }
        }
        let mut meta = [RecvMeta::default(); BUFFERS];
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
            let count = meta.len.div_ceil(meta.stride.max(1)) as u64;
            if !dispatcher.callers().serves(&peer) {
                if let Some(metrics) = dispatcher.metrics() {
                    metrics.count_dropped_datagrams(count);
                }
                if STRANGER_DROPPED.due() {
                    let from = peer.remote.ip();
                    warn!(
                        "dropped a datagram from {from}: no export admits this address (`clients`)"
                    );
                }
                continue;
            }
            // With GRO the kernel puts several datagrams of one sender into one buffer.
            for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                if datagrams.on_workers.load(Ordering::Relaxed) >= in_flight_max {
                    debug!("datagram from {} dropped: too many requests in progress", peer.remote);
                    continue;
                }
                let to = ReplyTo::Datagram(Answering::through(&datagrams), peer);
                let record = Bytes::copy_from_slice(datagram);
                if let Some(reply) = dispatcher.receive(record, &peer, &to) {
                    datagrams.send(&peer, &reply);
                }
            }
        }
        dispatcher.flush();
    }
}
