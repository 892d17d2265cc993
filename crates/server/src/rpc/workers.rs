//! Worker threads, for calls that may block on a disk, so that network threads never do.
//!
//! At first there is one per processor, at least two. More are started only when calls wait although
//! all threads are busy: then those wait for a disk, or for each other, rather than for a processor.
//! Which call runs next is decided by [`schedule`], so that no file system takes all threads.

mod schedule;
mod stop;
mod unfinished;
mod watch;

use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::error;

pub(crate) use schedule::Lane;
use schedule::Schedule;
pub(crate) use unfinished::Unfinished;

/// A thread that has been idle for this long ends, if more are idle than there were at first.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// A call that is served by a worker.
pub(crate) trait Job: Send + Sync {
    /// Runs the call; called once.
    fn run(self: Arc<Self>);

    /// The call will not be run. Called without the lock of the pool.
    fn abandon(&self);

    /// The call has taken `age`, so that it must not count against the limits of its connection any
    /// more. May be called at any time, also again and after the call has ended.
    fn exempt(&self, age: Duration);

    fn summary(&self) -> Summary;
}

/// A call in a few words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    /// As in `write`.
    pub(crate) procedure: &'static str,
    pub(crate) peer: IpAddr,
}

/// What the workers know of the exports, and whom they tell of stalls.
pub(crate) trait FileSystems: Send + Sync {
    /// Whether more than one file system is exported.
    fn are_several(&self) -> bool;

    /// The paths under which a file system is exported.
    fn paths(&self, lane: Lane) -> String;

    /// These file systems are stalled, and no other.
    fn set_stalled(&self, lanes: Vec<Lane>);
}

pub(crate) struct Workers {
    pool: Arc<Pool>,
}

struct Pool {
    state: Mutex<PoolState>,
    /// Wakes idle threads.
    ready: Condvar,
    /// Wakes the watcher.
    watcher: Condvar,
    /// Tells that a thread has ended.
    ended: Condvar,
    /// How many file systems are stalled; read without the lock.
    stalled: AtomicUsize,
    threads_min: usize,
    prepare: fn(),
    file_systems: OnceLock<Box<dyn FileSystems>>,
}

struct PoolState {
    schedule: Schedule<dyn Job>,
    idle: usize,
    /// Threads that have not ended, without the watcher.
    threads: usize,
    started: usize,
    handles: Vec<JoinHandle<()>>,
    watch: Watch,
    phase: Phase,
    /// Calls that were dropped before they ran.
    dropped: Vec<Unfinished>,
}

/// What the watcher waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// The first call.
    Call,
    /// The next check, or calls that find no idle thread.
    Crowd,
    /// The next look at the calls that wait.
    Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Threads end when nothing may run.
    Stopping,
    /// Calls are refused, and none are queued.
    Refusing,
    /// As before, and the stop no longer waits for those that run.
    Stopped,
}

impl Workers {
    /// `prepare` runs once on each thread before its first call.
    pub(crate) fn start(threads_max: usize, prepare: fn()) -> io::Result<Self> {
        let threads_max = threads_max.max(1);
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let threads_min = processors.max(2).min(threads_max);
        let state = PoolState {
            schedule: Schedule::new(threads_max),
            idle: 0,
            threads: 0,
            started: 0,
            handles: Vec::new(),
            watch: Watch::Time,
            phase: Phase::Serving,
            dropped: Vec::new(),
        };
        let pool = Arc::new(Pool {
            state: Mutex::new(state),
            ready: Condvar::new(),
            watcher: Condvar::new(),
            ended: Condvar::new(),
            stalled: AtomicUsize::new(0),
            threads_min,
            prepare,
            file_systems: OnceLock::new(),
        });
        let mut state = pool.lock();
        for _ in 0..threads_min {
            state.add_thread(&pool)?;
        }
        drop(state);
        let (watcher, watched) =
            (std::thread::Builder::new().name("worker-watch".into()), pool.clone());
        // Ends by itself after the stop.
        drop(watcher.spawn(move || watched.watch())?);
        Ok(Self { pool })
    }

    /// To be called before the first call is submitted.
    pub(crate) fn observe(&self, file_systems: Box<dyn FileSystems>) {
        let several = file_systems.are_several();
        if self.pool.file_systems.set(file_systems).is_ok() {
            self.pool.lock().schedule.set_neighbours(several);
        }
    }

    /// `now` may be a little in the past. The queues are bounded by the callers: each connection limits
    /// its requests in progress, and [`refuses`](Self::refuses) tells when a file system has enough. A
    /// call that is submitted after [`drop_queued`](Self::drop_queued) or the stop is dropped.
    pub(crate) fn submit(&self, lane: Lane, call: Arc<dyn Job>, bytes: usize, now: Instant) {
        let mut state = self.pool.lock();
        if matches!(state.phase, Phase::Refusing | Phase::Stopped) {
            // Dropping a call ends it, so the lock goes first.
            drop(state);
            call.abandon();
            return;
        }
        state.schedule.push(lane, call, bytes, now);
        // A thread that was woken counts as idle until it runs, and its call as queued.
        let wake = state.idle > 0;
        let watch = match state.watch {
            Watch::Call => true,
            Watch::Crowd => state.schedule.is_crowded(state.idle),
            Watch::Time => false,
        };
        if watch {
            state.watch = Watch::Time;
        }
        drop(state);
        if wake {
            self.pool.ready.notify_one();
        }
        if watch {
            self.pool.watcher.notify_one();
        }
    }

    /// Whether some file system is stalled. Cheap.
    pub(crate) fn any_stalled(&self) -> bool {
        self.pool.stalled.load(Ordering::Relaxed) > 0
    }

    /// Whether a call that can be put off must be, because its file system is stalled and has enough
    /// calls, or because it makes no progress and its calls hold `bytes_max`.
    pub(crate) fn refuses(&self, lane: Lane, bytes: usize, bytes_max: usize) -> bool {
        let now = Instant::now();
        self.pool.lock().schedule.refuses(lane, bytes, bytes_max, now)
    }
}

impl PoolState {
    fn add_thread(&mut self, pool: &Arc<Pool>) -> io::Result<()> {
        let (number, pool) = (self.started, pool.clone());
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .stack_size(512 << 10)
            .spawn(move || {
                (pool.prepare)();
                pool.work();
            })?;
        self.handles.retain(|thread| !thread.is_finished());
        self.handles.push(thread);
        self.started += 1;
        self.threads += 1;
        Ok(())
    }
}

impl Pool {
    fn work(&self) {
        let mut now = Instant::now();
        // The memory of the last call, to be freed without the lock.
        let mut last = None;
        let mut state = self.lock();
        loop {
            if let Some((ticket, call)) = state.schedule.next(now) {
                drop(state);
                drop(last);
                // A panic in one call must not cost a thread.
                if catch_unwind(AssertUnwindSafe(|| call.run())).is_err() {
                    error!("a request panicked and gets no reply");
                }
                now = Instant::now();
                state = self.lock();
                let ended = state.schedule.ended(&ticket, now);
                last = ended.call;
                if let Some(resumed) = ended.resumed {
                    self.count_stalled(&state);
                    drop(state);
                    self.report_resumed(&resumed);
                    state = self.lock();
                }
                continue;
            }
            if state.phase != Phase::Serving {
                break;
            }
            state.idle += 1;
            let waited = self.ready.wait_timeout(state, IDLE_MAX);
            let (woken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            now = Instant::now();
            if waited.timed_out()
                && state.idle >= self.threads_min
                && state.schedule.waiting_since().is_none()
            {
                break;
            }
        }
        state.threads -= 1;
        drop(state);
        self.ended.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
