//! UDP calls whose reply is not awaited, sent from a listening socket: some clients ignore datagrams
//! from any other port.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use wire::rpc::{ProcedureId, write_call};
use wire::{Message, Writer};

use super::gate::Gate;
use super::{Failure, Peers};
use crate::transport::udp::Datagrams;
use crate::transport::{Peer, Transport};

/// One call. Retransmissions carry the same xid.
pub(crate) struct OneWayCall {
    gate: Arc<Gate>,
    socket: Arc<Datagrams>,
    peer: Peer,
    message: Message,
}

impl Peers {
    /// Prepares a call from `ours` with root's credential. [`Failure::Unsent`] if no socket of ours
    /// listens there.
    pub(crate) fn one_way_call(
        &self,
        to: SocketAddr,
        ours: IpAddr,
        procedure: ProcedureId,
        args: &[u8],
    ) -> Result<OneWayCall, Failure> {
        let socket = self.listening_on(ours).ok_or(Failure::Unsent)?;
        let mut out = Writer::new();
        write_call(&mut out, client::next_xid(), procedure, &self.0.credential);
        out.fixed(args);
        let peer = Peer::new(to, SocketAddr::new(ours, 0), Transport::Udp);
        Ok(OneWayCall { gate: self.0.gate.clone(), socket, peer, message: out.finish() })
    }

    /// Whether one of our listening sockets can send from `ours`.
    pub(crate) fn listens_on(&self, ours: IpAddr) -> bool {
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
    /// Sends or retransmits it. Ok does not mean that it arrived.
    pub(crate) fn send(&self) -> Result<(), Failure> {
        self.gate.pass(self.peer.remote.ip(), self.peer.local.ip())?;
        self.socket.send(&self.peer, &self.message);
        Ok(())
    }
}
