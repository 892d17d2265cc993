//! The load generator against a scripted server: correct replies are counted, a wrong one fails the
//! run.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use client::Options;
use lockkeeper_load::{self as load, Bursts, LoadError, Operation, Session, Shape, Target, Timing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wire::mount::{MntReply, MountOk};
use wire::nfs3::*;
use wire::nlm;
use wire::record::{Limits, Next, Records, mark};
use wire::rpc::{Accepted, Call, write_accepted};
use wire::{Decode, Encode, Writer};

const TIMING: Timing =
    Timing { warm_up: Duration::from_millis(20), measured: Duration::from_millis(300) };

/// A server with files by name and locks by owner only, for NULL, LOOKUP, CREATE/REMOVE and
/// LOCK/UNLOCK.
#[derive(Default)]
struct Fake {
    /// LOOKUP returns STALE after this many calls.
    lookups_left: AtomicUsize,
    files_made: AtomicUsize,
    files_removed: AtomicUsize,
    /// Lock holders: machine name and svid.
    held: Mutex<HashSet<(Vec<u8>, i32)>>,
    locks_taken: AtomicUsize,
    /// The transaction id of every call.
    xids: Mutex<Vec<u32>>,
    /// The status to return instead of GRANTED.
    refuses_locks: Option<nlm::Status>,
}

impl Fake {
    async fn start(self) -> (Arc<Self>, Target) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at: SocketAddr = listener.local_addr().unwrap();
        let fake = Arc::new(self);
        let shared = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(shared.clone().serve(stream));
            }
        });
        let options = Options::default();
        let export = "/export".to_owned();
        (fake, Target { nfs: at, mount: at, nlm: Some(at), export, options })
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let limits = Limits { record_bytes_max: 2 << 20, fragments_max: 1 };
        let mut records = Records::new(limits);
        let mut received = BytesMut::new();
        loop {
            let mut replies = Vec::new();
            while let Next::Record(record) = records.next(&mut received).unwrap() {
                let reply = self.answer(&Call::parse(record).unwrap());
                replies.extend_from_slice(&mark(reply.len()).to_be_bytes());
                replies.extend_from_slice(&reply);
            }
            if stream.write_all(&replies).await.is_err()
                || stream.read_buf(&mut received).await.unwrap_or(0) == 0
            {
                return;
            }
        }
    }

    /// Fails the test on a second lock of an owner, or an unlock without a lock.
    fn lock(&self, procedure: u32, call: &Call) -> nlm::StatusReply {
        let mut held = self.held.lock().unwrap();
        let who = |lock: &nlm::Lock| (lock.caller_name.to_vec(), lock.svid);
        let cookie = match procedure {
            2 => {
                let args = nlm::LockArgs::from_bytes(call.args.clone()).unwrap();
                assert!(held.insert(who(&args.lock)) && !args.block && !args.reclaim, "{args:?}");
                self.locks_taken.fetch_add(1, Ordering::Relaxed);
                args.cookie
            }
            4 => {
                let args = nlm::UnlockArgs::from_bytes(call.args.clone()).unwrap();
                assert!(held.remove(&who(&args.lock)), "{args:?}");
                args.cookie
            }
            other => panic!("procedure {other} was not expected"),
        };
        nlm::StatusReply { cookie, status: self.refuses_locks.unwrap_or(nlm::Status::Granted) }
    }

    fn answer(&self, call: &Call) -> Vec<u8> {
        self.xids.lock().unwrap().push(call.xid);
        let mut out = Writer::new();
        write_accepted(&mut out, call.xid, Accepted::Success);
        let handle = Handle::from(&b"handle"[..]);
        match (call.program, call.procedure) {
            (wire::mount::PROGRAM, 1) => {
                MntReply(Ok(MountOk { root: handle, flavours: vec![1] })).encode(&mut out);
            }
            (_, 0) => {}
            (nlm::PROGRAM, procedure) => self.lock(procedure, call).encode(&mut out),
            (_, 3) => match self.lookups_left.fetch_sub(1, Ordering::Relaxed) {
                0 => LookupReply::Err(ErrorReply(Status::Stale, None)).encode(&mut out),
                _ => {
                    let found = LookupOk { object: handle, attributes: None, dir: None };
                    LookupReply::Ok(found).encode(&mut out);
                }
            },
            (_, 8 | 9) => {
                self.files_made.fetch_add(1, Ordering::Relaxed);
                let dir = Wcc::default();
                let created = CreateOk { object: Some(handle), attributes: None, dir };
                CreateReply::Ok(created).encode(&mut out);
            }
            (_, 12 | 13) => {
                self.files_removed.fetch_add(1, Ordering::Relaxed);
                WccReply::Ok(Wcc::default()).encode(&mut out);
            }
            other => panic!("{other:?} was not expected"),
        }
        out.finish().to_bytes().to_vec()
    }
}

#[tokio::test]
async fn what_is_answered_is_counted_once() {
    let (_, target) = Fake::default().start().await;
    let shape = Shape { connections: 2, depth: 4 };
    let mut session = Session::open(target, &[(Operation::Null, shape)]).await.unwrap();
    for shape in [shape, Shape::SINGLE, shape] {
        let found = load::run(&mut session, Operation::Null, shape, TIMING).await.unwrap();
        let counted = found.ops_per_second * TIMING.measured.as_secs_f64();
        assert!(counted >= 1.0 && counted <= found.answered as f64, "{found:?}");
        assert!(found.p50_us <= found.p99_us);
        assert!(found.p99_us <= 1e6 * TIMING.measured.as_secs_f64() * 2.0, "{found:?}");
    }
    session.close().await.unwrap();
}

/// A duplicate request cache would answer a repeated one without doing the work.
#[tokio::test]
async fn every_call_has_a_transaction_id_of_its_own() {
    let (fake, target) = Fake::default().start().await;
    let shape = Shape { connections: 2, depth: 4 };
    let operations = [Operation::Null, Operation::LockUnlock];
    let steps = operations.map(|operation| (operation, shape));
    let mut session = Session::open(target, &steps).await.unwrap();
    for (operation, shape) in steps {
        load::run(&mut session, operation, shape, TIMING).await.unwrap();
    }
    session.close().await.unwrap();
    let xids = fake.xids.lock().unwrap();
    let different: HashSet<u32> = xids.iter().copied().collect();
    assert!(xids.len() > 100);
    assert_eq!(different.len(), xids.len());
}

#[tokio::test]
async fn a_session_has_a_file_for_every_connection() {
    let (fake, target) = Fake::default().start().await;
    let wide = Shape { connections: 64, depth: 2 };
    let steps = [(Operation::Null, wide), (Operation::LockUnlock, Shape::SINGLE)];
    let mut session = Session::open(target, &steps).await.unwrap();
    assert_eq!(session.write_files.len(), 64);
    // And a directory, and the file that all read.
    assert_eq!(fake.files_made.load(Ordering::Relaxed), 64 + 2);
    load::run(&mut session, Operation::Null, wide, TIMING).await.unwrap();
    let failed = load::run(&mut session, Operation::LockUnlock, wide, TIMING).await;
    assert!(matches!(failed, Err(LoadError::Unconnected(_))), "{failed:?}");
}

#[tokio::test]
async fn one_wrong_status_fails_the_run() {
    let fake = Fake { lookups_left: AtomicUsize::new(100), ..Fake::default() };
    let (_, target) = fake.start().await;
    let mut session = Session::open(target, &[(Operation::Lookup, Shape::SINGLE)]).await.unwrap();
    let failed = load::run(&mut session, Operation::Lookup, Shape::SINGLE, TIMING).await;
    assert!(matches!(failed, Err(LoadError::Status(Operation::Lookup, 70))), "{failed:?}");
}

#[tokio::test]
async fn every_file_that_is_made_is_removed() {
    let (fake, target) = Fake::default().start().await;
    let shape = Shape { connections: 2, depth: 3 };
    let mut session = Session::open(target, &[(Operation::CreateRemove, shape)]).await.unwrap();
    let before = fake.files_made.load(Ordering::Relaxed);
    load::run(&mut session, Operation::CreateRemove, shape, TIMING).await.unwrap();
    let made = fake.files_made.load(Ordering::Relaxed) - before;
    assert!(made > 0);
    assert_eq!(fake.files_removed.load(Ordering::Relaxed), made);
}

#[tokio::test]
async fn every_slot_locks_and_unlocks_its_own_and_leaves_nothing_locked() {
    let (fake, target) = Fake::default().start().await;
    let shape = Shape { connections: 2, depth: 3 };
    let mut session = Session::open(target, &[(Operation::LockUnlock, shape)]).await.unwrap();
    for shape in [shape, Shape::SINGLE, shape] {
        load::run(&mut session, Operation::LockUnlock, shape, TIMING).await.unwrap();
        assert!(fake.locks_taken.swap(0, Ordering::Relaxed) >= shape.connections * shape.depth);
        assert_eq!(*fake.held.lock().unwrap(), HashSet::new());
    }
}

#[tokio::test]
async fn bursts_are_exactly_the_calls_asked_for() {
    let (fake, target) = Fake::default().start().await;
    let shape = Shape { connections: 1, depth: 3 };
    let mut session = Session::open(target, &[(Operation::LockUnlock, shape)]).await.unwrap();
    let bursts = |count| Bursts { count, size: 3, pause: Duration::ZERO };
    for (count, taken, held) in [(4, 6, 0), (1, 3, 3)] {
        bursts(count).run(&mut session, Operation::LockUnlock).await.unwrap();
        assert_eq!(fake.locks_taken.swap(0, Ordering::Relaxed), taken, "{count}");
        assert_eq!(fake.held.lock().unwrap().len(), held, "{count}");
    }
    // Locks left by an odd number of bursts are released with the session.
    session.close().await.unwrap();
    assert_eq!(*fake.held.lock().unwrap(), HashSet::new());
}

#[tokio::test]
async fn one_wrong_status_fails_the_bursts() {
    let fake = Fake { lookups_left: AtomicUsize::new(4), ..Fake::default() };
    let (_, target) = fake.start().await;
    let shape = Shape { connections: 1, depth: 3 };
    let mut session = Session::open(target, &[(Operation::Lookup, shape)]).await.unwrap();
    let bursts = Bursts { count: 2, size: 3, pause: Duration::ZERO };
    let failed = bursts.run(&mut session, Operation::Lookup).await;
    assert!(matches!(failed, Err(LoadError::Status(Operation::Lookup, 70))), "{failed:?}");
}

#[tokio::test]
async fn a_lock_that_is_not_granted_fails_the_run() {
    let refuses_locks = Some(nlm::Status::DeniedNoLocks);
    let (_, target) = Fake { refuses_locks, ..Fake::default() }.start().await;
    let mut session =
        Session::open(target, &[(Operation::LockUnlock, Shape::SINGLE)]).await.unwrap();
    let failed = load::run(&mut session, Operation::LockUnlock, Shape::SINGLE, TIMING).await;
    assert!(matches!(failed, Err(LoadError::Status(Operation::LockUnlock, 2))), "{failed:?}");
}

#[tokio::test]
async fn without_a_lock_manager_all_but_locks_can_be_measured() {
    let (_, target) = Fake::default().start().await;
    let target = Target { nlm: None, ..target };
    let steps =
        [Operation::Null, Operation::LockUnlock].map(|operation| (operation, Shape::SINGLE));
    let mut session = Session::open(target, &steps).await.unwrap();
    let failed = load::run(&mut session, Operation::LockUnlock, Shape::SINGLE, TIMING).await;
    assert!(matches!(failed, Err(LoadError::Unconnected(Operation::LockUnlock))), "{failed:?}");
    load::run(&mut session, Operation::Null, Shape::SINGLE, TIMING).await.unwrap();
}
