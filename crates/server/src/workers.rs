//! Threads that do what may wait for a disk, so that network threads never do.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tracing::error;

type Job = Box<dyn FnOnce() + Send>;

pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    stopped: bool,
}

impl Workers {
    /// `prepare` runs once on each thread before its first job.
    pub fn start(count: usize, prepare: fn()) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let threads = (0..count.max(1))
            .map(|number| {
                let shared = shared.clone();
                std::thread::Builder::new()
                    .name(format!("worker-{number}"))
                    .stack_size(512 << 10)
                    .spawn(move || {
                        prepare();
                        shared.work();
                    })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { shared, threads })
    }

    /// The queue is bounded by those who submit: each connection has a limit of its own.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.lock();
        queue.jobs.push_back(Box::new(job));
        let wake = queue.idle > 0;
        drop(queue);
        if wake {
            self.shared.ready.notify_one();
        }
    }
}

impl Drop for Workers {
    /// Finishes what was submitted.
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.ready.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // A defect in one operation must not take the others' threads away.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    error!("an operation panicked; its request gets no reply");
                }
                queue = self.lock();
            } else if queue.stopped {
                return;
            } else {
                queue.idle += 1;
                queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
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

    #[test]
    fn every_job_is_done_even_after_one_panics() {
        let done = Arc::new(AtomicUsize::new(0));
        let workers = Workers::start(3, || ()).unwrap();
        for number in 0..1000 {
            let done = done.clone();
            workers.submit(move || {
                assert!(number != 500, "planted");
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(workers);
        assert_eq!(done.load(Ordering::Relaxed), 999);
    }
}
