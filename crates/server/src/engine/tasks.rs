//! What the engine does by itself: it calls the keeper when a deadline has come, and answers requests
//! that a stalled store keeps waiting.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{Decision, Engine, Input, NEVER, Shared};
use crate::transport::ReplyBatch;

/// How often requests that have waited too long are looked for.
const EXPIRE_EVERY: Duration = Duration::from_millis(500);

/// Calls the keeper when its deadline has come.
pub async fn run_timer(shared: Arc<Shared>) {
    let engine = Engine { shared: shared.clone() };
    loop {
        let at = shared.deadline.load(Ordering::Relaxed);
        let now = shared.clock.elapsed().as_nanos() as u64;
        if at <= now {
            // It is set again when the engine is idle.
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

/// Answers requests that have waited too long for a store that does not work (I11).
pub async fn expire_stalled(shared: Arc<Shared>) {
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
            let mut entrance = shared.lock();
            let works = entrance.core.is_some() && shared.may_decide();
            if works { Vec::new() } else { entrance.inbox.take_expired(now) }
        };
        for (request, sink) in expired {
            if let Some(meters) = &shared.meters {
                meters.stalled(&request);
            }
            sink(Decision::Stalled(request.when_stalled()), &mut replies);
        }
        replies.send();
        engine.wake();
    }
}
