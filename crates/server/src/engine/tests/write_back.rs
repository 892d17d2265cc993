//! A store that has lost batches gets the keeper's whole state, with the batch that is being committed
//! (B6.62).

use super::*;
use store::Lease;

/// A store that outlives the engine, and can lose everything after a moment.
#[derive(Clone, Default)]
struct LossyStore(Arc<Mutex<Contents>>);

#[derive(Default)]
struct Contents {
    now: Memory,
    /// It has lost batches and accepts only the whole state.
    behind: bool,
    /// The next rewrite ends like this.
    outcomes: Vec<CommitOutcome>,
    rewrites: usize,
}

fn behind() -> StoreError {
    StoreError::Behind { location: "test".into(), what: "batches".into() }
}

impl LossyStore {
    fn lose(&self) {
        let mut contents = self.0.lock().unwrap();
        (contents.now, contents.behind) = (Memory::new(), true);
    }
}

impl Store for LossyStore {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.0.lock().unwrap().now.load()
    }
    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        let mut contents = self.0.lock().unwrap();
        if contents.behind {
            return CommitOutcome::NotWritten(behind());
        }
        contents.now.commit(changes, token)
    }
    fn rewrite(&mut self, saved: &Snapshot, token: Token) -> CommitOutcome {
        let mut contents = self.0.lock().unwrap();
        assert!(contents.behind, "it has everything");
        contents.rewrites += 1;
        let outcome = contents.outcomes.pop().unwrap_or(CommitOutcome::Done);
        if matches!(outcome, CommitOutcome::NotWritten(_)) {
            return outcome;
        }
        contents.now = Memory::new();
        let Snapshot { clients, locks, ids_below, epoch, .. } = saved.clone();
        let started = Change::Started { epoch, grace: saved.in_grace.then_some(saved.exactness) };
        let mut changes = vec![started, Change::IdsBelow(ids_below)];
        changes.extend(clients.into_values().map(Change::Client));
        changes.extend(locks.into_values().map(Change::Lock));
        assert!(matches!(contents.now.commit(&changes, token), CommitOutcome::Done));
        contents.behind = false;
        outcome
    }
    fn last_token(&mut self) -> Result<Token, StoreError> {
        let mut contents = self.0.lock().unwrap();
        if contents.behind { Err(behind()) } else { contents.now.last_token() }
    }
    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        self.0.lock().unwrap().now.clear(force)
    }
}

fn locked(file: &str, id: u64) -> Request {
    Request::Lock(LockRequest {
        file: FileKey::from(file),
        ..lock_request(id, "alice", "10.0.0.1")
    })
}

#[tokio::test]
async fn the_batch_that_found_the_loss_is_answered_once_everything_is_back() {
    let unknown = || CommitOutcome::Unknown(StoreError::Unwritable("no answer".into()));
    let not_written = || CommitOutcome::NotWritten(StoreError::Unwritable("not now".into()));
    for outcomes in [vec![], vec![unknown()], vec![not_written(), not_written()]] {
        let attempts =
            1 + outcomes.iter().filter(|one| !matches!(one, CommitOutcome::Unknown(_))).count();
        let store = LossyStore::default();
        let engine = begun_with(Box::new(store.clone()));
        decided(&engine, locked("a.db", 1)).await;
        store.lose();
        store.0.lock().unwrap().outcomes = outcomes;
        let decision = decided(&engine, locked("b.db", 2));
        let decision = tokio::time::timeout(Duration::from_secs(10), decision).await.unwrap();
        assert!(matches!(decision, Decision::Reply(Reply::Lock(_))), "{decision:?}");
        let expected = engine.read(Keeper::snapshot).await.unwrap();
        assert_eq!(expected.locks.len(), 2);
        let mut contents = store.0.lock().unwrap();
        let saved = contents.now.load().unwrap();
        assert_eq!((&saved.locks, &saved.clients), (&expected.locks, &expected.clients));
        assert_eq!(contents.rewrites, attempts);
        drop(contents);
        engine.abandon();
    }
}

/// A server without lock traffic: the heartbeat has found the loss, and suspended the lease.
#[tokio::test]
async fn an_idle_server_writes_back_as_well() {
    let store = LossyStore::default();
    let lease = Lease::new(Duration::from_secs(600), store::lease::boottime());
    let locks = LockConfig {
        store: Box::new(store.clone()),
        lease: Some(lease.clone()),
        ..LockConfig::in_memory()
    };
    let RestoredEngine { engine, first, .. } = restore(locks, 10, None).unwrap();
    engine.begin(Box::new(NoEffects), first);
    decided(&engine, locked("a.db", 1)).await;
    store.lose();
    lease.set_suspended(true);
    let start = Instant::now();
    while store.0.lock().unwrap().behind {
        assert!(start.elapsed() < Duration::from_secs(10), "never written back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    lease.set_suspended(false);
    assert_eq!(store.clone().load().unwrap().locks.len(), 1);
    engine.abandon();
}
