//! What a caller decides about its sockets and calls.

use std::net::IpAddr;
use std::time::Duration;

use wire::record::Limits;
use wire::rpc::{Credential, Groups, SysCredential};

#[derive(Debug, Clone)]
pub struct Options {
    /// The local address to speak from; the system's choice if `None`.
    pub source: Option<IpAddr>,
    /// Speak from a port of 512..=1023, which servers take as "an administrator's program".
    pub reserved_port: bool,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a call may take, retransmissions included.
    pub timeout: Duration,
    /// When a datagram is sent again for the first time; the wait doubles from there.
    pub retransmit_after: Duration,
    /// The longest reply that is read from a stream.
    pub record_bytes_max: usize,
    /// Room that is kept for reading from a stream when nothing is known about what comes.
    pub read_bytes: usize,
    /// In how many fragments a reply may come.
    pub fragments_max: usize,
    /// How many calls may be under way on a `Connection`; further callers wait.
    pub calls_max: usize,
    /// Who calls.
    pub credential: Credential,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: None,
            reserved_port: false,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(10),
            retransmit_after: Duration::from_millis(500),
            // The largest READ, and room for everything around it.
            record_bytes_max: (1 << 20) + 4096,
            read_bytes: 64 << 10,
            fragments_max: 64,
            calls_max: 256,
            credential: Credential::None,
        }
    }
}

impl Options {
    /// Calls in the name of a user, as AUTH_SYS says it.
    pub fn user(mut self, uid: u32, gid: u32, groups: &[u32]) -> Self {
        self.credential = Credential::Sys(SysCredential {
            stamp: 0,
            machine: Default::default(),
            uid,
            gid,
            groups: Groups::new(groups),
        });
        self
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { record_bytes_max: self.record_bytes_max, fragments_max: self.fragments_max }
    }
}
