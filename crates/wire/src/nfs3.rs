//! NFS version 3, RFC 1813: program, procedures and status. Arguments and replies are in [`call`] and
//! [`reply`], file attributes in [`attributes`].

pub mod attributes;
pub mod call;
pub mod reply;

pub use attributes::*;
pub use call::*;
pub use reply::*;

use crate::rpc::procedures;
use crate::xdr::{xdr_bytes, xdr_enum};

pub const PROGRAM: u32 = 100_003;
pub const VERSION: u32 = 3;

procedures! { PROGRAM, VERSION;
    Null = 0 (()) -> ();
    GetAttr = 1 (GetAttrArgs) -> GetAttrReply;
    SetAttr = 2 (SetAttrArgs) -> WccReply;
    Lookup = 3 (DirOpArgs) -> LookupReply;
    Access = 4 (AccessArgs) -> AccessReply;
    ReadLink = 5 (ReadLinkArgs) -> ReadLinkReply;
    Read = 6 (ReadArgs) -> ReadReply;
    Write = 7 (WriteArgs) -> WriteReply;
    Create = 8 (CreateArgs) -> CreateReply;
    MkDir = 9 (MkDirArgs) -> CreateReply;
    SymLink = 10 (SymLinkArgs) -> CreateReply;
    MkNod = 11 (MkNodArgs) -> CreateReply;
    Remove = 12 (DirOpArgs) -> WccReply;
    RmDir = 13 (DirOpArgs) -> WccReply;
    Rename = 14 (RenameArgs) -> RenameReply;
    Link = 15 (LinkArgs) -> LinkReply;
    ReadDir = 16 (ReadDirArgs) -> ReadDirReply;
    ReadDirPlus = 17 (ReadDirPlusArgs) -> ReadDirPlusReply;
    FsStat = 18 (FsArgs) -> FsStatReply;
    FsInfo = 19 (FsArgs) -> FsInfoReply;
    PathConf = 20 (FsArgs) -> PathConfReply;
    Commit = 21 (CommitArgs) -> CommitReply;
}

xdr_bytes! {
    /// A file handle: opaque to the client.
    pub struct Handle(max 64);
    /// One component of a path. The protocol sets no maximum; a name that is too long for the file
    /// system gets NAMETOOLONG, one that exceeds this maximum GARBAGE_ARGS.
    pub struct Name(max 4096);
    /// The text of a symbolic link.
    pub struct LinkText(max 4096);
}

xdr_enum! {
    /// nfsstat3, section 2.6.
    pub enum Status {
        Ok = 0,
        Perm = 1,
        NoEnt = 2,
        Io = 5,
        NxIo = 6,
        Acces = 13,
        Exist = 17,
        XDev = 18,
        NoDev = 19,
        NotDir = 20,
        IsDir = 21,
        Inval = 22,
        FBig = 27,
        NoSpc = 28,
        RoFs = 30,
        MLink = 31,
        NameTooLong = 63,
        NotEmpty = 66,
        DQuot = 69,
        Stale = 70,
        Remote = 71,
        BadHandle = 10001,
        NotSync = 10002,
        BadCookie = 10003,
        NotSupp = 10004,
        TooSmall = 10005,
        ServerFault = 10006,
        BadType = 10007,
        Jukebox = 10008,
    }
}
