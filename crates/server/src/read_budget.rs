//! Engine time for reads of the keeper (B7.123): the engine waits while the keeper is read, so each class
//! of readers has a budget of its time. A read that exceeds the budget waits; reads of one class run one
//! at a time, in order of arrival.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as Turn, MutexGuard as TurnGuard};

/// How much of a second's budget can be used at once.
const BURST: Duration = Duration::from_secs(1);

/// A budget; references share it.
#[derive(Clone, Debug)]
pub struct ReadBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Engine time per second.
    share: Duration,
    turn: Turn<()>,
    /// When everything used so far will have been paid for.
    paid_at: Mutex<Option<Instant>>,
}

impl ReadBudget {
    /// Reads may take this much of the engine's time per second.
    pub fn per_second(share: Duration) -> Self {
        let share = share.max(Duration::from_micros(1));
        Self {
            shared: Arc::new(Shared { share, turn: Turn::default(), paid_at: Mutex::default() }),
        }
    }

    /// Resolves when a read may begin. The next one waits until the guard is dropped.
    pub(crate) async fn turn(&self) -> TurnGuard<'_, ()> {
        let turn = self.shared.turn.lock().await;
        let wait = self.wait(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        turn
    }

    fn wait(&self, now: Instant) -> Duration {
        let paid_at = *self.paid_at();
        paid_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)).saturating_sub(BURST)
    }

    /// Notes a read that took this long.
    pub(crate) fn charge(&self, took: Duration, now: Instant) {
        let costs = took.mul_f64(1.0 / self.shared.share.as_secs_f64());
        let mut paid_at = self.paid_at();
        let from = paid_at.map_or(now, |at| at.max(now));
        *paid_at = Some(from + costs);
    }

    fn paid_at(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.shared.paid_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_of_readers_gets_its_share_and_no_more() {
        let budget = ReadBudget::per_second(Duration::from_millis(100));
        let mut now = Instant::now();
        let began = now;
        let mut used = Duration::ZERO;
        for _ in 0..1_000 {
            now += budget.wait(now);
            now += Duration::from_millis(2);
            used += Duration::from_millis(2);
            budget.charge(Duration::from_millis(2), now);
        }
        let share = used.as_secs_f64() / (now - began).as_secs_f64();
        assert!((0.09..0.12).contains(&share), "{share}");
        // What was not used is not saved up beyond a second's worth.
        now += Duration::from_secs(60);
        assert_eq!(budget.wait(now), Duration::ZERO);
        budget.charge(Duration::from_millis(150), now);
        assert_eq!(budget.wait(now), Duration::from_millis(500));
    }
}
