//! What happens beside the committer: syncing what may wait, and putting a snapshot in the place of
//! old journals.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::disk::Disk;
use super::image;
use super::log::Log;
use super::replay::Until;
use crate::error::StoreError;

/// Syncs the log every so often, and seals it when it rests. Stops when it is dropped, with all
/// synced.
pub struct Syncer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub fn new(log: Arc<Log>, delay: Duration) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("store sync".to_owned())
            .spawn(move || keep_synced(&log, delay, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    pub fn stop(&mut self) {
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

/// A failed sync ends this; the log remembers it, and the committer hears of it at its next batch.
fn keep_synced(log: &Log, delay: Duration, stopped: &Receiver<()>) {
    let mut seen = log.number();
    while stopped.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
        let number = log.number();
        let outcome = match log.has_unsynced() {
            true => log.sync(),
            false if number == seen => log.seal(),
            false => Ok(()),
        };
        if outcome.is_err() {
            return;
        }
        seen = number;
    }
    if log.sync().is_ok() {
        let _ = log.seal();
    }
}

/// Puts snapshots in the place of journals, one at a time, each in a thread of its own.
pub struct Condenser {
    thread: Option<JoinHandle<Result<u64, StoreError>>>,
    trouble: Option<StoreError>,
    snapshot_bytes: u64,
}

impl Condenser {
    pub fn new(snapshot_bytes: u64) -> Self {
        Self { thread: None, trouble: None, snapshot_bytes }
    }

    /// Begins, if journals of `bytes` are worth it and no other is under way.
    pub fn begin(&mut self, disk: &Arc<dyn Disk>, until: Until, bytes: u64, limit: u64) -> bool {
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
            .spawn(move || image::condense(&*disk, until));
        self.thread = thread.ok();
        self.thread.is_some()
    }

    /// Returns when none is under way.
    pub fn wait(&mut self) {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Ok(bytes))) => (self.snapshot_bytes, self.trouble) = (bytes, None),
            Some(Ok(Err(error))) => self.trouble = Some(error),
            Some(Err(_)) | None => {}
        }
    }

    /// Why the last snapshot was not written. The journals are still there, so nothing is lost; but
    /// they grow.
    pub fn trouble(&self) -> Option<&StoreError> {
        self.trouble.as_ref()
    }
}

impl Drop for Condenser {
    fn drop(&mut self) {
        self.wait();
    }
}
