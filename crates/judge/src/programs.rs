//! A table of every procedure of every program, for tests that cover all of them.

use std::fmt::Debug;

use bytes::Bytes;
use wire::mount::v1 as mount1;
use wire::nlm::{v1 as nlm1, v3 as nlm3, v4 as nlm4};
use wire::rpcbind::{v2 as rpcbind2, v3 as rpcbind3, v4 as rpcbind4};
use wire::xdr::{Decode, Encode, Error};
use wire::{mount, nfs3, nsm, rpc};

use crate::source::{Any, Source};

/// One procedure, and the formats of its two messages.
#[derive(Debug, Clone, Copy)]
pub struct Procedure {
    pub name: &'static str,
    pub program: u32,
    pub version: u32,
    pub number: u32,
    pub args: Form,
    pub reply: Form,
}

/// Operations on a message type, without naming the type.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// The bytes of a sample value.
    pub sample: fn(&mut Source) -> Bytes,
    /// Asserts that a sample value survives encoding and decoding.
    pub comes_back: fn(&mut Source),
    /// Whether these bytes decode as such a message.
    pub decode: fn(Bytes) -> Result<(), Error>,
    /// As `decode`, and asserts that the decoded value can be encoded again.
    pub check: fn(Bytes) -> Result<(), Error>,
}

impl Form {
    const fn of<T: Any + Encode + Decode + PartialEq + Debug>() -> Self {
        Self {
            sample: |source| source.any::<T>().to_bytes(),
            comes_back: |source| {
                let value: T = source.any();
                assert_eq!(T::from_bytes(value.to_bytes()).as_ref(), Ok(&value));
            },
            decode: |bytes| T::from_bytes(bytes).map(drop),
            check: |bytes| {
                let length = bytes.len();
                let value = T::from_bytes(bytes)?;
                let again = value.to_bytes();
                assert_eq!(again.len(), length, "{value:?} has another length when encoded again");
                assert_eq!(T::from_bytes(again).as_ref(), Ok(&value));
                Ok(())
            },
        }
    }
}

impl Procedure {
    const fn of<P: rpc::Procedure>(name: &'static str) -> Self
    where
        P::Args: Any + PartialEq + Debug,
        P::Reply: Any + PartialEq + Debug,
    {
        Self {
            name,
            program: P::PROGRAM,
            version: P::VERSION,
            number: P::NUMBER,
            args: Form::of::<P::Args>(),
            reply: Form::of::<P::Reply>(),
        }
    }
}

/// The call of NSM to a registrant, which chooses program, version and procedure; these are the ones
/// that tshark knows.
mod nsm_callback {
    #[derive(Debug)]
    pub(super) struct Status;

    impl wire::rpc::Procedure for Status {
        const PROGRAM: u32 = 200_048;
        const VERSION: u32 = 1;
        const NUMBER: u32 = 1;
        type Args = wire::nsm::StatusArgs;
        type Reply = ();
    }
}

macro_rules! table {
    ($($table:ident: $module:ident { $($name:ident)* })*) => {$(
        pub const $table: &[Procedure] = &[$(
            Procedure::of::<$module::$name>(concat!(stringify!($module), "::", stringify!($name))),
        )*];
    )*};
}

table! {
    NFS3: nfs3 {
        Null GetAttr SetAttr Lookup Access ReadLink Read Write Create MkDir SymLink MkNod Remove
        RmDir Rename Link ReadDir ReadDirPlus FsStat FsInfo PathConf Commit
    }
    MOUNT3: mount { Null Mnt Dump Umnt UmntAll Exports }
    MOUNT1: mount1 { Null Mnt Dump Umnt UmntAll Exports }
    RPCBIND2: rpcbind2 { Null Set Unset GetPort Dump }
    RPCBIND3: rpcbind3 { Null Set Unset GetAddr Dump GetTime }
    RPCBIND4: rpcbind4 { Null Set Unset GetAddr Dump GetTime GetVersAddr GetAddrList }
    NLM1: nlm1 {
        Null Test Lock Cancel Unlock Granted TestMsg LockMsg CancelMsg UnlockMsg GrantedMsg TestRes
        LockRes CancelRes UnlockRes GrantedRes
    }
    NLM3: nlm3 {
        Null Test Lock Cancel Unlock Granted TestMsg LockMsg CancelMsg UnlockMsg GrantedMsg TestRes
        LockRes CancelRes UnlockRes GrantedRes Share Unshare NmLock FreeAll
    }
    NLM4: nlm4 {
        Null Test Lock Cancel Unlock Granted TestMsg LockMsg CancelMsg UnlockMsg GrantedMsg TestRes
        LockRes CancelRes UnlockRes GrantedRes Share Unshare NmLock FreeAll
    }
    NSM: nsm { Null Stat Mon Unmon UnmonAll SimuCrash Notify }
    NSM_CALLBACK: nsm_callback { Status }
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Procedure> {
    [NFS3, MOUNT3, MOUNT1, RPCBIND2, RPCBIND3, RPCBIND4, NLM1, NLM3, NLM4, NSM, NSM_CALLBACK]
        .into_iter()
        .flatten()
}

pub fn find(program: u32, version: u32, number: u32) -> Option<&'static Procedure> {
    all().find(|p| (p.program, p.version, p.number) == (program, version, number))
}

impl Procedure {
    /// A complete call message.
    pub fn call(&self, xid: u32, credential: &rpc::Credential, source: &mut Source) -> Bytes {
        let mut out = wire::Writer::new();
        rpc::write_call(
            &mut out,
            xid,
            rpc::ProcedureId::new(self.program, self.version, self.number),
            credential,
        );
        out.fixed(&(self.args.sample)(source));
        out.finish().to_bytes()
    }

    /// A complete, successful reply message.
    pub fn reply(&self, xid: u32, source: &mut Source) -> Bytes {
        let mut out = wire::Writer::new();
        rpc::write_accepted(&mut out, xid, rpc::Accepted::Success);
        out.fixed(&(self.reply.sample)(source));
        out.finish().to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_22_procedures_of_nfs_are_numbered_in_order() {
        let numbers: Vec<u32> = NFS3.iter().map(|p| p.number).collect();
        assert_eq!(numbers, (0..22).collect::<Vec<_>>());
    }

    #[test]
    fn the_lock_manager_has_16_procedures_and_then_20() {
        let numbers = |table: &[Procedure]| table.iter().map(|p| p.number).collect::<Vec<_>>();
        let with_shares: Vec<u32> = (0..16).chain(20..24).collect();
        assert_eq!(numbers(NLM1), with_shares[..16]);
        assert_eq!(numbers(NLM3), with_shares);
        assert_eq!(numbers(NLM4), with_shares);
        assert_eq!(numbers(NSM), (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn no_procedure_is_listed_twice() {
        let mut seen: Vec<_> = all().map(|p| (p.program, p.version, p.number)).collect();
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }
}
