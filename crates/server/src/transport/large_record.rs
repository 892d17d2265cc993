//! A large record while it is received: a WRITE, mostly. It gets a buffer of its own that has been used
//! before (`vfs::buffers`).

use bytes::{Buf, Bytes, BytesMut};
use vfs::buffers::{Buffer, POOLED_MIN};
use wire::record::MARK_BYTES;

/// See the [module](self).
pub(super) struct LargeRecord {
    /// Begins with the mark if that was received into it, too.
    buffer: Buffer,
    start: usize,
    length: usize,
}

impl LargeRecord {
    /// Whether a record of this length is one.
    pub(super) fn is_large(length: usize) -> bool {
        length >= POOLED_MIN
    }

    /// Takes the mark of a record of this length, and what is there of it, from `received`.
    pub(super) fn begin(length: usize, received: &mut BytesMut) -> Self {
        received.advance(MARK_BYTES.min(received.len()));
        let mut buffer = Buffer::with_capacity(length);
        buffer.put(received);
        received.clear();
        Self { buffer, start: 0, length }
    }

    /// The record of this length whose mark is at the front of `buffer`, unless it is not large, ends within
    /// what was read, or is longer than `max` with its mark.
    pub(super) fn within(
        buffer: Buffer,
        length: Option<usize>,
        max: usize,
    ) -> Result<Self, Buffer> {
        let fits = |length| (buffer.len()..=max).contains(&(MARK_BYTES + length));
        match length {
            Some(length) if Self::is_large(length) && fits(length) => {
                Ok(Self { buffer, start: MARK_BYTES, length })
            }
            _ => Err(buffer),
        }
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn missing(&self) -> usize {
        self.start + self.length - self.buffer.len()
    }

    /// Where the rest is to be read into.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        let missing = self.missing();
        self.buffer.rest(missing)
    }

    /// So many bytes of the rest have been read.
    pub(super) fn fill(&mut self, count: usize) {
        self.buffer.fill(count);
    }

    pub(super) fn finish(self) -> Bytes {
        let start = self.start;
        self.buffer.freeze().slice(start..)
    }
}
