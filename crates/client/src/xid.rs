//! Transaction numbers: what tells a reply which call it answers.
//!
//! One counter serves all connections of the process, because a server's replay cache may know
//! clients by address alone. It starts at random, so that a restarted process is not answered
//! from the cache with what its predecessor asked.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: LazyLock<AtomicU32> =
    LazyLock::new(|| AtomicU32::new(RandomState::new().hash_one(std::process::id()) as u32));

/// A number that no call of this process has had for a long time.
pub fn next() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}
