//! MOUNT versions 1 and 3, RFC 1813 appendix I: the root handle of an export.

use bytes::Bytes;

use crate::nfs3::Handle;
use crate::rpc::procedures;
use crate::xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_bytes, xdr_enum, xdr_struct};

pub const PROGRAM: u32 = 100_005;
pub const V1: u32 = 1;
pub const V3: u32 = 3;

procedures! { PROGRAM, V3;
    Null = 0 (()) -> ();
    Mnt = 1 (Path) -> MntReply;
    Dump = 2 (()) -> Mounts;
    Umnt = 3 (Path) -> ();
    UmntAll = 4 (()) -> ();
    Exports = 5 (()) -> ExportList;
}

/// MOUNT version 1, which differs only in the handle that MNT returns.
pub mod v1 {
    use super::*;

    procedures! { PROGRAM, V1;
        Null = 0 (()) -> ();
        Mnt = 1 (Path) -> MntReply1;
        Dump = 2 (()) -> Mounts;
        Umnt = 3 (Path) -> ();
        UmntAll = 4 (()) -> ();
        Exports = 5 (()) -> ExportList;
    }
}

xdr_bytes! {
    /// A path on the server.
    pub struct Path(max 1024);
    /// A host, a netgroup or a network.
    pub struct HostName(max 255);
}

xdr_enum! {
    pub enum MountStatus {
        Ok = 0,
        Perm = 1,
        NoEnt = 2,
        Io = 5,
        Acces = 13,
        NotDir = 20,
        Inval = 22,
        NameTooLong = 63,
        NotSupp = 10004,
        ServerFault = 10006,
    }
}

/// mountres3_ok: the root handle and the accepted authentication flavours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOk {
    pub root: Handle,
    pub flavours: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MntReply(pub std::result::Result<MountOk, MountStatus>);

const FLAVOURS_MAX: u32 = 16;

impl Encode for MntReply {
    fn encode(&self, out: &mut Writer) {
        match &self.0 {
            Ok(mounted) => {
                MountStatus::Ok.encode(out);
                mounted.root.encode(out);
                out.u32(mounted.flavours.len() as u32);
                mounted.flavours.iter().for_each(|flavour| out.u32(*flavour));
            }
            Err(status) => status.encode(out),
        }
    }
}

impl Decode for MntReply {
    fn decode(input: &mut Reader) -> Result<Self> {
        let status = MountStatus::decode(input)?;
        if status != MountStatus::Ok {
            return Ok(Self(Err(status)));
        }
        let root = Handle::decode(input)?;
        let length = input.u32()?;
        if length > FLAVOURS_MAX {
            return Err(Error::TooLong { length, max: FLAVOURS_MAX });
        }
        let flavours = (0..length).map(|_| input.u32()).collect::<Result<_>>()?;
        Ok(Self(Ok(MountOk { root, flavours })))
    }
}

/// MNT of version 1: a handle of exactly 32 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MntReply1(pub std::result::Result<[u8; 32], MountStatus>);

impl Encode for MntReply1 {
    fn encode(&self, out: &mut Writer) {
        match &self.0 {
            Ok(handle) => {
                MountStatus::Ok.encode(out);
                out.fixed(handle);
            }
            Err(status) => status.encode(out),
        }
    }
}

impl Decode for MntReply1 {
    fn decode(input: &mut Reader) -> Result<Self> {
        match MountStatus::decode(input)? {
            MountStatus::Ok => {
                let bytes: Bytes = input.fixed(32)?;
                let mut handle = [0; 32];
                handle.copy_from_slice(&bytes);
                Ok(Self(Ok(handle)))
            }
            status => Ok(Self(Err(status))),
        }
    }
}

xdr_struct! {
    /// One entry of DUMP: a host and what it mounted.
    pub struct Mount {
        pub host: HostName,
        pub path: Path,
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mounts(pub Vec<Mount>);

/// One entry of EXPORT: a path and the clients that may mount it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    pub path: Path,
    pub clients: Vec<HostName>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExportList(pub Vec<Export>);

const LIST_MAX: u32 = 100_000;

impl Encode for Mounts {
    fn encode(&self, out: &mut Writer) {
        out.list(&self.0);
    }
}

impl Decode for Mounts {
    fn decode(input: &mut Reader) -> Result<Self> {
        input.list(LIST_MAX).map(Self)
    }
}

impl Encode for Export {
    fn encode(&self, out: &mut Writer) {
        self.path.encode(out);
        out.list(&self.clients);
    }
}

impl Decode for Export {
    fn decode(input: &mut Reader) -> Result<Self> {
        Ok(Self { path: Path::decode(input)?, clients: input.list(LIST_MAX)? })
    }
}

impl Encode for ExportList {
    fn encode(&self, out: &mut Writer) {
        out.list(&self.0);
    }
}

impl Decode for ExportList {
    fn decode(input: &mut Reader) -> Result<Self> {
        input.list(LIST_MAX).map(Self)
    }
}
