//! A program on the library, through its public interface alone: a tree of values that is written to,
//! with locks that survive it (`examples/key_values`). The locks are taken by a client of our own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "../examples/key_values/tree.rs"]
mod tree;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::nfs::Nfs;
use client::{Connection, Locker, Options};
use lockkeeper::locks::{ClientId, LockId, LockState, Mode, OperatorError};
use lockkeeper::store::{
    Change, CommitOutcome, Durability, Embedded, EmbeddedSettings, Snapshot, Store, StoreError,
    Token, cleared, may_clear,
};
use lockkeeper::{
    Bytes, Config, Control, ControlError, Export, Exports, HandleKey, LockConfig, LockEvent,
    Protocol, RpcbindMode, Rules, Server, ServerError, ServerExit, ServerHandle,
};
use tokio::task::JoinHandle;
use wire::nfs3::{Handle, NewAttributes, Stability};
use wire::nlm::{Range, Status};

use tree::KeyValues;

struct Program {
    at: SocketAddr,
    control: Control,
    handle: ServerHandle,
    serving: JoinHandle<Result<ServerExit, ServerError>>,
    /// What the lock hook was told.
    told: Arc<Mutex<Vec<LockEvent>>>,
}

impl Program {
    async fn start(home: &Path) -> Self {
        let (store, run) = (home.join("store"), home.join("run"));
        let settings = EmbeddedSettings::new(store, run, Durability::Process).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = told.clone();
        let hook = move |event| telling.lock().unwrap().push(event);
        let store = Box::new(Embedded::open(settings).unwrap());
        Self::with(home, LockConfig::new(store).with_lock_hook(hook), told).await
    }

    async fn with(home: &Path, locks: LockConfig, told: Arc<Mutex<Vec<LockEvent>>>) -> Self {
        let locks = locks.with_window(Duration::from_secs(600));
        let values = Arc::new(KeyValues::open(&home.join("values")).unwrap());
        let rules = Rules::default().with_require_reserved_ports(false);
        let exports = vec![Export::new("/values", values).with_rules(rules)];
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let config = Config::default().with_listen(listen).with_rpcbind(RpcbindMode::Off);
        let key = HandleKey::new(*b"sixteen bytes ok");
        let exports = Exports::new(exports).unwrap();
        let server = Server::start(config, exports, key, locks).await.unwrap();
        let (at, control, handle) = (server.addresses()[0], server.control(), server.handle());
        Self { at, control, handle, serving: tokio::spawn(server.run()), told }
    }

    async fn stop(self) {
        let Self { control, handle, serving, .. } = self;
        let mut events = control.events(control.last_event());
        handle.stop();
        assert_eq!(serving.await.unwrap().unwrap(), ServerExit::Stopped);
        while events.next().await.is_some() {}
    }

    async fn connect(&self) -> Connection {
        Connection::connect(self.at, &Options::default().user(1000, 1000, &[])).await.unwrap()
    }

    async fn root(&self) -> Handle {
        client::mount::mount(&self.connect().await, "/values").await.unwrap()
    }

    async fn locker(&self, machine: &str) -> Locker {
        Locker::new(self.connect().await, machine, 7)
    }

    /// Id, client's name, path, first byte and state of each lock.
    async fn locks(&self) -> Vec<(LockId, String, String, u64, LockState)> {
        let locks = self.control.locks(LockId(0), 1_000).await.unwrap();
        let row = |lock: lockkeeper::LockInfo| {
            assert_eq!((lock.mode, lock.owner), (Mode::Exclusive, 7));
            let path = String::from_utf8(lock.location.path.unwrap()).unwrap();
            (lock.id, lock.client_name.to_string(), path, lock.range.first(), lock.state)
        };
        locks.into_iter().map(row).collect()
    }
}

fn range(offset: u64, length: u64) -> Range {
    Range { offset, length }
}

#[tokio::test]
async fn a_program_keeps_values_and_locks_over_a_restart_and_lists_and_releases_them() {
    let home = tempfile::tempdir().unwrap();
    let program = Program::start(home.path()).await;
    let nfs = Nfs(program.connect().await);
    let root = program.root().await;
    let prefix = nfs.make_dir(&root, b"users", NewAttributes::default()).await.unwrap();
    let file = nfs.create(&prefix, b"alice", NewAttributes::default()).await.unwrap();
    let value = Bytes::from_static(b"42");
    nfs.write(&file, 0, value.clone(), Stability::Unstable).await.unwrap();

    let (alice, bob) = (program.locker("alice").await, program.locker("bob").await);
    assert_eq!(alice.lock(&file, range(0, 10)).await.unwrap(), Status::Granted);
    assert_eq!(bob.lock(&file, range(5, 0)).await.unwrap(), Status::Denied);
    assert_eq!(bob.lock(&file, range(20, 0)).await.unwrap(), Status::Granted);
    let listed = program.locks().await;
    let shown = |at: usize| (listed[at].1.as_str(), listed[at].2.as_str(), listed[at].3);
    assert_eq!(listed.len(), 2);
    assert_eq!((shown(0), shown(1)), (("alice", "users/alice", 0), ("bob", "users/alice", 20)));
    let clients = program.control.clients(ClientId(0), 10).await.unwrap();
    let names: Vec<_> = clients.iter().map(|it| (it.name.to_string(), it.locks)).collect();
    assert_eq!(names, [("alice".to_owned(), 1), ("bob".to_owned(), 1)]);
    assert!(clients.iter().all(|client| client.protocol == Protocol::NLM));

    // A page ends where it was told to, and the next one goes on there.
    let first = program.control.locks(LockId(0), 1).await.unwrap();
    let second = program.control.locks(first[0].id, 1).await.unwrap();
    assert_eq!((first[0].id, second[0].id), (listed[0].0, listed[1].0));

    // An operator releases alice's lock; bob can have it.
    let mut events = program.control.events(program.control.last_event());
    let released = listed[0].0;
    program.control.release(released, "the program").await.unwrap();
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(event.text.kind, "released");
    assert_eq!(event.text.by.as_ref().unwrap().to_string(), "the program");
    let again = program.control.release(released, "the program").await;
    assert_eq!(again, Err(ControlError::Refused(OperatorError::NoSuchLock)));
    assert_eq!(bob.lock(&file, range(0, 10)).await.unwrap(), Status::Granted);

    // The hook was told of all of this, in order.
    let told = program.told.lock().unwrap().clone();
    let held = program.locks().await;
    let last = held.last().unwrap().0;
    let granted = |event: &LockEvent| match event {
        LockEvent::Granted(lock) => lock.id,
        other => panic!("{other:?}"),
    };
    assert_eq!(told.len(), 4, "{told:?}");
    assert_eq!([granted(&told[0]), granted(&told[1])], [released, listed[1].0]);
    assert_eq!(told[2], LockEvent::Released(released));
    assert_eq!(granted(&told[3]), last);
    assert_eq!(program.control.grace().await.unwrap(), None);
    drop((alice, bob, nfs));
    program.stop().await;

    // After a restart the locks are there, and the values; bob reclaims one of two.
    let program = Program::start(home.path()).await;
    let grace = program.control.grace().await.unwrap().unwrap();
    assert_eq!(grace.missing, 2);
    let states = |rows: &[(LockId, String, String, u64, LockState)]| -> Vec<_> {
        rows.iter().map(|row| (row.0, row.4)).collect()
    };
    let recovered = program.locks().await;
    let unconfirmed = held.iter().map(|row| (row.0, LockState::Unconfirmed));
    assert_eq!(states(&recovered), unconfirmed.collect::<Vec<_>>());
    let bob = program.locker("bob").await;
    assert_eq!(bob.lock(&file, range(15, 1)).await.unwrap(), Status::DeniedGracePeriod);
    assert_eq!(bob.reclaim(&file, range(20, 0)).await.unwrap(), Status::Granted);
    let reclaimed: Vec<_> = program.locks().await.iter().map(|row| (row.3, row.4)).collect();
    assert_eq!(reclaimed, [(20, LockState::Held), (0, LockState::Unconfirmed)]);
    program.control.end_grace("the program").await.unwrap();
    assert_eq!(program.control.grace().await.unwrap(), None);
    let nfs = Nfs(program.connect().await);
    assert_eq!(nfs.read(&file, 0, 100).await.unwrap().data, value);
    drop((bob, nfs));
    program.stop().await;
}

/// The whole of a store that keeps what it is given for as long as the test runs.
#[derive(Clone, Default)]
struct OwnStore(Arc<Mutex<(Snapshot, Token)>>);

impl Store for OwnStore {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        Ok(self.0.lock().unwrap().0.clone())
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        let mut kept = self.0.lock().unwrap();
        changes.iter().for_each(|change| kept.0.apply(change.clone()));
        kept.1 = token;
        CommitOutcome::Done
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        Ok(self.0.lock().unwrap().1)
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        let mut kept = self.0.lock().unwrap();
        may_clear(&kept.0, force)?;
        kept.0 = cleared(&kept.0);
        Ok(())
    }
}

#[tokio::test]
async fn a_program_brings_a_store_of_its_own_and_its_lock_hook_may_panic() {
    let (home, store) = (tempfile::tempdir().unwrap(), OwnStore::default());
    let locks = LockConfig::new(Box::new(store.clone()))
        .with_lock_hook(|event| panic!("a defect of the program, at {event:?}"));
    let program = Program::with(home.path(), locks, Arc::default()).await;
    let nfs = Nfs(program.connect().await);
    let root = program.root().await;
    let file = nfs.create(&root, b"value", NewAttributes::default()).await.unwrap();
    let alice = program.locker("alice").await;
    assert_eq!(alice.lock(&file, range(0, 10)).await.unwrap(), Status::Granted);
    assert_eq!(alice.lock(&file, range(50, 10)).await.unwrap(), Status::Granted);
    assert_eq!(alice.unlock(&file, range(50, 10)).await.unwrap(), Status::Granted);
    let kept = store.0.lock().unwrap().0.clone();
    let lock = kept.locks.values().next().unwrap();
    assert_eq!((kept.locks.len(), lock.range.first(), lock.range.last()), (1, 0, 9));
    assert_eq!(kept.clients[&lock.owner.host].name.to_string(), "alice");
    drop((alice, nfs));
    program.stop().await;

    let locks = LockConfig::new(Box::new(store));
    let program = Program::with(home.path(), locks, Arc::default()).await;
    let recovered = program.locks().await;
    assert_eq!(recovered.len(), 1);
    assert_eq!((recovered[0].0, recovered[0].4), (lock.id, LockState::Unconfirmed));
    program.stop().await;
}
