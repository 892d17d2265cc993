//! Arguments of the procedures and of their `Msg` forms.

use super::version::versioned_struct;
use super::{CallerName, Cookie, FileHandle, OwnerHandle};
use crate::xdr::xdr_enum;

/// Bytes of a file; a length of 0 means "to the end".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Range {
    pub offset: u64,
    pub length: u64,
}

impl Range {
    /// Offset and length for versions 1 and 3. A range that fits is unchanged, because a client
    /// identifies its own locks by these two numbers. Any other becomes the smallest range without
    /// end that covers it; only the holder in a TEST reply can be one.
    pub fn narrowed(self) -> (u32, u32) {
        match (u32::try_from(self.offset), u32::try_from(self.length)) {
            (Ok(offset), Ok(length)) => (offset, length),
            (Ok(offset), Err(_)) => (offset, 0),
            (Err(_), _) => (u32::MAX, 0),
        }
    }
}

xdr_enum! {
    /// fsh_mode: what a share denies to others.
    pub enum Mode {
        DenyNone = 0,
        DenyRead = 1,
        DenyWrite = 2,
        DenyBoth = 3,
    }

    /// fsh_access: the access that a share wants.
    pub enum Access {
        None = 0,
        Read = 1,
        Write = 2,
        Both = 3,
    }
}

versioned_struct! {
    /// nlm_lock: an owner and a range of a file.
    pub struct Lock {
        pub caller_name: CallerName,
        pub file: FileHandle,
        pub owner: OwnerHandle,
        /// A process of the caller, or another number of its choice.
        pub svid: i32,
        pub range: Range,
    }

    /// TEST and TEST_MSG; also GRANTED and GRANTED_MSG, by which the server tells a client that a
    /// blocked lock is granted.
    pub struct TestArgs {
        pub cookie: Cookie,
        pub exclusive: bool,
        pub lock: Lock,
    }

    /// LOCK, LOCK_MSG and NM_LOCK.
    pub struct LockArgs {
        pub cookie: Cookie,
        pub block: bool,
        pub exclusive: bool,
        pub lock: Lock,
        pub reclaim: bool,
        /// The NSM state of the caller.
        pub state: i32,
    }

    /// CANCEL and CANCEL_MSG: `block` and `exclusive` are those of the LOCK to cancel.
    pub struct CancelArgs {
        pub cookie: Cookie,
        pub block: bool,
        pub exclusive: bool,
        pub lock: Lock,
    }

    /// UNLOCK and UNLOCK_MSG.
    pub struct UnlockArgs {
        pub cookie: Cookie,
        pub lock: Lock,
    }

    /// nlm_share: a share reservation on a whole file, as DOS clients use it.
    pub struct Share {
        pub caller_name: CallerName,
        pub file: FileHandle,
        pub owner: OwnerHandle,
        pub mode: Mode,
        pub access: Access,
    }

    /// SHARE and UNSHARE.
    pub struct ShareArgs {
        pub cookie: Cookie,
        pub share: Share,
        pub reclaim: bool,
    }

    /// FREE_ALL; nlm_notify in the specification.
    pub struct FreeAllArgs {
        pub name: CallerName,
        pub state: i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nlm::{Narrow, Version, Versioned};
    use crate::xdr::{Decode, Encode, Error};

    fn lock(range: Range) -> Lock {
        Lock {
            caller_name: b"host"[..].into(),
            file: b"file"[..].into(),
            owner: b"7@host"[..].into(),
            svid: -7,
            range,
        }
    }

    fn args(offset: u64, length: u64) -> LockArgs {
        LockArgs {
            cookie: b""[..].into(),
            block: true,
            exclusive: false,
            lock: lock(Range { offset, length }),
            reclaim: false,
            state: 3,
        }
    }

    #[test]
    fn a_message_round_trips_in_every_version() {
        let args = args(5, 0);
        for version in Version::ALL {
            let bytes = args.to_bytes_as(version);
            assert_eq!(LockArgs::from_bytes_as(version, bytes), Ok(args.clone()), "{version:?}");
        }
        assert_eq!(args.to_bytes(), args.to_bytes_as(Version::V4));
        assert_eq!(args.to_bytes_as(Version::V1), args.to_bytes_as(Version::V3));
        assert_eq!(args.to_bytes().len(), args.to_bytes_as(Version::V3).len() + 8);
    }

    #[test]
    fn a_range_of_32_bits_is_unchanged() {
        let top = u64::from(u32::MAX);
        for (offset, length) in [(0, 0), (0, 1), (top, 1), (top, 0), (top, top), (100, top)] {
            let narrow = Narrow(args(offset, length));
            assert_eq!(Narrow::from_bytes(narrow.to_bytes()), Ok(narrow));
        }
    }

    #[test]
    fn a_range_beyond_32_bits_is_covered_and_never_wrapped() {
        let narrowed = |offset, length| Range { offset, length }.narrowed();
        assert_eq!(narrowed(7, 1 << 32), (7, 0));
        assert_eq!(narrowed(0, u64::MAX), (0, 0));
        assert_eq!(narrowed(1 << 32, 0), (u32::MAX, 0));
        assert_eq!(narrowed((1 << 40) + 7, 1), (u32::MAX, 0));
        assert_eq!(narrowed(u64::MAX, u64::MAX), (u32::MAX, 0));
    }

    #[test]
    fn a_message_of_one_version_is_rejected_by_another() {
        let args = args(5, 9);
        let wide = args.to_bytes_as(Version::V4);
        assert!(LockArgs::from_bytes_as(Version::V3, wide).is_err());
        let narrow = args.to_bytes_as(Version::V3);
        assert_eq!(LockArgs::from_bytes_as(Version::V4, narrow), Err(Error::Short));
    }

    #[test]
    fn names_and_objects_of_1024_bytes_are_taken_and_longer_ones_are_not() {
        let with = |length: usize| {
            let long = || vec![b'x'; length];
            let lock = Lock {
                caller_name: long().into(),
                file: long().into(),
                owner: long().into(),
                ..lock(Range::default())
            };
            UnlockArgs { cookie: long().into(), lock }
        };
        for version in Version::ALL {
            let bytes = with(1_024).to_bytes_as(version);
            assert_eq!(UnlockArgs::from_bytes_as(version, bytes), Ok(with(1_024)));
            let bytes = with(1_025).to_bytes_as(version);
            let refused = Err(Error::TooLong { length: 1_025, max: 1_024 });
            assert_eq!(UnlockArgs::from_bytes_as(version, bytes), refused);
        }
    }

    #[test]
    fn cookies_of_none_four_and_eight_bytes_come_back() {
        for cookie in [&b""[..], b"four", b"eightb8!"] {
            let args = LockArgs { cookie: cookie.into(), ..args(1, 2) };
            assert_eq!(LockArgs::from_bytes(args.to_bytes()), Ok(args));
        }
    }

    #[test]
    fn what_is_decoded_lies_in_the_received_buffer() {
        let bytes = args(1, 2).to_bytes();
        let range = bytes.as_ptr_range();
        let decoded = LockArgs::from_bytes(bytes.clone()).unwrap();
        for slice in [&decoded.lock.file[..], &decoded.lock.owner, &decoded.lock.caller_name] {
            assert!(range.contains(&slice.as_ptr()));
        }
    }

    #[test]
    fn version_two_does_not_exist() {
        let known: Vec<_> = (0..6).filter_map(Version::from_number).collect();
        assert_eq!(known, Version::ALL);
        assert_eq!(Version::ALL.map(Version::number), [1, 3, 4]);
        assert_eq!(Version::ALL.map(Version::has_shares), [false, true, true]);
    }
}
