//! The fields of a record on their way back: every length is checked against what is there before
//! anything is taken or allocated, and every value against those that can be written.

use std::net::{IpAddr, Ipv6Addr};

use super::BadRecord;

pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), BadRecord> {
        if self.rest.is_empty() { Ok(()) } else { Err(BadRecord::Long(self.rest.len())) }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn u8(&mut self, what: &'static str) -> Result<u8, BadRecord> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, BadRecord> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, BadRecord> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A byte that is 0 for the first of two and 1 for the second.
    pub fn choice<T>(&mut self, what: &'static str, [zero, one]: [T; 2]) -> Result<T, BadRecord> {
        match self.u8(what)? {
            0 => Ok(zero),
            1 => Ok(one),
            other => Err(BadRecord::Value(what, u64::from(other))),
        }
    }

    pub fn flags(&mut self, what: &'static str) -> Result<[bool; 4], BadRecord> {
        let bits = self.u8(what)?;
        if bits > 0b1111 {
            return Err(BadRecord::Value(what, u64::from(bits)));
        }
        Ok([1, 2, 4, 8].map(|flag| bits & flag != 0))
    }

    /// One value has one form: no count ends in a byte that adds nothing.
    pub fn count(&mut self, what: &'static str) -> Result<u64, BadRecord> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits || (byte == 0 && shift > 0) {
                return Err(BadRecord::Value(what, u64::from(byte)));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(BadRecord::Value(what, u64::MAX))
    }

    pub fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], BadRecord> {
        let count = self.count(what)?;
        let length = usize::try_from(count).map_err(|_| BadRecord::Short(what))?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(BadRecord::Short(what))?;
        self.rest = rest;
        Ok(taken)
    }

    /// A mapped address is never written, so it is never read.
    pub fn address(&mut self, what: &'static str) -> Result<IpAddr, BadRecord> {
        match self.u8(what)? {
            4 => self.array::<4>(what).map(IpAddr::from),
            6 => {
                let six = Ipv6Addr::from(self.array::<16>(what)?);
                match six.to_ipv4_mapped() {
                    None => Ok(IpAddr::V6(six)),
                    Some(four) => Err(BadRecord::Value(what, u64::from(four.to_bits()))),
                }
            }
            other => Err(BadRecord::Value(what, u64::from(other))),
        }
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], BadRecord> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(BadRecord::Short(what))?;
        self.rest = rest;
        Ok(*taken)
    }
}
