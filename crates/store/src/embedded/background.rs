//! Background threads: syncing batches that were acknowledged without a sync, and compacting old
//! journals into a snapshot.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::disk::Disk;
use super::files;
use super::log::Log;
use super::replay::LogPosition;
use super::reserve;
use crate::error::StoreError;
use crate::health::StoreHealth;

/// A thread that syncs the log at intervals, and seals it when it is idle. Stopping or dropping it
/// syncs the log a last time.
pub(super) struct Syncer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub(super) fn start(log: Arc<Log>, delay: Duration, reserve: Reserve) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("store sync".to_owned())
            .spawn(move || keep_synced(&log, delay, reserve, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns after a failed sync; the log keeps the error, and the next commit returns it.
fn keep_synced(log: &Log, delay: Duration, mut reserve: Reserve, stopped: &Receiver<()>) {
    let mut last_number = log.number();
    while stopped.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
        let number = log.number();
        let outcome = match log.has_unsynced() {
            true => log.sync(),
            false if number == last_number => log.seal(),
            false => Ok(()),
        };
        if outcome.is_err() {
            return;
        }
        reserve.replenish();
        last_number = number;
    }
    if log.sync().is_ok() {
        let _ = log.seal();
    }
}

/// Keeps the reserve complete (`reserve.rs`), in the thread that syncs.
pub(super) struct Reserve {
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    health: StoreHealth,
    next: Option<Instant>,
}

impl Reserve {
    /// How often a reserve that lacks files is tried again.
    const EVERY: Duration = Duration::from_secs(30);

    pub(super) fn new(disk: Arc<dyn Disk>, file_bytes: u64, health: StoreHealth) -> Self {
        Self { disk, file_bytes, health, next: None }
    }

    fn replenish(&mut self) {
        if self.file_bytes == 0 || self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        self.next = Some(Instant::now() + Self::EVERY);
        let missing = match reserve::replenish(&*self.disk, self.file_bytes) {
            Ok(0) => None,
            Ok(missing) => Some(format!("{missing} of {} files are missing", reserve::FILES)),
            Err(error) => Some(error.to_string()),
        };
        let place = self.disk.display_path("");
        self.health.set(
            "reserve",
            missing.map(|why| {
                format!(
                    "the disk of {place} is nearly full: the reserve that lets the server start on \
                     a full disk cannot be made ({why})"
                )
            }),
        );
    }
}

/// Replaces journals by a snapshot, one compaction at a time, each on its own thread. Dropping it
/// waits for the current one.
pub(super) struct Compactor {
    thread: Option<JoinHandle<Result<u64, StoreError>>>,
    last_failed: bool,
    snapshot_bytes: u64,
    health: StoreHealth,
}

impl Compactor {
    pub(super) fn new(snapshot_bytes: u64, health: StoreHealth) -> Self {
        Self { thread: None, last_failed: false, snapshot_bytes, health }
    }

    /// Starts to compact everything up to `end`, unless another compaction runs or journals of
    /// `bytes` are shorter than `limit` or the present snapshot. Returns whether it started.
    pub(super) fn begin(
        &mut self,
        disk: &Arc<dyn Disk>,
        end: LogPosition,
        bytes: u64,
        limit: u64,
    ) -> bool {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return false;
        }
        self.wait();
        // One that failed is repeated, however little there is since.
        if bytes < limit.max(self.snapshot_bytes) && !self.last_failed {
            return false;
        }
        let (disk, health) = (Arc::clone(disk), self.health.clone());
        let thread = thread::Builder::new().name("store snapshot".to_owned()).spawn(move || {
            let outcome = files::compact(&*disk, end);
            health.set("snapshot", outcome.as_ref().err().map(describe_failure));
            outcome
        });
        self.thread = thread.ok();
        self.thread.is_some()
    }

    /// Waits for the current compaction.
    pub(super) fn wait(&mut self) {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Ok(bytes))) => (self.snapshot_bytes, self.last_failed) = (bytes, false),
            Some(_) => self.last_failed = true,
            None => {}
        }
    }
}

fn describe_failure(error: &StoreError) -> String {
    format!("no snapshot can be written, so journals grow until the disk is full: {error}")
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.wait();
    }
}
