//! GRANTED_MSG calls that await their GRANTED_RES, which arrives as a call of its own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keeper::identity::GrantId;
use tokio::sync::oneshot;
use wire::nlm::Status;

/// Bounded by the attempts in flight: each has at most one entry, removed when it ends.
#[derive(Default)]
pub(super) struct PendingGrants {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    pending: HashMap<GrantId, PendingGrant>,
    /// Serial number that tells two attempts of one grant apart.
    last_attempt: u64,
}

struct PendingGrant {
    from: IpAddr,
    attempt: u64,
    result: oneshot::Sender<Status>,
}

/// Receives the result of one attempt. Dropping it ends the attempt: a later result is ignored.
pub(super) struct GrantResult<'a> {
    grants: &'a PendingGrants,
    grant: GrantId,
    attempt: u64,
    pub(super) status: oneshot::Receiver<Status>,
}

impl PendingGrants {
    /// Begins an attempt. Ends an earlier attempt of the same grant that is still pending.
    pub(super) fn expect(&self, grant: GrantId, from: IpAddr) -> GrantResult<'_> {
        let (result, status) = oneshot::channel();
        let mut table = self.lock();
        table.last_attempt += 1;
        let attempt = table.last_attempt;
        table.pending.insert(grant, PendingGrant { from, attempt, result });
        GrantResult { grants: self, grant, attempt, status }
    }

    /// Delivers a GRANTED_RES. Ignored unless it comes from the host that was called.
    pub(super) fn deliver(&self, from: IpAddr, cookie: &[u8], status: Status) {
        let Ok(cookie) = <[u8; 8]>::try_from(cookie) else { return };
        let grant = GrantId(u64::from_be_bytes(cookie));
        let mut table = self.lock();
        if table.pending.get(&grant).is_some_and(|pending| pending.from == from)
            && let Some(pending) = table.pending.remove(&grant)
        {
            let _ = pending.result.send(status);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GrantResult<'_> {
    fn drop(&mut self) {
        let mut table = self.grants.lock();
        if table.pending.get(&self.grant).is_some_and(|pending| pending.attempt == self.attempt) {
            table.pending.remove(&self.grant);
        }
    }
}
