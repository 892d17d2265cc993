//! The answer to a request that came as a message: a call in the other direction (C702 chapter 10).

use std::net::SocketAddr;
use std::time::Duration;

use keeper::identity::{Lane, Transport};
use tokio::time::Instant;
use tracing::debug;
use wire::nlm::{self, Version};

use super::lines::Ends;
use super::permitted::refusal;
use super::{Inner, rest};
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
        if let Some(reason) = refusal(host, ours, &self.own) {
            return debug!("a result is not sent to {host}: {reason}");
        }
        let until = self.deadline();
        let numbers = (nlm::PROGRAM, version.number(), procedure);
        let version = version.number() as u8;
        match to.transport {
            transport::Transport::Tcp => {
                let ends = Ends::new(host, Lane::new(ours, Transport::Tcp, version));
                self.result_by_tcp(&ends, procedure, body, until).await;
            }
            transport::Transport::Udp => {
                let ends = Ends::new(host, Lane::new(ours, Transport::Udp, version));
                let Some(socket) = self.listening_on(ours) else { return };
                let soon = until.min(Instant::now() + LOOKUP);
                let service = ends.service(Transport::Udp);
                let found = self.ports.port(&self.posts, service, ours, soon).await;
                let port = found.unwrap_or(to.remote.port());
                let peer = Peer { remote: SocketAddr::new(host, port), ..*to };
                socket.send(&peer, &self.datagram(numbers, body));
            }
        }
    }

    async fn result_by_tcp(&self, ends: &Ends, procedure: u32, body: &[u8], until: Instant) {
        loop {
            let Ok(line) = self.line(ends, until).await else {
                return debug!("a result cannot be sent to {}", ends.host);
            };
            let connection = line.connection.with_timeout(rest(until));
            if !self.settings.tenure.holds() {
                return;
            }
            match connection.tell_raw(nlm::PROGRAM, ends.version, procedure, body).await {
                Ok(()) => return,
                Err(error) => {
                    debug!("a result to {}: {error}", ends.host);
                    line.abandon();
                    if !line.kept {
                        return;
                    }
                }
            }
        }
    }
}
