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

#[cfg(test)]
mod tests {
    use super::*;
    use wire::record;

    fn finish(mut large: LargeRecord, rest: &[u8]) -> Bytes {
        assert_eq!(large.missing(), rest.len());
        large.rest().copy_from_slice(rest);
        large.fill(rest.len());
        large.finish()
    }

    #[test]
    fn a_record_is_the_same_with_its_mark_in_the_buffer_or_without() {
        let body: Vec<u8> = (0..50_000_u32).map(|at| at as u8).collect();
        let marked = [&record::mark(body.len()).to_be_bytes()[..], &body].concat();
        for there in [MARK_BYTES, 100, marked.len()] {
            let (begin, rest) = marked.split_at(there);
            let mut received = BytesMut::from(begin);
            assert_eq!(finish(LargeRecord::begin(body.len(), &mut received), rest), body);
            assert!(received.is_empty());
            let mut buffer = Buffer::with_capacity(marked.len());
            buffer.put(begin);
            let large = LargeRecord::within(buffer, Some(body.len()), marked.len());
            assert_eq!(finish(large.unwrap_or_else(|_| unreachable!()), rest), body);
        }
    }

    #[test]
    fn a_buffer_with_another_record_than_expected_is_given_back() {
        let expected = 100_000;
        // Not large; longer than expected; followed by others; without a whole mark.
        for (length, there) in
            [(Some(100), 90), (Some(expected), 90), (Some(40_000), 50_000), (None, 2)]
        {
            let mut buffer = Buffer::with_capacity(expected);
            buffer.put(&vec![7; there]);
            let given_back = LargeRecord::within(buffer, length, expected);
            assert_eq!(given_back.err().map(|buffer| buffer.len()), Some(there), "{length:?}");
        }
    }
}
