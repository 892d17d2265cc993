//! File attributes, RFC 1813 section 2.5.

use crate::xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_enum, xdr_struct};

xdr_enum! {
    pub enum FileType {
        Regular = 1,
        Directory = 2,
        Block = 3,
        Character = 4,
        Symlink = 5,
        Socket = 6,
        Fifo = 7,
    }
}

xdr_struct! {
    /// Seconds and nanoseconds since 1970.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    pub struct Time {
        pub seconds: u32,
        pub nanoseconds: u32,
    }

    /// specdata3: the device numbers of a special file.
    #[derive(Copy, Default)]
    pub struct Device {
        pub major: u32,
        pub minor: u32,
    }

    /// fattr3.
    #[derive(Copy)]
    pub struct Attributes {
        pub kind: FileType,
        pub mode: u32,
        pub links: u32,
        pub uid: u32,
        pub gid: u32,
        pub size: u64,
        pub used: u64,
        pub device: Device,
        pub filesystem: u64,
        pub fileid: u64,
        pub accessed: Time,
        pub modified: Time,
        pub changed: Time,
    }

    /// wcc_attr: attributes before an operation, by which a client detects changes of others.
    #[derive(Copy)]
    pub struct WccAttributes {
        pub size: u64,
        pub modified: Time,
        pub changed: Time,
    }

    /// wcc_data: weak cache consistency.
    #[derive(Copy, Default)]
    pub struct Wcc {
        pub before: Option<WccAttributes>,
        pub after: Option<Attributes>,
    }

    /// sattr3: attributes to set; `None` leaves one unchanged.
    #[derive(Copy, Default)]
    pub struct NewAttributes {
        pub mode: Option<u32>,
        pub uid: Option<u32>,
        pub gid: Option<u32>,
        pub size: Option<u64>,
        pub accessed: SetTime,
        pub modified: SetTime,
    }
}

impl From<&Attributes> for WccAttributes {
    fn from(a: &Attributes) -> Self {
        Self { size: a.size, modified: a.modified, changed: a.changed }
    }
}

/// set_atime and set_mtime.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SetTime {
    #[default]
    Keep,
    ServerTime,
    To(Time),
}

impl Encode for SetTime {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Keep => out.u32(0),
            Self::ServerTime => out.u32(1),
            Self::To(time) => {
                out.u32(2);
                time.encode(out);
            }
        }
    }
}

impl Decode for SetTime {
    fn decode(input: &mut Reader) -> Result<Self> {
        match input.u32()? {
            0 => Ok(Self::Keep),
            1 => Ok(Self::ServerTime),
            2 => Ok(Self::To(Time::decode(input)?)),
            other => Err(Error::BadValue(other)),
        }
    }
}
