//! Look-ups in file systems on behalf of operators: few at a time for each file system, and within a time,
//! so that one that hangs costs a request to the API a second, and other requests nothing (B8.83).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};
use vfs::FileSystemId;

/// How long a request waits for the look-ups that it needs.
pub(crate) const LOOKUP_MAX: Duration = Duration::from_secs(1);
/// Look-ups in one file system at a time, each on a thread of its own.
const PER_FILE_SYSTEM: usize = 2;

#[derive(Default)]
pub(crate) struct PathLookups {
    slots: Mutex<HashMap<FileSystemId, Arc<Slot>>>,
}

/// The look-ups in one file system.
struct Slot {
    permits: Arc<Semaphore>,
    /// By when each look-up that has not ended should have.
    running: Mutex<Vec<Instant>>,
}

impl Slot {
    fn begin(self: Arc<Self>, permit: OwnedSemaphorePermit, until: Instant) -> Running {
        self.running().push(until);
        Running { slot: self, until, _permit: permit }
    }

    /// Whether a look-up has taken too long and still runs: others do not wait for the file system.
    fn hangs(&self, now: Instant) -> bool {
        self.running().iter().any(|until| *until <= now)
    }

    fn running(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a look-up puts what it finds.
pub(crate) type Findings<T> = mpsc::UnboundedSender<T>;

impl PathLookups {
    /// Runs `look` on a thread of its own, and returns what it found within [`LOOKUP_MAX`], with
    /// whether that is all.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        filesystem: FileSystemId,
        look: impl FnOnce(&Findings<T>) + Send + 'static,
    ) -> (Vec<T>, bool) {
        let until = Instant::now() + LOOKUP_MAX;
        let slot = self.slot(filesystem);
        if slot.hangs(Instant::now()) {
            return (Vec::new(), false);
        }
        let permit = timeout_at(until, slot.permits.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return (Vec::new(), false) };
        let running = slot.begin(permit, until);
        let (findings, mut found) = mpsc::unbounded_channel();
        let work = move || {
            let _running = running;
            look(&findings);
        };
        if thread::Builder::new().name("path-lookup".into()).spawn(work).is_err() {
            return (Vec::new(), false);
        }
        let mut all = Vec::new();
        loop {
            match timeout_at(until, found.recv()).await {
                Ok(Some(one)) => all.push(one),
                Ok(None) => return (all, true),
                Err(_) => return (all, false),
            }
        }
    }

    fn slot(&self, filesystem: FileSystemId) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Slot {
            permits: Arc::new(Semaphore::new(PER_FILE_SYSTEM)),
            running: Mutex::default(),
        };
        slots.entry(filesystem).or_insert_with(|| Arc::new(new())).clone()
    }
}

/// A look-up that has not ended.
struct Running {
    slot: Arc<Slot>,
    until: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = self.slot.running();
        if let Some(own) = running.iter().position(|until| *until == self.until) {
            running.swap_remove(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_system_that_hangs_costs_one_request_a_second_and_others_nothing() {
        let lookups = PathLookups::default();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let begun = Instant::now();
        let hangs = lookups.run(FileSystemId(1), move |found: &Findings<u8>| {
            let _ = found.send(1);
            let _ = held.recv();
        });
        assert_eq!(hangs.await, (vec![1], false));
        assert!(begun.elapsed() >= LOOKUP_MAX);
        let begun = Instant::now();
        let quick = |found: &Findings<u8>| found.send(2).unwrap_or_default();
        for _ in 0..100 {
            assert_eq!(lookups.run(FileSystemId(1), quick).await, (vec![], false));
        }
        assert_eq!(lookups.run(FileSystemId(2), quick).await, (vec![2], true));
        assert!(begun.elapsed() < LOOKUP_MAX, "{:?}", begun.elapsed());
        drop(release);
        testbed::wait::until("the file system works again", || {
            !lookups.slot(FileSystemId(1)).hangs(Instant::now())
        })
        .await;
        assert_eq!(lookups.run(FileSystemId(1), quick).await, (vec![2], true));
    }

    #[test]
    fn a_file_system_hangs_while_a_look_up_runs_that_is_late() {
        let lookups = PathLookups::default();
        let slot = lookups.slot(FileSystemId(1));
        let (limit, tick) = (Instant::now() + LOOKUP_MAX, Duration::from_nanos(1));
        let begin = |until| {
            let permit = slot.permits.clone().try_acquire_owned().unwrap();
            slot.clone().begin(permit, until)
        };
        let (one, two) = (begin(limit), begin(limit));
        assert!(!slot.hangs(limit - tick) && slot.hangs(limit));
        drop(one);
        assert!(slot.hangs(limit), "the other still runs");
        drop(two);
        assert!(!slot.hangs(limit));
        // One that ends as its time does leaves nothing, whatever its request sees first.
        let ends = begin(limit);
        drop(ends);
        assert!(!slot.hangs(limit) && !slot.hangs(limit + LOOKUP_MAX));
        let later = begin(limit + LOOKUP_MAX);
        assert!(!slot.hangs(limit) && slot.hangs(limit + LOOKUP_MAX));
        drop(later);
        assert_eq!(slot.permits.available_permits(), PER_FILE_SYSTEM);
    }
}
