//! A host's lock manager, as we call it: where it listens, and whether it answers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use client::rpcbind::{LookupError, Over, find};
use client::{Connection, Datagram, Options};
use keeper::identity::{Lane, Transport};
use wire::nlm;
use wire::rpcbind::Netid;

/// How long finding it may take.
const FIND_MAX: Duration = Duration::from_secs(5);
const NULL: u32 = 0;

/// The lock manager of a host that came to us by this lane.
#[derive(Debug, Clone, Copy)]
pub struct LockManager {
    pub host: IpAddr,
    pub lane: Lane,
    pub rpcbind_port: u16,
}

impl LockManager {
    /// R6.3: nobody makes us call ourselves, or somebody beside us whom only we can reach.
    pub fn may_be_called(&self) -> bool {
        let link_local = match self.host {
            IpAddr::V4(host) => host.is_link_local() || host.is_broadcast(),
            IpAddr::V6(host) => Ipv6Addr::is_unicast_link_local(&host),
        };
        let nobody = self.host.is_unspecified() || self.host.is_multicast();
        !(link_local || nobody || self.host.is_loopback() || self.host == self.lane.ours())
    }

    /// Where it listens over that transport. Its rpcbind is asked by the same: over IPv6 it answers
    /// for the transport of the question.
    pub async fn find(&self, transport: Transport) -> Result<SocketAddr, LookupError> {
        let (over, netid) = match (transport, self.host.is_ipv6()) {
            (Transport::Tcp, false) => (Over::Tcp, Netid::Tcp),
            (Transport::Tcp, true) => (Over::Tcp, Netid::Tcp6),
            (Transport::Udp, false) => (Over::Udp, Netid::Udp),
            (Transport::Udp, true) => (Over::Udp, Netid::Udp6),
        };
        let program = (nlm::PROGRAM, u32::from(self.lane.version()));
        let at = SocketAddr::new(self.host, self.rpcbind_port);
        find(at, over, program, netid, &self.options()).await
    }

    /// Whether it answers an NLM NULL by the way that the host came; whatever it answers, somebody is there.
    pub async fn answers(&self) -> bool {
        let Ok(at) = self.find(self.lane.transport()).await else { return false };
        let (options, version) = (self.options(), u32::from(self.lane.version()));
        let answer = match self.lane.transport() {
            Transport::Tcp => match Connection::connect(at, &options).await {
                Ok(connection) => connection.call_raw(nlm::PROGRAM, version, NULL, &[]).await,
                Err(_) => return false,
            },
            Transport::Udp => match Datagram::connect(at, &options).await {
                Ok(mut socket) => socket.call_raw(nlm::PROGRAM, version, NULL, &[]).await,
                Err(_) => return false,
            },
        };
        matches!(answer, Ok(_) | Err(client::CallError::Refused(_)))
    }

    fn options(&self) -> Options {
        Options {
            source: Some(self.lane.ours()),
            connect_timeout: FIND_MAX,
            timeout: FIND_MAX,
            calls_max: 1,
            record_bytes_max: 4096,
            ..Options::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_makes_us_call_ourselves_or_our_neighbours() {
        let may_be_called = |host: &str, ours: &str| {
            let lane = Lane::new(ours.parse().unwrap(), Transport::Tcp, 4);
            LockManager { host: host.parse().unwrap(), lane, rpcbind_port: 111 }.may_be_called()
        };
        assert!(may_be_called("10.0.0.2", "10.0.0.1"));
        assert!(may_be_called("fd00::2", "fd00::1"));
        assert!(!may_be_called("10.0.0.1", "10.0.0.1"));
        for host in ["127.0.0.1", "127.9.9.9", "169.254.1.1", "0.0.0.0", "224.0.0.1"] {
            assert!(!may_be_called(host, "10.0.0.1"), "{host}");
        }
        assert!(!may_be_called("255.255.255.255", "10.0.0.1"));
        for host in ["::1", "fe80::1", "::", "ff02::1"] {
            assert!(!may_be_called(host, "fd00::1"), "{host}");
        }
    }
}
