//! Locks over the wire: what a client sends and what it hears.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::time::Duration;

use client::nfs::Nfs;
use client::{Locker, Options};
use lockkeeper_server::Limits;
use support::{file, *};
use tokio::time::timeout;
use vfs::{Export, ExportAccess, FileKey, FileSystem, Rules};
use wire::nfs3::{Handle, NewAttributes, SetAttr, SetAttrArgs};
use wire::nlm::{self, LockArgs, Narrow, Status, TestOutcome, v1, v3};
use wire::nsm;

async fn end(server: TestServer) {
    server.stop();
    server.ended().await;
}

async fn chmod(nfs: &Nfs, file: &Handle, mode: u32) {
    let args = SetAttrArgs {
        object: file.clone(),
        new: NewAttributes { mode: Some(mode), ..NewAttributes::default() },
        guard: None,
    };
    nfs.0.call::<SetAttr>(&args).await.unwrap().unwrap();
}

/// The handle of the export's root, without asking for it.
fn sealed_root() -> Handle {
    let filesystem = memory();
    let id = Export::id_of_path(PATH.as_bytes());
    let file = FileKey { filesystem: filesystem.id(), object: filesystem.root() };
    Handle(key().sign(id, &file).as_bytes().to_vec().into())
}

async fn file_of(server: &TestServer) -> Handle {
    let nfs = server.nfs().await;
    file(&nfs, &server.root().await, "locked", 0).await
}

#[tokio::test]
async fn a_lock_keeps_others_out_until_it_is_given_back() {
    let server = TestServer::in_memory().await;
    let file = file_of(&server).await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    assert_eq!(alice.lock(&file, range(10, 5)).await.unwrap(), Status::Granted);
    assert_eq!(bob.lock(&file, range(14, 10)).await.unwrap(), Status::Denied);
    assert_eq!(bob.lock(&file, range(15, 0)).await.unwrap(), Status::Granted);
    match bob.test(&file, range(0, 0)).await.unwrap() {
        TestOutcome::Denied(holder) => {
            assert_eq!((holder.svid, holder.exclusive), (1, true));
            assert_eq!(&holder.owner[..], b"1@alice");
            assert_eq!((holder.range.offset, holder.range.length), (10, 5));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bob.test(&file, range(0, 10)).await.unwrap(), TestOutcome::Other(Status::Granted));
    assert_eq!(alice.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    assert_eq!(bob.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    end(server).await;
}

/// The first LOCK of a caller on a file waits for a worker; the process is killed meanwhile, and its
/// kernel unlocks (B2.10).
#[tokio::test]
async fn an_unlock_does_not_overtake_its_lock() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let file = file_of(&server).await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    assert_eq!(bob.lock(&file, range(50, 1)).await.unwrap(), Status::Granted);
    filesystem.hold("access");
    let first = tokio::spawn({
        let (alice, file) = (alice.clone(), file.clone());
        async move { alice.lock(&file, range(0, 9)).await.unwrap() }
    });
    until("the lock is with a worker", || filesystem.running("access") == 1).await;
    let then = tokio::spawn({
        let (alice, file) = (alice.clone(), file.clone());
        async move {
            // In the order in which they are sent: one connection.
            let cancel = alice.cancel(&file, range(0, 9));
            let unlock = alice.unlock(&file, range(0, 9));
            tokio::join!(biased; cancel, unlock)
        }
    });
    // Others do not wait for it.
    assert_eq!(bob.unlock(&file, range(50, 1)).await.unwrap(), Status::Granted);
    assert!(!then.is_finished() && !first.is_finished());
    filesystem.release("access");
    assert_eq!(first.await.unwrap(), Status::Granted);
    let (cancelled, unlocked) = then.await.unwrap();
    assert_eq!((cancelled.unwrap(), unlocked.unwrap()), (Status::Denied, Status::Granted));
    assert_eq!(bob.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
    end(server).await;
}

#[tokio::test]
async fn two_processes_of_one_machine_and_two_machines_are_different_owners() {
    let server = TestServer::in_memory().await;
    let file = file_of(&server).await;
    let one = locker(server.at, "alice", 1).await;
    let two = one.process(2);
    assert_eq!(one.lock_shared(&file, range(0, 0)).await.unwrap(), Status::Granted);
    assert_eq!(two.lock_shared(&file, range(0, 0)).await.unwrap(), Status::Granted);
    assert_eq!(two.lock(&file, range(0, 0)).await.unwrap(), Status::Denied);
    assert_eq!(one.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    assert_eq!(two.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    end(server).await;
}

#[tokio::test]
async fn one_who_waits_is_told_so_and_may_stop_waiting() {
    let server = TestServer::in_memory().await;
    let file = file_of(&server).await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    assert_eq!(alice.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    assert_eq!(bob.wait(&file, range(0, 0)).await.unwrap(), Status::Blocked);
    assert_eq!(bob.wait(&file, range(0, 0)).await.unwrap(), Status::Blocked);
    assert_eq!(bob.cancel(&file, range(0, 0)).await.unwrap(), Status::Granted);
    assert_eq!(alice.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    assert_eq!(alice.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    end(server).await;
}

#[tokio::test]
async fn a_circle_of_waiters_is_refused() {
    let server = TestServer::in_memory().await;
    let file = file_of(&server).await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    assert_eq!(alice.lock(&file, range(0, 1)).await.unwrap(), Status::Granted);
    assert_eq!(bob.lock(&file, range(1, 1)).await.unwrap(), Status::Granted);
    assert_eq!(alice.wait(&file, range(1, 1)).await.unwrap(), Status::Blocked);
    assert_eq!(bob.wait(&file, range(0, 1)).await.unwrap(), Status::Deadlock);
    end(server).await;
}

#[tokio::test]
async fn ranges_beyond_the_largest_file_are_too_big() {
    let server = TestServer::in_memory().await;
    let file = file_of(&server).await;
    let alice = locker(server.at, "alice", 1).await;
    assert_eq!(alice.lock(&file, range(1 << 63, 1)).await.unwrap(), Status::FBig);
    assert_eq!(alice.lock(&file, range((1 << 63) - 1, 1)).await.unwrap(), Status::Granted);
    assert_eq!(alice.unlock(&file, range(1 << 63, 1)).await.unwrap(), Status::Granted);
    end(server).await;
}

/// B2.51
#[tokio::test]
async fn an_unlock_that_ends_beyond_the_largest_file_releases_what_is_before() {
    let server = TestServer::in_memory().await;
    let file = file_of(&server).await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    for length in [u64::MAX, 1 << 63, (1 << 63) - 4] {
        assert_eq!(alice.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
        assert_eq!(alice.lock(&file, range(5, length)).await.unwrap(), Status::FBig);
        assert_eq!(alice.unlock(&file, range(5, length)).await.unwrap(), Status::Granted);
        assert_eq!(bob.lock(&file, range(4, 1)).await.unwrap(), Status::Denied, "{length}");
        assert_eq!(bob.lock(&file, range(5, 0)).await.unwrap(), Status::Granted, "{length}");
        assert_eq!(bob.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    }
    end(server).await;
}

#[tokio::test]
async fn a_forged_handle_is_stale_for_everybody() {
    let server = TestServer::in_memory().await;
    let alice = locker(server.at, "alice", 1).await;
    let forged = Handle(vec![1; 40].into());
    assert_eq!(alice.lock(&forged, range(0, 0)).await.unwrap(), Status::StaleFh);
    assert_eq!(alice.unlock(&forged, range(0, 0)).await.unwrap(), Status::StaleFh);
    end(server).await;
}

#[tokio::test]
async fn versions_1_and_3_are_spoken_with_their_words() {
    let server = TestServer::in_memory().await;
    let file = file_of(&server).await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    let args = alice.lock_args(&file, range(0, 9), true);
    let reply = alice.connection.call::<v3::Lock>(&Narrow(args)).await.unwrap().0;
    assert_eq!(reply.status, Status::Granted);
    let args = bob.lock_args(&file, range(0, 9), true);
    let reply = bob.connection.call::<v1::Lock>(&Narrow(args)).await.unwrap().0;
    assert_eq!(reply.status, Status::Denied);
    // What only version 4 can say.
    let forged = Handle(vec![1; 40].into());
    let args = bob.lock_args(&forged, range(0, 9), true);
    let reply = bob.connection.call::<v1::Lock>(&Narrow(args.clone())).await.unwrap().0;
    assert_eq!(reply.status, Status::Denied);
    let args = LockArgs { block: true, ..args };
    let reply = bob.connection.call::<v1::Lock>(&Narrow(args)).await.unwrap().0;
    assert_eq!(reply.status, Status::DeniedNoLocks);
    // Version 1 has no shares.
    let bytes =
        bob.connection.call_raw(wire::rpc::ProcedureId::new(nlm::PROGRAM, 1, 20), &[]).await;
    assert!(bytes.unwrap_err().to_string().contains("ProcedureUnavailable"));
    let bytes = bob.connection.call_raw(wire::rpc::ProcedureId::new(nlm::PROGRAM, 2, 0), &[]).await;
    assert!(bytes.unwrap_err().to_string().contains("ProgramMismatch"));
    end(server).await;
}

#[tokio::test]
async fn a_lock_needs_permission_and_giving_it_back_does_not() {
    let server = TestServer::in_memory().await;
    let nfs = server.nfs().await;
    let file = file(&nfs, &server.root().await, "private", 0).await;
    chmod(&nfs, &file, 0o640).await;
    let user = Options::default().user(1000, 1000, &[]);
    let stranger = Locker::connect(server.at, "alice", 1, &user).await.unwrap();
    assert_eq!(stranger.lock_shared(&file, range(0, 0)).await.unwrap(), Status::Failed);
    assert_eq!(stranger.wait(&file, range(0, 0)).await.unwrap(), Status::Failed);
    assert_eq!(stranger.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    chmod(&nfs, &file, 0o644).await;
    assert_eq!(stranger.lock_shared(&file, range(0, 0)).await.unwrap(), Status::Granted);
    end(server).await;
}

/// B2.50: Linux sends `flock(LOCK_EX)` of a descriptor that is open for reading as an exclusive lock.
#[tokio::test]
async fn an_exclusive_lock_needs_what_the_export_demands() {
    use ExportAccess::{ReadOnly, ReadWrite};
    use vfs::ExclusiveLock::{Read, Write};
    assert_eq!(Rules::default().exclusive_lock, Read);
    let cases = [
        (Read, ReadWrite, 0o644, Status::Granted),
        (Read, ReadWrite, 0o622, Status::Granted),
        (Read, ReadWrite, 0o640, Status::Failed),
        (Read, ReadOnly, 0o644, Status::Granted),
        (Write, ReadWrite, 0o644, Status::Failed),
        (Write, ReadWrite, 0o622, Status::Granted),
        (Write, ReadOnly, 0o622, Status::RoFs),
    ];
    for (exclusive_lock, access, mode, expected) in cases {
        let filesystem = memory();
        let exports = vec![
            export(
                PATH,
                filesystem.clone(),
                open_rules().with_exclusive_lock(exclusive_lock).with_access(access),
            ),
            export("/writable", filesystem, open_rules()),
        ];
        let server = TestServer::try_start(config(Limits::default()), exports).await.unwrap();
        let nfs = server.nfs().await;
        let writable = client::mount::mount(&nfs.0, "/writable").await.unwrap();
        let written = file(&nfs, &writable, "locked", 0).await;
        chmod(&nfs, &written, mode).await;
        let file = nfs.lookup_path(&server.root().await, b"locked").await.unwrap();
        let user = Options::default().user(1000, 1000, &[]);
        let stranger = Locker::connect(server.at, "alice", 1, &user).await.unwrap();
        let case = format!("{exclusive_lock:?} {access:?} {mode:o}");
        let tested = match stranger.test(&file, range(0, 0)).await.unwrap() {
            TestOutcome::Other(status) => status,
            TestOutcome::Denied(_) => Status::Denied,
        };
        assert_eq!(tested, expected, "TEST {case}");
        assert_eq!(stranger.lock(&file, range(0, 0)).await.unwrap(), expected, "LOCK {case}");
        end(server).await;
    }
}

#[tokio::test]
async fn export_rules_hold_for_locks() {
    let rules = |rules: Rules| vec![export(PATH, memory(), rules)];
    // Where an exclusive lock needs write permission, there is none in a read-only export.
    let read_only = open_rules()
        .with_access(ExportAccess::ReadOnly)
        .with_exclusive_lock(vfs::ExclusiveLock::Write);
    let server = TestServer::try_start(config(Limits::default()), rules(read_only)).await.unwrap();
    let alice = locker(server.at, "alice", 1).await;
    let root = server.root().await;
    assert_eq!(alice.lock(&root, range(0, 0)).await.unwrap(), Status::RoFs);
    assert_eq!(alice.lock_shared(&root, range(0, 0)).await.unwrap(), Status::Granted);
    end(server).await;
    // An unprivileged user of a client does not speak for it.
    let reserved = open_rules().with_require_reserved_ports(true);
    let server = TestServer::try_start(config(Limits::default()), rules(reserved)).await.unwrap();
    let alice = locker(server.at, "alice", 1).await;
    let root = sealed_root();
    let args = alice.lock_args(&root, range(0, 0), false);
    let refused = alice.send(&args).await.unwrap_err().to_string();
    assert!(refused.contains("TooWeak"), "{refused}");
    end(server).await;
}

#[tokio::test]
async fn the_status_monitor_answers() {
    let server = TestServer::in_memory().await;
    let connection = server.connect().await;
    let stat = connection.call::<nsm::Stat>(&b"anybody"[..].into()).await.unwrap();
    assert_eq!((stat.outcome, stat.state % 2), (nsm::Outcome::Success, 1));
    let my_id = nsm::MyId {
        my_name: b"watcher"[..].into(),
        program: 0x4000_0001,
        version: 1,
        procedure: 9,
    };
    let mon_id = nsm::MonId { mon_name: b"alice"[..].into(), my_id: my_id.clone() };
    let args = nsm::MonArgs { mon_id: mon_id.clone(), private: [1; 16] };
    assert_eq!(connection.call::<nsm::Mon>(&args).await.unwrap(), stat);
    assert_eq!(connection.call::<nsm::Unmon>(&mon_id).await.unwrap().state, stat.state);
    assert_eq!(connection.call::<nsm::UnmonAll>(&my_id).await.unwrap().state, stat.state);
    // SM_SIMU_CRASH is refused, and a notice about an unknown host gets no reply.
    assert!(connection.call::<nsm::SimuCrash>(&()).await.is_err());
    let notice = nsm::NotifyArgs { mon_name: b"nobody"[..].into(), state: 9 };
    let unheard = timeout(Duration::from_millis(300), connection.call::<nsm::Notify>(&notice));
    assert!(unheard.await.is_err());
    end(server).await;
}

#[tokio::test]
async fn a_rebooted_host_loses_its_locks_when_nothing_of_it_answers() {
    let server = TestServer::in_memory().await;
    let file = file_of(&server).await;
    let alice = locker(server.at, "alice", 1).await;
    let bob = locker(server.at, "bob", 7).await;
    assert_eq!(alice.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    drop(alice);
    let notice = nsm::NotifyArgs { mon_name: b"alice"[..].into(), state: 5 };
    bob.connection.call::<nsm::Notify>(&notice).await.unwrap();
    assert_eq!(bob.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
    end(server).await;
}

#[tokio::test]
async fn garbage_is_called_garbage() {
    let server = TestServer::in_memory().await;
    let connection = server.connect().await;
    for procedure in (1..=15).chain(20..=23) {
        let answer = connection
            .call_raw(wire::rpc::ProcedureId::new(nlm::PROGRAM, 4, procedure), &[0xff; 7])
            .await;
        let Err(error) = answer else { continue };
        assert!(error.to_string().contains("GarbageArgs"), "{procedure}: {error}");
    }
    end(server).await;
}
