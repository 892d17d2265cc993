//! Every bound on what peers can make the server hold, in one place (I10).

use std::time::Duration;

use wire::nfs3::IO_BYTES_MAX;
use wire::record;

use super::duplicates::Bounds;

#[derive(Debug, Clone)]
pub struct Limits {
    pub connections_max: usize,
    pub connections_per_address_max: usize,
    /// Requests of one connection, or of all of UDP, that are being worked on.
    pub requests_in_flight_max: usize,
    /// Bytes of requests and expected replies that one connection may have under way.
    pub connection_bytes_max: usize,
    /// The same for all connections together, but one request of each is always let through.
    pub total_bytes_max: usize,
    pub record_bytes_max: usize,
    pub fragments_max: usize,
    /// A connection on which nothing happens is closed after this.
    pub idle_max: Duration,
    /// From the first byte of a record to its last.
    pub record_time_max: Duration,
    /// How long a peer may leave a reply unread.
    pub unread_time_max: Duration,
    /// Remembered replies to requests that must not be done twice, and their bytes.
    pub duplicates_max: usize,
    pub duplicates_bytes_max: usize,
    /// The same of one connection, or of the datagrams of one address.
    pub duplicates_per_peer_max: usize,
    pub names_max: usize,
    /// Lock and status requests that wait to be decided.
    pub lock_requests_max: usize,
    /// Callbacks and notices under way.
    pub callbacks_max: usize,
    /// The most threads for what may wait for a disk.
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
            // The largest WRITE, its envelope with the largest credential, and some room.
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
    pub fn record(&self) -> record::Limits {
        record::Limits {
            record_bytes_max: self.record_bytes_max,
            fragments_max: self.fragments_max,
        }
    }

    pub fn duplicates(&self) -> Bounds {
        Bounds {
            per_origin: self.duplicates_per_peer_max,
            entries: self.duplicates_max,
            bytes: self.duplicates_bytes_max,
        }
    }

    /// How often a connection looks at its clocks.
    pub fn tick(&self) -> Duration {
        let shortest = self.idle_max.min(self.record_time_max).min(self.unread_time_max);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }
}
