//! Calls whose reply nobody waits for, sent from a listening UDP socket: some clients hear nothing
//! that comes from elsewhere.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use wire::rpc::write_call;
use wire::{Message, Writer};

use super::gate::Gate;
use super::{Failure, Numbers, Peers};
use crate::transport::udp::Datagrams;
use crate::transport::{Peer, Transport};

/// One call; however often it is sent, it has one xid.
pub struct OneWayCall {
    gate: Arc<Gate>,
    socket: Arc<Datagrams>,
    peer: Peer,
    message: Message,
}

impl Peers {
    /// A call that leaves from `ours`, in root's name. [`Failure::Unsent`] if we do not listen there.
    pub fn one_way_call(
        &self,
        to: SocketAddr,
        ours: IpAddr,
        numbers: Numbers,
        args: &[u8],
    ) -> Result<OneWayCall, Failure> {
        let socket = self.listening_on(ours).ok_or(Failure::Unsent)?;
        let mut out = Writer::new();
        write_call(&mut out, client::next_xid(), numbers, &self.0.credential);
        out.fixed(args);
        let peer = Peer::new(to, SocketAddr::new(ours, 0), Transport::Udp);
        Ok(OneWayCall { gate: self.0.gate.clone(), socket, peer, message: out.finish() })
    }

    /// Whether we have a listening socket through which datagrams leave from `ours`.
    pub fn listens_on(&self, ours: IpAddr) -> bool {
        self.listening_on(ours).is_some()
    }

    fn listening_on(&self, ours: IpAddr) -> Option<Arc<Datagrams>> {
        let fits = |bound: IpAddr| {
            bound == ours || (bound.is_unspecified() && bound.is_ipv4() == ours.is_ipv4())
        };
        let (_, socket) = self.0.listening.iter().find(|(bound, _)| fits(bound.ip()))?;
        socket.upgrade()
    }
}

impl OneWayCall {
    /// Sends it (again). A datagram may be lost: without an error it may have arrived.
    pub fn send(&self) -> Result<(), Failure> {
        self.gate.pass(self.peer.remote.ip(), self.peer.local.ip())?;
        self.socket.send(&self.peer, &self.message);
        Ok(())
    }
}
