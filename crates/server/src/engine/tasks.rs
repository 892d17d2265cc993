//! The engine's background tasks: the timer of the keeper's deadlines, the expiry of requests that a
//! failing store keeps waiting, and the log of the store's warnings.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use super::{Decision, Engine, EngineShared, Input, NEVER};
use crate::transport::ReplyBatch;

/// How often the inbox is searched for requests that have waited too long.
const EXPIRE_EVERY: Duration = Duration::from_millis(500);

/// How often the store's warnings are looked at.
const WARNINGS_EVERY: Duration = Duration::from_secs(1);

/// Reports a timeout whenever the keeper's deadline has passed. Ends with the engine.
pub(super) async fn run_timer(shared: Arc<EngineShared>) {
    let engine = Engine { shared: shared.clone() };
    loop {
        let at = shared.deadline.load(Ordering::Relaxed);
        let now = shared.clock.elapsed().as_nanos() as u64;
        if at <= now {
            // `EngineShared::leave` sets the next deadline.
            let due =
                shared.deadline.compare_exchange(at, NEVER, Ordering::Relaxed, Ordering::Relaxed);
            if due.is_ok() {
                engine.report(Input::Timeout);
            }
            continue;
        }
        // `at` may be NEVER; an earlier deadline arrives through `deadline_moved`.
        let pause = Duration::from_nanos(at - now).min(Duration::from_secs(3600));
        tokio::select! {
            () = sleep(pause) => {}
            () = shared.deadline_moved.notified() => {}
            _ = engine.ended() => return,
        }
    }
}

/// Answers requests that have waited for a failing store for too long (I11), has a store compared whose
/// lease is suspended, and wakes the engine when the lease is fresh again. Ends with the engine.
pub(super) async fn expire_stalled(shared: Arc<EngineShared>) {
    let engine = Engine { shared: shared.clone() };
    let mut every = interval(EXPIRE_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = engine.ended() => return,
        }
        let now = shared.clock.elapsed();
        let mut replies = ReplyBatch::default();
        let expired = {
            let mut state = shared.lock();
            let works = state.core.is_some() && shared.may_decide();
            if works { Vec::new() } else { state.inbox.take_expired(now) }
        };
        for (request, sink) in expired {
            if let Some(metrics) = &shared.metrics {
                metrics.count_stalled(&request);
            }
            sink(Decision::Stalled(request.stall_policy()), &mut replies);
        }
        replies.send();
        engine.review_store();
        engine.wake();
    }
}

/// Logs each warning of the store when it appears and when its cause is gone. Ends with the engine.
pub(super) async fn log_store_health(shared: Arc<EngineShared>) {
    let engine = Engine { shared: shared.clone() };
    let mut every = interval(WARNINGS_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = Vec::new();
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = engine.ended() => return,
        }
        let now = shared.store_health.warnings();
        now.iter().filter(|warning| !known.contains(*warning)).for_each(|new| warn!("{new}"));
        if now.is_empty() && !known.is_empty() {
            info!("the store has no warnings any more");
        }
        known = now;
    }
}
