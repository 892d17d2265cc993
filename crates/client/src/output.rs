//! The output queue of a stream: many calls are written with one system call, and payloads are not
//! copied.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// The most buffers of one system call.
const PIECES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Heads and payloads in turn, all before `tail`.
    pieces: VecDeque<Bytes>,
    /// The buffer for heads, up to the next payload.
    tail: BytesMut,
    bytes: usize,
}

impl Output {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The number of queued bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Appends a record: `write` adds its head to the buffer it is given, and returns the payload.
    pub(crate) fn append(&mut self, write: impl FnOnce(BytesMut) -> (BytesMut, Bytes)) {
        let before = self.tail.len();
        let (tail, payload) = write(std::mem::take(&mut self.tail));
        self.tail = tail;
        self.bytes += self.tail.len() - before;
        if payload.is_empty() {
            return;
        }
        let padding = payload.len().wrapping_neg() & 3;
        self.bytes += payload.len() + padding;
        self.pieces.push_back(self.tail.split().freeze());
        self.pieces.push_back(payload);
        self.tail.extend_from_slice(&[0; 3][..padding]);
    }

    /// The front of the queue, for one vectored write.
    pub(crate) fn slices(&self) -> ([IoSlice<'_>; PIECES_MAX], usize) {
        let mut slices = [IoSlice::new(&[]); PIECES_MAX];
        let mut count = 0;
        for piece in self.pieces.iter().map(|p| &p[..]).chain([&self.tail[..]]).take(PIECES_MAX) {
            slices[count] = IoSlice::new(piece);
            count += 1;
        }
        (slices, count)
    }

    /// Removes the bytes that were written.
    pub(crate) fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                return;
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
        if written == self.tail.len() {
            // Keeps the capacity, which `advance` would give up.
            self.tail.clear();
        } else {
            self.tail.advance(written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(head: &'static [u8], payload: &Bytes) -> impl FnOnce(BytesMut) -> (BytesMut, Bytes) {
        let payload = payload.clone();
        move |mut tail| {
            tail.extend_from_slice(head);
            (tail, payload)
        }
    }

    #[test]
    fn what_is_written_in_any_steps_is_what_was_appended() {
        for step in 1..30 {
            let mut output = Output::default();
            output.append(record(b"one.", &Bytes::new()));
            output.append(record(b"two.", &Bytes::from_static(b"payload")));
            output.append(record(b"tri.", &Bytes::new()));
            let mut written = Vec::new();
            while !output.is_empty() {
                let (slices, count) = output.slices();
                let all: Vec<u8> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
                assert_eq!(all.len(), output.len());
                let taken = step.min(all.len());
                written.extend_from_slice(&all[..taken]);
                output.advance(taken);
            }
            assert_eq!(written, b"one.two.payload\0tri.");
        }
    }

    #[test]
    fn a_payload_is_not_copied() {
        let payload = Bytes::from(vec![1; 64]);
        let mut output = Output::default();
        output.append(record(b"head", &payload));
        let (slices, count) = output.slices();
        assert!(slices[..count].iter().any(|slice| slice.as_ptr() == payload.as_ptr()));
    }
}
