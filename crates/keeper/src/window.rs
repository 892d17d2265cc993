//! The recovery window (B4.7): how long hosts may reclaim what they held before a restart.
//!
//! It runs from the first call of a peer other than this machine: before that the network may be
//! down, and no host could have called. Time in which the store stalls does not count. Grace is
//! extended while hosts keep coming back, to twice the window at most.

use std::time::Duration;

use crate::change::Exactness;
use crate::clients::TrackedClient;
use crate::event::{Event, GraceEnd};
use crate::identity::ClientId;
use crate::keeper::Keeper;
use crate::time::Time;
use crate::timer::Timer;

/// Grace lasts this long beyond the last sign that hosts are coming back.
const EXTENSION: Duration = Duration::from_secs(15);
/// An open grace in which only this machine calls ends after this: other hosts may be missing from
/// the store, but none shows itself.
const LOCAL_ONLY: Duration = Duration::from_secs(15 * 60);

/// The recovery window of this epoch.
pub(crate) struct Window {
    length: Duration,
    phase: Phase,
    /// When a host was last heard for the first time, answered its notice, or reclaimed.
    progress: Option<Duration>,
    /// Every registered host is this machine, so local calls count.
    counts_local: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    /// No call that counts has arrived yet.
    Waiting,
    Running {
        began: Duration,
        ends: Duration,
    },
    Over,
}

impl Window {
    pub(crate) fn new(length: Duration) -> Self {
        Self { length, phase: Phase::Waiting, progress: None, counts_local: false }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    /// No call that counts has arrived yet.
    fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting)
    }

    /// `None` before the first call and after the end.
    pub(crate) fn ends(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running { ends, .. } => Some(ends),
            Phase::Waiting | Phase::Over => None,
        }
    }

    pub(crate) fn close(&mut self) {
        self.phase = Phase::Over;
    }

    /// Begins the window now and returns its end; `None` if it had begun before.
    fn begin(&mut self, now: Duration) -> Option<Duration> {
        let Phase::Waiting = self.phase else { return None };
        let ends = now + self.length;
        self.phase = Phase::Running { began: now, ends };
        Some(ends)
    }

    /// The new end of a window that is due but extended; `None` if it ends now.
    fn extend(&mut self, now: Duration) -> Option<Duration> {
        let Phase::Running { began, .. } = self.phase else { return None };
        let ends = (self.progress? + EXTENSION).min(began + self.length * 2);
        self.phase = Phase::Running { began, ends };
        (ends > now).then_some(ends)
    }

    /// Moves a running window by `lasted` and returns its new end.
    pub(crate) fn delay(&mut self, lasted: Duration) -> Option<Duration> {
        self.progress = self.progress.map(|at| at + lasted);
        let Phase::Running { began, ends } = self.phase else { return None };
        self.phase = Phase::Running { began: began + lasted, ends: ends + lasted };
        Some(ends + lasted)
    }
}

impl Keeper {
    /// Opens the window of a start. If no host is registered and none can be missing, it runs at
    /// once.
    pub(crate) fn open_window(&mut self, now: Time) {
        let open = self.exactness == Exactness::Open;
        self.recovery.window.counts_local =
            !open && self.clients.hosts().all(TrackedClient::is_local);
        let expects_none = !open && self.clients.hosts().next().is_none();
        if expects_none {
            self.begin_window(now);
        }
    }

    fn begin_window(&mut self, now: Time) {
        if let Some(ends) = self.recovery.window.begin(now.mono) {
            self.timers.set(Timer::Window, ends);
            self.resend_unanswered_notices(now);
        }
    }

    /// Notes a call; `local` if from this machine. The first one that counts begins the window.
    pub(crate) fn hear_call(&mut self, local: bool, now: Time) {
        if !local || self.recovery.window.counts_local {
            self.hear_network();
            self.begin_window(now);
            self.begin_reconnection(now);
        } else if self.exactness == Exactness::Open
            && self.recovery.window.is_waiting()
            && !self.timers.is_set(Timer::Window)
        {
            let longest = LOCAL_ONLY.max(self.recovery.window.length());
            self.timers.set(Timer::Window, now.mono + longest);
        }
    }

    /// A peer was heard, so the network works. From now on a failed notice counts against its host.
    pub(crate) fn hear_network(&mut self) {
        self.recovery.heard = true;
    }

    /// A host that was registered before this epoch is coming back.
    pub(crate) fn note_progress(&mut self, now: Time) {
        self.recovery.window.progress = Some(now.mono);
    }

    /// The window's timer expired: extends the window, or ends it together with grace.
    pub(crate) fn end_window(&mut self, now: Time) {
        if self.recovery.in_grace
            && let Some(ends) = self.recovery.window.extend(now.mono)
        {
            return self.timers.set(Timer::Window, ends);
        }
        self.close_window(now);
        if self.recovery.heard {
            self.mark_crashed();
        }
        if self.recovery.in_grace {
            self.end_grace(GraceEnd::Deadline, now);
        }
    }

    pub(crate) fn close_window(&mut self, now: Time) {
        self.recovery.window.close();
        self.unsettled.window_closed = true;
        self.end_answered_notices(now);
    }

    /// Marks monitored hosts of earlier epochs that were not heard in the window.
    fn mark_crashed(&mut self) {
        let epoch = self.epoch;
        let silent = self.clients.hosts().filter(|tracked| {
            tracked.row.monitored && tracked.row.epoch < epoch && tracked.last_seen.is_none()
        });
        let silent: Vec<ClientId> = silent.map(|tracked| tracked.row.id).collect();
        for client in silent {
            if let Some(tracked) = self.clients.get_mut(client) {
                tracked.crashed = true;
            }
            self.event(Event::Crashed { client });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_window_runs_from_the_first_call() {
        let mut window = Window::new(s(90));
        assert_eq!(window.ends(), None);
        assert_eq!(window.begin(s(600)), Some(s(690)));
        assert_eq!(window.begin(s(601)), None);
        assert_eq!(window.ends(), Some(s(690)));
    }

    #[test]
    fn it_is_extended_while_hosts_come_back_and_never_beyond_twice_its_length() {
        let mut window = Window::new(s(90));
        window.begin(s(0));
        assert_eq!(window.extend(s(90)), None, "no host came");
        window.progress = Some(s(80));
        assert_eq!(window.extend(s(90)), Some(s(95)));
        window.progress = Some(s(94));
        assert_eq!(window.extend(s(95)), Some(s(109)));
        window.progress = Some(s(178));
        assert_eq!(window.extend(s(179)), Some(s(180)));
        assert_eq!(window.extend(s(180)), None);
    }

    #[test]
    fn time_in_which_nothing_could_be_decided_does_not_count() {
        let mut window = Window::new(s(90));
        assert_eq!(window.delay(s(30)), None, "it has not begun");
        window.begin(s(10));
        window.progress = Some(s(70));
        assert_eq!(window.delay(s(30)), Some(s(130)));
        assert_eq!(window.extend(s(130)), None, "the last sign was at 100 s");
        window.progress = Some(s(120));
        assert_eq!(window.extend(s(130)), Some(s(135)));
        window.progress = Some(s(300));
        assert_eq!(window.extend(s(135)), Some(s(220)), "twice the window, and the delay");
    }
}
