//! The answer to a request that came as a message: a call in the other direction (C702 chapter 10).

use std::net::SocketAddr;
use std::time::Duration;

use keeper::identity::Transport;
use tokio::time::Instant;
use tracing::debug;
use wire::nlm::{self, Version};

use super::Inner;
use crate::peer::{Failure, LockManager};
use crate::transport::{self, Peer};

/// A client that waits for its answer asks again after a few seconds; one whose rpcbind does not
/// answer by then is answered at the port that it asked from.
const LOOKUP: Duration = Duration::from_secs(1);

impl Inner {
    pub async fn result_in_turn(&self, to: &Peer, version: Version, procedure: u32, body: &[u8]) {
        if let Some(_turn) = self.turn(to.remote.ip()).await {
            self.result(to, version, procedure, body).await;
        }
    }

    async fn result(&self, to: &Peer, version: Version, procedure: u32, body: &[u8]) {
        let (host, ours) = (to.remote.ip(), to.local.ip());
        let manager = LockManager { host, ours, version: version.number() };
        let until = self.deadline();
        let sent = match to.transport {
            transport::Transport::Tcp => self.result_by_tcp(&manager, procedure, body, until).await,
            transport::Transport::Udp if !self.peers.listens_on(ours) => Err(Failure::Unsent),
            transport::Transport::Udp => {
                let soon = until.min(Instant::now() + LOOKUP);
                let service = manager.service(Transport::Udp);
                let found = self.peers.port(service, ours, soon).await;
                let at = SocketAddr::new(host, found.unwrap_or(to.remote.port()));
                let numbers = (nlm::PROGRAM, manager.version, procedure);
                let call = self.peers.one_way_call(at, ours, numbers, body);
                call.and_then(|call| call.send())
            }
        };
        if let Err(failure) = sent {
            debug!("a result was not sent to {host}: {failure:?}");
        }
    }

    async fn result_by_tcp(
        &self,
        to: &LockManager,
        procedure: u32,
        body: &[u8],
        until: Instant,
    ) -> Result<(), Failure> {
        loop {
            let connection = self.peers.connection(to, until).await?;
            match connection.tell(procedure, body, until).await {
                Err(Failure::Broken) if connection.was_kept() => {}
                told => return told,
            }
        }
    }
}
