//! A lock owner: a process of a machine, as a lock manager identifies it.

use std::net::SocketAddr;

use bytes::Bytes;
use wire::nlm::{
    Access, CancelArgs, Lock, LockArgs, Mode, Range, Share, ShareArgs, Status, TestArgs,
    TestOutcome, UnlockArgs, v4,
};

use crate::{CallError, ConnectError, Connection, Options};

/// Calls NLM version 4 as one lock owner.
#[derive(Debug, Clone)]
pub struct Locker {
    pub connection: Connection,
    /// The machine's own name.
    pub machine: Bytes,
    /// The machine's number for the process.
    pub svid: i32,
    /// The machine's NSM state.
    pub state: i32,
}

impl Locker {
    pub fn new(connection: Connection, machine: &str, svid: i32) -> Self {
        Self { connection, machine: Bytes::copy_from_slice(machine.as_bytes()), svid, state: 3 }
    }

    pub async fn connect(
        at: SocketAddr,
        machine: &str,
        svid: i32,
        options: &Options,
    ) -> Result<Self, ConnectError> {
        Ok(Self::new(Connection::connect(at, options).await?, machine, svid))
    }

    /// Another process of the same machine, over the same connection.
    pub fn process(&self, svid: i32) -> Self {
        Self { svid, ..self.clone() }
    }

    /// The owner handle, in the format of Linux.
    pub fn owner(&self) -> Vec<u8> {
        let mut owner = format!("{}@", self.svid).into_bytes();
        owner.extend_from_slice(&self.machine);
        owner
    }

    fn lock_of(&self, file: &[u8], range: Range) -> Lock {
        Lock {
            caller_name: self.machine.to_vec().into(),
            file: file.to_vec().into(),
            owner: self.owner().into(),
            svid: self.svid,
            range,
        }
    }

    /// The arguments of an ordinary LOCK, which the caller may change.
    pub fn lock_args(&self, file: &[u8], range: Range, exclusive: bool) -> LockArgs {
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
        Ok(self.connection.call::<v4::Lock>(args).await?.status)
    }

    /// Requests an exclusive lock without blocking.
    pub async fn lock(&self, file: &[u8], range: Range) -> Result<Status, CallError> {
        self.send(&self.lock_args(file, range, true)).await
    }

    pub async fn lock_shared(&self, file: &[u8], range: Range) -> Result<Status, CallError> {
        self.send(&self.lock_args(file, range, false)).await
    }

    /// Requests an exclusive lock, blocking: the server calls GRANTED when it is free.
    pub async fn wait(&self, file: &[u8], range: Range) -> Result<Status, CallError> {
        self.send(&LockArgs { block: true, ..self.lock_args(file, range, true) }).await
    }

    pub async fn reclaim(&self, file: &[u8], range: Range) -> Result<Status, CallError> {
        let args = LockArgs { reclaim: true, state: 0, ..self.lock_args(file, range, true) };
        self.send(&args).await
    }

    pub async fn unlock(&self, file: &[u8], range: Range) -> Result<Status, CallError> {
        let cookie = self.svid.to_be_bytes().to_vec().into();
        let args = UnlockArgs { cookie, lock: self.lock_of(file, range) };
        Ok(self.connection.call::<v4::Unlock>(&args).await?.status)
    }

    /// Cancels a blocking request for an exclusive lock.
    pub async fn cancel(&self, file: &[u8], range: Range) -> Result<Status, CallError> {
        let cookie = self.svid.to_be_bytes().to_vec().into();
        let lock = self.lock_of(file, range);
        let args = CancelArgs { cookie, block: true, exclusive: true, lock };
        Ok(self.connection.call::<v4::Cancel>(&args).await?.status)
    }

    /// Takes a share reservation, as Windows does for every file that it opens.
    pub async fn share(
        &self,
        file: &[u8],
        access: Access,
        mode: Mode,
    ) -> Result<Status, CallError> {
        let cookie = self.svid.to_be_bytes().to_vec().into();
        let share = Share {
            caller_name: self.machine.to_vec().into(),
            file: file.to_vec().into(),
            owner: self.owner().into(),
            mode,
            access,
        };
        let args = ShareArgs { cookie, share, reclaim: false };
        Ok(self.connection.call::<v4::Share>(&args).await?.status)
    }

    /// Tests for an exclusive lock; returns the holder of a conflicting one.
    pub async fn test(&self, file: &[u8], range: Range) -> Result<TestOutcome, CallError> {
        let cookie = self.svid.to_be_bytes().to_vec().into();
        let args = TestArgs { cookie, exclusive: true, lock: self.lock_of(file, range) };
        Ok(self.connection.call::<v4::Test>(&args).await?.outcome)
    }
}
