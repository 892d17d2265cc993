//! The duplicate request cache: one request, one effect (I8, R3.8).
//!
//! A client that hears nothing asks again with the same transaction id, perhaps over a new
//! connection. A REMOVE that was done must not answer NOENT the second time, and one that is still
//! being done must not be started twice. Only calls that change something are entered, when they
//! start; a call that ends without a reply is removed, so that its repetition is a new call.
//!
//! Who can make the cache forget: a TCP connection keeps its last calls until two minutes after its
//! end, and an address its datagrams for two minutes, each up to a bound of its own. When all of them
//! reach theirs, old entries go first, then a connection gives up its own; rather than a young entry
//! of another peer, the new call is dropped. No I/O and no clock, so that the simulator runs exactly
//! this.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use crate::transport::Transport;

/// Longer than any client goes on repeating one request.
pub const AGE_MAX: Duration = Duration::from_secs(120);
/// When there is no room, only entries older than this make some: a client has repeated by then.
pub const AGE_MIN: Duration = Duration::from_secs(30);
/// A connection does not give up its own entries below this: its client may not have read so many
/// replies yet.
const SHARE_MIN: usize = 16;
/// What is younger than this when its host is found to have rebooted may be of the new kernel: the
/// news can be late.
const FRESH: Duration = Duration::from_secs(10);
/// A peer that repeats a request over ever new connections gets the reply on this many, the newest.
const WAITING_MAX: usize = 8;

/// What makes two calls one: everything but the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub from: IpAddr,
    pub transport: Transport,
    /// What root of a machine asked is not answered to its users.
    pub reserved_port: bool,
    pub xid: u32,
    /// Program, version, procedure.
    pub procedure: (u32, u32, u32),
    /// Of the call with its credential.
    pub checksum: u64,
    /// A hash of the name that the caller gives itself, if the call has one.
    pub name: u64,
}

impl Hash for Key {
    /// The checksum covers the rest.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.checksum);
    }
}

/// The checksum is a keyed hash itself: peers cannot choose where their calls go.
#[derive(Default)]
struct Checksum(u64);

impl Hasher for Checksum {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, checksum: u64) {
        self.0 = checksum;
    }
}

/// Whose share of the cache a call counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    Connection(u64),
    /// Datagrams of an address.
    Address(IpAddr),
}

#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Entries of one connection, and of the datagrams of one address.
    pub per_origin: usize,
    pub entries: usize,
    pub bytes: usize,
}

/// What is to be done with a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun<R> {
    /// Seen for the first time: do it, then call [`DuplicateCache::answered`].
    New,
    /// Done before: send this again.
    Again(R),
    /// Being done: its reply will be sent here too.
    InProgress,
    /// There is no room to remember it: drop it.
    Full,
}

/// Remembers calls; `W` waits for a reply `R`.
pub struct DuplicateCache<W, R> {
    bounds: Bounds,
    entries: Entries<W, R>,
    /// Those that came as datagrams.
    datagrams: Line,
    origins: HashMap<Origin, Share>,
    /// Connections that have ended, in order, and when their entries go.
    ended: VecDeque<(Duration, Origin)>,
    serial: u64,
    bytes: usize,
    /// No entry is old enough to make room before this.
    none_old_before: Duration,
    /// What made room last, to be dropped without the lock of the cache.
    evicted: Option<Entry<W, R>>,
}

type Entries<W, R> = HashMap<Key, Entry<W, R>, BuildHasherDefault<Checksum>>;

struct Entry<W, R> {
    serial: u64,
    origin: Origin,
    entered: Duration,
    /// When it was last asked for or answered.
    active: Duration,
    state: State<W, R>,
}

/// Who waits for a reply: mostly one.
pub struct Waiting<W> {
    first: Option<W>,
    others: Vec<W>,
}

impl<W> Waiting<W> {
    const NONE: Self = Self { first: None, others: Vec::new() };

    fn one(first: W) -> Self {
        Self { first: Some(first), others: Vec::new() }
    }

    /// Beyond the bound the oldest goes: its connection is gone.
    fn add(&mut self, new: W, same: impl Fn(&W, &W) -> bool) {
        if self.first.iter().chain(&self.others).any(|one| same(one, &new)) {
            return;
        }
        if self.others.len() + 1 == WAITING_MAX {
            self.first = Some(self.others.remove(0));
        }
        self.others.push(new);
    }
}

impl<W> IntoIterator for Waiting<W> {
    type Item = W;
    type IntoIter = std::iter::Chain<std::option::IntoIter<W>, std::vec::IntoIter<W>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.others)
    }
}

enum State<W, R> {
    /// Being done; the reply goes to all that wait.
    InProgress(Waiting<W>),
    Answered {
        reply: R,
        bytes: usize,
    },
}

/// The entries of one origin.
#[derive(Default)]
struct Share {
    keys: Line,
    count: usize,
}

/// Entries in the order in which they were entered, with their serial numbers: a key that is gone, or
/// was entered anew, is skipped.
type Line = VecDeque<(Key, u64)>;

impl<W, R: Clone> DuplicateCache<W, R> {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            entries: Entries::default(),
            datagrams: Line::new(),
            origins: HashMap::new(),
            ended: VecDeque::new(),
            serial: 0,
            bytes: 0,
            none_old_before: Duration::ZERO,
            evicted: None,
        }
    }

    /// What made room for the last call: dropping it takes time.
    pub fn take_evicted(&mut self) -> Option<impl Sized + use<W, R>> {
        self.evicted.take()
    }

    /// `same` tells whether two that wait are one.
    pub fn begin(
        &mut self,
        key: Key,
        origin: Origin,
        waiting: W,
        now: Duration,
        same: impl Fn(&W, &W) -> bool,
    ) -> Begun<R> {
        self.expire(now);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.active = now;
            return match &mut entry.state {
                State::Answered { reply, .. } => Begun::Again(reply.clone()),
                State::InProgress(known) => {
                    known.add(waiting, same);
                    Begun::InProgress
                }
            };
        }
        if !self.make_room(origin, now) {
            return Begun::Full;
        }
        self.serial += 1;
        let serial = self.serial;
        let state = State::InProgress(Waiting::one(waiting));
        self.entries.insert(key, Entry { serial, origin, entered: now, active: now, state });
        if let Origin::Address(_) = origin {
            append(&mut self.datagrams, (key, serial), &self.entries, self.entries.len());
        }
        let share = self.origins.entry(origin).or_default();
        share.count += 1;
        append(&mut share.keys, (key, serial), &self.entries, share.count);
        Begun::New
    }

    /// Keeps the reply and says who waits for it.
    pub fn answered(&mut self, key: &Key, reply: R, bytes: usize, now: Duration) -> Waiting<W> {
        let Some(entry) = self.entries.get_mut(key) else { return Waiting::NONE };
        entry.active = now;
        let before = std::mem::replace(&mut entry.state, State::Answered { reply, bytes });
        self.bytes += bytes;
        match before {
            State::InProgress(waiting) => waiting,
            State::Answered { bytes, .. } => {
                self.bytes -= bytes;
                Waiting::NONE
            }
        }
    }

    /// The call was not done, or is not to be answered: a repetition is a new call. Says who waits,
    /// in case they are told so.
    pub fn abandoned(&mut self, key: &Key) -> Waiting<W> {
        match self.remove(key).map(|entry| entry.state) {
            Some(State::InProgress(waiting)) => waiting,
            _ => Waiting::NONE,
        }
    }

    /// A connection ended. Its client may repeat what it asked over the next one.
    pub fn connection_ended(&mut self, connection: u64, now: Duration) {
        let origin = Origin::Connection(connection);
        if self.origins.contains_key(&origin) {
            self.ended.push_back((now + AGE_MAX, origin));
        }
        self.expire(now);
    }

    /// A rebooted host may count its transaction ids from anywhere (R3.8). What is only seconds
    /// old, or being done, may be of its new life and stays.
    pub fn forget(&mut self, of_host: impl Fn(&Key) -> bool, now: Duration) {
        let gone = |(key, entry): (&Key, &Entry<W, R>)| {
            let old = entry.active + FRESH <= now;
            let answered = matches!(entry.state, State::Answered { .. });
            (answered && old && of_host(key)).then_some(*key)
        };
        let gone: Vec<Key> = self.entries.iter().filter_map(gone).collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// Room for one more entry, in the share of its origin and in all.
    fn make_room(&mut self, origin: Origin, now: Duration) -> bool {
        while self.origins.get(&origin).is_some_and(|share| share.count >= self.bounds.per_origin) {
            // A connection forgets its own oldest call, whatever its age: its client has waited for
            // fewer replies. What comes without a connection can be forged, so it must be old.
            let oldest = self.oldest_of(origin);
            let Some(key) = oldest.filter(|key| {
                matches!(origin, Origin::Connection(_)) || self.is_older(key, AGE_MIN, now)
            }) else {
                return false;
            };
            self.evicted = self.remove(&key);
        }
        while self.entries.len() >= self.bounds.entries || self.bytes > self.bounds.bytes {
            let Some(key) = self.old(now).or_else(|| self.own(origin)) else { return false };
            self.evicted = self.remove(&key);
        }
        true
    }

    /// The oldest entry that is answered, if it is old enough to make room.
    fn old(&mut self, now: Duration) -> Option<Key> {
        if now < self.none_old_before {
            return None;
        }
        let entries = &self.entries;
        let firsts = self.origins.values_mut().filter_map(|share| {
            let key = first_answered(&mut share.keys, entries)?;
            entries.get(&key).map(|entry| (entry, key))
        });
        let (oldest, key) = firsts.min_by_key(|(entry, _)| entry.serial)?;
        self.none_old_before = oldest.entered + AGE_MIN;
        (self.none_old_before <= now).then_some(key)
    }

    fn oldest_of(&mut self, origin: Origin) -> Option<Key> {
        let entries = &self.entries;
        first_answered(&mut self.origins.get_mut(&origin)?.keys, entries)
    }

    /// What a connection gives up for its next call.
    fn own(&mut self, origin: Origin) -> Option<Key> {
        let share = self.origins.get(&origin)?.count;
        let gives_up = matches!(origin, Origin::Connection(_)) && share > SHARE_MIN;
        if gives_up { self.oldest_of(origin) } else { None }
    }

    fn is_older(&self, key: &Key, age: Duration, now: Duration) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.entered + age <= now)
    }

    /// Forgets what is too old: datagrams by their age, connections by the time since their end.
    fn expire(&mut self, now: Duration) {
        while let Some((due, origin)) = self.ended.front()
            && *due <= now
        {
            let origin = *origin;
            self.ended.pop_front();
            while let Some(key) = self.oldest_of(origin) {
                self.remove(&key);
            }
            // What is still being done must not be started again: it goes later.
            if self.origins.contains_key(&origin) {
                self.ended.push_back((now + AGE_MAX, origin));
            }
        }
        for _ in 0..self.datagrams.len() {
            let Some((key, serial)) = self.datagrams.front().copied() else { return };
            match self.entries.get(&key).filter(|entry| entry.serial == serial) {
                Some(entry) if entry.entered + AGE_MAX > now => return,
                Some(Entry { state: State::InProgress(_), .. }) => {
                    self.datagrams.push_back((key, serial));
                }
                Some(_) => drop(self.remove(&key)),
                None => {}
            }
            self.datagrams.pop_front();
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Entry<W, R>> {
        let entry = self.entries.remove(key)?;
        if let State::Answered { bytes, .. } = entry.state {
            self.bytes -= bytes;
        }
        if let Some(share) = self.origins.get_mut(&entry.origin) {
            share.count -= 1;
            if share.count == 0 {
                self.origins.remove(&entry.origin);
            }
        }
        Some(entry)
    }
}

/// Adds an entry, and drops those that are gone when they are more than the `live` ones.
fn append<W, R>(line: &mut Line, entry: (Key, u64), entries: &Entries<W, R>, live: usize) {
    line.push_back(entry);
    if line.len() > 2 * live + 64 {
        line.retain(|(key, serial)| entries.get(key).is_some_and(|e| e.serial == *serial));
    }
}

/// The first of these that is there and answered. Those that are gone are dropped on the way; those
/// that are being done go to the back.
fn first_answered<W, R>(keys: &mut Line, entries: &Entries<W, R>) -> Option<Key> {
    for _ in 0..keys.len() {
        let (key, serial) = keys.pop_front()?;
        match entries.get(&key) {
            Some(entry) if entry.serial == serial => match entry.state {
                State::Answered { .. } => {
                    keys.push_front((key, serial));
                    return Some(key);
                }
                State::InProgress(_) => keys.push_back((key, serial)),
            },
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
