//! Repeated lock calls over the wire (I8, B2.60): one effect and the same reply, over UDP and across a
//! TCP reconnect.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use client::Locker;
use lockkeeper_server::{Limits, LockConfig};
use support::{file, *};
use testbed::peer::UdpCaller;
use vfs::FileSystemId;
use vfs::memory::MemoryFs;
use wire::nfs3::Handle;
use wire::nlm::{
    Access, CancelArgs, FreeAllArgs, LockArgs, Mode, Share, ShareArgs, Status, UnlockArgs, v4,
};
use wire::rpc::{Credential, Procedure};

/// How alice repeats her calls.
enum Wire {
    Udp(UdpCaller),
    /// Every call on a connection of its own.
    Reconnecting,
}

impl Wire {
    async fn exchange<P: Procedure>(&self, server: &TestServer, xid: u32, args: &P::Args) -> Bytes {
        match self {
            Self::Udp(caller) => {
                let known = caller.replies(xid).len();
                caller.send::<P>(xid, args).await;
                until("a reply", || caller.replies(xid).len() > known).await;
                caller.replies(xid).remove(known)
            }
            Self::Reconnecting => {
                let mut stream = server.stream().await;
                stream.exchange(&call::<P>(xid, &root(), args)).await
            }
        }
    }
}

fn root() -> Credential {
    user(0, 0, &[])
}

async fn start() -> (TestServer, Handle) {
    let server = TestServer::in_memory().await;
    let file = file(&server.nfs().await, &server.root().await, "locked", 0).await;
    (server, file)
}

async fn wires(server: &TestServer) -> [Wire; 2] {
    [Wire::Udp(UdpCaller::bind([127, 0, 0, 1].into(), 0, server.at).await), Wire::Reconnecting]
}

struct Alice {
    locker: Locker,
    file: Handle,
}

impl Alice {
    async fn new(server: &TestServer, file: &Handle) -> Self {
        Self { locker: locker(server.at, "alice", 1).await, file: file.clone() }
    }

    fn lock(&self, block: bool) -> LockArgs {
        LockArgs { block, ..self.locker.lock_args(&self.file, range(0, 9), true) }
    }

    fn unlock(&self) -> UnlockArgs {
        let LockArgs { cookie, lock, .. } = self.lock(false);
        UnlockArgs { cookie, lock }
    }

    fn cancel(&self) -> CancelArgs {
        let LockArgs { cookie, lock, .. } = self.lock(true);
        CancelArgs { cookie, block: true, exclusive: true, lock }
    }
}

#[track_caller]
/// LOCK, UNLOCK and CANCEL have the same reply.
fn is(reply: &Bytes, expected: Status) {
    assert_eq!(results::<v4::Lock>(reply.clone()).status, expected);
}

#[tokio::test]
async fn a_repeated_unlock_does_not_release_what_was_locked_since() {
    let (server, file) = start().await;
    let (alice, bob) = (Alice::new(&server, &file).await, locker(server.at, "bob", 7).await);
    for (round, wire) in wires(&server).await.iter().enumerate() {
        let xid = |number: u32| 0x100 * (round as u32 + 1) + number;
        let (lock, unlock) = (alice.lock(false), alice.unlock());
        is(&wire.exchange::<v4::Lock>(&server, xid(1), &lock).await, Status::Granted);
        let first = wire.exchange::<v4::Unlock>(&server, xid(2), &unlock).await;
        is(&first, Status::Granted);
        is(&wire.exchange::<v4::Lock>(&server, xid(3), &lock).await, Status::Granted);
        assert_eq!(wire.exchange::<v4::Unlock>(&server, xid(2), &unlock).await, first);
        assert_eq!(bob.lock(&file, range(0, 9)).await.unwrap(), Status::Denied, "still held");
        is(&wire.exchange::<v4::Unlock>(&server, xid(4), &unlock).await, Status::Granted);
    }
}

#[tokio::test]
async fn a_repeated_lock_does_not_take_what_was_given_back_since() {
    let (server, file) = start().await;
    let (alice, bob) = (Alice::new(&server, &file).await, locker(server.at, "bob", 7).await);
    for (round, wire) in wires(&server).await.iter().enumerate() {
        let xid = |number: u32| 0x100 * (round as u32 + 1) + number;
        let first = wire.exchange::<v4::Lock>(&server, xid(1), &alice.lock(false)).await;
        is(&first, Status::Granted);
        is(&wire.exchange::<v4::Unlock>(&server, xid(2), &alice.unlock()).await, Status::Granted);
        assert_eq!(wire.exchange::<v4::Lock>(&server, xid(1), &alice.lock(false)).await, first);
        assert_eq!(bob.lock(&file, range(0, 9)).await.unwrap(), Status::Granted, "free");
        assert_eq!(bob.unlock(&file, range(0, 9)).await.unwrap(), Status::Granted);
    }
}

#[tokio::test]
async fn a_repeated_cancel_does_not_withdraw_a_later_request() {
    let (server, file) = start().await;
    let (alice, bob) = (Alice::new(&server, &file).await, locker(server.at, "bob", 7).await);
    assert_eq!(bob.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
    let waiters = async || server.control.read(|keeper| keeper.counts().waiters).await.unwrap();
    for (round, wire) in wires(&server).await.iter().enumerate() {
        let xid = |number: u32| 0x100 * (round as u32 + 1) + number;
        let (lock, cancel) = (alice.lock(true), alice.cancel());
        is(&wire.exchange::<v4::Lock>(&server, xid(1), &lock).await, Status::Blocked);
        let first = wire.exchange::<v4::Cancel>(&server, xid(2), &cancel).await;
        is(&first, Status::Granted);
        is(&wire.exchange::<v4::Lock>(&server, xid(3), &lock).await, Status::Blocked);
        assert_eq!(wire.exchange::<v4::Cancel>(&server, xid(2), &cancel).await, first);
        assert_eq!(waiters().await, 1, "it still waits");
        is(&wire.exchange::<v4::Cancel>(&server, xid(4), &cancel).await, Status::Granted);
        assert_eq!(waiters().await, 0);
    }
}

#[tokio::test]
async fn free_all_frees_everything_once() {
    // Two file systems, each with an export.
    let other = Arc::new(MemoryFs::new(FileSystemId(2)));
    let exports = vec![export(PATH, memory(), open_rules()), export("/other", other, open_rules())];
    let locks = LockConfig::in_memory();
    let server =
        TestServer::try_start_with(config(Limits::default()), exports, locks).await.unwrap();
    let nfs = server.nfs().await;
    let one = file(&nfs, &server.root().await, "a", 0).await;
    let other = client::mount::mount(&nfs.0, "/other").await.unwrap();
    let two = file(&nfs, &other, "b", 0).await;

    // All by datagrams: no connection of alice can show that it is alive.
    let caller = UdpCaller::bind([127, 0, 0, 9].into(), 0, server.at).await;
    let alice = Alice::new(&server, &one).await;
    let Alice { locker, .. } = &alice;
    let wire = Wire::Udp(caller);
    for (xid, file) in [(1, &one), (2, &two)] {
        let args = locker.lock_args(file, range(0, 9), true);
        is(&wire.exchange::<v4::Lock>(&server, xid, &args).await, Status::Granted);
    }
    let share = Share {
        caller_name: b"alice"[..].into(),
        file: two.to_vec().into(),
        owner: b"1"[..].into(),
        mode: Mode::DenyWrite,
        access: Access::Both,
    };
    let args = ShareArgs { cookie: b"s"[..].into(), share, reclaim: false };
    wire.exchange::<v4::Share>(&server, 3, &args).await;
    let bob = support::locker(server.at, "bob", 7).await;
    assert_eq!(bob.wait(&one, range(0, 9)).await.unwrap(), Status::Blocked);
    let counts = async || {
        let counts = server.control.read(|keeper| keeper.counts()).await.unwrap();
        (counts.locks, counts.shares, counts.waiters)
    };
    assert_eq!(counts().await, (2, 1, 1));

    let free = FreeAllArgs { name: b"alice"[..].into(), state: 0 };
    let first = wire.exchange::<v4::FreeAll>(&server, 4, &free).await;
    // bob has what it waited for, and nothing else is held.
    assert_eq!(counts().await, (1, 0, 0));
    let args = locker.lock_args(&two, range(0, 9), true);
    is(&wire.exchange::<v4::Lock>(&server, 5, &args).await, Status::Granted);
    assert_eq!(wire.exchange::<v4::FreeAll>(&server, 4, &free).await, first);
    assert_eq!(counts().await, (2, 0, 0), "what was locked since stays");
    assert_eq!(bob.lock(&two, range(0, 9)).await.unwrap(), Status::Denied);
}
