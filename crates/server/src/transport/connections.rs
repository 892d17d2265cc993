//! How many connections are open, in all and by address: no client takes them all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::rpc::limits::Limits;

/// How soon it is looked again whether all have ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Default)]
pub struct Connections {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Why one more is too many, and what allows more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMany {
    #[error("{0} are open, the most allowed; allow more with `connections` in [limits]")]
    InAll(usize),
    #[error(
        "{0} are open from this address, the most allowed; allow more with \
         `connections_per_address` in [limits]"
    )]
    OfOne(usize),
}

/// One connection; it is counted until this is dropped.
pub struct Admitted {
    connections: Arc<Connections>,
    address: IpAddr,
}

impl Connections {
    pub fn admit(self: &Arc<Self>, address: IpAddr, limits: &Limits) -> Result<Admitted, TooMany> {
        let mut open = self.lock();
        if open.total >= limits.connections_max {
            return Err(TooMany::InAll(limits.connections_max));
        }
        let of_one = open.by_address.entry(address).or_default();
        if *of_one >= limits.connections_per_address_max {
            return Err(TooMany::OfOne(limits.connections_per_address_max));
        }
        *of_one += 1;
        open.total += 1;
        Ok(Admitted { connections: self.clone(), address })
    }

    /// Resolves when none is open.
    pub async fn ended(&self) {
        while self.lock().total > 0 {
            sleep(LOOK_EVERY).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.total -= 1;
        if let Some(of_one) = open.by_address.get_mut(&self.address) {
            *of_one -= 1;
            if *of_one == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_take_the_places_of_others() {
        let limits =
            Limits { connections_max: 3, connections_per_address_max: 2, ..Limits::default() };
        let connections = Arc::<Connections>::default();
        let admit = |last| connections.admit([10, 0, 0, last].into(), &limits);
        let first = admit(1).ok();
        let second = admit(1).ok();
        assert!(first.is_some() && second.is_some());
        assert_eq!(admit(1).err(), Some(TooMany::OfOne(2)));
        let _third = admit(2).ok().unwrap();
        assert_eq!(admit(3).err(), Some(TooMany::InAll(3)));
        drop(first);
        assert!(admit(1).is_ok());
        drop(second);
        assert_eq!(connections.lock().by_address.len(), 1);
    }
}
