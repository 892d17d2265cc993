//! Settings of sockets and calls.

use std::net::IpAddr;
use std::time::Duration;

use wire::record::Limits;
use wire::rpc::{Credential, Groups, SysCredential};

/// Settings of sockets and calls; the defaults suit a call to a nearby server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The source address; chosen by the system if `None`.
    pub source: Option<IpAddr>,
    /// Use a source port from 512 to 1023, by which servers recognise a privileged program.
    pub reserved_port: bool,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a call may take, retransmissions included.
    pub timeout: Duration,
    /// The time to the first retransmission of a datagram; it doubles with each.
    pub retransmit_after: Duration,
    /// The maximum length of a reply on a stream.
    pub record_bytes_max: usize,
    /// The least buffer space for a read from a stream.
    pub read_bytes: usize,
    /// The maximum number of fragments of a reply.
    pub fragments_max: usize,
    /// The maximum number of pending calls on a `Connection`; further callers wait.
    pub calls_max: usize,
    /// The credential of all calls.
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
            // The largest READ reply.
            record_bytes_max: (1 << 20) + 4096,
            read_bytes: 64 << 10,
            fragments_max: 64,
            calls_max: 256,
            credential: Credential::None,
        }
    }
}

impl Options {
    /// Uses an AUTH_SYS credential of this user.
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
