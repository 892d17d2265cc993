//! Background threads: syncing batches that were acknowledged without a sync, and compacting old
//! journals into a snapshot.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::disk::Disk;
use super::files;
use super::log::Log;
use super::replay::LogPosition;
use crate::error::StoreError;

/// A thread that syncs the log at intervals, and seals it when it is idle. Stopping or dropping it
/// syncs the log a last time.
pub(super) struct Syncer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub(super) fn start(log: Arc<Log>, delay: Duration) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("store sync".to_owned())
            .spawn(move || keep_synced(&log, delay, &stopped))?;
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
fn keep_synced(log: &Log, delay: Duration, stopped: &Receiver<()>) {
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
        last_number = number;
    }
    if log.sync().is_ok() {
        let _ = log.seal();
    }
}

/// Replaces journals by a snapshot, one compaction at a time, each on its own thread. Dropping it
/// waits for the current one.
pub(super) struct Compactor {
    thread: Option<JoinHandle<Result<u64, StoreError>>>,
    last_error: Option<StoreError>,
    snapshot_bytes: u64,
}

impl Compactor {
    pub(super) fn new(snapshot_bytes: u64) -> Self {
        Self { thread: None, last_error: None, snapshot_bytes }
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
        if bytes < limit.max(self.snapshot_bytes) {
            return false;
        }
        let disk = Arc::clone(disk);
        let thread = thread::Builder::new()
            .name("store snapshot".to_owned())
            .spawn(move || files::compact(&*disk, end));
        self.thread = thread.ok();
        self.thread.is_some()
    }

    /// Waits for the current compaction.
    pub(super) fn wait(&mut self) {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Ok(bytes))) => (self.snapshot_bytes, self.last_error) = (bytes, None),
            Some(Ok(Err(error))) => self.last_error = Some(error),
            Some(Err(_)) | None => {}
        }
    }

    /// Why the last compaction failed. The journals are still there: nothing is lost, but they grow.
    pub(super) fn last_error(&self) -> Option<&StoreError> {
        self.last_error.as_ref()
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.wait();
    }
}
