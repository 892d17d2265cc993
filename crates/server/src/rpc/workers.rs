//! Threads that do what may wait for a disk, so that network threads never do.
//!
//! A few threads keep the processors busy. More are started only when jobs wait although those
//! are at work: then they are waiting for a disk, or for each other, and not for a processor.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, warn};

type Job = Box<dyn FnOnce() + Send>;

/// A job that has waited this long is a reason for one more thread.
const PATIENCE: Duration = Duration::from_millis(5);
/// A thread that has found nothing to do for this long ends, unless it is one of the first.
const IDLE_MAX: Duration = Duration::from_secs(10);

pub struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
    /// Wakes the thread that looks after jobs for which no thread is free.
    crowded: Condvar,
    threads_min: usize,
    threads_max: usize,
    prepare: fn(),
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Instant, Job)>,
    idle: usize,
    running: usize,
    started: usize,
    stopped: bool,
    /// Nobody looks after jobs that wait, because there were none.
    unwatched: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// `prepare` runs once on each thread before its first job.
    pub fn start(threads_max: usize, prepare: fn()) -> io::Result<Self> {
        let threads_max = threads_max.max(1);
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let threads_min = processors.max(2).min(threads_max);
        let (queue, ready, crowded) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { queue, ready, crowded, threads_min, threads_max, prepare });
        let mut queue = shared.lock();
        for _ in 0..threads_min {
            queue.add_thread(&shared)?;
        }
        if threads_min < threads_max {
            let shared = shared.clone();
            let watch = std::thread::Builder::new().name("worker-watch".into());
            queue.threads.push(watch.spawn(move || shared.watch())?);
        }
        drop(queue);
        Ok(Self { shared })
    }

    /// The queue is bounded by those who submit: each connection has a limit of its own.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let now = Instant::now();
        let mut queue = self.shared.lock();
        queue.jobs.push_back((now, Box::new(job)));
        // An idle thread that was woken counts as idle until it runs: its job is still queued.
        let wake = queue.idle > 0;
        let watch = queue.unwatched && queue.jobs.len() > queue.idle;
        if watch {
            queue.unwatched = false;
        }
        drop(queue);
        if wake {
            self.shared.ready.notify_one();
        }
        if watch {
            self.shared.crowded.notify_one();
        }
    }
}

impl Drop for Workers {
    /// Finishes what was submitted.
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.stopped = true;
        let threads = std::mem::take(&mut queue.threads);
        drop(queue);
        self.shared.ready.notify_all();
        self.shared.crowded.notify_all();
        // The last request of a stopped server may be what kept this alive until now.
        let here = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != here) {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn add_thread(&mut self, shared: &Arc<Shared>) -> io::Result<()> {
        let (number, shared) = (self.started, shared.clone());
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .stack_size(512 << 10)
            .spawn(move || {
                (shared.prepare)();
                shared.work();
            })?;
        self.threads.retain(|thread| !thread.is_finished());
        self.threads.push(thread);
        self.started += 1;
        self.running += 1;
        Ok(())
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some((_, job)) = queue.jobs.pop_front() {
                drop(queue);
                // A defect in one operation must not take the others' threads away.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    error!("an operation panicked; its request gets no reply");
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

    /// Starts a thread when a job has waited too long. It takes a thread to do so: when all are
    /// waiting for a disk, and no new job comes, nobody else would notice.
    fn watch(self: &Arc<Self>) {
        let mut queue = self.lock();
        while !queue.stopped {
            let Some((since, _)) = queue.jobs.front() else {
                queue.unwatched = true;
                queue = self.crowded.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if since.elapsed() > PATIENCE
                && queue.running < self.threads_max
                && let Err(error) = queue.add_thread(self)
            {
                warn!("cannot start another worker thread: {error}");
            }
            let waited = self.crowded.wait_timeout(queue, PATIENCE);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
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
