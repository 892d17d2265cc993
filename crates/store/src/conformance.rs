//! The test suite for every [`Store`], and the rows that its tests use. Only what [`check`] tests is
//! common to all stores, so the engine relies on nothing else in normal operation.
//!
//! The suite cannot make a store fail. What the contract says about failures each store tests by
//! itself, where the failure can be produced:
//!
//! | property | embedded | PostgreSQL |
//! |---|---|---|
//! | no acknowledged batch is lost in a crash, none is half applied | `embedded/tests/crashes.rs`, `tests/kills.rs` | `tests/postgres/faults.rs` |
//! | `Unknown` is settled by `last_token`; commits are refused before | `embedded/tests.rs` | `tests/postgres/late_statements.rs` |
//! | locks that may be missing make the snapshot a roster, until grace has ended | `embedded/tests.rs` | `tests/postgres/faults.rs` |
//! | one writer (I12) | `embedded/tests.rs` | `tests/postgres/{leadership,paused}.rs` |
//! | damage and newer formats are errors | `embedded/tests/damage.rs`, `tests/versions` | `tests/postgres/conformance.rs`, `tests/versions` |
//! | a full disk is `NotWritten`, and passes | `tests/full.rs` | `tests/postgres/full.rs` |
//! | `is_quick` only for batches that wait for nothing | `embedded/tests.rs` | never quick |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use keeper::bytes::{FileKey, Name, OwnerTag};
use keeper::change::{
    Change, Client, Exactness, Lock, Protocol, Reboot, Registrant, Share, Snapshot,
};
use keeper::identity::{
    ClientId, Epoch, Incarnation, LockId, Owner, OwnerNamespace, ShareId, Transport,
};
use keeper::range::Range;
use keeper::request::{Access, Callback, Mode};

use crate::error::StoreError;
use crate::store::{CommitOutcome, Store, Token};

/// The expectation that a store did not meet, as a sentence.
#[derive(Debug)]
pub struct Nonconformance(String);

impl fmt::Display for Nonconformance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<StoreError> for Nonconformance {
    fn from(error: StoreError) -> Self {
        Nonconformance(format!("the store failed: {error}"))
    }
}

/// Runs the whole suite. `fresh` returns a new, empty store; `reopen` closes a store as the end of
/// its process would, and opens it again.
pub fn check<S: Store>(
    fresh: impl Fn() -> S,
    reopen: impl Fn(S) -> S,
) -> Result<(), Nonconformance> {
    a_new_store_is_empty_and_exact(fresh())?;
    every_change_comes_back(fresh(), &reopen)?;
    a_token_names_the_last_batch(fresh(), &reopen)?;
    a_big_batch_is_one_batch(fresh(), &reopen)?;
    any_sequence_of_batches_comes_back(fresh(), &reopen)?;
    clearing_is_refused_while_locks_are_held(fresh())?;
    clearing_keeps_the_epoch_and_the_ids(fresh(), &reopen)
}

fn a_new_store_is_empty_and_exact(mut store: impl Store) -> Result<(), Nonconformance> {
    same("an empty store", &store.load()?, &Snapshot::default())?;
    holds(store.last_token()? == Token(0), "the token of an empty store is 0")
}

fn every_change_comes_back<S: Store>(
    store: S,
    reopen: &impl Fn(S) -> S,
) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::new(store);
    let steps: [&[Change]; 4] = [
        &[
            Change::Started { epoch: Epoch(7), grace: Some(Exactness::Exact) },
            Change::IdsBelow(1000),
        ],
        &[client(1), client(2), lock(10, 1), lock(11, 2), share(12, 2)],
        &[Change::LockGone(LockId(10)), Change::ShareGone(ShareId(12)), lock(13, 1)],
        &[Change::ClientGone(ClientId(2)), Change::LockGone(LockId(11)), Change::GraceEnded],
    ];
    for changes in steps {
        checked.commit(changes)?;
        checked.compare("after a batch")?;
    }
    checked = checked.reopen(reopen)?;
    checked.commit(&[Change::Stopped])?;
    checked = checked.reopen(reopen)?;
    checked.commit(&[Change::Started { epoch: Epoch(8), grace: None }])?;
    checked.reopen(reopen).map(|_| ())
}

fn a_token_names_the_last_batch<S: Store>(
    store: S,
    reopen: &impl Fn(S) -> S,
) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::new(store);
    for _ in 0..3 {
        checked.commit(&[Change::IdsBelow(5)])?;
        holds(
            checked.store.last_token()? == checked.token,
            "the last token is that of the last batch",
        )?;
    }
    checked = checked.reopen(reopen)?;
    holds(checked.store.last_token()? == checked.token, "the last token outlives a restart")?;
    checked.commit(&[])?;
    holds(checked.store.last_token()? == checked.token, "an empty batch has a token")
}

fn a_big_batch_is_one_batch<S: Store>(
    store: S,
    reopen: &impl Fn(S) -> S,
) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::new(store);
    let many: Vec<Change> = (0..20_000).map(|id| lock(id, id % 50)).collect();
    checked.commit(&many)?;
    checked.compare("after 20,000 locks in one batch")?;
    let gone: Vec<Change> = (0..20_000).map(|id| Change::LockGone(LockId(id))).collect();
    checked.commit(&gone)?;
    checked.reopen(reopen).map(|_| ())
}

/// Pseudo-random batches that add, change and remove rows in every order.
fn any_sequence_of_batches_comes_back<S: Store>(
    store: S,
    reopen: &impl Fn(S) -> S,
) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::new(store);
    let mut random = 1u64;
    let mut draw = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    for round in 0..200 {
        let size = draw(12);
        let changes: Vec<Change> = (0..size)
            .map(|_| match draw(8) {
                0 => client(draw(6)),
                1 => Change::ClientGone(ClientId(draw(6))),
                2 | 3 => lock(draw(40), draw(6)),
                4 => Change::LockGone(LockId(draw(40))),
                5 => share(draw(20), draw(6)),
                6 => Change::ShareGone(ShareId(draw(20))),
                _ => Change::IdsBelow(1000 + draw(1000)),
            })
            .collect();
        checked.commit(&changes)?;
        if round % 20 == 0 {
            checked = checked.reopen(reopen)?;
        }
    }
    checked.reopen(reopen).map(|_| ())
}

fn clearing_is_refused_while_locks_are_held(store: impl Store) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::new(store);
    checked.commit(&[client(1), lock(10, 1), share(11, 1)])?;
    holds(
        matches!(checked.store.clear(false), Err(StoreError::LocksHeld(2))),
        "clearing is refused, with the number of locks and shares, while they are held",
    )?;
    checked.compare("after a refused clearing")?;
    checked.store.clear(true)?;
    holds(checked.store.load()?.locks.is_empty(), "a forced clearing clears")
}

fn clearing_keeps_the_epoch_and_the_ids<S: Store>(
    store: S,
    reopen: &impl Fn(S) -> S,
) -> Result<(), Nonconformance> {
    let mut checked = StoreAndModel::new(store);
    checked.commit(&[Change::Started { epoch: Epoch(9), grace: None }, Change::IdsBelow(77)])?;
    checked.commit(&[client(1)])?;
    checked.store.clear(false)?;
    checked.expected = Snapshot { epoch: Epoch(9), ids_below: 77, ..Snapshot::default() };
    checked.compare("after clearing")?;
    checked = checked.reopen(reopen)?;
    holds(checked.store.last_token()? == checked.token, "clearing keeps the token")?;
    checked.commit(&[client(2), lock(80, 2)])?;
    checked.reopen(reopen).map(|_| ())
}

/// A store and a model of what it should contain.
struct StoreAndModel<S> {
    store: S,
    expected: Snapshot,
    token: Token,
}

impl<S: Store> StoreAndModel<S> {
    fn new(store: S) -> Self {
        Self { store, expected: Snapshot::default(), token: Token(0) }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), Nonconformance> {
        self.token.0 += 1;
        match self.store.commit(changes, self.token) {
            CommitOutcome::Done => {}
            CommitOutcome::NotWritten(error) | CommitOutcome::Unknown(error) => {
                return Err(error.into());
            }
        }
        for change in changes {
            self.expected.apply(change.clone());
        }
        Ok(())
    }

    fn reopen(self, reopen: &impl Fn(S) -> S) -> Result<Self, Nonconformance> {
        let mut again = Self { store: reopen(self.store), ..self };
        again.compare("after a restart")?;
        Ok(again)
    }

    fn compare(&mut self, when: &str) -> Result<(), Nonconformance> {
        same(when, &self.store.load()?, &self.expected)
    }
}

fn same(when: &str, found: &Snapshot, expected: &Snapshot) -> Result<(), Nonconformance> {
    if found == expected {
        return Ok(());
    }
    Err(Nonconformance(format!("{when}: load gave {found:?}, expected {expected:?}")))
}

fn holds(truth: bool, sentence: &str) -> Result<(), Nonconformance> {
    if truth { Ok(()) } else { Err(Nonconformance(format!("this does not hold: {sentence}"))) }
}

fn address(host: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, host as u8))
}

/// A client with this id; over all ids, every field takes every form.
pub fn client(id: u64) -> Change {
    let registrant = (id.is_multiple_of(2)).then(|| Registrant {
        callback: Callback {
            name: Name::from("watcher"),
            program: 100_021,
            version: 4,
            procedure: 16,
        },
        watched: Name::new(b"\0odd\xffname"),
        private: [id as u8; 16],
    });
    Change::Client(Arc::new(Client {
        id: ClientId(id),
        protocol: match id % 4 {
            0 | 2 => Protocol::NSM,
            3 => Protocol::new("lease").unwrap_or(Protocol::NLM),
            _ => Protocol::NLM,
        },
        address: address(id),
        name: Name::from("alice.example.com"),
        incarnation: Incarnation(u32::MAX),
        reboot: (id.is_multiple_of(3)).then_some(Reboot {
            from: Incarnation(1),
            to: Incarnation(u32::MAX),
            before: LockId(id),
        }),
        monitored: !id.is_multiple_of(5),
        fenced: id.is_multiple_of(4),
        used: vec![address(200), "2001:db8::1".parse().unwrap_or(address(201))],
        registered_at_ms: u64::MAX,
        epoch: Epoch(3),
        registrant,
    }))
}

fn owner(host: u64) -> Arc<Owner> {
    Arc::new(Owner {
        host: ClientId(host),
        namespace: OwnerNamespace::new(address(200), Transport::Udp, 4),
        number: u32::MAX,
        tag: OwnerTag::new(&[0, 255, b'@']),
    })
}

/// A lock with this id and host; over all ids, every field takes every form.
pub fn lock(id: u64, host: u64) -> Change {
    let range = Range::between(id, if id.is_multiple_of(2) { u64::MAX } else { id + 9 });
    Change::Lock(Lock {
        id: LockId(id),
        file: FileKey::new(&id.to_be_bytes()),
        owner: owner(host),
        range: range.unwrap_or(Range::ALL),
        mode: if id.is_multiple_of(3) { Mode::Shared } else { Mode::Exclusive },
        incarnation: Incarnation(id as u32),
        monitored: !id.is_multiple_of(7),
        since_ms: id,
    })
}

/// A share reservation with this id and host.
pub fn share(id: u64, host: u64) -> Change {
    Change::Share(Share {
        id: ShareId(id),
        file: FileKey::new(b""),
        owner: owner(host),
        access: Access { read: true, write: id.is_multiple_of(2) },
        deny: Access { read: false, write: true },
        incarnation: Incarnation::UNKNOWN,
        since_ms: 0,
    })
}

/// A pseudo-random batch that depends on `number` only.
pub fn batch(number: u64) -> Vec<Change> {
    let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let size = draw(6) + 1;
    let one = |draw: &mut dyn FnMut(u64) -> u64| match draw(40) {
        0 => client(draw(20)),
        1 => Change::ClientGone(ClientId(draw(20))),
        2 => Change::IdsBelow(number),
        3 => share(draw(20), 1),
        4..20 => Change::LockGone(LockId(draw(300))),
        _ => lock(draw(300), draw(20)),
    };
    (0..size).map(|_| one(&mut draw)).collect()
}
