//! The thread `worker-watch`: starts workers when calls wait, and notices file systems that stall.
//! It has a thread of its own because no other would notice: all workers may wait for a disk, and no
//! new call arrive.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::schedule::{Overdue, Resumed, STALL, Stall};
use super::{Job, Lane, Phase, Pool, PoolState, Summary, Watch};

/// A call that has waited this long causes one more thread to be started.
const QUEUE_WAIT_MAX: Duration = Duration::from_millis(5);
/// How often calls that have taken too long are looked for.
const CHECK_EVERY: Duration = Duration::from_millis(500);

impl Pool {
    pub(super) fn watch(self: &Arc<Self>) {
        let mut checked = Instant::now();
        let mut state = self.lock();
        while state.phase != Phase::Stopped {
            let now = Instant::now();
            if now.saturating_duration_since(checked) >= CHECK_EVERY {
                checked = now;
                drop(state);
                self.check(now);
                state = self.lock();
                continue;
            }
            let waiting_since = state.schedule.waiting_since();
            let is_late = |since: Instant| now.saturating_duration_since(since) > QUEUE_WAIT_MAX;
            // Each thread is in a call, so no thread is about to take the next one.
            let all_busy = state.threads == state.schedule.running();
            if waiting_since.is_some_and(is_late) {
                if !all_busy {
                    self.ready.notify_one();
                } else if let Err(error) = state.add_thread(self) {
                    warn!("cannot start another worker thread: {error}");
                }
            }
            let wait = if waiting_since.is_some() {
                state.watch = Watch::Time;
                QUEUE_WAIT_MAX
            } else if state.schedule.is_empty() {
                state.watch = Watch::Call;
                state = self.watcher.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            } else {
                state.watch = Watch::Crowd;
                CHECK_EVERY
            };
            let waited = self.watcher.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn check(&self, now: Instant) {
        let file_systems = self.file_systems.get();
        let several = file_systems.is_some_and(|file_systems| file_systems.are_several());
        let mut state = self.lock();
        state.schedule.set_neighbours(several);
        let Overdue { exempt, late, stalls } = state.schedule.check(now);
        self.count_stalled(&state);
        drop(state);
        for call in exempt.into_iter().chain(late) {
            call.exempt(STALL);
        }
        for stall in stalls {
            self.report(&stall, now);
        }
    }

    fn report(&self, stall: &Stall<dyn Job>, now: Instant) {
        let paths = self.paths(stall.lane);
        if let Some(text) = text_of(stall, &paths, now) {
            warn!(event.kind = "file-system-hangs", event.export = paths, "{text}");
        }
    }

    /// To be called without the lock.
    pub(super) fn report_resumed(&self, resumed: &Resumed) {
        if resumed.logged {
            // Its calls were late already when the stall was noticed.
            let seconds = (resumed.stalled_for + STALL).as_secs();
            let paths = self.paths(resumed.lane);
            info!(
                event.kind = "file-system-answers",
                event.export = paths,
                "{paths}: calls end again, after {seconds} s"
            );
        }
    }

    pub(super) fn count_stalled(&self, state: &PoolState) {
        let count = state.schedule.stalled();
        self.stalled.store(count, Ordering::Relaxed);
        if let Some(file_systems) = self.file_systems.get() {
            file_systems.set_stalled(state.schedule.stalled_lanes().collect());
        }
    }

    pub(super) fn paths(&self, lane: Lane) -> String {
        self.file_systems.get().map(|file_systems| file_systems.paths(lane)).unwrap_or_default()
    }
}

/// `None` if the last call has just ended.
fn text_of(stall: &Stall<dyn Job>, paths: &str, now: Instant) -> Option<String> {
    let (oldest, since) = stall.oldest.as_ref()?;
    let Summary { procedure, peer } = oldest.summary();
    let (calls, procedure) = (stall.calls, procedure.to_uppercase());
    let calls = if calls == 1 { "1 call has".into() } else { format!("{calls} calls have") };
    let (limit, age) = (STALL.as_secs(), now.saturating_duration_since(*since).as_secs());
    Some(format!(
        "{paths}: {calls} not ended for {limit} s, the oldest is a {procedure} from {peer}, {age} s old"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Write;

    impl Job for Write {
        fn run(self: Arc<Self>) {}

        fn abandon(&self) {}

        fn exempt(&self, _: Duration) {}

        fn summary(&self) -> Summary {
            Summary { procedure: "write", peer: [10, 0, 0, 5].into() }
        }
    }

    #[test]
    fn a_stall_is_told_with_its_exports_and_the_oldest_call() {
        let now = Instant::now();
        let call: Arc<dyn Job> = Arc::new(Write);
        let oldest = Some((call, now));
        let mut stall = Stall { lane: None, calls: 12, oldest };
        assert_eq!(
            text_of(&stall, "/srv/b", now + Duration::from_secs(3)).unwrap(),
            "/srv/b: 12 calls have not ended for 2 s, the oldest is a WRITE from 10.0.0.5, 3 s old"
        );
        stall.calls = 1;
        assert!(text_of(&stall, "/srv/b", now).unwrap().contains("1 call has not ended"));
    }
}
