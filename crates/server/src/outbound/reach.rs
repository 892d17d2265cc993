//! "Is anybody there?": NLM NULL to a host's lock manager (R3.3, R4.5).

use std::net::{IpAddr, SocketAddr};

use client::CallError;
use keeper::identity::{Lane, Transport};
use tokio::time::Instant;
use tracing::debug;
use wire::nlm;

use super::lines::Ends;
use super::permitted::refusal;
use super::posts::Purpose;
use super::{Inner, rest};

const NULL: u32 = 0;

impl Inner {
    /// NLM NULL: does anybody answer there?
    pub async fn reaches(&self, host: IpAddr, lane: Lane) -> bool {
        let ends = Ends::new(host, lane);
        if let Some(reason) = refusal(host, ends.ours, &self.own) {
            debug!("{host} is not asked whether it lives: {reason}");
            return false;
        }
        let until = self.deadline();
        match lane.transport() {
            Transport::Tcp => self.reaches_by_tcp(&ends, until).await,
            Transport::Udp => self.reaches_by_udp(&ends, until).await,
        }
    }

    async fn reaches_by_tcp(&self, ends: &Ends, until: Instant) -> bool {
        loop {
            let Ok(line) = self.line(ends, until).await else { return false };
            // A kept connection may be to nowhere; a new one must have the time to show that.
            let patience = if line.kept { Instant::now() + rest(until) / 2 } else { until };
            match self.lock_manager(&line.connection, ends, NULL, &[], patience).await {
                // A refusal is an answer too.
                Ok(_) | Err(CallError::Refused(_)) => return true,
                Err(_) => {
                    line.abandon();
                    self.ports.forget(&ends.service(Transport::Tcp));
                    if !line.kept {
                        return false;
                    }
                }
            }
        }
    }

    async fn reaches_by_udp(&self, ends: &Ends, until: Instant) -> bool {
        let service = ends.service(Transport::Udp);
        let Ok(port) = self.ports.find(&self.posts, service, ends.ours, until).await else {
            return false;
        };
        let Ok(postbox) = self.posts.postbox(ends.ours, Purpose::Lock).await else { return false };
        let to = SocketAddr::new(ends.host, port);
        let numbers = (nlm::PROGRAM, ends.version, NULL);
        let answer = postbox.call_raw(to, numbers, &[], rest(until)).await;
        matches!(answer, Ok(_) | Err(CallError::Refused(_)))
    }
}
