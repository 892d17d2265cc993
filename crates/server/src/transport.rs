//! TCP and UDP: sockets, records, peers and the sending of replies.

pub(crate) mod budget;
pub(crate) mod connections;
mod large_record;
pub(crate) mod listen;
pub(crate) mod outgoing;
mod peer_timers;
pub(crate) mod recipient;
pub(crate) mod slots;
pub(crate) mod slow_peers;
pub(crate) mod tcp;
pub(crate) mod udp;

use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use wire::Message;

use crate::rpc::duplicate_cache::Origin;
use crate::rpc::pending::InFlightGuard;
use outgoing::OutgoingReplies;
use recipient::{Joined, Recipient};
use udp::Answering;

/// How long a clean stop waits for the answers to requests under way, also on a file system that is
/// stalled: it may be slow.
pub(crate) const ANSWERS_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    Tcp,
    Udp,
}

/// The two ends of a request. Both addresses are canonical: never IPv4 mapped to IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    pub(crate) remote: SocketAddr,
    /// The server address that the request was sent to; replies and callbacks come from it.
    pub(crate) local: SocketAddr,
    pub(crate) transport: Transport,
}

impl Peer {
    pub fn new(remote: SocketAddr, local: SocketAddr, transport: Transport) -> Self {
        Self { remote: canonical(remote), local: canonical(local), transport }
    }

    /// Whether the port proves that root of the client's machine sent the request.
    pub(crate) fn uses_reserved_port(&self) -> bool {
        self.remote.port() < 1024
    }

    pub(crate) fn is_loopback(&self) -> bool {
        self.remote.ip().is_loopback()
    }

    /// Whether the peer is this machine: it calls from the address that it calls.
    pub(crate) fn is_local(&self) -> bool {
        self.is_loopback() || self.remote.ip() == self.local.ip()
    }
}

/// Turns `::ffff:10.0.0.1` into `10.0.0.1`. Every address of a peer passes through here.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Since a stop: how long the requests under way may still take to be answered.
pub(crate) type AnswersMax = Option<Duration>;

/// Resolves when the server stops, to the time for answers; never if the sender is gone.
pub(crate) async fn stopping(stop: &mut watch::Receiver<AnswersMax>) -> Duration {
    let stopped = stop.wait_for(Option::is_some).await.ok().and_then(|answers_max| *answers_max);
    match stopped {
        Some(answers_max) => answers_max,
        None => pending().await,
    }
}

/// Where a reply goes.
#[derive(Clone)]
pub(crate) enum ReplyTo {
    Connection(Arc<OutgoingReplies>),
    Datagram(Answering, Peer),
}

impl ReplyTo {
    pub(crate) fn send(&self, message: Message) {
        match self {
            Self::Connection(outgoing) => outgoing.send([message]),
            Self::Datagram(datagrams, peer) => datagrams.send(peer, &message),
        }
    }

    /// Tells `liveness` the name that the peer's machine gives itself.
    pub(crate) fn named(&self, machine: &[u8]) {
        if let Self::Connection(outgoing) = self
            && let Some(guard) = outgoing.liveness_guard()
        {
            guard.add_name(machine);
        }
    }

    /// True on the first call of this for a connection; always false for datagrams.
    pub(crate) fn take_first_call(&self) -> bool {
        match self {
            Self::Connection(outgoing) => outgoing.take_first_call(),
            Self::Datagram(..) => false,
        }
    }

    /// The peer whose bound in the duplicate request cache a call counts against.
    pub(crate) fn origin(&self, peer: &Peer) -> Origin {
        match self {
            Self::Connection(outgoing) => Origin::Connection(outgoing.id()),
            Self::Datagram(..) => Origin::Address(peer.remote.ip()),
        }
    }

    /// Equal for all replies to one connection.
    fn sort_key(&self) -> usize {
        match self {
            Self::Connection(outgoing) => Arc::as_ptr(outgoing).addr(),
            Self::Datagram(..) => 0,
        }
    }

    /// Whether both are the same connection or the same UDP peer, so that one reply serves both.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Connection(a), Self::Connection(b)) => Arc::ptr_eq(a, b),
            (Self::Datagram(_, a), Self::Datagram(_, b)) => a == b,
            _ => false,
        }
    }
}

/// Replies that are sent together: those to one connection in one system call.
#[derive(Default)]
pub(crate) struct ReplyBatch {
    replies: Vec<(ReplyTo, Message)>,
    answered: Vec<InFlightGuard>,
    joined: Vec<Joined>,
}

impl ReplyBatch {
    pub(crate) fn put(&mut self, to: ReplyTo, message: Message) {
        self.replies.push((to, message));
    }

    /// A repeat is counted as in progress until the reply is sent, as in [`hold`](Self::hold).
    pub(crate) fn answer(&mut self, recipient: Recipient, message: Message) {
        let Recipient { to, joined } = recipient;
        self.put(to, message);
        self.joined.extend(joined);
    }

    /// Keeps the request counted as in progress until its reply is sent, so that its connection is
    /// not closed before.
    pub(crate) fn hold(&mut self, request: InFlightGuard) {
        self.answered.push(request);
    }

    pub(crate) fn send(&mut self) {
        // The sort is stable: replies to one connection keep their order.
        self.replies.sort_by_key(|(to, _)| to.sort_key());
        let mut rest = std::mem::take(&mut self.replies).into_iter().peekable();
        while let Some((to, first)) = rest.next() {
            let ReplyTo::Connection(outgoing) = &to else {
                to.send(first);
                continue;
            };
            let mut messages = vec![first];
            while let Some((_, message)) = rest.next_if(|(other, _)| other.same_as(&to)) {
                messages.push(message);
            }
            outgoing.send(messages);
        }
        self.answered.clear();
        self.joined.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_is_the_address_it_maps() {
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:700".parse().unwrap();
        assert_eq!(canonical(mapped), "10.0.0.1:700".parse().unwrap());
        let plain: SocketAddr = "[fd00::1]:700".parse().unwrap();
        assert_eq!(canonical(plain), plain);
    }
}
