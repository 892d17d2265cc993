//! All timers, in one queue.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::identity::{ClientId, GrantId, NoticeId};
use crate::request::Question;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The recovery window ends.
    Window,
    /// The first request that is held back for grace has waited long enough.
    HeldBack,
    /// A host may have been idle for too long.
    Idle,
    /// An open callback is due again.
    Grant(GrantId),
    Notice(NoticeId),
    /// A probe that was not answered.
    Probe(ClientId, Question),
    /// A reboot report that waits for a reclaim that would refute it.
    Report(ClientId),
}

#[derive(Default)]
pub struct Timers {
    queue: BTreeSet<(Duration, Timer)>,
    due: BTreeMap<Timer, Duration>,
}

impl Timers {
    pub fn set(&mut self, timer: Timer, at: Duration) {
        if let Some(before) = self.due.insert(timer, at) {
            self.queue.remove(&(before, timer));
        }
        self.queue.insert((at, timer));
    }

    pub fn stop(&mut self, timer: Timer) {
        if let Some(at) = self.due.remove(&timer) {
            self.queue.remove(&(at, timer));
        }
    }

    pub fn is_set(&self, timer: Timer) -> bool {
        self.due.contains_key(&timer)
    }

    pub fn due(&self, timer: Timer) -> Option<Duration> {
        self.due.get(&timer).copied()
    }

    pub fn next(&self) -> Option<Duration> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// The next timer that has run out by `now`.
    pub fn expire(&mut self, now: Duration) -> Option<Timer> {
        let &(at, timer) = self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        self.due.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_set_again_runs_out_once() {
        let second = Duration::from_secs(1);
        let mut timers = Timers::default();
        timers.set(Timer::Window, second);
        timers.set(Timer::Window, second * 2);
        timers.set(Timer::Idle, second * 3);
        assert_eq!(timers.next(), Some(second * 2));
        assert_eq!(timers.expire(second), None);
        timers.stop(Timer::Idle);
        assert_eq!(timers.expire(second * 5), Some(Timer::Window));
        assert_eq!(timers.expire(second * 5), None);
    }
}
