//! The small thread that lets idle files go and commits what clients forgot to.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use super::{
    node::lock,
    tree::{Objects, Tree},
};
use crate::Stability;

/// How long a file that nobody asks for is kept open.
const IDLE_S_MAX: u64 = 10;

/// After this the client of an unstable write is not waited for any longer. The kernel has
/// written the data by then, so it costs little.
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
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

/// Waits a second; `true` if it is time to stop.
fn pause((stop, changed): &(Mutex<bool>, Condvar)) -> bool {
    let second = Duration::from_secs(1);
    let waited = changed.wait_timeout_while(lock(stop), second, |stop| !*stop);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}

fn tidy(tree: &Tree) {
    for node in tree.uncommitted.older_than(UNCOMMITTED_FOR_MAX) {
        // A failure changes the verifier, and with that the client that wrote is told.
        let _ = tree.sync(&node, Stability::File);
    }
    tree.cache.sweep(IDLE_S_MAX);
    if let Objects::Map(map) = &tree.objects {
        map.save();
    }
}
