//! Results of the procedures, which are the arguments of their `Res` forms.

use super::version::{plain_is_v4, versioned_struct};
use super::{Cookie, OwnerHandle, Range, Version, Versioned};
use crate::xdr::{Reader, Result, Writer, xdr_enum};

xdr_enum! {
    /// nlm4_stats. Versions 1 and 3 have the first five, and [`Status::Deadlock`] by convention; any
    /// other is encoded for them as DENIED_NOLOCKS, so that they never see an unknown number.
    pub enum Status {
        Granted = 0,
        Denied = 1,
        DeniedNoLocks = 2,
        Blocked = 3,
        DeniedGracePeriod = 4,
        Deadlock = 5,
        RoFs = 6,
        StaleFh = 7,
        FBig = 8,
        Failed = 9,
    }
}

impl Status {
    pub const ALL: [Self; 10] = [
        Self::Granted,
        Self::Denied,
        Self::DeniedNoLocks,
        Self::Blocked,
        Self::DeniedGracePeriod,
        Self::Deadlock,
        Self::RoFs,
        Self::StaleFh,
        Self::FBig,
        Self::Failed,
    ];

    pub fn is_known_to(self, version: Version) -> bool {
        version.is_wide() || self as u32 <= Self::Deadlock as u32
    }

    /// This status for a client of `version`. A status that only version 4 has becomes
    /// DENIED_NOLOCKS for a blocking request, which makes the client give up, and DENIED for any
    /// other. For TEST pass `block`, although it never blocks: DENIED would name a holder.
    pub fn for_version(self, version: Version, block: bool) -> Self {
        match self {
            Self::Deadlock | Self::RoFs | Self::StaleFh | Self::FBig | Self::Failed
                if !version.is_wide() =>
            {
                if block {
                    Self::DeniedNoLocks
                } else {
                    Self::Denied
                }
            }
            _ => self,
        }
    }
}

versioned_struct! {
    /// nlm_holder: the conflicting lock.
    pub struct Holder {
        pub exclusive: bool,
        pub svid: i32,
        pub owner: OwnerHandle,
        pub range: Range,
    }

    /// TEST and TEST_RES.
    pub struct TestReply {
        pub cookie: Cookie,
        pub outcome: TestOutcome,
    }

    /// LOCK, CANCEL, UNLOCK, GRANTED and NM_LOCK, and their `Res` forms.
    pub struct StatusReply {
        pub cookie: Cookie,
        pub status: Status,
    }

    /// SHARE and UNSHARE.
    pub struct ShareReply {
        pub cookie: Cookie,
        pub status: Status,
        pub sequence: i32,
    }
}

plain_is_v4! { TestOutcome }

/// nlm_testrply: only DENIED has a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestOutcome {
    Denied(Holder),
    /// Any status but DENIED; that one would be encoded with an unknown holder.
    Other(Status),
}

impl TestOutcome {
    pub fn status(&self) -> Status {
        match self {
            Self::Denied(_) => Status::Denied,
            Self::Other(status) => *status,
        }
    }
}

impl Versioned for TestOutcome {
    fn encode_as(&self, version: Version, out: &mut Writer) {
        self.status().encode_as(version, out);
        match self {
            Self::Denied(holder) => holder.encode_as(version, out),
            Self::Other(Status::Denied) => unknown_holder().encode_as(version, out),
            Self::Other(_) => {}
        }
    }

    fn decode_as(version: Version, input: &mut Reader) -> Result<Self> {
        Ok(match Status::decode_as(version, input)? {
            Status::Denied => Self::Denied(Holder::decode_as(version, input)?),
            status => Self::Other(status),
        })
    }
}

/// An exclusive lock on the whole file, of an unknown owner.
fn unknown_holder() -> Holder {
    Holder { exclusive: true, svid: 0, owner: OwnerHandle::default(), range: Range::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nlm::Narrow;
    use crate::xdr::{Decode, Encode, Error};

    fn reply(outcome: TestOutcome) -> TestReply {
        TestReply { cookie: b"four"[..].into(), outcome }
    }

    fn held(offset: u64, length: u64) -> TestReply {
        let range = Range { offset, length };
        reply(TestOutcome::Denied(Holder { range, svid: -1, ..unknown_holder() }))
    }

    fn narrowed_range(reply: &TestReply) -> Range {
        match Narrow::<TestReply>::from_bytes(Narrow(reply.clone()).to_bytes()).unwrap().0.outcome {
            TestOutcome::Denied(holder) => holder.range,
            TestOutcome::Other(status) => panic!("{status:?}"),
        }
    }

    #[test]
    fn a_holder_beyond_32_bits_is_clamped_for_versions_1_and_3() {
        let narrowed = |offset, length| {
            let Range { offset, length } = narrowed_range(&held(offset, length));
            (offset, length)
        };
        let top = u64::from(u32::MAX);
        assert_eq!(narrowed(1 << 32, 10), (top, 0));
        assert_eq!(narrowed(10, 1 << 32), (10, 0));
        assert_eq!(narrowed(10, 0), (10, 0));
        assert_eq!(narrowed(top, top), (top, top));
        let wide = held(1 << 32, 1 << 40);
        assert_eq!(TestReply::from_bytes(wide.to_bytes()), Ok(wide));
    }

    #[test]
    fn only_denied_names_a_holder() {
        for status in Status::ALL {
            let bytes = reply(TestOutcome::Other(status)).to_bytes();
            let holder = if status == Status::Denied { 4 + 4 + 4 + 8 + 8 } else { 0 };
            assert_eq!(bytes.len(), 4 + 4 + 4 + holder, "{status:?}");
            assert_eq!(TestReply::from_bytes(bytes).unwrap().outcome.status(), status);
        }
    }

    #[test]
    fn denied_without_a_holder_is_encoded_with_an_unknown_one() {
        let bytes = reply(TestOutcome::Other(Status::Denied)).to_bytes();
        let expected = reply(TestOutcome::Denied(unknown_holder()));
        assert_eq!(TestReply::from_bytes(bytes), Ok(expected));
    }

    #[test]
    fn version_4_has_ten_statuses_and_the_others_six() {
        for word in 0..20u32 {
            let status = Status::from_bytes(word.to_bytes());
            let old = Narrow::<Status>::from_bytes(word.to_bytes());
            match word {
                ..=9 => assert_eq!(status.map(|status| status as u32), Ok(word)),
                _ => assert_eq!(status, Err(Error::BadValue(word))),
            }
            match word {
                ..=5 => assert_eq!(old.map(|status| status.0), status),
                _ => assert_eq!(old, Err(Error::BadValue(word))),
            }
        }
    }

    #[test]
    fn no_version_gets_a_status_that_it_does_not_have() {
        for status in Status::ALL {
            for version in Version::ALL {
                let bytes = status.to_bytes_as(version);
                let told = Status::from_bytes_as(version, bytes).unwrap();
                let expected =
                    if status.is_known_to(version) { status } else { Status::DeniedNoLocks };
                assert_eq!(told, expected);
            }
        }
    }

    #[test]
    fn a_status_of_version_4_depends_for_the_others_on_whether_the_client_blocks() {
        for status in Status::ALL {
            for version in [Version::V1, Version::V3] {
                let (waits, not) =
                    (status.for_version(version, true), status.for_version(version, false));
                match status as u32 {
                    ..=4 => assert_eq!((waits, not), (status, status)),
                    _ => assert_eq!((waits, not), (Status::DeniedNoLocks, Status::Denied)),
                }
            }
            assert_eq!(status.for_version(Version::V4, true), status);
            assert_eq!(status.for_version(Version::V4, false), status);
        }
    }

    #[test]
    fn a_reply_to_share_ends_with_its_sequence() {
        let reply = ShareReply { cookie: b""[..].into(), status: Status::Granted, sequence: -2 };
        assert_eq!(reply.to_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xfe][..]);
        assert_eq!(reply.to_bytes(), Narrow(reply.clone()).to_bytes());
    }
}
