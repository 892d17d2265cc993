//! One who locks: a process of a machine, as a lock manager knows it.

use std::net::SocketAddr;

use bytes::Bytes;
use wire::nlm::{
    Access, CancelArgs, Lock, LockArgs, Mode, Range, Share, ShareArgs, Status, TestArgs,
    TestOutcome, UnlockArgs, v4,
};

use crate::{CallError, ConnectError, Connection, Options};

#[derive(Debug, Clone)]
pub struct Locker {
    pub connection: Connection,
    /// What the machine calls itself.
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

    /// The owner as Linux says it.
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

    /// The arguments of an ordinary LOCK, to be changed or sent as they are.
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

    /// An exclusive lock, without waiting.
    pub async fn lock(&self, file: &[u8], range: Range) -> Result<Status, CallError> {
        self.send(&self.lock_args(file, range, true)).await
    }

    pub async fn lock_shared(&self, file: &[u8], range: Range) -> Result<Status, CallError> {
        self.send(&self.lock_args(file, range, false)).await
    }

    /// An exclusive lock, to be told of when it is free.
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

    /// Waits no more for an exclusive lock.
    pub async fn cancel(&self, file: &[u8], range: Range) -> Result<Status, CallError> {
        let cookie = self.svid.to_be_bytes().to_vec().into();
        let lock = self.lock_of(file, range);
        let args = CancelArgs { cookie, block: true, exclusive: true, lock };
        Ok(self.connection.call::<v4::Cancel>(&args).await?.status)
    }

    /// A share reservation, as Windows takes one with every file that it opens.
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

    /// Whether an exclusive lock would be free, or who has it.
    pub async fn test(&self, file: &[u8], range: Range) -> Result<TestOutcome, CallError> {
        let cookie = self.svid.to_be_bytes().to_vec().into();
        let args = TestArgs { cookie, exclusive: true, lock: self.lock_of(file, range) };
        Ok(self.connection.call::<v4::Test>(&args).await?.outcome)
    }
}
