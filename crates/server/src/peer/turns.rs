//! How many callbacks to each host are under way: a silent host must not use up what others need.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Only hosts that are being called have an entry.
pub struct Turns {
    max: usize,
    called: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

/// One callback to a host, in line or under way.
pub struct Turn<'a> {
    turns: &'a Turns,
    host: IpAddr,
    places: Arc<Semaphore>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub fn new(max: usize) -> Self {
        Self { max, called: Mutex::default() }
    }

    /// Waits for its turn; first come, first served.
    pub async fn turn(&self, host: IpAddr) -> Turn<'_> {
        let places = {
            let mut called = self.lock();
            called.entry(host).or_insert_with(|| Arc::new(Semaphore::new(self.max))).clone()
        };
        let mut turn = Turn { turns: self, host, places, _place: None };
        // These are never closed.
        turn._place = turn.places.clone().acquire_owned().await.ok();
        turn
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Semaphore>>> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self._place = None;
        let mut called = self.turns.lock();
        // The table's and this one's: nobody else is in line, and nobody can join meanwhile.
        if Arc::strong_count(&self.places) == 2 {
            called.remove(&self.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn one_host_can_fill_only_its_own_places() {
        let turns = Turns::new(2);
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let first = turns.turn(one).await;
        let _second = turns.turn(one).await;
        let short = Duration::from_millis(20);
        assert!(timeout(short, turns.turn(one)).await.is_err());
        assert!(timeout(short, turns.turn(other)).await.is_ok());
        drop(first);
        assert!(timeout(short, turns.turn(one)).await.is_ok());
    }

    #[tokio::test]
    async fn a_host_that_is_not_called_leaves_nothing_behind() {
        let turns = Turns::new(1);
        let host = "10.0.0.1".parse().unwrap();
        let first = turns.turn(host).await;
        assert!(timeout(Duration::from_millis(5), turns.turn(host)).await.is_err());
        assert_eq!(turns.lock().len(), 1);
        drop(first);
        assert!(turns.lock().is_empty());
    }
}
