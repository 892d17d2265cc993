//! Windows: share reservations, in versions 3 and 4.

use wire::nfs3::Handle;
use wire::nlm::{Access, Mode, Narrow, Share, ShareArgs, ShareReply, Status, v3, v4};

use super::*;

struct Windows {
    connection: Connection,
    name: &'static str,
    file: Handle,
    version: u32,
}

impl Windows {
    fn args(&self, access: Access, mode: Mode) -> ShareArgs {
        let share = Share {
            caller_name: self.name.into(),
            file: self.file.to_vec().into(),
            owner: b"\0\0\x02\x08"[..].into(),
            mode,
            access,
        };
        ShareArgs { cookie: b"\0\0\0\x07"[..].into(), share, reclaim: false }
    }

    async fn share(&self, access: Access, mode: Mode) -> Status {
        let args = self.args(access, mode);
        let reply = match self.version {
            3 => self.connection.call::<v3::Share>(&Narrow(args)).await.unwrap().0,
            _ => self.connection.call::<v4::Share>(&args).await.unwrap(),
        };
        self.status_of(reply)
    }

    async fn unshare(&self) -> Status {
        let args = self.args(Access::None, Mode::DenyNone);
        let reply = match self.version {
            3 => self.connection.call::<v3::Unshare>(&Narrow(args)).await.unwrap().0,
            _ => self.connection.call::<v4::Unshare>(&args).await.unwrap(),
        };
        self.status_of(reply)
    }

    fn status_of(&self, reply: ShareReply) -> Status {
        assert_eq!((&reply.cookie[..], reply.sequence), (&b"\0\0\0\x07"[..], 0));
        reply.status
    }
}

#[test]
fn windows_reserves_files() {
    let (server, theirs, capture) = start();
    let file = server.root();
    theirs.block_on(async move || {
        for version in [3, 4] {
            let windows = async |from, name| {
                let (connection, file) = (connect(from).await, file.clone());
                Windows { connection, name, file, version }
            };
            let one = windows(CLIENT, "WIN-1").await;
            let other = windows(OTHER, "WIN-2").await;
            assert_eq!(one.share(Access::Both, Mode::DenyWrite).await, Status::Granted);
            assert_eq!(other.share(Access::Write, Mode::DenyNone).await, Status::Denied);
            assert_eq!(other.share(Access::Both, Mode::DenyNone).await, Status::Denied);
            // What the first does with it counts as well.
            assert_eq!(other.share(Access::Read, Mode::DenyRead).await, Status::Denied);
            assert_eq!(other.share(Access::Read, Mode::DenyWrite).await, Status::Denied);
            assert_eq!(other.share(Access::Read, Mode::DenyNone).await, Status::Granted);
            // And what the other does then, when the first wants more.
            assert_eq!(one.share(Access::Both, Mode::DenyBoth).await, Status::Denied);
            assert_eq!(one.unshare().await, Status::Granted);
            assert_eq!(one.unshare().await, Status::Granted, "of what is not there");
            assert_eq!(other.share(Access::Write, Mode::DenyBoth).await, Status::Granted);
            assert_eq!(one.share(Access::Read, Mode::DenyNone).await, Status::Denied);
            assert_eq!(other.unshare().await, Status::Granted);
        }
    });
    drop(server);
    let replies: Vec<_> = capture.judge().messages;
    for version in [3, 4] {
        let is_share = |m: &&judge::tshark::DissectedMessage| {
            m.is_reply && m.version == version && [20, 21].contains(&m.procedure)
        };
        let shares: Vec<_> = replies.iter().filter(is_share).collect();
        assert_eq!(shares.len(), 12);
        for share in shares {
            let last = share.fields.last().unwrap();
            assert_eq!(last.name, "nlm.sequence", "{share:?}");
        }
    }
}
