mod requests;
mod write_back;

use keeper::bytes::{FileKey, Handle, Name, OwnerTag};
use keeper::change::{Change, Snapshot};
use keeper::identity::{Caller, HostKey, Incarnation, OwnerNamespace, Transport};
use keeper::range::Range;
use keeper::request::{Form, LockRequest, Mode, OwnerName, UnlockRequest};
use store::{CommitOutcome, Memory, Token};

use super::*;
use crate::lock_config::LockConfig;
use crate::metrics::{LockOperation, LockResult};
use crate::restore::{RestoredEngine, restore};

struct NoEffects;

impl Effects for NoEffects {
    fn grant(&self, _: Grant) {}
    fn notice(&self, _: Notice) {}
    fn probe(&self, _: &Keeper, _: ClientId, _: Question) {}
    fn event(&self, _: &Keeper, _: Event) {}
    fn client_written(&self, _: &Client) {}
    fn lock_changed(&self, _: &Change) {}
}

/// A blocking LOCK of all bytes of one file.
pub(crate) fn lock_request(id: u64, name: &str, address: &str) -> LockRequest {
    let ours = "10.0.0.100".parse().unwrap();
    LockRequest {
        id: RequestId(id),
        caller: Caller {
            host: HostKey::new(address.parse().unwrap(), Name::from(name)),
            namespace: OwnerNamespace::new(ours, Transport::Tcp, 4),
        },
        owner: OwnerName { number: 7, tag: OwnerTag::from("7@host") },
        file: FileKey::new(b"a.db"),
        handle: Handle::new(b"a.db"),
        range: Range::ALL,
        mode: Mode::Exclusive,
        wait: true,
        reclaim: false,
        admitted: true,
        monitored: true,
        incarnation: Incarnation(3),
        form: Form::Call,
        stateless: false,
        connected: None,
    }
}

fn begun() -> Engine {
    begun_with(Box::new(Memory::new()))
}

pub(crate) fn begun_with(store: Box<dyn Store>) -> Engine {
    let locks = LockConfig { store, ..LockConfig::in_memory() };
    let RestoredEngine { engine, first, .. } = restore(locks, 10, None).unwrap();
    engine.begin(Box::new(NoEffects), first);
    engine
}

#[tokio::test]
async fn what_comes_before_the_beginning_waits_for_it() {
    let RestoredEngine { engine, first, .. } = restore(LockConfig::in_memory(), 10, None).unwrap();
    let early = tokio::spawn({
        let engine = engine.clone();
        async move { engine.read(|keeper| keeper.counts().locks).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!early.is_finished() && !first.batch().events().is_empty());
    engine.begin(Box::new(NoEffects), first);
    assert_eq!(early.await.unwrap(), Some(0));
}

#[tokio::test]
async fn a_panic_ends_the_server_instead_of_leaving_it_stuck() {
    let engine = begun();
    assert_eq!(engine.read(|keeper| keeper.counts().locks).await, Some(0));
    engine.report(Input::Read(Box::new(|_| panic!("on purpose"))));
    assert!(matches!(engine.ended().await, End::Failed(why) if why.contains("internal error")));
}

#[tokio::test]
async fn an_abandoned_engine_drops_its_store() {
    struct DropSignal(mpsc::Sender<()>);
    impl Drop for DropSignal {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    struct Observed(#[expect(dead_code, reason = "only its end matters")] DropSignal, Memory);
    impl Store for Observed {
        fn load(&mut self) -> Result<Snapshot, StoreError> {
            self.1.load()
        }
        fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
            self.1.commit(changes, token)
        }
        fn last_token(&mut self) -> Result<Token, StoreError> {
            self.1.last_token()
        }
        fn clear(&mut self, force: bool) -> Result<(), StoreError> {
            self.1.clear(force)
        }
    }
    let (told, gone) = mpsc::channel();
    let engine = begun_with(Box::new(Observed(DropSignal(told), Memory::new())));
    engine.abandon();
    assert_eq!(engine.ended().await, End::Abandoned);
    gone.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(engine.read(|_| ()).await.is_none());
}

#[tokio::test]
async fn an_engine_that_has_ended_keeps_no_request_waiting() {
    let RestoredEngine { engine, .. } = restore(LockConfig::in_memory(), 10, None).unwrap();
    let ask = |id| {
        let (held, dropped) = oneshot::channel::<()>();
        let sink: ReplySink = Box::new(move |_, _| drop(held));
        engine.ask(Request::Lock(lock_request(id, "alice", "10.0.0.1")), sink);
        dropped
    };
    let mut waiting = ask(1);
    assert_eq!(waiting.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    engine.abandon();
    assert_eq!(waiting.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert_eq!(ask(2).try_recv(), Err(oneshot::error::TryRecvError::Closed));
}

#[tokio::test]
async fn a_stop_is_the_last_thing_that_enters_the_keeper() {
    let engine = begun();
    engine.report(Input::Stop);
    assert_eq!(engine.ended().await, End::Stopped);
    let late = tokio::time::timeout(Duration::from_millis(100), engine.read(|_| ()));
    assert_ne!(late.await, Ok(Some(())));
}

/// A store that commits the start and nothing after it.
struct FullStore(Memory, bool);

impl Store for FullStore {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.0.load()
    }
    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        if std::mem::replace(&mut self.1, true) {
            return CommitOutcome::NotWritten(StoreError::Unwritable("no space left".into()));
        }
        self.0.commit(changes, token)
    }
    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.0.last_token()
    }
    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        self.0.clear(force)
    }
}

/// A lock that is refused because the store fails is counted like any other refusal; a reclaim is
/// not refused, because its client would drop the lock (B5.4).
#[tokio::test]
async fn a_lock_that_waited_too_long_is_refused_and_a_reclaim_is_not() {
    let counted = Arc::new(Metrics::default());
    let locks =
        LockConfig { store: Box::new(FullStore(Memory::new(), false)), ..LockConfig::in_memory() };
    let RestoredEngine { engine, first, .. } = restore(locks, 10, Some(counted.clone())).unwrap();
    engine.begin(Box::new(NoEffects), first);
    let (told, decisions) = mpsc::channel();
    for id in 1..=3 {
        let told = told.clone();
        let mut request = lock_request(id, "alice", "10.0.0.1");
        request.reclaim = id == 2;
        let sink = move |decision, _: &mut ReplyBatch| told.send((id, decision)).unwrap();
        engine.ask(Request::Lock(request), Box::new(sink));
        engine.flush();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let refused = || counted.lock_requests(LockOperation::Lock, LockResult::Refused);
    assert_eq!(refused(), 0);
    let start = Instant::now();
    while refused() == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "never counted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let decisions = [decisions.recv().unwrap(), decisions.recv().unwrap()];
    assert!(matches!(decisions[0], (2, Decision::Stalled(StallPolicy::NoReply))), "{decisions:?}");
    assert!(matches!(decisions[1], (3, Decision::Stalled(StallPolicy::Refuse))), "{decisions:?}");
    assert_eq!(refused(), 1, "the first was begun, and waits");
    engine.abandon();
}

/// A store that outlives the engine. Its next commit hangs if the flag is set.
#[derive(Clone, Default)]
struct HangingStore(Arc<Mutex<Memory>>, Arc<AtomicBool>);

impl HangingStore {
    const FOR: Duration = Duration::from_millis(1500);
}

impl Store for HangingStore {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.0.lock().unwrap().load()
    }
    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        if self.1.swap(false, Ordering::SeqCst) {
            thread::sleep(Self::FOR);
        }
        self.0.lock().unwrap().commit(changes, token)
    }
    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.0.lock().unwrap().last_token()
    }
    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        self.0.lock().unwrap().clear(force)
    }
}

async fn decided(engine: &Engine, request: Request) -> Decision {
    let (told, decision) = oneshot::channel();
    let sink = move |decision, _: &mut ReplyBatch| drop(told.send(decision));
    engine.ask(request, Box::new(sink));
    engine.flush();
    decision.await.unwrap()
}

#[tokio::test]
async fn time_in_which_the_store_hangs_is_not_taken_from_those_who_reclaim() {
    let store = HangingStore::default();
    let engine = begun_with(Box::new(store.clone()));
    let locks = [("a.db", 1), ("b.db", 2)].map(|(file, id)| LockRequest {
        file: FileKey::from(file),
        ..lock_request(id, "alice", "10.0.0.1")
    });
    for lock in locks.clone() {
        decided(&engine, Request::Lock(lock)).await;
    }
    engine.abandon();

    let engine = begun_with(Box::new(store.clone()));
    let ends = || engine.read(|keeper| keeper.grace().and_then(|grace| grace.ends));
    assert_eq!(ends().await, Some(None), "the window waits for the first call");
    engine.report(Input::Heard { address: [10, 0, 0, 2].into(), local: false });
    let before = ends().await.flatten().unwrap();
    store.1.store(true, Ordering::SeqCst);
    let LockRequest { id, caller, owner, file, range, .. } = locks[0].clone();
    let unlock = UnlockRequest { id, caller, owner, file, range };
    decided(&engine, Request::Unlock(unlock)).await;
    let after = ends().await.flatten().unwrap();
    assert!(after >= before + HangingStore::FOR, "{before:?}, {after:?}");
    engine.abandon();
}
