//! The measured operations, and the check of their replies.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::load::LoadError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    Null,
    GetAttr,
    Lookup,
    /// This many bytes per call.
    Read(u32),
    /// This many bytes per call, UNSTABLE.
    Write(u32),
    /// A file is created, then removed; each counts as one operation.
    CreateRemove,
    /// A range is locked, then unlocked; each counts as one operation.
    LockUnlock,
}

const K64: u32 = 64 << 10;
const M1: u32 = 1 << 20;

impl Operation {
    pub const ALL: [Self; 9] = [
        Self::Null,
        Self::GetAttr,
        Self::Lookup,
        Self::Read(K64),
        Self::Read(M1),
        Self::Write(K64),
        Self::Write(M1),
        Self::CreateRemove,
        Self::LockUnlock,
    ];

    /// Data bytes per operation.
    pub fn bytes(self) -> u32 {
        match self {
            Self::Read(bytes) | Self::Write(bytes) => bytes,
            _ => 0,
        }
    }

    /// Whether it goes to the lock manager, which may have another port.
    pub fn locks(self) -> bool {
        self == Self::LockUnlock
    }

    /// Checks the results of a call: status OK, and as much data as requested.
    pub(crate) fn check(self, results: &[u8]) -> Result<(), LoadError> {
        if self == Self::Null {
            return Ok(());
        }
        let word = |at: usize| {
            let bytes = results.get(at..).and_then(|rest| rest.first_chunk::<4>());
            bytes.map(|bytes| u32::from_be_bytes(*bytes)).ok_or(LoadError::Short(self))
        };
        // NLM results begin with the cookie.
        let status_at = match self {
            Self::LockUnlock => 4 + (word(0)? as usize).next_multiple_of(4),
            _ => 0,
        };
        match word(status_at)? {
            0 => {}
            status => return Err(LoadError::Status(self, status)),
        }
        /// The encoded length of fattr3 and of wcc_attr.
        const ATTRIBUTES: usize = 84;
        const BEFORE: usize = 24;
        // An optional part is preceded by a flag.
        let skip = |at: usize, length: usize| {
            word(at).map(|flag| at + 4 + if flag == 0 { 0 } else { length })
        };
        match self {
            Self::Read(asked) => {
                let at = skip(4, ATTRIBUTES)?;
                let (count, length) = (word(at)?, word(at + 8)?);
                let present = results.len().saturating_sub(at + 12);
                if count != asked || length != asked || present != asked as usize {
                    return Err(LoadError::Count { operation: self, count });
                }
            }
            Self::Write(asked) => {
                let at = skip(skip(4, BEFORE)?, ATTRIBUTES)?;
                let count = word(at)?;
                if count != asked {
                    return Err(LoadError::Count { operation: self, count });
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u32| match bytes {
            M1 => "1M".to_owned(),
            bytes => format!("{}K", bytes >> 10),
        };
        f.pad(&match self {
            Self::Null => "null".to_owned(),
            Self::GetAttr => "getattr".to_owned(),
            Self::Lookup => "lookup".to_owned(),
            Self::Read(bytes) => format!("read-{}", size(*bytes)),
            Self::Write(bytes) => format!("write-{}", size(*bytes)),
            Self::CreateRemove => "create-remove".to_owned(),
            Self::LockUnlock => "lock-unlock".to_owned(),
        })
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|operation| operation.to_string() == text).ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(Self::to_string).collect();
            format!("{text:?} is none of {}", names.join(", "))
        })
    }
}

impl Serialize for Operation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use wire::Encode;
    use wire::nfs3::*;

    fn attributes() -> Attributes {
        let zero = Time::default();
        Attributes {
            kind: FileType::Regular,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            device: Device::default(),
            filesystem: 1,
            fileid: 2,
            accessed: zero,
            modified: zero,
            changed: zero,
        }
    }

    fn read(length: usize, attributes: Option<Attributes>) -> Bytes {
        let data = Bytes::from(vec![0; length]);
        ReadReply::Ok(ReadOk { attributes, eof: false, data }).to_bytes()
    }

    #[test]
    fn a_read_is_correct_only_with_all_its_bytes() {
        for attributes in [None, Some(attributes())] {
            let whole = read(K64 as usize, attributes);
            assert!(Operation::Read(K64).check(&whole).is_ok());
            assert!(Operation::Read(K64).check(&whole[..whole.len() - 4]).is_err());
            assert!(Operation::Read(K64).check(&read(K64 as usize - 4, attributes)).is_err());
        }
    }

    #[test]
    fn a_write_is_correct_only_if_complete() {
        let attributes = attributes();
        for before in [None, Some(WccAttributes::from(&attributes))] {
            for count in [K64, K64 - 1] {
                let wcc = Wcc { before, after: Some(attributes) };
                let stability = Stability::Unstable;
                let written = WriteOk { wcc, count, stability, verifier: [0; 8] };
                let reply = WriteReply::Ok(written).to_bytes();
                assert_eq!(Operation::Write(K64).check(&reply).is_ok(), count == K64);
            }
        }
    }

    #[test]
    fn a_status_is_an_error() {
        let stale = GetAttrReply::Err(ErrorReply(Status::Stale, ())).to_bytes();
        assert!(matches!(
            Operation::GetAttr.check(&stale),
            Err(LoadError::Status(Operation::GetAttr, 70))
        ));
        assert!(Operation::GetAttr.check(&[]).is_err());
    }

    #[test]
    fn a_lock_is_correct_only_if_granted() {
        use wire::nlm::{Status, StatusReply};
        for cookie in [&b""[..], b"12345", b"12345678"] {
            for status in Status::ALL {
                let reply = StatusReply { cookie: cookie.into(), status }.to_bytes();
                let right = Operation::LockUnlock.check(&reply).is_ok();
                assert_eq!(right, status == Status::Granted, "{cookie:?} {status:?}");
                assert!(Operation::LockUnlock.check(&reply[..reply.len() - 4]).is_err());
            }
        }
    }

    #[test]
    fn operations_are_read_as_they_are_written() {
        for operation in Operation::ALL {
            assert_eq!(operation.to_string().parse(), Ok(operation));
        }
    }
}
