//! XDR, RFC 4506: big-endian words, opaque data padded to four bytes.
//!
//! A [`Reader`] returns slices of the buffer it reads; a [`Writer`] collects words in one buffer and
//! carries at most one large payload beside it, so that the data of a READ reply or a WRITE call is
//! never copied.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Why bytes are not the expected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the message ends inside a field")]
    Short,
    #[error("a field of {length} bytes or items where at most {max} are allowed")]
    TooLong { length: u32, max: u32 },
    #[error("{0} is not a value of this field")]
    BadValue(u32),
    #[error("{0} bytes follow the message")]
    Trailing(usize),
}

pub type Result<T> = std::result::Result<T, Error>;

/// Reads one message from a received buffer, without copying it.
#[derive(Debug, Clone)]
pub struct Reader(Bytes);

impl Reader {
    pub fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.0.try_get_u32().map_err(|_| Error::Short)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.0.try_get_u64().map_err(|_| Error::Short)
    }

    /// A counted opaque of at most `max` bytes.
    pub fn opaque(&mut self, max: u32) -> Result<Bytes> {
        let length = self.u32()?;
        if length > max {
            return Err(Error::TooLong { length, max });
        }
        self.fixed(length as usize)
    }

    /// Opaque data of fixed length.
    pub fn fixed(&mut self, length: usize) -> Result<Bytes> {
        let padded = length.checked_next_multiple_of(4).ok_or(Error::Short)?;
        if padded > self.0.len() {
            return Err(Error::Short);
        }
        let bytes = self.0.split_to(length);
        self.0.advance(padded - length);
        Ok(bytes)
    }

    /// As `fixed`, copied: for short data such as a verifier.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        let padding = N.wrapping_neg() & 3;
        if N + padding > self.0.len() {
            return Err(Error::Short);
        }
        self.0.copy_to_slice(&mut bytes);
        self.0.advance(padding);
        Ok(bytes)
    }

    /// A linked list: TRUE before each item, FALSE at the end.
    pub fn list<T: Decode>(&mut self, max: u32) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while bool::decode(self)? {
            if items.len() as u32 >= max {
                return Err(Error::TooLong { length: max.saturating_add(1), max });
            }
            items.push(T::decode(self)?);
        }
        Ok(items)
    }

    /// The bytes that were not read.
    pub fn rest(self) -> Bytes {
        self.0
    }

    /// Fails if bytes are left.
    pub fn finish(self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            extra => Err(Error::Trailing(extra)),
        }
    }
}

/// A message ready to be sent: `head`, then `payload` (often empty), then zeros up to a word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    pub head: Bytes,
    pub payload: Bytes,
}

impl Message {
    pub fn padding(&self) -> usize {
        self.payload.len().wrapping_neg() & 3
    }

    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len() + self.padding()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it in one buffer, for datagrams and tests.
    pub fn to_bytes(&self) -> Bytes {
        if self.payload.is_empty() {
            return self.head.clone();
        }
        let mut whole = BytesMut::with_capacity(self.len());
        whole.put_slice(&self.head);
        whole.put_slice(&self.payload);
        whole.put_bytes(0, self.padding());
        whole.freeze()
    }
}

/// Writes one message.
#[derive(Debug, Default)]
pub struct Writer {
    head: BytesMut,
    payload: Bytes,
}

impl Writer {
    pub fn new() -> Self {
        Self { head: BytesMut::with_capacity(256), payload: Bytes::new() }
    }

    /// Appends to `head`, which may hold a placeholder for the record mark.
    pub fn after(head: BytesMut) -> Self {
        Self { head, payload: Bytes::new() }
    }

    pub fn position(&self) -> usize {
        self.head.len()
    }

    pub fn u32(&mut self, value: u32) {
        debug_assert!(self.payload.is_empty(), "a payload ends the message");
        self.head.put_u32(value);
    }

    pub fn u64(&mut self, value: u64) {
        self.head.put_u64(value);
    }

    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    pub fn fixed(&mut self, bytes: &[u8]) {
        self.head.put_slice(bytes);
        self.head.put_bytes(0, bytes.len().wrapping_neg() & 3);
    }

    /// A counted opaque that ends the message and is not copied.
    pub fn payload(&mut self, bytes: Bytes) {
        self.u32(bytes.len() as u32);
        self.payload = bytes;
    }

    pub fn list<T: Encode>(&mut self, items: &[T]) {
        for item in items {
            self.u32(1);
            item.encode(self);
        }
        self.u32(0);
    }

    /// The buffer, which may still be changed, and the payload after it.
    pub fn into_parts(self) -> (BytesMut, Bytes) {
        (self.head, self.payload)
    }

    pub fn finish(self) -> Message {
        Message { head: self.head.freeze(), payload: self.payload }
    }
}

pub trait Encode {
    fn encode(&self, out: &mut Writer);

    /// The whole message, for datagrams and tests.
    fn to_bytes(&self) -> Bytes {
        let mut out = Writer::new();
        self.encode(&mut out);
        out.finish().to_bytes()
    }
}

pub trait Decode: Sized {
    fn decode(input: &mut Reader) -> Result<Self>;

    /// Decodes a message that must end where the value ends.
    fn from_bytes(bytes: Bytes) -> Result<Self> {
        let mut input = Reader::new(bytes);
        let value = Self::decode(&mut input)?;
        input.finish()?;
        Ok(value)
    }
}

impl Encode for () {
    fn encode(&self, _: &mut Writer) {}
}

impl Decode for () {
    fn decode(_: &mut Reader) -> Result<Self> {
        Ok(())
    }
}

impl Encode for u32 {
    fn encode(&self, out: &mut Writer) {
        out.u32(*self);
    }
}

impl Decode for u32 {
    fn decode(input: &mut Reader) -> Result<Self> {
        input.u32()
    }
}

impl Encode for i32 {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.cast_unsigned());
    }
}

impl Decode for i32 {
    fn decode(input: &mut Reader) -> Result<Self> {
        input.u32().map(u32::cast_signed)
    }
}

impl Encode for u64 {
    fn encode(&self, out: &mut Writer) {
        out.u64(*self);
    }
}

impl Decode for u64 {
    fn decode(input: &mut Reader) -> Result<Self> {
        input.u64()
    }
}

impl Encode for bool {
    fn encode(&self, out: &mut Writer) {
        out.u32(u32::from(*self));
    }
}

impl Decode for bool {
    fn decode(input: &mut Reader) -> Result<Self> {
        match input.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::BadValue(other)),
        }
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Writer) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(input: &mut Reader) -> Result<Self> {
        bool::decode(input)?.then(|| T::decode(input)).transpose()
    }
}

/// Opaque data of fixed length: verifiers of NFS, private data of NSM.
impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Writer) {
        out.fixed(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(input: &mut Reader) -> Result<Self> {
        input.array()
    }
}

/// Structures whose XDR form is their fields in order.
macro_rules! xdr_struct {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type,)* }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut $crate::xdr::Writer) {
                $($crate::xdr::Encode::encode(&self.$field, out);)*
            }
        }

        impl $crate::xdr::Decode for $name {
            fn decode(input: &mut $crate::xdr::Reader) -> $crate::xdr::Result<Self> {
                $(let $field = <$type as $crate::xdr::Decode>::decode(input)?;)*
                Ok(Self { $($field),* })
            }
        }
    )*};
}

/// Enumerations whose XDR form is a word.
macro_rules! xdr_enum {
    ($($(#[$meta:meta])* pub enum $name:ident { $($variant:ident = $value:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($variant = $value,)* }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut $crate::xdr::Writer) {
                out.u32(*self as u32);
            }
        }

        impl $crate::xdr::Decode for $name {
            fn decode(input: &mut $crate::xdr::Reader) -> $crate::xdr::Result<Self> {
                match input.u32()? {
                    $($value => Ok(Self::$variant),)*
                    other => Err($crate::xdr::Error::BadValue(other)),
                }
            }
        }
    )*};
}

/// Byte strings with a maximum: names, paths, handles. Opaque, never assumed to be UTF-8.
macro_rules! xdr_bytes {
    ($($(#[$meta:meta])* pub struct $name:ident(max $max:expr);)*) => {$(
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
        pub struct $name(pub bytes::Bytes);

        impl $name {
            pub const MAX: u32 = $max;
        }

        impl<T: Into<bytes::Bytes>> From<T> for $name {
            fn from(bytes: T) -> Self {
                Self(bytes.into())
            }
        }

        impl std::ops::Deref for $name {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                &self.0
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}(\"{}\")", stringify!($name), self.0.escape_ascii())
            }
        }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut $crate::xdr::Writer) {
                out.opaque(&self.0);
            }
        }

        impl $crate::xdr::Decode for $name {
            fn decode(input: &mut $crate::xdr::Reader) -> $crate::xdr::Result<Self> {
                input.opaque(Self::MAX).map(Self)
            }
        }
    )*};
}

pub(crate) use {xdr_bytes, xdr_enum, xdr_struct};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opaque_is_checked_against_its_maximum_before_what_remains() {
        let mut input = Reader::new(Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1]));
        assert_eq!(input.opaque(64), Err(Error::TooLong { length: u32::MAX, max: 64 }));
        let mut input = Reader::new(Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1]));
        assert_eq!(input.opaque(u32::MAX), Err(Error::Short));
    }

    #[test]
    fn an_opaque_without_its_padding_is_short() {
        let mut input = Reader::new(Bytes::from_static(&[0, 0, 0, 1, b'x']));
        assert_eq!(input.opaque(8), Err(Error::Short));
    }

    #[test]
    fn an_array_takes_its_padding_with_it_and_is_short_without() {
        let mut input = Reader::new(Bytes::from_static(&[1, 2, 3, 4, 5, 0, 0, 0, 9]));
        assert_eq!(input.array(), Ok([1, 2, 3, 4, 5]));
        assert_eq!(input.remaining(), 1);
        let mut input = Reader::new(Bytes::from_static(&[1, 2, 3, 4, 5, 0, 0]));
        assert_eq!(input.array::<5>(), Err(Error::Short));
    }

    #[test]
    fn negative_numbers_come_back() {
        for number in [-1, i32::MIN, i32::MAX, 0] {
            assert_eq!(i32::from_bytes(number.to_bytes()), Ok(number));
        }
        assert_eq!((-2i32).to_bytes(), [0xff, 0xff, 0xff, 0xfe][..]);
    }

    #[test]
    fn trailing_bytes_are_rejected() {
        assert_eq!(u32::from_bytes(Bytes::from_static(&[0; 6])), Err(Error::Trailing(2)));
    }

    #[test]
    fn a_list_longer_than_its_maximum_is_rejected_and_not_collected() {
        let mut out = Writer::new();
        out.list(&[1u32, 2, 3]);
        let bytes = out.finish().to_bytes();
        assert_eq!(Reader::new(bytes.clone()).list::<u32>(3), Ok(vec![1, 2, 3]));
        assert_eq!(Reader::new(bytes).list::<u32>(2), Err(Error::TooLong { length: 3, max: 2 }));
    }

    #[test]
    fn a_payload_is_padded_and_not_copied() {
        let data = Bytes::from(vec![7u8; 5]);
        let mut out = Writer::new();
        out.payload(data.clone());
        let message = out.finish();
        assert_eq!(message.payload.as_ptr(), data.as_ptr());
        assert_eq!(message.len(), 12);
        assert_eq!(&message.to_bytes()[..], &[0, 0, 0, 5, 7, 7, 7, 7, 7, 0, 0, 0]);
    }
}
