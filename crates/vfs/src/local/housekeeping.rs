//! The work of the background thread: closes idle files, commits files that clients left
//! uncommitted, tells the inode map which handles are in use.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    background::{Background, Wake},
    identity::mark_thread_as_blocking,
    tree::{ObjectScheme, Tree},
};
use crate::Stability;

const TIDY_EVERY: Duration = Duration::from_secs(1);

/// How long an unused file stays open.
const IDLE_S_MAX: u64 = 10;

/// After this time without a COMMIT, a file is committed here. The kernel has written the data back
/// by then, so the `fsync` is cheap.
const UNCOMMITTED_FOR_MAX: Duration = Duration::from_secs(60);

/// Starts the thread. `wake` also wakes it to close the files of dropped nodes.
pub(super) fn start(tree: Arc<Tree>, wake: Wake) -> std::io::Result<Background> {
    let mut tidied = Instant::now();
    let mut is_first = true;
    Background::start("housekeeping", wake, move |_| {
        if std::mem::take(&mut is_first) {
            mark_thread_as_blocking();
        }
        tree.cache.close_dropped();
        if tidied.elapsed() >= TIDY_EVERY {
            tidied = Instant::now();
            tidy(&tree);
        }
    })
}

fn tidy(tree: &Tree) {
    if let ObjectScheme::Map(map) = &tree.scheme {
        tree.cache.for_each_presented(|id| map.used(id));
    }
    tree.cache.sweep(IDLE_S_MAX);
    tree.cache.close_idle_writers(|node| tree.must_keep_writer(node));
    tree.listings.sweep();
    for node in tree.uncommitted.older_than(UNCOMMITTED_FOR_MAX) {
        // A failure changes the write verifier, by which the writer learns of it.
        let _ = tree.sync(&node, Stability::File);
    }
}
