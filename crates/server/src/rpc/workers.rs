//! Worker threads, for calls that may block on a disk, so that network threads never do.
//!
//! At first there is one per processor, at least two. More are started only when jobs wait although
//! all threads are busy: then those wait for a disk, or for each other, rather than for a processor.

mod unfinished;

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, warn};

pub(crate) use unfinished::Unfinished;

type Job = Box<dyn FnOnce() + Send>;

/// A job that has waited this long causes one more thread to be started.
const QUEUE_WAIT_MAX: Duration = Duration::from_millis(5);
/// A thread that has been idle for this long ends, if there are more than at first.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// How long a pool that is dropped runs what is queued.
const DROP_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct Workers {
    pool: Arc<Pool>,
}

struct Pool {
    queue: Mutex<JobQueue>,
    ready: Condvar,
    /// Wakes the watcher, when a job finds no idle thread.
    crowded: Condvar,
    threads_min: usize,
    threads_max: usize,
    prepare: fn(),
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<(Instant, Job)>,
    idle: usize,
    running: usize,
    started: usize,
    stopped: bool,
    /// The watcher sleeps, because no job waits.
    unwatched: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// `prepare` runs once on each thread before its first job.
    pub(crate) fn start(threads_max: usize, prepare: fn()) -> io::Result<Self> {
        let threads_max = threads_max.max(1);
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let threads_min = processors.max(2).min(threads_max);
        let (queue, ready, crowded) = (Mutex::default(), Condvar::new(), Condvar::new());
        let pool = Arc::new(Pool { queue, ready, crowded, threads_min, threads_max, prepare });
        let mut queue = pool.lock();
        for _ in 0..threads_min {
            queue.add_thread(&pool)?;
        }
        if threads_min < threads_max {
            let pool = pool.clone();
            let watch = std::thread::Builder::new().name("worker-watch".into());
            queue.threads.push(watch.spawn(move || pool.watch())?);
        }
        drop(queue);
        Ok(Self { pool })
    }

    /// The queue is bounded by the callers: each connection limits its requests in progress.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let now = Instant::now();
        let mut queue = self.pool.lock();
        queue.jobs.push_back((now, Box::new(job)));
        // A thread that was woken counts as idle until it runs, and its job as queued.
        let wake = queue.idle > 0;
        let watch = queue.unwatched && queue.jobs.len() > queue.idle;
        if watch {
            queue.unwatched = false;
        }
        drop(queue);
        if wake {
            self.pool.ready.notify_one();
        }
        if watch {
            self.pool.crowded.notify_one();
        }
    }
}

impl Workers {
    /// Runs the jobs that are queued, for up to `wait`, and joins the threads that have ended. Returns
    /// what still runs or waits: a thread that the kernel holds is left behind. To be called when no
    /// more calls are received; blocks the calling thread, but never longer than `wait`.
    pub(crate) fn stop(&self, wait: Duration) -> Vec<Unfinished> {
        let until = Instant::now() + wait;
        let mut queue = self.pool.lock();
        queue.stopped = true;
        drop(queue);
        self.pool.ready.notify_all();
        self.pool.crowded.notify_all();
        // The last reference may have been held by a job, so this may be a worker thread.
        let here = std::thread::current().id();
        loop {
            let mut queue = self.pool.lock();
            let (ended, running): (Vec<_>, Vec<_>) = std::mem::take(&mut queue.threads)
                .into_iter()
                .filter(|thread| thread.thread().id() != here)
                .partition(JoinHandle::is_finished);
            queue.threads = running;
            let done = queue.threads.is_empty();
            drop(queue);
            for thread in ended {
                let _ = thread.join();
            }
            if done || Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.pool.lock().jobs.clear();
        Vec::new()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop(DROP_WAIT);
    }
}

impl JobQueue {
    fn add_thread(&mut self, pool: &Arc<Pool>) -> io::Result<()> {
        let (number, pool) = (self.started, pool.clone());
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .stack_size(512 << 10)
            .spawn(move || {
                (pool.prepare)();
                pool.work();
            })?;
        self.threads.retain(|thread| !thread.is_finished());
        self.threads.push(thread);
        self.started += 1;
        self.running += 1;
        Ok(())
    }
}

impl Pool {
    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some((_, job)) = queue.jobs.pop_front() {
                drop(queue);
                // A panic in one job must not cost a thread.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    error!("a request panicked and gets no reply");
                }
                queue = self.lock();
                continue;
            }
            if queue.stopped {
                return;
            }
            queue.idle += 1;
            let (woken, waited) =
                self.ready.wait_timeout(queue, IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            let too_many = queue.running > self.threads_min;
            if waited.timed_out() && too_many && queue.jobs.is_empty() {
                queue.running -= 1;
                return;
            }
        }
    }

    /// Starts a thread when a job has waited too long. Runs on a thread of its own (`worker-watch`):
    /// when all workers wait for a disk and no new job arrives, no other thread would notice.
    fn watch(self: &Arc<Self>) {
        let mut queue = self.lock();
        while !queue.stopped {
            let Some((since, _)) = queue.jobs.front() else {
                queue.unwatched = true;
                queue = self.crowded.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if since.elapsed() > QUEUE_WAIT_MAX
                && queue.running < self.threads_max
                && let Err(error) = queue.add_thread(self)
            {
                warn!("cannot start another worker thread: {error}");
            }
            let waited = self.crowded.wait_timeout(queue, QUEUE_WAIT_MAX);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    #[test]
    fn every_job_is_done_even_after_one_panics() {
        let done = Arc::new(AtomicUsize::new(0));
        let workers = Workers::start(3, || ()).unwrap();
        for number in 0..1000 {
            let done = done.clone();
            workers.submit(move || {
                assert!(number != 500, "on purpose");
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(workers);
        assert_eq!(done.load(Ordering::Relaxed), 999);
    }

    #[test]
    fn jobs_that_wait_for_others_get_threads_up_to_the_limit() {
        let workers = Workers::start(24, || ()).unwrap();
        let (arrived, arrivals) = mpsc::channel();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        for number in 0..40 {
            let (arrived, gate) = (arrived.clone(), gate.clone());
            workers.submit(move || {
                arrived.send(number).unwrap();
                let mut open = gate.0.lock().unwrap();
                while !*open {
                    open = gate.1.wait(open).unwrap();
                }
            });
        }
        let arrived = std::iter::from_fn(|| arrivals.recv_timeout(Duration::from_secs(1)).ok());
        assert_eq!(arrived.count(), 24);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        drop(workers);
        assert_eq!(arrivals.try_iter().count(), 16);
    }
}
