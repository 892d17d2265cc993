//! The arguments of the 22 procedures, RFC 1813 section 3.3.

use bytes::Bytes;

use super::{Device, FileType, Handle, LinkText, Name, NewAttributes, Time};
use crate::xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_enum, xdr_struct};

/// The largest READ or WRITE that is offered to clients.
pub const IO_BYTES_MAX: u32 = 1 << 20;

xdr_enum! {
    /// stable_how: what a WRITE must have made durable before its reply.
    pub enum Stability {
        Unstable = 0,
        DataSync = 1,
        FileSync = 2,
    }
}

/// Permission bits of ACCESS.
pub mod access {
    pub const READ: u32 = 0x01;
    pub const LOOKUP: u32 = 0x02;
    pub const MODIFY: u32 = 0x04;
    pub const EXTEND: u32 = 0x08;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
    pub const ALL: u32 = 0x3f;
}

xdr_struct! {
    /// A name in a directory.
    pub struct DirOpArgs {
        pub dir: Handle,
        pub name: Name,
    }

    pub struct GetAttrArgs {
        pub object: Handle,
    }

    pub struct SetAttrArgs {
        pub object: Handle,
        pub new: NewAttributes,
        /// Fail unless this is the file's change time.
        pub guard: Option<Time>,
    }

    pub struct AccessArgs {
        pub object: Handle,
        pub access: u32,
    }

    pub struct ReadLinkArgs {
        pub object: Handle,
    }

    pub struct ReadArgs {
        pub file: Handle,
        pub offset: u64,
        pub count: u32,
    }

    pub struct MkDirArgs {
        pub at: DirOpArgs,
        pub new: NewAttributes,
    }

    pub struct SymLinkArgs {
        pub at: DirOpArgs,
        pub new: NewAttributes,
        pub text: LinkText,
    }

    pub struct MkNodArgs {
        pub at: DirOpArgs,
        pub what: Node,
    }

    pub struct CreateArgs {
        pub at: DirOpArgs,
        pub how: CreateHow,
    }

    pub struct RenameArgs {
        pub from: DirOpArgs,
        pub to: DirOpArgs,
    }

    pub struct LinkArgs {
        pub file: Handle,
        pub to: DirOpArgs,
    }

    pub struct ReadDirArgs {
        pub dir: Handle,
        pub cookie: u64,
        pub verifier: [u8; 8],
        pub count: u32,
    }

    pub struct ReadDirPlusArgs {
        pub dir: Handle,
        pub cookie: u64,
        pub verifier: [u8; 8],
        pub dir_count: u32,
        pub max_count: u32,
    }

    /// FSSTAT, FSINFO and PATHCONF.
    pub struct FsArgs {
        pub root: Handle,
    }

    pub struct CommitArgs {
        pub file: Handle,
        pub offset: u64,
        pub count: u32,
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteArgs {
    pub file: Handle,
    pub offset: u64,
    pub count: u32,
    pub stability: Stability,
    pub data: Bytes,
}

impl Encode for WriteArgs {
    fn encode(&self, out: &mut Writer) {
        self.file.encode(out);
        out.u64(self.offset);
        out.u32(self.count);
        self.stability.encode(out);
        out.payload(self.data.clone());
    }
}

impl Decode for WriteArgs {
    fn decode(input: &mut Reader) -> Result<Self> {
        Ok(Self {
            file: Handle::decode(input)?,
            offset: input.u64()?,
            count: input.u32()?,
            stability: Stability::decode(input)?,
            data: input.opaque(IO_BYTES_MAX)?,
        })
    }
}

/// createhow3: what CREATE does if the name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// Use the existing file.
    Unchecked(NewAttributes),
    /// Fail.
    Guarded(NewAttributes),
    /// Fail, unless a request with this verifier created it.
    Exclusive([u8; 8]),
}

impl Encode for CreateHow {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Unchecked(new) => {
                out.u32(0);
                new.encode(out);
            }
            Self::Guarded(new) => {
                out.u32(1);
                new.encode(out);
            }
            Self::Exclusive(verifier) => {
                out.u32(2);
                verifier.encode(out);
            }
        }
    }
}

impl Decode for CreateHow {
    fn decode(input: &mut Reader) -> Result<Self> {
        match input.u32()? {
            0 => Ok(Self::Unchecked(NewAttributes::decode(input)?)),
            1 => Ok(Self::Guarded(NewAttributes::decode(input)?)),
            2 => Ok(Self::Exclusive(Decode::decode(input)?)),
            other => Err(Error::BadValue(other)),
        }
    }
}

/// mknoddata3: what MKNOD creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    Character(NewAttributes, Device),
    Block(NewAttributes, Device),
    Socket(NewAttributes),
    Fifo(NewAttributes),
    /// A type that MKNOD cannot create: answered with BADTYPE.
    Other(FileType),
}

impl Encode for Node {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Character(new, device) => {
                FileType::Character.encode(out);
                new.encode(out);
                device.encode(out);
            }
            Self::Block(new, device) => {
                FileType::Block.encode(out);
                new.encode(out);
                device.encode(out);
            }
            Self::Socket(new) => {
                FileType::Socket.encode(out);
                new.encode(out);
            }
            Self::Fifo(new) => {
                FileType::Fifo.encode(out);
                new.encode(out);
            }
            Self::Other(kind) => kind.encode(out),
        }
    }
}

impl Decode for Node {
    fn decode(input: &mut Reader) -> Result<Self> {
        Ok(match FileType::decode(input)? {
            FileType::Character => {
                Self::Character(NewAttributes::decode(input)?, Device::decode(input)?)
            }
            FileType::Block => Self::Block(NewAttributes::decode(input)?, Device::decode(input)?),
            FileType::Socket => Self::Socket(NewAttributes::decode(input)?),
            FileType::Fifo => Self::Fifo(NewAttributes::decode(input)?),
            other => Self::Other(other),
        })
    }
}
