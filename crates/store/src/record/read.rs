//! Decodes the fields of a record. A length is checked against the bytes that are left before
//! anything is allocated, and a value against those that the encoder writes.

use std::net::{IpAddr, Ipv6Addr};

use super::RecordError;

pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Fails if bytes are left.
    pub(crate) fn end(&self) -> Result<(), RecordError> {
        if self.rest.is_empty() { Ok(()) } else { Err(RecordError::Long(self.rest.len())) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, RecordError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, RecordError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, RecordError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A byte that is 0 for the first value and 1 for the second.
    pub(crate) fn choice<T>(
        &mut self,
        what: &'static str,
        [zero, one]: [T; 2],
    ) -> Result<T, RecordError> {
        match self.u8(what)? {
            0 => Ok(zero),
            1 => Ok(one),
            other => Err(RecordError::Value(what, u64::from(other))),
        }
    }

    /// `N` flags, at most 8; the first is the lowest bit. Refuses a byte with others.
    pub(crate) fn flags<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[bool; N], RecordError> {
        let bits = self.u8(what)?;
        if u32::from(bits) >> N != 0 {
            return Err(RecordError::Value(what, u64::from(bits)));
        }
        Ok(std::array::from_fn(|flag| bits & (1 << flag) != 0))
    }

    /// Refuses padding: a count never ends in a zero byte, except for zero itself.
    pub(crate) fn count(&mut self, what: &'static str) -> Result<u64, RecordError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits || (byte == 0 && shift > 0) {
                return Err(RecordError::Value(what, u64::from(byte)));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(RecordError::Value(what, u64::MAX))
    }

    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], RecordError> {
        let count = self.count(what)?;
        let length = usize::try_from(count).map_err(|_| RecordError::Short(what))?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(RecordError::Short(what))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Refuses an IPv4-mapped address: it is written as IPv4.
    pub(crate) fn address(&mut self, what: &'static str) -> Result<IpAddr, RecordError> {
        match self.u8(what)? {
            4 => self.array::<4>(what).map(IpAddr::from),
            6 => {
                let six = Ipv6Addr::from(self.array::<16>(what)?);
                match six.to_ipv4_mapped() {
                    None => Ok(IpAddr::V6(six)),
                    Some(four) => Err(RecordError::Value(what, u64::from(four.to_bits()))),
                }
            }
            other => Err(RecordError::Value(what, u64::from(other))),
        }
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], RecordError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(RecordError::Short(what))?;
        self.rest = rest;
        Ok(*taken)
    }
}
