//! Samples of NLM and NSM: ranges on both sides of 32 bits, every status, every cookie.

use wire::nlm::{
    Access, CallerName, CancelArgs, Cookie, FileHandle, FreeAllArgs, Holder, Lock, LockArgs, Mode,
    Narrow, OwnerHandle, Range, Share, ShareArgs, ShareReply, Status, StatusReply, TestArgs,
    TestOutcome, TestReply, UnlockArgs, Version, Versioned,
};
use wire::nsm::{
    MonArgs, MonId, MyId, Name, NotifyArgs, Outcome, StatReply, StateReply, StatusArgs,
};

use super::enumerated;
use crate::source::{Any, Source};

structs! {
    Lock { caller_name, file, owner, svid, range }
    Holder { exclusive, svid, owner, range }
    Share { caller_name, file, owner, mode, access }

    TestArgs { cookie, exclusive, lock }
    LockArgs { cookie, block, exclusive, lock, reclaim, state }
    CancelArgs { cookie, block, exclusive, lock }
    UnlockArgs { cookie, lock }
    ShareArgs { cookie, share, reclaim }
    FreeAllArgs { name, state }

    TestReply { cookie, outcome }
    StatusReply { cookie, status }
    ShareReply { cookie, status, sequence }

    MyId { my_name, program, version, procedure }
    MonId { mon_name, my_id }
    MonArgs { mon_id, private }
    StatReply { outcome, state }
    StateReply { state }
    NotifyArgs { mon_name, state }
    StatusArgs { mon_name, state, private }
}

byte_strings! {
    Cookie: bytes;
    FileHandle: bytes;
    OwnerHandle: bytes;
    CallerName: name;
    Name: name;
}

enumerations! { Status Mode Access Outcome }

impl Any for Range {
    fn any(source: &mut Source) -> Self {
        let mut number = || match source.one_in(3) {
            true => source.any::<u64>(),
            false => source.any::<u32>().into(),
        };
        Self { offset: number(), length: number() }
    }
}

impl Any for TestOutcome {
    fn any(source: &mut Source) -> Self {
        match source.any() {
            Status::Denied => Self::Denied(source.any()),
            _ if source.one_in(2) => Self::Denied(source.any()),
            status => Self::Other(status),
        }
    }
}

/// Values that fit into the 32-bit form.
impl<T: Any + Versioned> Any for Narrow<T> {
    fn any(source: &mut Source) -> Self {
        loop {
            let said = source.any::<T>().to_bytes_as(Version::V3);
            if let Ok(value) = T::from_bytes_as(Version::V3, said) {
                return Self(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hash;

    use super::*;

    /// The number of distinct values of `view` over many samples.
    fn seen<T: Any, V: Eq + Hash>(view: impl Fn(T) -> Option<V>) -> usize {
        (0..400).filter_map(|seed| view(Source::new(seed).any())).collect::<HashSet<V>>().len()
    }

    #[test]
    fn every_status_mode_and_access_is_sampled() {
        assert_eq!(seen(|reply: StatusReply| Some(reply.status)), 10);
        assert_eq!(seen(|reply: Narrow<StatusReply>| Some(reply.0.status)), 6);
        assert_eq!(seen(|reply: TestReply| Some(reply.outcome.status())), 10);
        assert_eq!(seen(|share: Share| Some((share.mode, share.access))), 16);
        assert_eq!(seen(|outcome: Outcome| Some(outcome)), 2);
    }

    #[test]
    fn ranges_are_sampled_on_both_sides_of_32_bits() {
        let beyond = |number: u64| number > u64::from(u32::MAX);
        assert_eq!(seen(|r: Range| Some((beyond(r.offset), beyond(r.length)))), 4);
        assert_eq!(seen(|r: Range| Some((r.offset == 0, r.length == 0))), 4);
        assert_eq!(seen(|lock: Lock| Some(lock.svid.signum())), 3);
    }

    #[test]
    fn cookies_are_sampled_empty_short_and_as_long_as_they_may_be() {
        assert!(seen(|cookie: Cookie| (cookie.len() < 13).then_some(cookie.len())) == 13);
        assert_eq!(seen(|cookie: Cookie| (cookie.len() == 1_024).then_some(())), 1);
        assert_eq!(seen(|name: Name| name.contains(&0).then_some(())), 0);
    }
}
