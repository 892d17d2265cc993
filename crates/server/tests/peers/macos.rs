//! macOS: UDP only, messages only, cookies of eight bytes. Its lock manager hears only what comes
//! from the address and port that it sends to.

use std::time::Duration;

use tokio::time::sleep;
use wire::nlm::{self, CancelArgs, Lock, LockArgs, Status, StatusReply, TestArgs, UnlockArgs, v4};
use wire::{Decode, nfs3::Handle};

use super::support::house::{ip, server};
use super::support::range;
use super::support::scripted::{Answer, Heard, Host, Rpcbind, script};
use super::support::speaker::Speaker;
use super::*;

struct Mac {
    speaker: Speaker,
    host: Host,
    file: Handle,
    heard: usize,
}

impl Mac {
    async fn new(file: Handle) -> Self {
        let mut host = Host::at(ip(CLIENT), 111, Rpcbind::Usual).await;
        host.udp(nlm::PROGRAM, 4, script(|_| Answer::Nothing)).await;
        Self { speaker: Speaker::new(ip(CLIENT), 1011, server()).await, host, file, heard: 0 }
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

    /// The next message that its lock manager hears.
    async fn hears(&mut self, procedure: u32) -> Heard {
        self.heard += 1;
        let heard = heard(&self.host, self.heard).await;
        let numbers = (heard.program, heard.version, heard.procedure);
        assert_eq!(numbers, (nlm::PROGRAM, 4, procedure));
        assert_eq!((heard.by_tcp, heard.from), (false, server()), "from our listening socket");
        heard
    }

    async fn hears_result(&mut self, procedure: u32) -> (Vec<u8>, Status) {
        let reply = StatusReply::from_bytes(self.hears(procedure).await.args).unwrap();
        (reply.cookie.to_vec(), reply.status)
    }
}

const LOCK_RES: u32 = 12;
const CANCEL_RES: u32 = 13;
const UNLOCK_RES: u32 = 14;
const GRANTED_MSG: u32 = 10;

#[test]
fn macos_locks_by_messages() {
    let (house, theirs, capture) = scene();
    let file = house.root();
    theirs.block_on(async move || {
        let mut mac = Mac::new(file.clone()).await;
        let other = locker(OTHER, "other", 1).await;

        // A lock, and the same datagram once more: the same answer, one effect.
        let args = mac.lock_args(b"\0\x01cookie", false);
        mac.speaker.say::<v4::LockMsg>(1, &args).await;
        assert_eq!(mac.hears_result(LOCK_RES).await, (b"\0\x01cookie".to_vec(), Status::Granted));
        mac.speaker.reply(1).await;
        mac.speaker.say::<v4::LockMsg>(1, &args).await;
        assert_eq!(mac.hears_result(LOCK_RES).await, (b"\0\x01cookie".to_vec(), Status::Granted));
        assert_eq!(other.lock(&file, range(99, 1)).await.unwrap(), Status::Denied);
        mac.speaker.say::<v4::UnlockMsg>(2, &mac.unlock_args(b"unlock-1")).await;
        assert_eq!(mac.hears_result(UNLOCK_RES).await, (b"unlock-1".to_vec(), Status::Granted));
        assert_eq!(other.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);

        // It waits, and is told.
        mac.speaker.say::<v4::LockMsg>(3, &mac.lock_args(b"waiting1", true)).await;
        assert_eq!(mac.hears_result(LOCK_RES).await, (b"waiting1".to_vec(), Status::Blocked));
        assert_eq!(other.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
        let granted = TestArgs::from_bytes(mac.hears(GRANTED_MSG).await.args).unwrap();
        assert_eq!((granted.lock, granted.exclusive), (mac.lock(), true));
        let answer = StatusReply { cookie: granted.cookie, status: Status::Granted };
        mac.speaker.say::<v4::GrantedRes>(4, &answer).await;
        // Answered is answered: it does not hear it again.
        sleep(Duration::from_millis(2500)).await;
        assert_eq!(mac.host.calls().len(), mac.heard);
        assert_eq!(other.lock(&file, range(0, 1)).await.unwrap(), Status::Denied);

        // An UNLOCK that comes once more after the next LOCK frees nothing.
        let unlock = mac.unlock_args(b"unlock-2");
        mac.speaker.say::<v4::UnlockMsg>(5, &unlock).await;
        assert_eq!(mac.hears_result(UNLOCK_RES).await.1, Status::Granted);
        mac.speaker.say::<v4::LockMsg>(6, &mac.lock_args(b"again..1", false)).await;
        assert_eq!(mac.hears_result(LOCK_RES).await.1, Status::Granted);
        mac.speaker.say::<v4::UnlockMsg>(5, &unlock).await;
        assert_eq!(mac.hears_result(UNLOCK_RES).await, (b"unlock-2".to_vec(), Status::Granted));
        assert_eq!(other.lock(&file, range(0, 1)).await.unwrap(), Status::Denied);
        mac.speaker.say::<v4::UnlockMsg>(7, &mac.unlock_args(b"unlock-3")).await;
        assert_eq!(mac.hears_result(UNLOCK_RES).await.1, Status::Granted);

        // It waits no more.
        assert_eq!(other.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
        mac.speaker.say::<v4::LockMsg>(8, &mac.lock_args(b"waiting2", true)).await;
        assert_eq!(mac.hears_result(LOCK_RES).await.1, Status::Blocked);
        let (cookie, lock) = (b"cancel-1"[..].into(), mac.lock());
        let cancel = CancelArgs { cookie, block: true, exclusive: true, lock };
        mac.speaker.say::<v4::CancelMsg>(9, &cancel).await;
        assert_eq!(mac.hears_result(CANCEL_RES).await, (b"cancel-1".to_vec(), Status::Granted));
        assert_eq!(other.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
        sleep(Duration::from_millis(300)).await;
        assert_eq!(mac.host.calls().len(), mac.heard);
        for xid in 1..=9 {
            let replies = mac.speaker.replies(xid);
            assert!(!replies.is_empty() && replies.iter().all(|reply| *reply == replies[0]));
        }
    });
    drop(house);
    let seen = capture.judge().messages;
    for procedure in [7, 8, 9, 10, 12, 13, 14, 15] {
        assert!(seen.iter().any(|m| (m.program, m.procedure) == (nlm::PROGRAM, procedure)));
    }
}
