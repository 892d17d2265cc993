//! NLM versions 1, 3 and 4, Open Group C702 chapters 10 and 14: locks on files.
//!
//! The messages of all versions differ only in the width of ranges and the set of statuses. So each
//! has one Rust type, that of version 4, in [`call`] and [`reply`]; [`Versioned`] encodes and decodes
//! it in any version, and [`Narrow`] is the 32-bit form of versions 1 and 3 as a type of its own.
//! Version 2 is private to some clients and not supported.
//!
//! Each procedure from TEST to GRANTED exists twice: as a call with a reply, and as a `Msg` call
//! with an empty reply or none, answered by a `Res` call in the other direction; the cookie matches
//! the two.

pub mod call;
pub mod reply;
mod version;

pub use call::*;
pub use reply::*;
pub use version::{Narrow, Version, Versioned};

use crate::rpc::{Procedure, procedures};
use crate::xdr::xdr_bytes;

pub const PROGRAM: u32 = 100_021;
pub const V1: u32 = 1;
pub const V3: u32 = 3;
pub const V4: u32 = 4;

/// Version 1: ranges of 32 bits, no shares.
pub mod v1 {
    use super::*;

    procedures! { PROGRAM, V1;
        Null = 0 (()) -> ();
        Test = 1 (Narrow<TestArgs>) -> Narrow<TestReply>;
        Lock = 2 (Narrow<LockArgs>) -> Narrow<StatusReply>;
        Cancel = 3 (Narrow<CancelArgs>) -> Narrow<StatusReply>;
        Unlock = 4 (Narrow<UnlockArgs>) -> Narrow<StatusReply>;
        Granted = 5 (Narrow<TestArgs>) -> Narrow<StatusReply>;
        TestMsg = 6 (Narrow<TestArgs>) -> ();
        LockMsg = 7 (Narrow<LockArgs>) -> ();
        CancelMsg = 8 (Narrow<CancelArgs>) -> ();
        UnlockMsg = 9 (Narrow<UnlockArgs>) -> ();
        GrantedMsg = 10 (Narrow<TestArgs>) -> ();
        TestRes = 11 (Narrow<TestReply>) -> ();
        LockRes = 12 (Narrow<StatusReply>) -> ();
        CancelRes = 13 (Narrow<StatusReply>) -> ();
        UnlockRes = 14 (Narrow<StatusReply>) -> ();
        GrantedRes = 15 (Narrow<StatusReply>) -> ();
    }
}

/// Version 3: as 1, with shares.
pub mod v3 {
    use super::*;

    procedures! { PROGRAM, V3;
        Null = 0 (()) -> ();
        Test = 1 (Narrow<TestArgs>) -> Narrow<TestReply>;
        Lock = 2 (Narrow<LockArgs>) -> Narrow<StatusReply>;
        Cancel = 3 (Narrow<CancelArgs>) -> Narrow<StatusReply>;
        Unlock = 4 (Narrow<UnlockArgs>) -> Narrow<StatusReply>;
        Granted = 5 (Narrow<TestArgs>) -> Narrow<StatusReply>;
        TestMsg = 6 (Narrow<TestArgs>) -> ();
        LockMsg = 7 (Narrow<LockArgs>) -> ();
        CancelMsg = 8 (Narrow<CancelArgs>) -> ();
        UnlockMsg = 9 (Narrow<UnlockArgs>) -> ();
        GrantedMsg = 10 (Narrow<TestArgs>) -> ();
        TestRes = 11 (Narrow<TestReply>) -> ();
        LockRes = 12 (Narrow<StatusReply>) -> ();
        CancelRes = 13 (Narrow<StatusReply>) -> ();
        UnlockRes = 14 (Narrow<StatusReply>) -> ();
        GrantedRes = 15 (Narrow<StatusReply>) -> ();
        Share = 20 (Narrow<ShareArgs>) -> Narrow<ShareReply>;
        Unshare = 21 (Narrow<ShareArgs>) -> Narrow<ShareReply>;
        NmLock = 22 (Narrow<LockArgs>) -> Narrow<StatusReply>;
        FreeAll = 23 (Narrow<FreeAllArgs>) -> ();
    }
}

/// Version 4: ranges of 64 bits, for NFSv3.
pub mod v4 {
    use super::*;

    procedures! { PROGRAM, V4;
        Null = 0 (()) -> ();
        Test = 1 (TestArgs) -> TestReply;
        Lock = 2 (LockArgs) -> StatusReply;
        Cancel = 3 (CancelArgs) -> StatusReply;
        Unlock = 4 (UnlockArgs) -> StatusReply;
        Granted = 5 (TestArgs) -> StatusReply;
        TestMsg = 6 (TestArgs) -> ();
        LockMsg = 7 (LockArgs) -> ();
        CancelMsg = 8 (CancelArgs) -> ();
        UnlockMsg = 9 (UnlockArgs) -> ();
        GrantedMsg = 10 (TestArgs) -> ();
        TestRes = 11 (TestReply) -> ();
        LockRes = 12 (StatusReply) -> ();
        CancelRes = 13 (StatusReply) -> ();
        UnlockRes = 14 (StatusReply) -> ();
        GrantedRes = 15 (StatusReply) -> ();
        Share = 20 (ShareArgs) -> ShareReply;
        Unshare = 21 (ShareArgs) -> ShareReply;
        NmLock = 22 (LockArgs) -> StatusReply;
        FreeAll = 23 (FreeAllArgs) -> ();
    }
}

xdr_bytes! {
    /// Opaque data that the reply repeats: four bytes from Linux, eight from macOS, none from some.
    pub struct Cookie(max 1024);
    /// The file. No handle of NFSv3 is longer than 64 bytes, but NLM allows more; a longer one is a
    /// stale handle, not garbage.
    pub struct FileHandle(max 1024);
    /// The owner on the calling host; `oh` in the specification.
    pub struct OwnerHandle(max 1024);
    /// The calling host, by its own name.
    pub struct CallerName(max 1024);
}

/// The caller's host name, read without decoding the rest; its position is the same in all versions.
pub fn peek_caller_name(procedure: u32, args: &[u8]) -> Option<&[u8]> {
    // Every request but FREE_ALL begins with a cookie, up to two flags, and the name.
    let flags = match procedure {
        v4::Test::NUMBER | v4::TestMsg::NUMBER => 1,
        v4::Lock::NUMBER
        | v4::LockMsg::NUMBER
        | v4::NmLock::NUMBER
        | v4::Cancel::NUMBER
        | v4::CancelMsg::NUMBER => 2,
        v4::Unlock::NUMBER | v4::UnlockMsg::NUMBER | v4::Share::NUMBER | v4::Unshare::NUMBER => 0,
        v4::FreeAll::NUMBER => return opaque_at(args, 0).map(|(name, _)| name),
        _ => return None,
    };
    let (_, after_cookie) = opaque_at(args, 0)?;
    opaque_at(args, after_cookie + 4 * flags).map(|(name, _)| name)
}

/// The bytes of an opaque field at `at`, and where the next field is.
fn opaque_at(args: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let length = args.get(at..)?.first_chunk::<4>().map(|word| u32::from_be_bytes(*word))?;
    let end = (at + 4).checked_add(length as usize)?;
    let bytes = args.get(at + 4..end)?;
    Some((bytes, end.next_multiple_of(4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_caller_is_found_in_every_request() {
        let lock = Lock {
            caller_name: b"alice".to_vec().into(),
            file: b"handle".to_vec().into(),
            owner: b"7@alice".to_vec().into(),
            svid: 7,
            range: Range { offset: 0, length: 0 },
        };
        let cookie = || Cookie::from(b"12345".to_vec());
        let test = TestArgs { cookie: cookie(), exclusive: true, lock: lock.clone() };
        let args = LockArgs {
            cookie: cookie(),
            block: true,
            exclusive: true,
            lock: lock.clone(),
            reclaim: false,
            state: 3,
        };
        let cancel =
            CancelArgs { cookie: cookie(), block: true, exclusive: false, lock: lock.clone() };
        let unlock = UnlockArgs { cookie: cookie(), lock };
        let free = FreeAllArgs { name: b"alice".to_vec().into(), state: 0 };
        for version in [Version::V1, Version::V3, Version::V4] {
            for (procedure, bytes) in [
                (1, test.to_bytes_as(version)),
                (6, test.to_bytes_as(version)),
                (2, args.to_bytes_as(version)),
                (7, args.to_bytes_as(version)),
                (22, args.to_bytes_as(version)),
                (3, cancel.to_bytes_as(version)),
                (8, cancel.to_bytes_as(version)),
                (4, unlock.to_bytes_as(version)),
                (9, unlock.to_bytes_as(version)),
                (23, free.to_bytes_as(version)),
            ] {
                assert_eq!(peek_caller_name(procedure, &bytes), Some(&b"alice"[..]), "{procedure}");
                assert_eq!(peek_caller_name(procedure, &bytes[..7]), None);
            }
        }
        assert_eq!(peek_caller_name(0, &[]), None);
        assert_eq!(peek_caller_name(2, &[0xff; 40]), None);
    }
}
