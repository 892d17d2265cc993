//! The background thread: closes idle files, commits files that clients left uncommitted, saves
//! the inode map.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use super::{
    node::lock,
    tree::{ObjectScheme, Tree},
};
use crate::Stability;

/// How long an unused file stays open.
const IDLE_S_MAX: u64 = 10;

/// After this time without a COMMIT, a file is committed here. The kernel has written the data back
/// by then, so the `fsync` is cheap.
const UNCOMMITTED_FOR_MAX: Duration = Duration::from_secs(60);

pub(super) struct Housekeeping {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeping {
    pub(super) fn start(tree: Arc<Tree>) -> std::io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("housekeeping".into()).spawn(move || {
            while !pause(&stopped) {
                tidy(&tree)
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        *lock(&self.stop.0) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Sleeps for a second; `true` if the thread must end.
fn pause((stop, changed): &(Mutex<bool>, Condvar)) -> bool {
    let second = Duration::from_secs(1);
    let waited = changed.wait_timeout_while(lock(stop), second, |stop| !*stop);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}

fn tidy(tree: &Tree) {
    for node in tree.uncommitted.older_than(UNCOMMITTED_FOR_MAX) {
        // A failure changes the write verifier, by which the writer learns of it.
        let _ = tree.sync(&node, Stability::File);
    }
    tree.cache.sweep(IDLE_S_MAX);
    if let ObjectScheme::Map(map) = &tree.scheme {
        map.save();
    }
}
