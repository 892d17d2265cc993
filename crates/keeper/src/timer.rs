//! All timers, in one queue.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::identity::{ClientId, GrantId, NoticeId};
use crate::request::Question;

pub(crate) const RETRY_FIRST: Duration = Duration::from_secs(2);
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(60);

/// The pause after this many attempts at a callback or a notice: 2 s, doubled each time, at most 60
/// s.
pub(crate) fn back_off(attempts: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(10)).min(RETRY_MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The recovery window ends.
    Window,
    /// The recovery window of a protocol other than NLM ends.
    Reconnection,
    /// The first request held back by grace must be answered.
    HeldBack,
    /// A host may have been idle for too long.
    Idle,
    /// A callback is to be repeated.
    Grant(GrantId),
    Notice(NoticeId),
    /// A probe times out.
    Probe(ClientId, Question),
    /// A pending reboot report is to be judged again.
    Report(ClientId),
    /// A host that came back after an inexact grace has had its time to reclaim.
    LateReclaim(ClientId),
}

#[derive(Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(Duration, Timer)>,
    due: BTreeMap<Timer, Duration>,
}

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Duration) {
        if let Some(before) = self.due.insert(timer, at) {
            self.queue.remove(&(before, timer));
        }
        self.queue.insert((at, timer));
    }

    pub(crate) fn stop(&mut self, timer: Timer) {
        if let Some(at) = self.due.remove(&timer) {
            self.queue.remove(&(at, timer));
        }
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.due.contains_key(&timer)
    }

    pub(crate) fn due(&self, timer: Timer) -> Option<Duration> {
        self.due.get(&timer).copied()
    }

    pub(crate) fn next(&self) -> Option<Duration> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Removes and returns the next timer that is due at `now`.
    pub(crate) fn expire(&mut self, now: Duration) -> Option<Timer> {
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
