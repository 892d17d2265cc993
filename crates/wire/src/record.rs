//! Record marking, RFC 5531 section 11: separates messages on a stream.
//!
//! Each fragment begins with a word: the top bit marks the last fragment of a record, the rest is the
//! fragment's length. Nearly every record is one fragment, which is split off the receive buffer
//! without a copy.

use bytes::{Buf, Bytes, BytesMut};

/// The word before a record that is sent as one fragment.
pub fn mark(length: usize) -> u32 {
    LAST | length as u32
}

/// The length of that word.
pub const MARK_BYTES: usize = 4;

const LAST: u32 = 0x8000_0000;

/// What a peer may send as one record.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub record_bytes_max: usize,
    pub fragments_max: usize,
}

/// Why a stream cannot be read any further: the next record cannot be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a record of more than {max} bytes")]
    TooLong { max: usize },
    #[error("a record in more than {max} fragments")]
    TooManyFragments { max: usize },
}

/// Splits records off a growing buffer.
#[derive(Debug)]
pub struct Records {
    limits: Limits,
    /// Earlier fragments of the present record.
    gathered: BytesMut,
    fragments: usize,
}

impl Records {
    pub fn new(limits: Limits) -> Self {
        Self { limits, gathered: BytesMut::new(), fragments: 0 }
    }

    /// The next complete record at the front of `received`, or the least number of bytes that it
    /// still lacks.
    pub fn next(&mut self, received: &mut BytesMut) -> Result<Next, Error> {
        loop {
            let Some(word) = received.first_chunk::<MARK_BYTES>() else {
                return Ok(Next::Missing(MARK_BYTES - received.len()));
            };
            let word = u32::from_be_bytes(*word);
            let (last, length) = (word & LAST != 0, (word & !LAST) as usize);
            let max = self.limits.record_bytes_max;
            if self.gathered.len() + length > max {
                return Err(Error::TooLong { max });
            }
            if received.len() < MARK_BYTES + length {
                return Ok(Next::Missing(MARK_BYTES + length - received.len()));
            }
            received.advance(MARK_BYTES);
            let fragment = received.split_to(length);
            if last && self.fragments == 0 {
                return Ok(Next::Record(fragment.freeze()));
            }
            self.gathered.extend_from_slice(&fragment);
            if last {
                self.fragments = 0;
                return Ok(Next::Record(self.gathered.split().freeze()));
            }
            self.fragments += 1;
            if self.fragments >= self.limits.fragments_max {
                return Err(Error::TooManyFragments { max: self.limits.fragments_max });
            }
        }
    }

    /// The length of the record that begins with `received`, if it is one fragment and its mark is there.
    pub fn whole(&self, received: &[u8]) -> Option<usize> {
        let word = u32::from_be_bytes(*received.first_chunk::<MARK_BYTES>()?);
        (self.fragments == 0 && word & LAST != 0).then_some((word & !LAST) as usize)
    }

    /// Bytes of earlier fragments of the present record.
    pub fn gathered(&self) -> usize {
        self.gathered.len()
    }

    /// Whether the stream is between two records: then a silent peer is idle, not stalled.
    pub fn between(&self, received: &BytesMut) -> bool {
        received.is_empty() && self.fragments == 0
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Record(Bytes),
    Missing(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;

    const LIMITS: Limits = Limits { record_bytes_max: 64, fragments_max: 4 };

    fn fragment(into: &mut BytesMut, last: bool, body: &[u8]) {
        into.put_u32(if last { mark(body.len()) } else { body.len() as u32 });
        into.put_slice(body);
    }

    #[test]
    fn a_record_may_arrive_byte_by_byte() {
        let mut whole = BytesMut::new();
        fragment(&mut whole, false, b"ab");
        fragment(&mut whole, true, b"cd");
        let mut records = Records::new(LIMITS);
        let mut received = BytesMut::new();
        let mut found = Vec::new();
        for byte in whole {
            received.put_u8(byte);
            if let Next::Record(record) = records.next(&mut received).unwrap() {
                found.push(record);
            }
        }
        assert_eq!(found, [Bytes::from_static(b"abcd")]);
        assert!(records.between(&received));
    }

    #[test]
    fn two_records_in_one_read_are_both_found() {
        let mut received = BytesMut::new();
        fragment(&mut received, true, b"one!");
        fragment(&mut received, true, b"two!");
        let mut records = Records::new(LIMITS);
        assert_eq!(records.next(&mut received), Ok(Next::Record(Bytes::from_static(b"one!"))));
        assert_eq!(records.next(&mut received), Ok(Next::Record(Bytes::from_static(b"two!"))));
        assert_eq!(records.next(&mut received), Ok(Next::Missing(4)));
    }

    #[test]
    fn a_record_over_the_limit_is_refused_by_its_header_alone() {
        let mut received = BytesMut::new();
        received.put_u32(mark(65));
        assert_eq!(Records::new(LIMITS).next(&mut received), Err(Error::TooLong { max: 64 }));
        let mut received = BytesMut::new();
        fragment(&mut received, false, &[0; 40]);
        received.put_u32(mark(25));
        assert_eq!(Records::new(LIMITS).next(&mut received), Err(Error::TooLong { max: 64 }));
    }

    #[test]
    fn endless_empty_fragments_are_refused() {
        let mut received = BytesMut::new();
        for _ in 0..10 {
            fragment(&mut received, false, b"");
        }
        assert_eq!(
            Records::new(LIMITS).next(&mut received),
            Err(Error::TooManyFragments { max: 4 })
        );
    }
}
