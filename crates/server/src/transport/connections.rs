//! Counts open TCP connections, in all and by address, and refuses more than the limits allow.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::rpc::limits::Limits;

const POLL_EVERY: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<OpenCounts>,
}

#[derive(Default)]
struct OpenCounts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The limit that a connection exceeds, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LimitReached {
    #[error("{0} are open, the most allowed; allow more with `connections` in [limits]")]
    Total(usize),
    #[error(
        "{0} are open from this address, the most allowed; allow more with \
         `connections_per_address` in [limits]"
    )]
    PerAddress(usize),
}

/// Counts one connection until it is dropped.
pub(crate) struct ConnectionPermit {
    connections: Arc<Connections>,
    address: IpAddr,
}

impl Connections {
    pub(crate) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        limits: &Limits,
    ) -> Result<ConnectionPermit, LimitReached> {
        let mut open = self.lock();
        if open.total >= limits.connections_max {
            return Err(LimitReached::Total(limits.connections_max));
        }
        let of_address = open.by_address.entry(address).or_default();
        if *of_address >= limits.connections_per_address_max {
            return Err(LimitReached::PerAddress(limits.connections_per_address_max));
        }
        *of_address += 1;
        open.total += 1;
        Ok(ConnectionPermit { connections: self.clone(), address })
    }

    /// Resolves when none is open.
    pub(crate) async fn ended(&self) {
        while self.lock().total > 0 {
            sleep(POLL_EVERY).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenCounts> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.total -= 1;
        if let Some(of_address) = open.by_address.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_use_up_the_connections_of_others() {
        let limits =
            Limits { connections_max: 3, connections_per_address_max: 2, ..Limits::default() };
        let connections = Arc::<Connections>::default();
        let admit = |last| connections.admit([10, 0, 0, last].into(), &limits);
        let first = admit(1).ok();
        let second = admit(1).ok();
        assert!(first.is_some() && second.is_some());
        assert_eq!(admit(1).err(), Some(LimitReached::PerAddress(2)));
        let _third = admit(2).ok().unwrap();
        assert_eq!(admit(3).err(), Some(LimitReached::Total(3)));
        drop(first);
        assert!(admit(1).is_ok());
        drop(second);
        assert_eq!(connections.lock().by_address.len(), 1);
    }
}
