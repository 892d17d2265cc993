use keeper::change::{Change, Snapshot};
use store::{Memory, Token};

use super::*;
use crate::locks::tests::wants;
use crate::locks::{Locks, Restored, restore};
use crate::meters::{self, Asked};

struct Nobody;

impl Hands for Nobody {
    fn grant(&self, _: Grant) {}
    fn notice(&self, _: Notice) {}
    fn probe(&self, _: &Keeper, _: ClientId, _: Question) {}
    fn happened(&self, _: &Keeper, _: Event) {}
}

fn begun() -> Driver {
    begun_with(Box::new(Memory::new()))
}

fn begun_with(store: Box<dyn Store>) -> Driver {
    let locks = Locks { store, ..Locks::in_memory() };
    let Restored { driver, first, .. } = restore(locks, 10, None).unwrap();
    driver.begin(Box::new(Nobody), first);
    driver
}

#[tokio::test]
async fn what_comes_before_the_beginning_waits_for_it() {
    let Restored { driver, first, .. } = restore(Locks::in_memory(), 10, None).unwrap();
    let early = tokio::spawn({
        let driver = driver.clone();
        async move { driver.read(|keeper| keeper.counts().locks).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!early.is_finished() && !first.events.is_empty());
    driver.begin(Box::new(Nobody), first);
    assert_eq!(early.await.unwrap(), Some(0));
}

#[tokio::test]
async fn a_defect_ends_the_server_instead_of_leaving_it_stuck() {
    let driver = begun();
    assert_eq!(driver.read(|keeper| keeper.counts().locks).await, Some(0));
    driver.report(Input::Read(Box::new(|_| panic!("on purpose"))));
    assert!(matches!(driver.ended().await, End::Failed(why) if why.contains("defect")));
}

#[tokio::test]
async fn an_abandoned_one_lets_go_of_its_store() {
    struct Told(mpsc::Sender<()>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    struct Noted(#[expect(dead_code, reason = "only its end matters")] Told, Memory);
    impl Store for Noted {
        fn load(&mut self) -> Result<Snapshot, StoreError> {
            self.1.load()
        }
        fn commit(&mut self, changes: &[Change], token: Token) -> Committed {
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
    let driver = begun_with(Box::new(Noted(Told(told), Memory::new())));
    driver.abandon();
    assert_eq!(driver.ended().await, End::Abandoned);
    gone.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(driver.read(|_| ()).await.is_none());
}

#[tokio::test]
async fn a_stop_is_the_last_thing_that_enters_the_keeper() {
    let driver = begun();
    driver.report(Input::Stop);
    assert_eq!(driver.ended().await, End::Stopped);
    let late = tokio::time::timeout(Duration::from_millis(100), driver.read(|_| ()));
    assert_ne!(late.await, Ok(Some(())));
}

/// Who is refused because the store does not work is counted like any other.
#[tokio::test]
async fn a_lock_that_waited_too_long_is_counted() {
    struct Full(Memory, bool);
    impl Store for Full {
        fn load(&mut self) -> Result<Snapshot, StoreError> {
            self.0.load()
        }
        fn commit(&mut self, changes: &[Change], token: Token) -> Committed {
            // The start itself is written.
            if std::mem::replace(&mut self.1, true) {
                return Committed::NotWritten(StoreError::Unwritable("no space left".into()));
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
    struct Waits;
    impl Ticket for Waits {
        fn answer(self: Box<Self>, _: Reply, _: &mut Mailbag) {}
        fn stalled(self: Box<Self>, _: &Ask, _: &mut Mailbag) {}
    }
    let counted = Arc::new(Meters::default());
    let locks = Locks { store: Box::new(Full(Memory::new(), false)), ..Locks::in_memory() };
    let Restored { driver, first, .. } = restore(locks, 10, Some(counted.clone())).unwrap();
    driver.begin(Box::new(Nobody), first);
    for id in 1..=2 {
        driver.ask(Ask::Lock(wants(id, "alice", "10.0.0.1")), Box::new(Waits));
        driver.flush();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let refused = || counted.lock_requests(Asked::Lock, meters::Result::Refused);
    assert_eq!(refused(), 0);
    let start = Instant::now();
    while refused() == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "never counted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(refused(), 1, "the first was begun, and waits");
    driver.abandon();
}
