//! Encodes the fields of a record. Cannot fail.

use std::net::IpAddr;

use super::VERSION;

pub(crate) struct FieldWriter<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> FieldWriter<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    pub(crate) fn head(&mut self, kind: u8) {
        self.raw(&[VERSION, kind]);
    }

    pub(crate) fn head_and_id(&mut self, kind: u8, id: u64) {
        self.head(kind);
        self.u64(id);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// The first flag is the lowest bit.
    pub(crate) fn flags<const N: usize>(&mut self, flags: [bool; N]) {
        let bits = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
        self.u8(bits);
    }

    pub(crate) fn count(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len() as u64);
        self.raw(bytes);
    }

    pub(crate) fn address(&mut self, address: IpAddr) {
        match address.to_canonical() {
            IpAddr::V4(four) => {
                self.u8(4);
                self.raw(&four.octets());
            }
            IpAddr::V6(six) => {
                self.u8(6);
                self.raw(&six.octets());
            }
        }
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
}
