//! NFS calls per client address, also of clients that never lock (B8.92). In memory only, for at most
//! [`CLIENTS_MAX`] addresses: a new one takes the place of the longest idle.
//!
//! A connection has counters of its own, which are added to those of its address when it ends or a listing
//! is made. The table is locked for a new connection, an ended one, a call by datagram and a listing.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::io_counts::{CallIo, IoCounts, IoTotals};

/// The most addresses that are listed (I10).
pub const CLIENTS_MAX: usize = 10_000;
/// The table is divided, so that datagrams of different clients rarely wait for each other.
const PARTS: usize = 16;

/// What an address has called since it was first seen, or since the server started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientIo {
    pub address: IpAddr,
    pub totals: IoTotals,
    pub last_seen: Duration,
    /// Open TCP connections.
    pub connections: usize,
}

/// See the [module](self).
pub(crate) struct ClientTable {
    parts: [Mutex<Part>; PARTS],
    hasher: RandomState,
    clients_max: usize,
}

#[derive(Default)]
struct Part {
    clients: HashMap<IpAddr, Client>,
}

#[derive(Default)]
struct Client {
    /// Of connections that have ended, and of datagrams.
    past: IoTotals,
    last_seen: Millis,
    open: Vec<Arc<ConnectionIo>>,
}

/// Of a monotonic clock.
type Millis = u64;

impl Default for ClientTable {
    fn default() -> Self {
        Self::new(CLIENTS_MAX)
    }
}

impl ClientTable {
    fn new(clients_max: usize) -> Self {
        Self { parts: Default::default(), hasher: RandomState::new(), clients_max }
    }

    /// Counts the calls of a connection from this address until the guard is dropped.
    pub(crate) fn track(self: &Arc<Self>, address: IpAddr) -> ConnectionGuard {
        let counts = Arc::new(ConnectionIo::default());
        counts.last_seen.store(now(), Ordering::Relaxed);
        let mut part = self.part(&address);
        self.client(&mut part, address).open.push(counts.clone());
        ConnectionGuard { counts, table: self.clone(), address }
    }

    /// Counts a call by datagram.
    pub(crate) fn count(&self, address: IpAddr, call: CallIo) {
        let mut part = self.part(&address);
        let client = self.client(&mut part, address);
        client.past.count(call);
        client.last_seen = now();
    }

    /// The clients with the most operations, at most so many, and the number of all.
    pub(crate) fn list(&self, limit: usize) -> (Vec<ClientIo>, usize) {
        let now = now();
        let mut all = Vec::new();
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(part.clients.iter().map(|(address, client)| client.read(*address, now)));
        }
        // A connection without a call says nothing.
        all.retain(|client| client.totals != IoTotals::default());
        let count = all.len();
        let rank =
            |client: &ClientIo| (std::cmp::Reverse(client.totals.operations()), client.address);
        if limit < count {
            all.select_nth_unstable_by_key(limit, rank);
            all.truncate(limit);
        }
        all.sort_unstable_by_key(rank);
        (all, count)
    }

    fn end(&self, address: IpAddr, counts: &Arc<ConnectionIo>) {
        let mut part = self.part(&address);
        // It may have been replaced, as the longest idle.
        let Some(client) = part.clients.get_mut(&address) else { return };
        let open = client.open.len();
        client.open.retain(|known| !Arc::ptr_eq(known, counts));
        if client.open.len() == open {
            return;
        }
        client.past.add(counts.io.read());
        client.last_seen = client.last_seen.max(counts.last_seen.load(Ordering::Relaxed));
        if client.open.is_empty() && client.past == IoTotals::default() {
            part.clients.remove(&address);
        }
    }

    fn part(&self, address: &IpAddr) -> MutexGuard<'_, Part> {
        let part = self.hasher.hash_one(address) as usize % PARTS;
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client<'a>(&self, part: &'a mut Part, address: IpAddr) -> &'a mut Client {
        let is_full = part.clients.len() >= self.clients_max.div_ceil(PARTS);
        if is_full && !part.clients.contains_key(&address) {
            let idle = part.clients.iter().min_by_key(|(_, client)| client.last_seen());
            if let Some(idle) = idle.map(|(address, _)| *address) {
                part.clients.remove(&idle);
            }
        }
        part.clients.entry(address).or_default()
    }
}

impl Client {
    fn last_seen(&self) -> Millis {
        let open = self.open.iter().map(|counts| counts.last_seen.load(Ordering::Relaxed));
        open.fold(self.last_seen, Millis::max)
    }

    fn read(&self, address: IpAddr, now: Millis) -> ClientIo {
        let mut totals = self.past;
        self.open.iter().for_each(|counts| totals.add(counts.io.read()));
        let last_seen = Duration::from_millis(now.saturating_sub(self.last_seen()));
        ClientIo { address, totals, last_seen, connections: self.open.len() }
    }
}

/// The counters of one connection.
#[derive(Default)]
struct ConnectionIo {
    io: IoCounts,
    last_seen: AtomicU64,
}

/// See [`ClientTable::track`].
pub(crate) struct ConnectionGuard {
    counts: Arc<ConnectionIo>,
    table: Arc<ClientTable>,
    address: IpAddr,
}

impl ConnectionGuard {
    pub(crate) fn count(&self, call: CallIo) {
        self.counts.io.count(call);
        self.counts.last_seen.store(now(), Ordering::Relaxed);
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.table.end(self.address, &self.counts);
    }
}

/// A coarse clock: exact to some milliseconds, and far cheaper than an `Instant` on the path of each call.
fn now() -> Millis {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec.unsigned_abs() * 1000 + time.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io_counts::CallKind;

    const READ: CallIo = CallIo { kind: CallKind::Read, bytes: 10, failed: false };
    const OTHER: CallIo = CallIo { kind: CallKind::Other, bytes: 0, failed: true };

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    #[test]
    fn a_client_has_what_all_its_connections_and_datagrams_did() {
        let table = Arc::new(ClientTable::default());
        let (one, other) = (table.track(address(1)), table.track(address(1)));
        let silent = table.track(address(2));
        one.count(READ);
        other.count(OTHER);
        drop(one);
        table.count(address(1), READ);
        let (clients, count) = table.list(10);
        assert_eq!((clients.len(), count), (1, 1));
        let totals = clients[0].totals;
        assert_eq!((totals.reads, totals.bytes_read, totals.errors), (2, 20, 1));
        assert_eq!((totals.operations(), clients[0].connections), (3, 1));
        drop((other, silent));
        assert_eq!(table.list(10).0[0].totals, totals);
        assert!(!table.part(&address(2)).clients.contains_key(&address(2)));
    }

    #[test]
    fn the_clients_with_the_most_operations_come_first() {
        let table = Arc::new(ClientTable::default());
        for number in 1..=20 {
            (0..number).for_each(|_| table.count(address(number), OTHER));
        }
        let (clients, count) = table.list(3);
        let operations: Vec<u64> = clients.iter().map(|it| it.totals.operations()).collect();
        assert_eq!((operations, count), (vec![20, 19, 18], 20));
        assert_eq!(table.list(0), (Vec::new(), 20));
    }

    /// B8.92
    #[test]
    fn a_new_address_takes_the_place_of_the_longest_idle() {
        let clients_max = 2 * PARTS;
        let table = Arc::new(ClientTable::new(clients_max));
        let in_use = table.track(address(0));
        in_use.count(READ);
        // Seen later than all others, whatever the clock says.
        in_use.counts.last_seen.store(u64::MAX, Ordering::Relaxed);
        (1..5000).for_each(|number| table.count(address(number), READ));
        let kept: usize = table.parts.iter().map(|part| part.lock().unwrap().clients.len()).sum();
        assert_eq!(kept, clients_max);
        let (clients, _) = table.list(clients_max);
        assert!(clients.iter().any(|client| client.address == address(0)));
        // The end of a connection whose address has been replaced is no error.
        let replaced = table.track(address(7));
        replaced.counts.last_seen.store(0, Ordering::Relaxed);
        (5000..9000).for_each(|number| table.count(address(number), READ));
        drop(replaced);
        assert!(!table.list(clients_max).0.iter().any(|client| client.address == address(7)));
    }
}
