//! The end of the worker threads: within a time, whatever hangs.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::schedule::Remaining;
use super::{Job, Phase, Unfinished, Workers};

/// How long a pool that is dropped without [`Workers::stop`] runs what is queued.
const DROP_WAIT: Duration = Duration::from_secs(1);

impl Workers {
    /// Drops the calls that are queued, and those that are submitted later. To be called when they could
    /// not be answered any more: none must be run then. [`stop`](Self::stop) names those that were queued.
    pub(crate) fn drop_queued(&self) {
        let pool = &self.pool;
        let mut state = pool.lock();
        if matches!(state.phase, Phase::Refusing | Phase::Stopped) {
            return;
        }
        state.phase = Phase::Refusing;
        let remaining = state.schedule.clear();
        drop(state);
        pool.ready.notify_all();
        let now = Instant::now();
        let dropped = remaining.into_iter().filter(|call| !call.running);
        let dropped: Vec<Unfinished> = dropped.map(|call| self.unfinished(call, now)).collect();
        pool.lock().dropped.extend(dropped);
    }

    /// Runs the calls that are queued, for up to `wait`, and joins the threads that have ended. Returns
    /// what still runs, perhaps inside the kernel, and what waits behind it or was dropped before; the
    /// latter will not be run. To be called when no more calls are received. Blocks the calling thread,
    /// but hardly longer than `wait`; a second call does not wait.
    pub(crate) fn stop(&self, wait: Duration) -> Vec<Unfinished> {
        let until = Instant::now() + wait;
        let pool = &self.pool;
        let mut state = pool.lock();
        // The last reference may have been held by a call, so this may be a worker thread.
        let here = std::thread::current().id();
        let own = state.handles.iter().any(|thread| thread.thread().id() == here);
        if matches!(state.phase, Phase::Serving | Phase::Refusing) {
            if state.phase == Phase::Serving {
                state.phase = Phase::Stopping;
            }
            pool.ready.notify_all();
            while state.threads > usize::from(own) {
                let Some(left) = until.checked_duration_since(Instant::now()) else { break };
                let waited = pool.ended.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            state.phase = Phase::Stopped;
        }
        let remaining = state.schedule.clear();
        let dropped = std::mem::take(&mut state.dropped);
        let handles = std::mem::take(&mut state.handles);
        let all_ended = state.threads == 0;
        drop(state);
        pool.watcher.notify_all();
        // A thread that is not counted any more is about to end.
        for thread in handles {
            if thread.thread().id() != here && (all_ended || thread.is_finished()) {
                let _ = thread.join();
            }
        }
        let now = Instant::now();
        let remaining = remaining.into_iter().map(|call| self.unfinished(call, now));
        remaining.chain(dropped).collect()
    }

    fn unfinished(&self, remaining: Remaining<dyn Job>, now: Instant) -> Unfinished {
        let Remaining { lane, call, arrived, running } = remaining;
        if !running {
            call.abandon();
        }
        let summary = call.summary();
        Unfinished {
            file_system: lane,
            exports: self.pool.paths(lane),
            procedure: summary.procedure.to_uppercase(),
            peer: summary.peer,
            age: now.saturating_duration_since(arrived),
            running,
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop(DROP_WAIT);
    }
}
