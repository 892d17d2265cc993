//! The answer to a request in `*_MSG` form: a `*_RES` call to the client (C702 chapter 10).

use std::net::SocketAddr;
use std::time::Duration;

use keeper::identity::Transport;
use tokio::time::Instant;
use tracing::debug;
use wire::nlm::Version;

use super::Inner;
use crate::peer::{Failure, LockManager};
use crate::transport::{self, Peer};

/// A client repeats its request after a few seconds; if its rpcbind has not answered by then, the
/// result goes to the port that the request came from.
const LOOKUP_MAX: Duration = Duration::from_secs(1);

impl Inner {
    /// Waits for a permit, then sends the result once.
    pub(super) async fn result(&self, to: &Peer, version: Version, procedure: u32, body: &[u8]) {
        let Some(_permit) = self.permit(to.remote.ip()).await else { return };
        let (host, ours) = (to.remote.ip(), to.local.ip());
        let manager = LockManager { host, ours, version: version.number() };
        let until = self.deadline();
        let sent = match to.transport {
            transport::Transport::Tcp => {
                self.peers.call_tcp_one_way(&manager, procedure, body, until).await.map(drop)
            }
            transport::Transport::Udp if !self.peers.listens_on(ours) => Err(Failure::Unsent),
            transport::Transport::Udp => {
                let soon = until.min(Instant::now() + LOOKUP_MAX);
                let port = self.peers.port(manager.service(Transport::Udp), ours, soon).await;
                let at = SocketAddr::new(host, port.unwrap_or(to.remote.port()));
                let call = self.peers.one_way_call(at, ours, manager.procedure(procedure), body);
                call.and_then(|call| call.send())
            }
        };
        if let Err(failure) = sent {
            debug!("cannot send the result of a message to {host}: {failure:?}");
        }
    }
}
