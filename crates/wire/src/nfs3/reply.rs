//! The replies of the 22 procedures, RFC 1813 section 3.3.
//!
//! Every reply is a status followed by one of two bodies: that of success (`...3resok`), or that of
//! failure in an [`ErrorReply`].

use bytes::Bytes;

use super::{Attributes, Handle, IO_BYTES_MAX, LinkText, Name, Stability, Status, Time, Wcc};
use crate::xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_struct};

/// A status other than OK, and the body of a failed reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReply<T>(pub Status, pub T);

pub type Reply<T, F> = std::result::Result<T, ErrorReply<F>>;

impl<T: Encode, F: Encode> Encode for Reply<T, F> {
    fn encode(&self, out: &mut Writer) {
        match self {
            Ok(body) => {
                Status::Ok.encode(out);
                body.encode(out);
            }
            Err(ErrorReply(status, body)) => {
                status.encode(out);
                body.encode(out);
            }
        }
    }
}

impl<T: Decode, F: Decode> Decode for Reply<T, F> {
    fn decode(input: &mut Reader) -> Result<Self> {
        Ok(match Status::decode(input)? {
            Status::Ok => Ok(T::decode(input)?),
            status => Err(ErrorReply(status, F::decode(input)?)),
        })
    }
}

pub type GetAttrReply = Reply<Attributes, ()>;
pub type WccReply = Reply<Wcc, Wcc>;
pub type LookupReply = Reply<LookupOk, Option<Attributes>>;
pub type AccessReply = Reply<AccessOk, Option<Attributes>>;
pub type ReadLinkReply = Reply<ReadLinkOk, Option<Attributes>>;
pub type ReadReply = Reply<ReadOk, Option<Attributes>>;
pub type WriteReply = Reply<WriteOk, Wcc>;
pub type CreateReply = Reply<CreateOk, Wcc>;
pub type RenameReply = Reply<RenameWcc, RenameWcc>;
pub type LinkReply = Reply<LinkWcc, LinkWcc>;
pub type ReadDirReply = Reply<Entries, Option<Attributes>>;
pub type ReadDirPlusReply = Reply<EntriesPlus, Option<Attributes>>;
pub type FsStatReply = Reply<FsStatus, Option<Attributes>>;
pub type FsInfoReply = Reply<FsInformation, Option<Attributes>>;
pub type PathConfReply = Reply<PathConfiguration, Option<Attributes>>;
pub type CommitReply = Reply<CommitOk, Wcc>;

xdr_struct! {
    pub struct LookupOk {
        pub object: Handle,
        pub attributes: Option<Attributes>,
        pub dir: Option<Attributes>,
    }

    pub struct AccessOk {
        pub attributes: Option<Attributes>,
        pub access: u32,
    }

    pub struct ReadLinkOk {
        pub attributes: Option<Attributes>,
        pub text: LinkText,
    }

    pub struct WriteOk {
        pub wcc: Wcc,
        pub count: u32,
        pub stability: Stability,
        pub verifier: [u8; 8],
    }

    /// CREATE, MKDIR, SYMLINK and MKNOD.
    pub struct CreateOk {
        pub object: Option<Handle>,
        pub attributes: Option<Attributes>,
        pub dir: Wcc,
    }

    pub struct RenameWcc {
        pub from: Wcc,
        pub to: Wcc,
    }

    pub struct LinkWcc {
        pub attributes: Option<Attributes>,
        pub dir: Wcc,
    }

    pub struct Entry {
        pub fileid: u64,
        pub name: Name,
        pub cookie: u64,
    }

    pub struct EntryPlus {
        pub fileid: u64,
        pub name: Name,
        pub cookie: u64,
        pub attributes: Option<Attributes>,
        pub handle: Option<Handle>,
    }

    pub struct FsStatus {
        pub attributes: Option<Attributes>,
        pub bytes_total: u64,
        pub bytes_free: u64,
        pub bytes_available: u64,
        pub files_total: u64,
        pub files_free: u64,
        pub files_available: u64,
        /// invarsec: the seconds for which the file system is not expected to change.
        pub stable_seconds: u32,
    }

    pub struct FsInformation {
        pub attributes: Option<Attributes>,
        pub read_max: u32,
        pub read_preferred: u32,
        pub read_multiple: u32,
        pub write_max: u32,
        pub write_preferred: u32,
        pub write_multiple: u32,
        pub readdir_preferred: u32,
        pub file_size_max: u64,
        pub time_step: Time,
        pub properties: u32,
    }

    pub struct PathConfiguration {
        pub attributes: Option<Attributes>,
        pub links_max: u32,
        pub name_max: u32,
        pub no_truncation: bool,
        pub chown_restricted: bool,
        pub case_insensitive: bool,
        pub case_preserving: bool,
    }

    pub struct CommitOk {
        pub wcc: Wcc,
        pub verifier: [u8; 8],
    }
}

/// Bits of `FsInformation::properties`.
pub mod properties {
    pub const HARD_LINKS: u32 = 0x01;
    pub const SYMLINKS: u32 = 0x02;
    pub const HOMOGENEOUS: u32 = 0x08;
    pub const SETS_TIMES: u32 = 0x10;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOk {
    pub attributes: Option<Attributes>,
    pub eof: bool,
    pub data: Bytes,
}

impl Encode for ReadOk {
    fn encode(&self, out: &mut Writer) {
        self.attributes.encode(out);
        out.u32(self.data.len() as u32);
        self.eof.encode(out);
        out.payload(self.data.clone());
    }
}

impl Decode for ReadOk {
    fn decode(input: &mut Reader) -> Result<Self> {
        let attributes = Option::decode(input)?;
        let count = input.u32()?;
        let eof = bool::decode(input)?;
        let data = input.opaque(IO_BYTES_MAX)?;
        if count as usize != data.len() {
            return Err(Error::BadValue(count));
        }
        Ok(Self { attributes, eof, data })
    }
}

/// More entries than fit into the largest record.
const ENTRIES_MAX: u32 = 100_000;

macro_rules! entries {
    ($($name:ident of $entry:ty;)*) => {$(
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            pub attributes: Option<Attributes>,
            pub verifier: [u8; 8],
            pub entries: Vec<$entry>,
            pub eof: bool,
        }

        impl Encode for $name {
            fn encode(&self, out: &mut Writer) {
                self.attributes.encode(out);
                self.verifier.encode(out);
                out.list(&self.entries);
                self.eof.encode(out);
            }
        }

        impl Decode for $name {
            fn decode(input: &mut Reader) -> Result<Self> {
                Ok(Self {
                    attributes: Option::decode(input)?,
                    verifier: Decode::decode(input)?,
                    entries: input.list(ENTRIES_MAX)?,
                    eof: bool::decode(input)?,
                })
            }
        }
    )*};
}

entries! {
    Entries of Entry;
    EntriesPlus of EntryPlus;
}
