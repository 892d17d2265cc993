//! What every store must do, whatever it is made of. A store's tests call `check` and nothing else:
//! a behaviour that only one store has is a behaviour that the keeper must not rely on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use keeper::bytes::{FileKey, Name, OwnerTag};
use keeper::change::{Change, Client, Lock, Protocol, Reboot, Registrant, Share, Snapshot};
use keeper::identity::{ClientId, Epoch, Incarnation, Lane, LockId, Owner, ShareId, Transport};
use keeper::range::Range;
use keeper::request::{Access, Callback, Mode};

use crate::error::StoreError;
use crate::store::{Committed, Store, Token};

/// What was expected and did not happen, as a sentence.
#[derive(Debug)]
pub struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Self {
        Broken(format!("the store failed: {error}"))
    }
}

/// Runs the whole suite. `fresh` gives an empty store; `reopen` ends the process that has it open,
/// as far as the store can tell, and opens it again.
pub fn check<S: Store>(fresh: impl Fn() -> S, reopen: impl Fn(S) -> S) -> Result<(), Broken> {
    an_empty_store_is_exact_and_knows_nothing(fresh())?;
    every_change_comes_back(fresh(), &reopen)?;
    a_token_names_the_last_batch(fresh(), &reopen)?;
    a_big_batch_is_one_batch(fresh(), &reopen)?;
    any_sequence_of_batches_comes_back(fresh(), &reopen)?;
    clearing_is_refused_while_locks_are_held(fresh())?;
    clearing_keeps_the_epoch_and_the_ids(fresh(), &reopen)
}

fn an_empty_store_is_exact_and_knows_nothing(mut store: impl Store) -> Result<(), Broken> {
    same("an empty store", &store.load()?, &Snapshot::default())?;
    holds(store.last_token()? == Token(0), "an empty store has no token yet")
}

fn every_change_comes_back<S: Store>(store: S, reopen: &impl Fn(S) -> S) -> Result<(), Broken> {
    let mut pair = Pair::new(store);
    let steps: [&[Change]; 4] = [
        &[Change::Started { epoch: Epoch(7), grace: true }, Change::IdsBelow(1000)],
        &[client(1), client(2), lock(10, 1), lock(11, 2), share(12, 2)],
        &[Change::LockGone(LockId(10)), Change::ShareGone(ShareId(12)), lock(13, 1)],
        &[Change::ClientGone(ClientId(2)), Change::LockGone(LockId(11)), Change::GraceEnded],
    ];
    for changes in steps {
        pair.commit(changes)?;
        pair.compare("after a batch")?;
    }
    pair = pair.reopen(reopen)?;
    pair.commit(&[Change::Stopped])?;
    pair = pair.reopen(reopen)?;
    pair.commit(&[Change::Started { epoch: Epoch(8), grace: false }])?;
    pair.reopen(reopen).map(|_| ())
}

fn a_token_names_the_last_batch<S: Store>(
    store: S,
    reopen: &impl Fn(S) -> S,
) -> Result<(), Broken> {
    let mut pair = Pair::new(store);
    for _ in 0..3 {
        pair.commit(&[Change::IdsBelow(5)])?;
        holds(pair.store.last_token()? == pair.token, "the last token is that of the last batch")?;
    }
    pair = pair.reopen(reopen)?;
    holds(pair.store.last_token()? == pair.token, "the last token outlives a restart")?;
    pair.commit(&[])?;
    holds(pair.store.last_token()? == pair.token, "an empty batch has a token, too")
}

fn a_big_batch_is_one_batch<S: Store>(store: S, reopen: &impl Fn(S) -> S) -> Result<(), Broken> {
    let mut pair = Pair::new(store);
    let many: Vec<Change> = (0..20_000).map(|id| lock(id, id % 50)).collect();
    pair.commit(&many)?;
    pair.compare("after 20,000 locks in one batch")?;
    let gone: Vec<Change> = (0..20_000).map(|id| Change::LockGone(LockId(id))).collect();
    pair.commit(&gone)?;
    pair.reopen(reopen).map(|_| ())
}

/// Batches drawn by a small generator: ids come, change and go in every order.
fn any_sequence_of_batches_comes_back<S: Store>(
    store: S,
    reopen: &impl Fn(S) -> S,
) -> Result<(), Broken> {
    let mut pair = Pair::new(store);
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
        pair.commit(&changes)?;
        if round % 20 == 0 {
            pair = pair.reopen(reopen)?;
        }
    }
    pair.reopen(reopen).map(|_| ())
}

fn clearing_is_refused_while_locks_are_held(store: impl Store) -> Result<(), Broken> {
    let mut pair = Pair::new(store);
    pair.commit(&[client(1), lock(10, 1), share(11, 1)])?;
    holds(
        matches!(pair.store.clear(false), Err(StoreError::LocksHeld(2))),
        "clearing is refused, with the number of locks and shares, while they are held",
    )?;
    pair.compare("after a refused clearing")?;
    pair.store.clear(true)?;
    holds(pair.store.load()?.locks.is_empty(), "a forced clearing clears")
}

fn clearing_keeps_the_epoch_and_the_ids<S: Store>(
    store: S,
    reopen: &impl Fn(S) -> S,
) -> Result<(), Broken> {
    let mut pair = Pair::new(store);
    pair.commit(&[Change::Started { epoch: Epoch(9), grace: false }, Change::IdsBelow(77)])?;
    pair.commit(&[client(1)])?;
    pair.store.clear(false)?;
    pair.expected = Snapshot { epoch: Epoch(9), ids_below: 77, ..Snapshot::default() };
    pair.compare("after clearing")?;
    pair = pair.reopen(reopen)?;
    holds(pair.store.last_token()? == pair.token, "clearing keeps the token")?;
    pair.commit(&[client(2), lock(80, 2)])?;
    pair.reopen(reopen).map(|_| ())
}

/// A store beside what it should contain.
struct Pair<S> {
    store: S,
    expected: Snapshot,
    token: Token,
}

impl<S: Store> Pair<S> {
    fn new(store: S) -> Self {
        Self { store, expected: Snapshot::default(), token: Token(0) }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), Broken> {
        self.token.0 += 1;
        match self.store.commit(changes, self.token) {
            Committed::Done => {}
            Committed::NotWritten(error) | Committed::Unknown(error) => return Err(error.into()),
        }
        for change in changes {
            self.expected.apply(change.clone());
        }
        Ok(())
    }

    fn reopen(self, reopen: &impl Fn(S) -> S) -> Result<Self, Broken> {
        let mut again = Self { store: reopen(self.store), ..self };
        again.compare("after a restart")?;
        Ok(again)
    }

    fn compare(&mut self, when: &str) -> Result<(), Broken> {
        same(when, &self.store.load()?, &self.expected)
    }
}

fn same(when: &str, found: &Snapshot, expected: &Snapshot) -> Result<(), Broken> {
    if found == expected {
        return Ok(());
    }
    Err(Broken(format!("{when}: load gave {found:?}, expected {expected:?}")))
}

fn holds(truth: bool, sentence: &str) -> Result<(), Broken> {
    if truth { Ok(()) } else { Err(Broken(format!("this does not hold: {sentence}"))) }
}

fn address(host: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, host as u8))
}

/// A row that has everything that a row of its kind can have, for this id.
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
        protocol: if registrant.is_some() { Protocol::Nsm } else { Protocol::Nlm },
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
        lane: Lane::new(address(200), Transport::Udp, 4),
        number: u32::MAX,
        tag: OwnerTag::new(&[0, 255, b'@']),
    })
}

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

/// The batch with this number, whoever asks.
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
