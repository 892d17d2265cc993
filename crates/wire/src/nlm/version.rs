//! One Rust type for each message, encoded and decoded in any version.

use bytes::Bytes;

use super::{Access, CallerName, Cookie, FileHandle, Mode, OwnerHandle, Range, Status, V1, V3, V4};
use crate::xdr::{Decode, Encode, Error, Reader, Result, Writer};

/// The supported versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    V1,
    V3,
    V4,
}

impl Version {
    pub const ALL: [Self; 3] = [Self::V1, Self::V3, Self::V4];

    pub fn number(self) -> u32 {
        match self {
            Self::V1 => V1,
            Self::V3 => V3,
            Self::V4 => V4,
        }
    }

    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.number() == number)
    }

    /// Whether ranges have 64 bits and statuses go beyond [`Status::Deadlock`].
    pub fn is_wide(self) -> bool {
        self == Self::V4
    }

    /// Whether SHARE, UNSHARE, NM_LOCK and FREE_ALL exist.
    pub fn has_shares(self) -> bool {
        self != Self::V1
    }
}

/// A message with an encoding in each version.
///
/// What only version 4 can represent is approximated in the others: see [`Range`] and [`Status`].
pub trait Versioned: Sized {
    fn encode_as(&self, version: Version, out: &mut Writer);

    fn decode_as(version: Version, input: &mut Reader) -> Result<Self>;

    /// The whole message, for datagrams and tests.
    fn to_bytes_as(&self, version: Version) -> Bytes {
        let mut out = Writer::new();
        self.encode_as(version, &mut out);
        out.finish().to_bytes()
    }

    /// Decodes a message that must end where the value ends.
    fn from_bytes_as(version: Version, bytes: Bytes) -> Result<Self> {
        let mut input = Reader::new(bytes);
        let value = Self::decode_as(version, &mut input)?;
        input.finish()?;
        Ok(value)
    }
}

/// A message in the encoding of versions 1 and 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Narrow<T>(pub T);

impl<T: Versioned> Encode for Narrow<T> {
    fn encode(&self, out: &mut Writer) {
        self.0.encode_as(Version::V3, out);
    }
}

impl<T: Versioned> Decode for Narrow<T> {
    fn decode(input: &mut Reader) -> Result<Self> {
        T::decode_as(Version::V3, input).map(Self)
    }
}

/// Fields with the same encoding in every version.
macro_rules! same_in_all {
    ($($type:ty)*) => {$(
        impl Versioned for $type {
            fn encode_as(&self, _: Version, out: &mut Writer) {
                self.encode(out);
            }

            fn decode_as(_: Version, input: &mut Reader) -> Result<Self> {
                Self::decode(input)
            }
        }
    )*};
}

same_in_all! { bool i32 Cookie FileHandle OwnerHandle CallerName Mode Access }

impl Versioned for Range {
    fn encode_as(&self, version: Version, out: &mut Writer) {
        if version.is_wide() {
            out.u64(self.offset);
            out.u64(self.length);
        } else {
            let (offset, length) = self.narrowed();
            out.u32(offset);
            out.u32(length);
        }
    }

    fn decode_as(version: Version, input: &mut Reader) -> Result<Self> {
        Ok(if version.is_wide() {
            Self { offset: input.u64()?, length: input.u64()? }
        } else {
            Self { offset: input.u32()?.into(), length: input.u32()?.into() }
        })
    }
}

impl Versioned for Status {
    fn encode_as(&self, version: Version, out: &mut Writer) {
        let known = if self.is_known_to(version) { *self } else { Self::DeniedNoLocks };
        known.encode(out);
    }

    fn decode_as(version: Version, input: &mut Reader) -> Result<Self> {
        let status = Self::decode(input)?;
        if status.is_known_to(version) { Ok(status) } else { Err(Error::BadValue(status as u32)) }
    }
}

/// `Encode` and `Decode` use the encoding of version 4.
macro_rules! plain_is_v4 {
    ($($type:ty)*) => {$(
        impl $crate::xdr::Encode for $type {
            fn encode(&self, out: &mut $crate::xdr::Writer) {
                $crate::nlm::Versioned::encode_as(self, $crate::nlm::Version::V4, out);
            }
        }

        impl $crate::xdr::Decode for $type {
            fn decode(input: &mut $crate::xdr::Reader) -> $crate::xdr::Result<Self> {
                $crate::nlm::Versioned::decode_as($crate::nlm::Version::V4, input)
            }
        }
    )*};
}

/// Structures that encode as their fields in order.
macro_rules! versioned_struct {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type,)* }

        impl $crate::nlm::Versioned for $name {
            fn encode_as(&self, version: $crate::nlm::Version, out: &mut $crate::xdr::Writer) {
                $($crate::nlm::Versioned::encode_as(&self.$field, version, out);)*
            }

            fn decode_as(
                version: $crate::nlm::Version,
                input: &mut $crate::xdr::Reader,
            ) -> $crate::xdr::Result<Self> {
                $(let $field = <$type as $crate::nlm::Versioned>::decode_as(version, input)?;)*
                Ok(Self { $($field),* })
            }
        }

        $crate::nlm::version::plain_is_v4! { $name }
    )*};
}

pub(crate) use {plain_is_v4, versioned_struct};
