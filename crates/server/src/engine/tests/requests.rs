//! What is known of a request before it enters the keeper.

use keeper::request::{
    Access, CancelRequest, FreeAllRequest, LockRequest, ShareRequest, Source, TestRequest,
    UnlockRequest, UnshareRequest,
};
use keeper::step::{Outcome, Reply};

use super::super::request::grants_or_queues;
use super::*;
use crate::liveness::registry::TakenBy;

/// The requests of one owner about one file, and of one program's shares of it.
fn all(lock: &LockRequest) -> [Request; 6] {
    let LockRequest { id, caller, owner, file, range, mode, .. } = lock.clone();
    let (access, deny) = (Access::default(), Access::default());
    let tag = owner.tag.clone();
    [
        Request::Lock(lock.clone()),
        Request::Test(TestRequest {
            id,
            caller: caller.clone(),
            owner: owner.clone(),
            file: file.clone(),
            range,
            mode,
        }),
        Request::Unlock(UnlockRequest {
            id,
            caller: caller.clone(),
            owner: owner.clone(),
            file: file.clone(),
            range,
        }),
        Request::Cancel(CancelRequest {
            id,
            caller: caller.clone(),
            owner,
            file: file.clone(),
            range,
            mode,
        }),
        Request::Share(ShareRequest {
            id,
            caller: caller.clone(),
            tag: tag.clone(),
            file: file.clone(),
            access,
            deny,
            reclaim: lock.reclaim,
            admitted: true,
        }),
        Request::Unshare(UnshareRequest { id, caller, tag, file }),
    ]
}

#[test]
fn a_lock_and_what_undoes_it_have_one_subject() {
    let lock = lock_request(1, "alice", "10.0.0.1");
    let [locks, tests, unlocks, cancels, shares, unshares] = all(&lock);
    let (caller, number, tag, file) = locks.subject().unwrap();
    assert_eq!((caller, number, tag), (&lock.caller, lock.owner.number, &lock.owner.tag));
    assert_eq!(file, &lock.file);
    for other in [&tests, &unlocks, &cancels] {
        assert_eq!(other.subject(), locks.subject());
    }
    assert!(shares.subject().is_some());
    assert_eq!(unshares.subject(), shares.subject());
    let mut other = lock.clone();
    other.owner.number += 1;
    assert_ne!(all(&other)[2].subject(), locks.subject());
}

#[test]
fn what_would_lose_a_lock_is_not_answered_while_the_store_stalls() {
    let mut lock = lock_request(1, "alice", "10.0.0.1");
    let whens = |lock: &LockRequest| all(lock).map(|request| request.stall_policy());
    let (refuse, none) = (StallPolicy::Refuse, StallPolicy::NoReply);
    assert_eq!(whens(&lock), [refuse, refuse, none, none, refuse, none]);
    assert!(all(&lock).iter().all(|request| !request.is_reclaim()));
    lock.reclaim = true;
    assert_eq!(whens(&lock), [none, refuse, none, none, none, none]);
    assert_eq!(all(&lock).map(|it| it.is_reclaim()), [true, false, false, false, true, false]);
    let source = Source {
        address: [10, 0, 0, 1].into(),
        transport: keeper::identity::Transport::Udp,
        local: false,
        reserved: true,
    };
    let free_all = FreeAllRequest { id: lock.id, source, name: "alice".into() };
    let free_all = Request::FreeAll(free_all);
    assert_eq!(free_all.stall_policy(), none);
    assert_eq!(free_all.subject(), None);
}

#[test]
fn a_host_has_something_by_a_lock_or_a_share_that_is_granted_or_a_place_in_line() {
    let lock = lock_request(1, "alice", "10.0.0.1");
    let grantees = all(&lock).map(|request| request.grantee().is_some());
    assert_eq!(grantees, [true, false, false, false, true, false]);
    let taken_by = |request: Request| request.grantee().unwrap().1;
    assert_eq!(taken_by(Request::Lock(lock.clone())), TakenBy::Lock(lock.incarnation));
    let reclaim = LockRequest { reclaim: true, ..lock.clone() };
    assert_eq!(taken_by(Request::Lock(reclaim)), TakenBy::Reclaim);
    let share = all(&lock).into_iter().find(|it| matches!(it, Request::Share(_))).unwrap();
    assert_eq!(taken_by(share), TakenBy::Share);
    assert!(
        grants_or_queues(&Reply::Lock(Outcome::Granted))
            && grants_or_queues(&Reply::Lock(Outcome::Blocked))
    );
    assert!(grants_or_queues(&Reply::Share(Outcome::Granted)));
    assert!(
        !grants_or_queues(&Reply::Lock(Outcome::Denied)) && !grants_or_queues(&Reply::Acknowledged)
    );
    let light = all(&lock).map(|request| request.is_light());
    assert_eq!(light, [true, true, true, true, false, false]);
}
