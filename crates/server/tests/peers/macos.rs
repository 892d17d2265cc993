//! macOS: UDP only, messages only, cookies of eight bytes. Its lock manager hears only what comes
//! from the address and port that it sends to.

use std::time::Duration;

use testbed::peer::{Answer, Host, ReceivedCall, RpcbindKind, UdpCaller, script};
use tokio::time::sleep;
use wire::nlm::{self, CancelArgs, Lock, LockArgs, Status, StatusReply, TestArgs, UnlockArgs, v4};
use wire::{Decode, nfs3::Handle};

use super::support::range;
use super::support::restartable::{ip, server_address};
use super::*;

struct Mac {
    caller: UdpCaller,
    host: Host,
    file: Handle,
    calls_seen: usize,
}

impl Mac {
    async fn new(file: Handle) -> Self {
        let mut host = Host::bind(ip(CLIENT), 111, RpcbindKind::Full).await;
        host.udp(nlm::PROGRAM, 4, script(|_| Answer::Nothing)).await;
        Self {
            caller: UdpCaller::bind(ip(CLIENT), 1011, server_address()).await,
            host,
            file,
            calls_seen: 0,
        }
    }

    fn lock(&self) -> Lock {
        Lock {
            caller_name: b"mac.local"[..].into(),
            file: self.file.to_vec().into(),
            // The same for all its processes.
            owner: b"mac.local"[..].into(),
            svid: 501,
            range: range(0, 100),
        }
    }

    fn lock_args(&self, cookie: &'static [u8; 8], block: bool) -> LockArgs {
        let (cookie, lock) = (cookie[..].into(), self.lock());
        LockArgs { cookie, block, exclusive: true, lock, reclaim: false, state: 7 }
    }

    fn unlock_args(&self, cookie: &'static [u8; 8]) -> UnlockArgs {
        UnlockArgs { cookie: cookie[..].into(), lock: self.lock() }
    }

    /// The next message to its lock manager.
    async fn next_message(&mut self, procedure: u32) -> ReceivedCall {
        self.calls_seen += 1;
        let call = nth_call(&self.host, self.calls_seen).await;
        let numbers = (call.program, call.version, call.procedure);
        assert_eq!(numbers, (nlm::PROGRAM, 4, procedure));
        assert_eq!(
            (call.over_tcp, call.from),
            (false, server_address()),
            "from our listening socket"
        );
        call
    }

    async fn next_result(&mut self, procedure: u32) -> (Vec<u8>, Status) {
        let reply = StatusReply::from_bytes(self.next_message(procedure).await.args).unwrap();
        (reply.cookie.to_vec(), reply.status)
    }
}

const LOCK_RES: u32 = 12;
const CANCEL_RES: u32 = 13;
const UNLOCK_RES: u32 = 14;
const GRANTED_MSG: u32 = 10;

#[test]
fn macos_locks_by_messages() {
    let (server, theirs, capture) = start();
    let file = server.root();
    theirs.block_on(async move || {
        let mut mac = Mac::new(file.clone()).await;
        let other = locker(OTHER, "other", 1).await;

        // A lock, and the same datagram once more: the same answer, one effect.
        let args = mac.lock_args(b"\0\x01cookie", false);
        mac.caller.send::<v4::LockMsg>(1, &args).await;
        assert_eq!(mac.next_result(LOCK_RES).await, (b"\0\x01cookie".to_vec(), Status::Granted));
        mac.caller.reply(1).await;
        mac.caller.send::<v4::LockMsg>(1, &args).await;
        assert_eq!(mac.next_result(LOCK_RES).await, (b"\0\x01cookie".to_vec(), Status::Granted));
        assert_eq!(other.lock(&file, range(99, 1)).await.unwrap(), Status::Denied);
        mac.caller.send::<v4::UnlockMsg>(2, &mac.unlock_args(b"unlock-1")).await;
        assert_eq!(mac.next_result(UNLOCK_RES).await, (b"unlock-1".to_vec(), Status::Granted));
        assert_eq!(other.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);

        // It waits, and is told.
        mac.caller.send::<v4::LockMsg>(3, &mac.lock_args(b"waiting1", true)).await;
        assert_eq!(mac.next_result(LOCK_RES).await, (b"waiting1".to_vec(), Status::Blocked));
        assert_eq!(other.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
        let granted = TestArgs::from_bytes(mac.next_message(GRANTED_MSG).await.args).unwrap();
        assert_eq!((granted.lock, granted.exclusive), (mac.lock(), true));
        let answer = StatusReply { cookie: granted.cookie, status: Status::Granted };
        mac.caller.send::<v4::GrantedRes>(4, &answer).await;
        // Answered is answered: it does not hear it again.
        sleep(Duration::from_millis(2500)).await;
        assert_eq!(mac.host.calls().len(), mac.calls_seen);
        assert_eq!(other.lock(&file, range(0, 1)).await.unwrap(), Status::Denied);

        // An UNLOCK that comes once more after the next LOCK frees nothing.
        let unlock = mac.unlock_args(b"unlock-2");
        mac.caller.send::<v4::UnlockMsg>(5, &unlock).await;
        assert_eq!(mac.next_result(UNLOCK_RES).await.1, Status::Granted);
        mac.caller.send::<v4::LockMsg>(6, &mac.lock_args(b"again..1", false)).await;
        assert_eq!(mac.next_result(LOCK_RES).await.1, Status::Granted);
        mac.caller.send::<v4::UnlockMsg>(5, &unlock).await;
        assert_eq!(mac.next_result(UNLOCK_RES).await, (b"unlock-2".to_vec(), Status::Granted));
        assert_eq!(other.lock(&file, range(0, 1)).await.unwrap(), Status::Denied);
        mac.caller.send::<v4::UnlockMsg>(7, &mac.unlock_args(b"unlock-3")).await;
        assert_eq!(mac.next_result(UNLOCK_RES).await.1, Status::Granted);

        // It waits no more.
        assert_eq!(other.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
        mac.caller.send::<v4::LockMsg>(8, &mac.lock_args(b"waiting2", true)).await;
        assert_eq!(mac.next_result(LOCK_RES).await.1, Status::Blocked);
        let (cookie, lock) = (b"cancel-1"[..].into(), mac.lock());
        let cancel = CancelArgs { cookie, block: true, exclusive: true, lock };
        mac.caller.send::<v4::CancelMsg>(9, &cancel).await;
        assert_eq!(mac.next_result(CANCEL_RES).await, (b"cancel-1".to_vec(), Status::Granted));
        assert_eq!(other.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
        sleep(Duration::from_millis(300)).await;
        assert_eq!(mac.host.calls().len(), mac.calls_seen);
        for xid in 1..=9 {
            let replies = mac.caller.replies(xid);
            assert!(!replies.is_empty() && replies.iter().all(|reply| *reply == replies[0]));
        }
    });
    drop(server);
    let seen = capture.judge().messages;
    for procedure in [7, 8, 9, 10, 12, 13, 14, 15] {
        assert!(seen.iter().any(|m| (m.program, m.procedure) == (nlm::PROGRAM, procedure)));
    }
}
