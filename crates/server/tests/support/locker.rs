//! A client that locks, as the tests want it: every field can be chosen.

use std::net::SocketAddr;

use client::{CallError, Connection, Options};
use wire::nfs3::Handle;
use wire::nlm::{self, Lock, LockArgs, Range, Status, StatusReply, TestArgs, TestOutcome, v4};

/// One process of one machine.
#[derive(Clone)]
pub struct Locker {
    pub connection: Connection,
    pub name: &'static str,
    pub svid: i32,
    pub state: i32,
}

pub fn range(offset: u64, length: u64) -> Range {
    Range { offset, length }
}

impl Locker {
    pub async fn connect(at: SocketAddr, name: &'static str, svid: i32) -> Self {
        let options = Options::default().user(0, 0, &[]);
        Self::connect_with(at, name, svid, &options).await
    }

    pub async fn connect_with(
        at: SocketAddr,
        name: &'static str,
        svid: i32,
        options: &Options,
    ) -> Self {
        let connection = Connection::connect(at, options).await.unwrap();
        Self { connection, name, svid, state: 3 }
    }

    /// Another process of the same machine.
    pub fn process(&self, svid: i32) -> Self {
        Self { svid, ..self.clone() }
    }

    fn lock_of(&self, file: &Handle, range: Range) -> Lock {
        Lock {
            caller_name: self.name.as_bytes().into(),
            file: file.0.to_vec().into(),
            owner: format!("{}@{}", self.svid, self.name).into_bytes().into(),
            svid: self.svid,
            range,
        }
    }

    pub fn lock_args(&self, file: &Handle, range: Range, exclusive: bool) -> LockArgs {
        LockArgs {
            cookie: self.svid.to_be_bytes().to_vec().into(),
            block: false,
            exclusive,
            lock: self.lock_of(file, range),
            reclaim: false,
            state: self.state,
        }
    }

    pub async fn send(&self, args: &LockArgs) -> Result<Status, CallError> {
        let reply: StatusReply = self.connection.call::<v4::Lock>(args).await?;
        assert_eq!(reply.cookie, args.cookie);
        Ok(reply.status)
    }

    /// An exclusive lock, without waiting.
    pub async fn lock(&self, file: &Handle, range: Range) -> Status {
        self.send(&self.lock_args(file, range, true)).await.unwrap()
    }

    pub async fn lock_shared(&self, file: &Handle, range: Range) -> Status {
        self.send(&self.lock_args(file, range, false)).await.unwrap()
    }

    pub async fn wait(&self, file: &Handle, range: Range) -> Status {
        let args = LockArgs { block: true, ..self.lock_args(file, range, true) };
        self.send(&args).await.unwrap()
    }

    pub async fn reclaim(&self, file: &Handle, range: Range) -> Status {
        let args = LockArgs { reclaim: true, state: 0, ..self.lock_args(file, range, true) };
        self.send(&args).await.unwrap()
    }

    pub async fn unlock(&self, file: &Handle, range: Range) -> Status {
        let args = nlm::UnlockArgs { cookie: b"bye"[..].into(), lock: self.lock_of(file, range) };
        self.connection.call::<v4::Unlock>(&args).await.unwrap().status
    }

    pub async fn cancel(&self, file: &Handle, range: Range) -> Status {
        let args = nlm::CancelArgs {
            cookie: b"stop"[..].into(),
            block: true,
            exclusive: true,
            lock: self.lock_of(file, range),
        };
        self.connection.call::<v4::Cancel>(&args).await.unwrap().status
    }

    pub async fn test(&self, file: &Handle, range: Range) -> TestOutcome {
        let args = TestArgs {
            cookie: b"look"[..].into(),
            exclusive: true,
            lock: self.lock_of(file, range),
        };
        self.connection.call::<v4::Test>(&args).await.unwrap().outcome
    }
}
