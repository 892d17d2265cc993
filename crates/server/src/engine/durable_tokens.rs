//! Which batches are durable, and whether one of them changed a registration: for the copy of the
//! roster. Costs a batch two stores and a look at each change.

use std::sync::atomic::{AtomicU64, Ordering};

use keeper::change::Change;
use store::{Durability, Token};
use tokio::sync::Notify;

use super::batch::Batch;

#[derive(Default)]
pub(super) struct DurableTokens {
    last: AtomicU64,
    /// That of the last batch which every store syncs before it is done.
    synced: AtomicU64,
    roster_changed: Notify,
}

impl DurableTokens {
    /// To be called for each durable batch, in order.
    pub(super) fn note(&self, batch: &Batch) {
        let changes = batch.changes();
        if changes.is_empty() {
            return;
        }
        self.last.store(batch.token().0, Ordering::Relaxed);
        if !Durability::Process.must_sync(changes) {
            return;
        }
        self.synced.store(batch.token().0, Ordering::Relaxed);
        let of_client =
            |change: &Change| matches!(change, Change::Client(_) | Change::ClientGone(_));
        if changes.iter().any(of_client) {
            self.roster_changed.notify_one();
        }
    }

    pub(super) fn last(&self) -> Token {
        Token(self.last.load(Ordering::Relaxed))
    }

    pub(super) fn last_synced(&self) -> Token {
        Token(self.synced.load(Ordering::Relaxed))
    }

    pub(super) async fn roster_changed(&self) {
        self.roster_changed.notified().await;
    }
}
