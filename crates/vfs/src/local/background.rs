//! A thread that does its work once a second, or when it is woken, until it is dropped.
//!
//! The drop waits for the last round, but only briefly: a thread whose disk hangs is left behind,
//! so that it cannot keep the process from closing what it has open.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::node::lock;

const PERIOD: Duration = Duration::from_secs(1);

/// How long a drop waits for the thread.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Asks the thread for a round.
#[derive(Clone, Default)]
pub(super) struct Wake(Arc<(Mutex<Signal>, Condvar)>);

#[derive(Default)]
struct Signal {
    woken: bool,
    stopped: bool,
    ended: bool,
}

pub(super) struct Background {
    wake: Wake,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread that runs `round` once a second, on each wake, and with `true` at the end.
    pub(super) fn start(
        name: &str,
        wake: Wake,
        mut round: impl FnMut(bool) + Send + 'static,
    ) -> std::io::Result<Self> {
        let signal = wake.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            loop {
                let stopped = signal.wait();
                round(stopped);
                if stopped {
                    break;
                }
            }
            // What the round refers to is dropped before the end is announced.
            drop(round);
            lock(&signal.0.0).ended = true;
            signal.0.1.notify_all();
        })?;
        Ok(Self { wake, thread: Some(thread) })
    }
}

impl Wake {
    pub(super) fn wake(&self) {
        let mut signal = lock(&self.0.0);
        if !std::mem::replace(&mut signal.woken, true) {
            self.0.1.notify_all();
        }
    }

    /// Waits for a wake, the end of the period or a stop; `true` for a stop.
    fn wait(&self) -> bool {
        let idle = |signal: &mut Signal| !signal.woken && !signal.stopped;
        let waited = self.0.1.wait_timeout_while(lock(&self.0.0), PERIOD, idle);
        let mut signal = waited.unwrap_or_else(PoisonError::into_inner).0;
        signal.woken = false;
        signal.stopped
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let (signal, changed) = &*self.wake.0;
        lock(signal).stopped = true;
        changed.notify_all();
        let (deadline, mut state) = (Instant::now() + STOP_MAX, lock(signal));
        while !state.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                break;
            }
            state = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let ended = state.ended;
        drop(state);
        if let Some(thread) = self.thread.take().filter(|_| ended) {
            // A panic was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    };

    use super::*;

    #[test]
    fn a_wake_and_the_end_run_a_round() {
        let (rounds, wake) = (Arc::new(AtomicUsize::new(0)), Wake::default());
        let (ran, runs) = mpsc::channel();
        let counted = rounds.clone();
        let thread = Background::start("test", wake.clone(), move |_| {
            counted.fetch_add(1, Relaxed);
            let _ = ran.send(());
        });
        wake.wake();
        runs.recv().unwrap();
        drop(thread.unwrap());
        assert!(rounds.load(Relaxed) >= 2);
    }

    #[test]
    fn a_thread_that_hangs_is_left_behind() {
        let (release, released) = mpsc::channel::<()>();
        let thread = Background::start("test", Wake::default(), move |_| {
            let _ = released.recv();
        });
        let begun = Instant::now();
        drop(thread.unwrap());
        assert!((STOP_MAX..5 * STOP_MAX).contains(&begun.elapsed()));
        drop(release);
    }
}
