//! Verifies replies against expectations, and names them in the specification's terms.

use anyhow::{Result, bail, ensure};
use client::{CallError, Locker};
use wire::nlm::{Range, Status, TestArgs, TestOutcome};

/// A verified value and its description.
pub(super) type Observation<T> = Result<(T, &'static str)>;

pub(super) fn expect(answer: Result<Status, CallError>, wanted: Status) -> Observation<()> {
    is(answer?, wanted)
}

pub(super) fn is(status: Status, wanted: Status) -> Observation<()> {
    ensure!(status == wanted, "the reply was {}, not {}", shown(status), shown(wanted));
    Ok(((), shown(wanted)))
}

/// Any refusal.
pub(super) fn refused(answer: Result<Status, CallError>) -> Observation<()> {
    let status = answer?;
    ensure!(
        matches!(status, Status::Denied | Status::DeniedGracePeriod | Status::DeniedNoLocks),
        "the reply was {}",
        shown(status)
    );
    Ok(((), shown(status)))
}

/// Verifies that TEST names this process as the holder.
pub(super) fn held_by(
    answer: Result<TestOutcome, CallError>,
    process: i32,
    bytes: Range,
) -> Result<()> {
    match answer? {
        TestOutcome::Denied(holder) => {
            let (svid, range) = (holder.svid, holder.range);
            ensure!(svid == process && range == bytes, "process {svid} holds {range:?}");
            Ok(())
        }
        other => bail!("the reply was {}", shown(other.status())),
    }
}

/// Verifies that GRANTED is for the lock this waiter requested.
pub(super) fn granted_to(
    grant: &TestArgs,
    waiter: &Locker,
    file: &[u8],
    bytes: Range,
) -> Observation<()> {
    let lock = &grant.lock;
    ensure!(lock.file.to_vec() == file, "GRANTED is for another file");
    ensure!(lock.range == bytes, "GRANTED is for the range {:?}", lock.range);
    let owner = (lock.svid, lock.owner.to_vec());
    ensure!(owner == (waiter.svid, waiter.owner()), "GRANTED is for another owner");
    Ok(((), "GRANTED"))
}

pub(super) fn shown(status: Status) -> &'static str {
    match status {
        Status::Granted => "GRANTED",
        Status::Denied => "DENIED",
        Status::DeniedNoLocks => "DENIED_NOLOCKS",
        Status::Blocked => "BLOCKED",
        Status::DeniedGracePeriod => "DENIED_GRACE_PERIOD",
        Status::Deadlock => "DEADLCK",
        Status::RoFs => "ROFS",
        Status::StaleFh => "STALE_FH",
        Status::FBig => "FBIG",
        Status::Failed => "FAILED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::nlm::Holder;

    const BYTES: Range = Range { offset: 0, length: 100 };

    #[test]
    fn only_the_status_that_had_to_come_is_true() {
        for status in Status::ALL {
            let right = expect(Ok(status), Status::Granted).is_ok();
            assert_eq!(right, status == Status::Granted, "{status:?}");
        }
        assert!(expect(Err(CallError::Closed), Status::Granted).is_err());
        assert!(refused(Ok(Status::Granted)).is_err() && refused(Ok(Status::Blocked)).is_err());
    }

    #[test]
    fn a_holder_must_be_the_right_process_with_the_right_bytes() {
        let holder = |svid, range| {
            let owner = b"owner"[..].into();
            Ok(TestOutcome::Denied(Holder { exclusive: true, svid, owner, range }))
        };
        assert!(held_by(holder(811, BYTES), 811, BYTES).is_ok());
        assert!(held_by(holder(97, BYTES), 811, BYTES).is_err());
        assert!(held_by(holder(811, Range { offset: 0, length: 1 }), 811, BYTES).is_err());
        assert!(held_by(Ok(TestOutcome::Other(Status::Granted)), 811, BYTES).is_err());
    }
}
