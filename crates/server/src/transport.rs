//! How bytes come in and go out: who a peer is, and where a reply goes.

pub mod connections;
pub mod listen;
pub mod outgoing;
pub mod tcp;
pub mod udp;

use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::sync::watch;
use wire::Message;

use crate::rpc::duplicates::Origin;
use crate::rpc::pending::Charge;
use outgoing::Outgoing;
use udp::Datagrams;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    Tcp,
    Udp,
}

/// The two ends of a request. Both addresses are canonical: IPv4 is never spelled as IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    pub remote: SocketAddr,
    /// The address of ours that was asked; replies and callbacks leave from it.
    pub local: SocketAddr,
    pub transport: Transport,
}

impl Peer {
    pub fn new(remote: SocketAddr, local: SocketAddr, transport: Transport) -> Self {
        Self { remote: canonical(remote), local: canonical(local), transport }
    }

    /// Only root of the client's machine can send from such a port.
    pub fn uses_reserved_port(&self) -> bool {
        self.remote.port() < 1024
    }

    pub fn is_loopback(&self) -> bool {
        self.remote.ip().is_loopback()
    }

    /// Whether it is this machine itself: it calls from the address that it calls.
    pub fn is_local(&self) -> bool {
        self.is_loopback() || self.remote.ip() == self.local.ip()
    }
}

/// `::ffff:10.0.0.1` is `10.0.0.1`: the one place where that is settled.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Resolves when the server stops; never, if it cannot.
async fn stopping(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stopped| *stopped).await.is_err() {
        pending::<()>().await;
    }
}

/// Where a reply goes.
#[derive(Clone)]
pub enum ReplyTo {
    Connection(Arc<Outgoing>),
    Datagram(Arc<Datagrams>, Peer),
}

impl ReplyTo {
    pub fn send(&self, message: Message) {
        match self {
            Self::Connection(outgoing) => outgoing.send([message]),
            Self::Datagram(datagrams, peer) => datagrams.send(peer, &message),
        }
    }

    /// The machine at the other end calls itself so.
    pub fn named(&self, machine: &[u8]) {
        if let Self::Connection(outgoing) = self
            && let Some(acquaintance) = outgoing.acquaintance()
        {
            acquaintance.named(machine);
        }
    }

    /// True for the first call of a connection.
    pub fn hears_first(&self) -> bool {
        match self {
            Self::Connection(outgoing) => outgoing.hears_first(),
            Self::Datagram(..) => false,
        }
    }

    /// Whose share of the duplicate request cache a call of this peer counts against.
    pub fn origin(&self, peer: &Peer) -> Origin {
        match self {
            Self::Connection(outgoing) => Origin::Connection(outgoing.id()),
            Self::Datagram(..) => Origin::Address(peer.remote.ip()),
        }
    }

    /// Equal for all that lead to one connection.
    fn order(&self) -> usize {
        match self {
            Self::Connection(outgoing) => Arc::as_ptr(outgoing).addr(),
            Self::Datagram(..) => 0,
        }
    }

    /// Whether both lead to the same socket, so that one reply serves both.
    pub fn same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Connection(a), Self::Connection(b)) => Arc::ptr_eq(a, b),
            (Self::Datagram(_, a), Self::Datagram(_, b)) => a == b,
            _ => false,
        }
    }
}

/// Replies that leave together: those to one connection in one go.
#[derive(Default)]
pub struct ReplyBatch {
    replies: Vec<(ReplyTo, Message)>,
    answered: Vec<Charge>,
}

impl ReplyBatch {
    pub fn put(&mut self, to: ReplyTo, message: Message) {
        self.replies.push((to, message));
    }

    /// A request whose reply is in here counts as under way until it is sent: who closes a
    /// connection with nothing under way must not come in between.
    pub fn answers(&mut self, request: Charge) {
        self.answered.push(request);
    }

    pub fn send(&mut self) {
        // Stable: the replies to one connection keep their order.
        self.replies.sort_by_key(|(to, _)| to.order());
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
