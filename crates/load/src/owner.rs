//! A lock owner: a process of a machine, as NLM calls identify it.

use wire::nlm::{Lock, LockArgs, Range, UnlockArgs};

/// The NSM state of the simulated machines; any odd number will do.
const STATE: i32 = 3;

#[derive(Debug, Clone)]
pub struct Owner {
    machine: String,
    svid: i32,
}

impl Owner {
    pub fn new(machine: impl Into<String>, svid: i32) -> Self {
        Self { machine: machine.into(), svid }
    }

    fn what(&self, file: &[u8], range: Range) -> Lock {
        Lock {
            caller_name: self.machine.clone().into_bytes().into(),
            file: file.to_vec().into(),
            // As Linux formats it.
            owner: format!("{}@{}", self.svid, self.machine).into_bytes().into(),
            svid: self.svid,
            range,
        }
    }

    fn cookie(&self) -> wire::nlm::Cookie {
        self.svid.to_be_bytes().to_vec().into()
    }

    /// An exclusive lock, without waiting.
    pub fn lock(&self, file: &[u8], range: Range) -> LockArgs {
        LockArgs {
            cookie: self.cookie(),
            block: false,
            exclusive: true,
            lock: self.what(file, range),
            reclaim: false,
            state: STATE,
        }
    }

    /// An exclusive lock, to be granted by callback if it is not free.
    pub fn wait(&self, file: &[u8], range: Range) -> LockArgs {
        LockArgs { block: true, ..self.lock(file, range) }
    }

    /// A reclaim of the lock after a restart of the server.
    pub fn reclaim(&self, file: &[u8], range: Range) -> LockArgs {
        LockArgs { reclaim: true, state: 0, ..self.lock(file, range) }
    }

    pub fn unlock(&self, file: &[u8], range: Range) -> UnlockArgs {
        UnlockArgs { cookie: self.cookie(), lock: self.what(file, range) }
    }
}
