//! The bounds on what peers can make the server hold (I10) that the configuration or a test can change.
//!
//! Other bounds are constants beside what they limit: reads of the keeper in `engine/inbox.rs`;
//! what a connection may hold beside the budget in `transport/budget.rs`; reserved connections and known
//! addresses in `transport/slots.rs`; recipients of one reply in `rpc/duplicate_cache.rs`; unsent bytes of a connection in
//! `transport/tcp.rs`; the receive buffers and the backlog of sockets in `transport/listen.rs`;
//! witnesses, names and resets in `liveness.rs` and `liveness/*.rs`; known ports and sockets in
//! `peer/ports.rs` and `peer/udp.rs`; mounts in `service/mount.rs`; registrations in
//! `service/rpcbind.rs`; events in `event_log.rs`. The lock table, its waiters and the clients are
//! bounded by `keeper::config`.

use std::time::Duration;

use wire::nfs3::IO_BYTES_MAX;
use wire::record;

use super::duplicate_cache::CacheBounds;

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Limits {
    /// Of the NFS port: the embedded rpcbind counts its own ([`of_rpcbind`](Self::of_rpcbind)).
    pub connections_max: usize,
    pub connections_per_address_max: usize,
    /// Requests in progress, of one connection or of one UDP socket. Over UDP only requests on a
    /// worker count.
    pub requests_in_flight_max: usize,
    /// Bytes of requests in progress, of their expected replies and of unsent replies, of one
    /// connection.
    pub connection_bytes_max: usize,
    /// The same of all connections together, and of records that are being received
    /// (`transport/budget.rs`).
    pub total_bytes_max: usize,
    pub record_bytes_max: usize,
    pub fragments_max: usize,
    /// An idle connection is closed after this time, unless `liveness` needs it.
    pub idle_max: Duration,
    /// The most time in which a record is neither completed nor makes progress (`transport/tcp.rs`).
    pub record_time_max: Duration,
    /// How long a peer may leave a reply unread.
    pub unread_time_max: Duration,
    /// Calls in the duplicate request cache, and the bytes of their replies. The cache has four parts
    /// (`rpc/duplicates.rs`): this many for file requests, as many for lock requests, and a quarter of
    /// it each for WRITE and for other calls that workers have, so 2.5 times the value in all.
    pub duplicates_max: usize,
    pub duplicates_bytes_max: usize,
    /// The same of one connection, or of the datagrams of one address.
    pub duplicates_per_peer_max: usize,
    /// File names that are remembered to show the paths of locked files.
    pub names_max: usize,
    /// Lock and status requests in the engine's inbox.
    pub lock_requests_max: usize,
    /// Callbacks and notices in progress or waiting for their turn.
    pub callbacks_max: usize,
    /// Worker threads.
    pub workers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            connections_per_address_max: 2048,
            requests_in_flight_max: 128,
            connection_bytes_max: 32 << 20,
            total_bytes_max: 1 << 30,
            // The largest WRITE with the largest credential, and a margin.
            record_bytes_max: IO_BYTES_MAX as usize + 4096,
            fragments_max: 1024,
            idle_max: Duration::from_secs(15 * 60),
            record_time_max: Duration::from_secs(30),
            unread_time_max: Duration::from_secs(60),
            duplicates_max: 262_144,
            duplicates_bytes_max: 64 << 20,
            duplicates_per_peer_max: 4_096,
            names_max: 65_536,
            lock_requests_max: 16_384,
            callbacks_max: 20_000,
            workers: 64,
        }
    }
}

impl Limits {
    #[doc(hidden)]
    pub fn record(&self) -> record::Limits {
        record::Limits {
            record_bytes_max: self.record_bytes_max,
            fragments_max: self.fragments_max,
        }
    }

    /// Those of the built-in rpcbind. Its connections are for one question: many at once are no use to a client, and
    /// must not take the descriptors that files and the API need.
    #[doc(hidden)]
    pub fn of_rpcbind(&self) -> Self {
        const SHARE: usize = 4;
        let share = |all: usize| (all / SHARE).max(1);
        Self {
            connections_max: share(self.connections_max),
            connections_per_address_max: share(self.connections_per_address_max),
            ..self.clone()
        }
    }

    #[doc(hidden)]
    pub fn duplicates(&self) -> CacheBounds {
        CacheBounds {
            per_origin: self.duplicates_per_peer_max,
            entries: self.duplicates_max,
            bytes: self.duplicates_bytes_max,
        }
    }

    /// How often a connection checks its timers.
    #[doc(hidden)]
    pub fn tick(&self) -> Duration {
        let shortest = self.idle_max.min(self.record_time_max).min(self.unread_time_max);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }
}
