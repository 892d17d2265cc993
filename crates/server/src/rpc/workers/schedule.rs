//! Which call runs next: a queue for each file system, so that one whose disk hangs takes no more than
//! its share of the threads.
//!
//! Each file system may run [`FLOOR`] calls at once. Beyond that it draws from `threads_max`, which all
//! share, and takes at most half of them while others are exported. So one that hangs leaves half of
//! the threads to the others. Once it is stalled, its calls no longer count for the others, so that
//! several that hang leave theirs to the rest. The bound on threads is thus `threads_max`, half of it
//! more for each stalled file system, and the floor of each. The queues take turns. No threads and no
//! clock.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use vfs::FileSystemId;

/// The calls of one file system; `None` is for those whose file system is not known or not exported.
pub(crate) type Lane = Option<FileSystemId>;

/// Calls that each file system may run at once, whatever others do.
const FLOOR: usize = 4;
/// A call that runs for this long no longer counts against the limits of its connection, and a file
/// system none of whose calls has ended for this long is stalled.
pub(super) const STALL: Duration = Duration::from_secs(2);
/// A file system none of whose calls has ended for this long may hold only a part of the memory: a disk
/// that is only busy ends some in this time.
const PAUSE: Duration = Duration::from_millis(500);
/// A stalled file system with this many calls or bytes gets no more that can be put off.
const BACKLOG_CALLS: usize = 64;
const BACKLOG_BYTES: usize = 16 << 20;
/// Calls of a file system that count against no connection. NLM and MNT calls cannot be put off, so
/// it is this that bounds how many a connection can have beyond its limits.
const EXEMPT_MAX: usize = 1024;
/// Idle lanes are reused once there are this many, so that their number is bounded.
const LANES_KEPT: usize = 64;
/// The stalls of a file system are logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// See the [module](self). `J` is a call.
pub(super) struct Schedule<J: ?Sized> {
    lanes: Vec<Calls<J>>,
    /// Indices of the lanes with queued calls, in the order of their turns.
    turns: VecDeque<usize>,
    queued: usize,
    running: usize,
    stalled: usize,
    threads_max: usize,
    /// More than one file system is exported.
    has_neighbours: bool,
    serial: u64,
}

/// The calls of one lane.
struct Calls<J: ?Sized> {
    lane: Lane,
    queued: VecDeque<Queued<J>>,
    running: Vec<Running<J>>,
    bytes: usize,
    /// How many were exempted.
    exempt: usize,
    last_end: Instant,
    stalled_since: Option<Instant>,
    /// The stall was logged.
    logged: bool,
    silent_until: Instant,
}

struct Queued<J: ?Sized> {
    call: Arc<J>,
    bytes: usize,
    arrived: Instant,
    exempt: bool,
}

struct Running<J: ?Sized> {
    serial: u64,
    /// Weak, so that a call is never dropped under the lock of the pool.
    call: Weak<J>,
    bytes: usize,
    arrived: Instant,
    started: Instant,
    exempt: bool,
}

/// A call that was taken to be run; to be returned to [`Schedule::ended`].
pub(super) struct Ticket {
    lane: usize,
    serial: u64,
}

/// A call that has run.
pub(super) struct Ended<J: ?Sized> {
    /// The last reference to its memory, to be dropped without the lock of the pool.
    pub(super) call: Option<Weak<J>>,
    /// If it ended a stall.
    pub(super) resumed: Option<Resumed>,
}

/// What [`Schedule::check`] found.
pub(super) struct Overdue<J: ?Sized> {
    /// Calls that must not count against the limits of their connections any more; each once.
    pub(super) exempt: Vec<Arc<J>>,
    /// Running calls that were exempted before: more of their owner may wait behind them by now.
    pub(super) late: Vec<Arc<J>>,
    /// File systems that have stalled since the last check, to be logged.
    pub(super) stalls: Vec<Stall<J>>,
}

/// A file system that has just stalled.
pub(super) struct Stall<J: ?Sized> {
    pub(super) lane: Lane,
    /// How many calls have run for [`STALL`] or longer.
    pub(super) calls: usize,
    /// The oldest of them, and since when it runs.
    pub(super) oldest: Option<(Arc<J>, Instant)>,
}

/// A file system that goes on after a stall.
pub(super) struct Resumed {
    pub(super) lane: Lane,
    pub(super) stalled_for: Duration,
    /// The stall was logged.
    pub(super) logged: bool,
}

/// A call that is queued or running.
pub(super) struct Remaining<J: ?Sized> {
    pub(super) lane: Lane,
    pub(super) call: Arc<J>,
    pub(super) arrived: Instant,
    pub(super) running: bool,
}

impl<J: ?Sized> Schedule<J> {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            lanes: Vec::new(),
            turns: VecDeque::new(),
            queued: 0,
            running: 0,
            stalled: 0,
            threads_max,
            has_neighbours: false,
            serial: 0,
        }
    }

    pub(super) fn set_neighbours(&mut self, has_neighbours: bool) {
        self.has_neighbours = has_neighbours;
    }

    /// How many calls run.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// How many file systems are stalled.
    pub(super) fn stalled(&self) -> usize {
        self.stalled
    }

    /// The lanes of these.
    pub(super) fn stalled_lanes(&self) -> impl Iterator<Item = Lane> {
        self.lanes.iter().filter(|calls| calls.stalled_since.is_some()).map(|calls| calls.lane)
    }

    /// Whether no call is queued or runs.
    pub(super) fn is_empty(&self) -> bool {
        self.queued == 0 && self.running == 0
    }

    pub(super) fn push(&mut self, lane: Lane, call: Arc<J>, bytes: usize, now: Instant) {
        let index = self.index(lane, now);
        let calls = &mut self.lanes[index];
        if calls.queued.is_empty() {
            self.turns.push_back(index);
        }
        calls.queued.push_back(Queued { call, bytes, arrived: now, exempt: false });
        calls.bytes += bytes;
        self.queued += 1;
    }

    /// The call whose turn it is among those that may run.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Ticket, Arc<J>)> {
        for _ in 0..self.turns.len() {
            let lane = self.turns.pop_front()?;
            if !self.may_run(&self.lanes[lane]) {
                self.turns.push_back(lane);
                continue;
            }
            let calls = &mut self.lanes[lane];
            let Some(Queued { call, bytes, arrived, exempt }) = calls.queued.pop_front() else {
                continue;
            };
            if !calls.queued.is_empty() {
                self.turns.push_back(lane);
            }
            self.serial += 1;
            let (serial, weak) = (self.serial, Arc::downgrade(&call));
            let running = Running { serial, call: weak, bytes, arrived, started: now, exempt };
            calls.running.push(running);
            self.queued -= 1;
            self.running += 1;
            return Some((Ticket { lane, serial }, call));
        }
        None
    }

    /// To be called when a call has run.
    pub(super) fn ended(&mut self, ticket: &Ticket, now: Instant) -> Ended<J> {
        let calls = &mut self.lanes[ticket.lane];
        let at = calls.running.iter().position(|call| call.serial == ticket.serial);
        let Some(at) = at else { return Ended { call: None, resumed: None } };
        let call = calls.running.swap_remove(at);
        calls.bytes -= call.bytes;
        calls.exempt -= usize::from(call.exempt);
        calls.last_end = now;
        self.running -= 1;
        let resumed = calls.stalled_since.take().map(|since| {
            self.stalled -= 1;
            let stalled_for = now.saturating_duration_since(since);
            let logged = std::mem::take(&mut calls.logged);
            Resumed { lane: calls.lane, stalled_for, logged }
        });
        Ended { call: Some(call.call), resumed }
    }

    /// Whether a call that can be put off must be: its file system is stalled and has enough calls, or
    /// its calls hold `bytes_max` and do not make progress, and there are others that need the rest. If
    /// it is alone or only busy, its connections wait for room instead, as that costs their clients
    /// less.
    pub(super) fn refuses(&self, lane: Lane, bytes: usize, bytes_max: usize, now: Instant) -> bool {
        let Some(calls) = self.lanes.iter().find(|calls| calls.lane == lane) else { return false };
        let holds_much = calls.bytes > 0 && calls.bytes + bytes > bytes_max;
        let too_much = holds_much && self.has_neighbours && calls.is_slow(now);
        let enough = calls.len() >= BACKLOG_CALLS || calls.bytes >= BACKLOG_BYTES;
        too_much || (calls.stalled_since.is_some() && enough)
    }

    /// Whether more calls wait that may run than there are idle threads.
    pub(super) fn is_crowded(&self, idle: usize) -> bool {
        self.queued > idle && {
            let runnable = self.turns.iter().map(|lane| &self.lanes[*lane]);
            let runnable = runnable.filter(|calls| self.may_run(calls));
            runnable.map(|calls| calls.queued.len()).sum::<usize>() > idle
        }
    }

    /// When the call arrived that has waited longest among those that may run.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        let lanes = self.turns.iter().map(|lane| &self.lanes[*lane]);
        let runnable = lanes.filter(|calls| self.may_run(calls));
        runnable.filter_map(|calls| calls.queued.front()).map(|call| call.arrived).min()
    }

    /// Finds calls that have taken too long, and file systems that have stalled. To be called
    /// regularly while there are calls.
    pub(super) fn check(&mut self, now: Instant) -> Overdue<J> {
        let mut overdue = Overdue { exempt: Vec::new(), late: Vec::new(), stalls: Vec::new() };
        for calls in &mut self.lanes {
            let was_stalled = calls.stalled_since.is_some();
            if !was_stalled && calls.has_stalled(now) {
                calls.stalled_since = Some(now);
                self.stalled += 1;
                if calls.silent_until <= now {
                    calls.silent_until = now + LOG_EVERY;
                    calls.logged = true;
                    overdue.stalls.push(calls.stall(now));
                }
            }
            calls.exempt(now, &mut overdue);
        }
        overdue
    }

    /// All calls that are queued or run, and none are queued any more.
    pub(super) fn clear(&mut self) -> Vec<Remaining<J>> {
        let mut remaining = Vec::new();
        for calls in &mut self.lanes {
            let lane = calls.lane;
            for Running { call, arrived, .. } in &calls.running {
                if let Some(call) = call.upgrade() {
                    remaining.push(Remaining { lane, call, arrived: *arrived, running: true });
                }
            }
            for Queued { call, bytes, arrived, exempt } in calls.queued.drain(..) {
                calls.bytes -= bytes;
                calls.exempt -= usize::from(exempt);
                remaining.push(Remaining { lane, call, arrived, running: false });
            }
        }
        self.turns.clear();
        self.queued = 0;
        remaining
    }

    /// The largest number of calls that one file system may run.
    fn share(&self) -> usize {
        if self.has_neighbours { self.threads_max / 2 } else { self.threads_max }
    }

    fn may_run(&self, calls: &Calls<J>) -> bool {
        let own = calls.running.len();
        own < FLOOR.min(self.threads_max)
            || (own < self.share() && self.running_beside(calls) < self.threads_max)
    }

    /// How many calls share the threads with those of a lane: calls of stalled ones do not, unless it
    /// is stalled itself.
    fn running_beside(&self, calls: &Calls<J>) -> usize {
        if self.stalled == 0 || calls.stalled_since.is_some() {
            return self.running;
        }
        let others = self.lanes.iter().filter(|calls| calls.stalled_since.is_none());
        others.map(|calls| calls.running.len()).sum()
    }

    fn index(&mut self, lane: Lane, now: Instant) -> usize {
        if let Some(index) = self.lanes.iter().position(|calls| calls.lane == lane) {
            return index;
        }
        let new = Calls {
            lane,
            queued: VecDeque::new(),
            running: Vec::new(),
            bytes: 0,
            exempt: 0,
            last_end: now,
            stalled_since: None,
            logged: false,
            silent_until: now,
        };
        let idle = |calls: &Calls<J>| calls.len() == 0;
        match self.lanes.iter().position(idle).filter(|_| self.lanes.len() >= LANES_KEPT) {
            Some(index) => {
                self.lanes[index] = new;
                index
            }
            None => {
                self.lanes.push(new);
                self.lanes.len() - 1
            }
        }
    }
}

impl<J: ?Sized> Calls<J> {
    fn len(&self) -> usize {
        self.queued.len() + self.running.len()
    }

    /// Whether some call has run for [`STALL`], and none has ended meanwhile.
    fn has_stalled(&self, now: Instant) -> bool {
        self.has_paused(STALL, now)
    }

    /// Whether no call has ended for [`PAUSE`], or one has run for [`STALL`].
    fn is_slow(&self, now: Instant) -> bool {
        let is_late = |call: &Running<J>| now.saturating_duration_since(call.started) >= STALL;
        self.has_paused(PAUSE, now) || self.running.iter().any(is_late)
    }

    fn has_paused(&self, time: Duration, now: Instant) -> bool {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= time;
        is_old(self.last_end) && self.running.iter().any(|call| is_old(call.started))
    }

    fn stall(&self, now: Instant) -> Stall<J> {
        let is_old = |call: &&Running<J>| now.saturating_duration_since(call.started) >= STALL;
        let oldest = self.running.iter().min_by_key(|call| call.started);
        let oldest = oldest.and_then(|oldest| Some((oldest.call.upgrade()?, oldest.started)));
        Stall { lane: self.lane, calls: self.running.iter().filter(is_old).count(), oldest }
    }

    /// Exempts calls from the limits of their connections: those that have run for [`STALL`], and
    /// while the file system is stalled those that have waited for as long. On some file systems that
    /// hang, calls that only read go on to end, so the former do not depend on a stall.
    fn exempt(&mut self, now: Instant, found: &mut Overdue<J>) {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= STALL;
        let is_stalled = self.stalled_since.is_some();
        for call in &mut self.running {
            let overdue = is_old(call.started) || (is_stalled && is_old(call.arrived));
            if call.exempt {
                found.late.extend(call.call.upgrade());
            } else if overdue && self.exempt < EXEMPT_MAX {
                call.exempt = true;
                self.exempt += 1;
                found.exempt.extend(call.call.upgrade());
            }
        }
        for call in self.queued.iter_mut().take_while(|call| is_stalled && is_old(call.arrived)) {
            if !call.exempt && self.exempt < EXEMPT_MAX {
                call.exempt = true;
                self.exempt += 1;
                found.exempt.push(call.call.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
