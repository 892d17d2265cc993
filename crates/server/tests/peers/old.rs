//! Clients of versions 1 and 3: ranges of 32 bits, and no words for some answers.

use wire::nlm::{LockArgs, Narrow, Status, TestArgs, TestOutcome, UnlockArgs, v1, v3};

use super::support::range;
use super::*;

#[test]
fn old_clients_lock_with_32_bits() {
    let (server, theirs, capture) = start();
    let file = server.root();
    theirs.block_on(async move || {
        let new = locker(OTHER, "new", 1).await;
        let old = locker(CLIENT, "old", 2).await;
        let lock = |at, length| old.lock_args(&file, range(at, length), true);
        let v1 = async |args: LockArgs| {
            old.connection.call::<v1::Lock>(&Narrow(args)).await.unwrap().0.status
        };
        let v3 = async |args: LockArgs| {
            old.connection.call::<v3::Lock>(&Narrow(args)).await.unwrap().0.status
        };
        let test = |at, length| {
            let LockArgs { cookie, exclusive, lock, .. } = lock(at, length);
            TestArgs { cookie, exclusive, lock }
        };
        // Each version has its own owners; the ranges are the same ones.
        assert_eq!(v1(lock(0xffff_fff0, 0x10)).await, Status::Granted);
        assert_eq!(v3(lock(0xffff_fff0, 0x10)).await, Status::Denied);
        assert_eq!(new.lock(&file, range(0xffff_ffff, 1)).await.unwrap(), Status::Denied);
        assert_eq!(new.lock(&file, range(0x1_0000_0000, 1)).await.unwrap(), Status::Granted);
        // To the end is to the end of a file of any size.
        assert_eq!(v3(lock(0, 0)).await, Status::Denied);
        assert_eq!(v1(lock(7, 0)).await, Status::Denied);
        let LockArgs { cookie, lock: all, .. } = lock(0, 0);
        let all = UnlockArgs { cookie, lock: all };
        let unlocked = old.connection.call::<v1::Unlock>(&Narrow(all)).await.unwrap().0;
        assert_eq!(unlocked.status, Status::Granted);

        // A holder that 32 bits cannot name is covered, in both versions.
        let holder = |outcome: TestOutcome| match outcome {
            TestOutcome::Denied(holder) => (holder.range.offset, holder.range.length),
            other => panic!("{other:?}"),
        };
        let outcome = old.connection.call::<v1::Test>(&Narrow(test(0, 0))).await.unwrap().0.outcome;
        assert_eq!(holder(outcome), (0xffff_ffff, 0));
        let outcome = old.connection.call::<v3::Test>(&Narrow(test(9, 0))).await.unwrap().0.outcome;
        assert_eq!(holder(outcome), (0xffff_ffff, 0));
        assert_eq!(new.lock(&file, range(5, 1 << 40)).await.unwrap(), Status::Granted);
        let outcome = old.connection.call::<v3::Test>(&Narrow(test(0, 6))).await.unwrap().0.outcome;
        assert_eq!(holder(outcome), (5, 0));
        let outcome = old.connection.call::<v3::Test>(&Narrow(test(0, 5))).await.unwrap().0.outcome;
        assert_eq!(outcome, TestOutcome::Other(Status::Granted));
    });
    drop(server);
    let seen = capture.judge().messages;
    for (version, procedure) in [(1, 1), (1, 2), (1, 4), (3, 1), (3, 2)] {
        assert!(
            seen.iter().any(|m| m.is_reply && (m.version, m.procedure) == (version, procedure))
        );
    }
}
