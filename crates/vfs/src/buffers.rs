//! Buffers for the data of READ and WRITE, used again while they are warm in the processor's cache.
//!
//! A buffer that is freed is the first to be used again. Few are kept, since more would not be warm:
//! what others hold at the same time comes from the allocator and returns to it.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// A smaller buffer comes from the allocator, which does as well.
pub const POOLED_MIN: usize = 32 << 10;

/// Capacities with room for the largest data of NFS and, in a record, its headers.
static POOLS: [Pool; 2] = [Pool::new((64 << 10) + 2048, 32), Pool::new((1 << 20) + 2048, 8)];

struct Pool {
    capacity: usize,
    kept_max: usize,
    kept: Mutex<Kept>,
}

struct Kept {
    free: Vec<Vec<u8>>,
    /// The fewest that were free since the last [`release_unused`].
    spare: usize,
}

impl Pool {
    const fn new(capacity: usize, kept_max: usize) -> Self {
        Self { capacity, kept_max, kept: Mutex::new(Kept { free: Vec::new(), spare: 0 }) }
    }

    /// The pool for buffers of this capacity.
    fn of(capacity: usize) -> Option<&'static Self> {
        let pool = POOLS.iter().find(|pool| capacity <= pool.capacity)?;
        (capacity >= POOLED_MIN).then_some(pool)
    }

    fn take(&self) -> Option<Vec<u8>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = kept.free.pop();
        kept.spare = kept.spare.min(kept.free.len());
        taken
    }

    fn put(&self, memory: Vec<u8>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.free.len() < self.kept_max {
            kept.free.push(memory);
            return;
        }
        drop(kept);
        drop(memory);
    }

    fn release_unused(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = kept.spare;
        // The coldest.
        let released: Vec<_> = kept.free.drain(..unused).collect();
        kept.spare = kept.free.len();
        drop(kept);
        drop(released);
    }
}

/// Returns buffers to the allocator that were free since the last call. To be called every few seconds.
pub fn release_unused() {
    POOLS.iter().for_each(Pool::release_unused);
}

/// Bytes that are filled from the front. Its memory returns to its pool when it, or the [`Bytes`] made of
/// it, is dropped.
#[derive(Debug, Default)]
pub struct Buffer {
    /// Initialised to its end, at least the capacity that was asked for.
    memory: Vec<u8>,
    filled: usize,
}

impl Buffer {
    /// An empty buffer for at least so many bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let memory = match Pool::of(capacity) {
            Some(pool) => pool.take().unwrap_or_else(|| vec![0; pool.capacity]),
            None => vec![0; capacity],
        };
        Self { memory, filled: 0 }
    }

    /// The bytes that are filled.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether none are filled.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// What comes after the filled bytes, for at most `max` more.
    pub fn rest(&mut self, max: usize) -> &mut [u8] {
        let end = self.memory.len().min(self.filled + max);
        &mut self.memory[self.filled..end]
    }

    /// So many bytes of [`rest`](Self::rest) have been filled.
    pub fn fill(&mut self, count: usize) {
        self.filled = self.memory.len().min(self.filled + count);
    }

    /// Fills in `bytes`, which must fit.
    pub fn put(&mut self, bytes: &[u8]) {
        self.rest(bytes.len()).copy_from_slice(bytes);
        self.fill(bytes.len());
    }

    /// The filled bytes, to be shared.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if let Some(pool) = POOLS.iter().find(|pool| pool.capacity == memory.len()) {
            pool.put(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the pools are those of the process.
    #[test]
    fn a_buffer_is_used_again_and_given_back_when_it_is_not_needed() {
        let mut buffer = Buffer::with_capacity(1 << 20);
        buffer.put(b"data");
        let (address, bytes) = (buffer.memory.as_ptr(), buffer.freeze());
        let part = bytes.slice(1..3);
        drop(bytes);
        assert_eq!(part, b"at"[..]);
        let other = Buffer::with_capacity(1 << 20);
        assert_ne!(other.memory.as_ptr(), address, "its bytes are shared");
        drop(part);
        let again = Buffer::with_capacity(1 << 20);
        assert_eq!((again.memory.as_ptr(), again.len()), (address, 0));
        drop((again, other));

        let pool = Pool::of(1 << 20).unwrap();
        let many: Vec<_> = (0..20).map(|_| Buffer::with_capacity(1 << 20)).collect();
        drop(many);
        assert_eq!(pool.kept.lock().unwrap().free.len(), pool.kept_max);
        release_unused();
        drop(Buffer::with_capacity(1 << 20));
        release_unused();
        assert_eq!(pool.kept.lock().unwrap().free.len(), 1, "one was used");
        release_unused();
        assert!(pool.kept.lock().unwrap().free.is_empty());
    }

    #[test]
    fn small_and_huge_buffers_are_not_kept() {
        for capacity in [0, 1, POOLED_MIN - 1, (1 << 20) + 2049] {
            assert!(Pool::of(capacity).is_none(), "{capacity}");
            assert_eq!(Buffer::with_capacity(capacity).rest(usize::MAX).len(), capacity);
        }
    }
}
