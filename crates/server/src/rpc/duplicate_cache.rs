//! The duplicate request cache: one request, one effect (I8, B1.14).
//!
//! A client that gets no reply retransmits the call with the same transaction id, perhaps over a new
//! connection. A REMOVE that has run must not answer NOENT the second time, and one that is still
//! running must not run twice. Calls that change something are entered when they start, and their
//! replies kept; others only while a worker has them. A call that ends without a reply is removed, so
//! that its retransmission is a new call.
//!
//! Eviction: the last calls of a TCP connection are kept until two minutes after its end, and the
//! datagrams of an address for two minutes, each up to a bound per origin. If the cache as a whole is
//! full, entries older than [`AGE_MIN`] go first, then the connection that calls loses its own oldest
//! one; otherwise the new call is dropped rather than a young entry of another peer. No I/O and no
//! clock, so that the simulator runs the same code.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use crate::transport::Transport;

/// How long an entry is kept after the end of its connection, or after its datagram was received:
/// longer than any client retransmits one call.
pub const AGE_MAX: Duration = Duration::from_secs(120);
/// An entry of another origin is evicted only if it is older than this: its client has
/// retransmitted by then.
pub const AGE_MIN: Duration = Duration::from_secs(30);
/// A full cache evicts no young entry of the calling connection while that has this many or fewer: its
/// client may not have read their replies yet.
const OWN_ENTRIES_MIN: usize = 16;
/// Entries that were active this recently when a reboot is reported may belong to the new kernel,
/// since the report can be late.
const FRESH: Duration = Duration::from_secs(10);
/// The most recipients of one reply. A client that retransmits a call over more connections gets it
/// on the newest ones.
const RECIPIENTS_MAX: usize = 8;

/// The identity of a call: equal for its retransmissions. The port is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallKey {
    pub from: IpAddr,
    pub transport: Transport,
    /// So that a user of the client does not get a reply to root.
    pub reserved_port: bool,
    pub xid: u32,
    /// Program, version, procedure.
    pub procedure: (u32, u32, u32),
    /// Of the record, which includes the credential; of its two ends if it is long.
    pub checksum: u64,
    /// A hash of the caller name in the call; 0 if it has none.
    pub name: u64,
}

impl Hash for CallKey {
    /// The checksum covers the xid, the procedure and the arguments.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.checksum);
    }
}

/// Passes the checksum through: it is a keyed hash already, so peers cannot cause collisions.
#[derive(Default)]
struct ChecksumHasher(u64);

impl Hasher for ChecksumHasher {
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

/// The peer whose bound an entry counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    Connection(u64),
    /// The datagrams of an address.
    Address(IpAddr),
}

#[derive(Debug, Clone, Copy)]
pub struct CacheBounds {
    /// Entries of one connection, or of the datagrams of one address.
    pub per_origin: usize,
    pub entries: usize,
    pub bytes: usize,
}

/// The result of looking up a call.
#[derive(Debug, PartialEq, Eq)]
pub enum CacheLookup<R> {
    /// Not in the cache: run it, then call [`DuplicateCache::answered`] or
    /// [`DuplicateCache::abandoned`].
    New,
    /// Answered before: send this reply again.
    Cached(R),
    /// Running: its reply will go to this recipient as well.
    InProgress,
    /// Not in the cache, which is full: drop the call.
    Full,
}

/// See the [module](self). `W` is the recipient of a reply `R`.
pub struct DuplicateCache<W, R> {
    bounds: CacheBounds,
    entries: CallMap<W, R>,
    /// The entries of datagrams.
    datagrams: KeyQueue,
    origins: HashMap<Origin, OriginEntries>,
    /// Connections that have ended, in order, and when their entries expire.
    ended: VecDeque<(Duration, Origin)>,
    serial: u64,
    bytes: usize,
    /// Before this time no entry older than [`AGE_MIN`] is looked for: the last search found none.
    none_old_before: Duration,
    /// The entry that was evicted last, to be dropped outside the mutex around the cache.
    evicted: Option<CachedCall<W, R>>,
}

type CallMap<W, R> = HashMap<CallKey, CachedCall<W, R>, BuildHasherDefault<ChecksumHasher>>;

struct CachedCall<W, R> {
    serial: u64,
    origin: Origin,
    entered: Duration,
    /// When it was last looked up or answered.
    active: Duration,
    state: State<W, R>,
}

/// The recipients of a reply: mostly one.
pub struct Recipients<W> {
    first: Option<W>,
    others: Vec<W>,
}

impl<W> Recipients<W> {
    const NONE: Self = Self { first: None, others: Vec::new() };

    fn one(first: W) -> Self {
        Self { first: Some(first), others: Vec::new() }
    }

    /// Beyond the bound the oldest is dropped: its connection has most likely ended.
    fn add(&mut self, mut new: W, same: impl Fn(&W, &W) -> bool, join: impl FnOnce(&mut W)) {
        if self.first.iter().chain(&self.others).any(|one| same(one, &new)) {
            return;
        }
        join(&mut new);
        if self.others.len() + 1 == RECIPIENTS_MAX {
            self.first = Some(self.others.remove(0));
        }
        self.others.push(new);
    }
}

impl<W> IntoIterator for Recipients<W> {
    type Item = W;
    type IntoIter = std::iter::Chain<std::option::IntoIter<W>, std::vec::IntoIter<W>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.others)
    }
}

enum State<W, R> {
    /// Running.
    InProgress(Recipients<W>),
    Answered {
        reply: R,
        bytes: usize,
    },
}

/// The entries of one origin.
#[derive(Default)]
struct OriginEntries {
    keys: KeyQueue,
    count: usize,
}

/// Keys in order of entry, with the serial numbers of their entries. Keys whose entry was removed, or
/// removed and entered again, are skipped.
type KeyQueue = VecDeque<(CallKey, u64)>;

impl<W, R: Clone> DuplicateCache<W, R> {
    pub fn new(bounds: CacheBounds) -> Self {
        Self {
            bounds,
            entries: CallMap::default(),
            datagrams: KeyQueue::new(),
            origins: HashMap::new(),
            ended: VecDeque::new(),
            serial: 0,
            bytes: 0,
            none_old_before: Duration::ZERO,
            evicted: None,
        }
    }

    /// The entry that was evicted last; dropping it takes time.
    pub fn take_evicted(&mut self) -> Option<impl Sized + use<W, R>> {
        self.evicted.take()
    }

    /// Looks up a call and enters it if it is new. `same` tells whether one reply serves both
    /// recipients; `join` is called if the recipient joins a call that is running.
    pub fn begin(
        &mut self,
        key: CallKey,
        origin: Origin,
        recipient: W,
        now: Duration,
        same: impl Fn(&W, &W) -> bool,
        join: impl FnOnce(&mut W),
    ) -> CacheLookup<R> {
        self.expire(now);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.active = now;
            return match &mut entry.state {
                State::Answered { reply, .. } => CacheLookup::Cached(reply.clone()),
                State::InProgress(recipients) => {
                    recipients.add(recipient, same, join);
                    CacheLookup::InProgress
                }
            };
        }
        if !self.make_room(origin, now) {
            return CacheLookup::Full;
        }
        self.serial += 1;
        let serial = self.serial;
        let state = State::InProgress(Recipients::one(recipient));
        self.entries.insert(key, CachedCall { serial, origin, entered: now, active: now, state });
        if let Origin::Address(_) = origin {
            append(&mut self.datagrams, (key, serial), &self.entries, self.entries.len());
        }
        let own = self.origins.entry(origin).or_default();
        own.count += 1;
        append(&mut own.keys, (key, serial), &self.entries, own.count);
        CacheLookup::New
    }

    /// Stores the reply and returns its recipients.
    pub fn answered(
        &mut self,
        key: &CallKey,
        reply: R,
        bytes: usize,
        now: Duration,
    ) -> Recipients<W> {
        let Some(entry) = self.entries.get_mut(key) else { return Recipients::NONE };
        entry.active = now;
        let before = std::mem::replace(&mut entry.state, State::Answered { reply, bytes });
        self.bytes += bytes;
        match before {
            State::InProgress(recipients) => recipients,
            State::Answered { bytes, .. } => {
                self.bytes -= bytes;
                Recipients::NONE
            }
        }
    }

    /// Removes a call that did not run or is not answered: a retransmission is a new call. Returns
    /// its recipients, for a reply that is not stored.
    pub fn abandoned(&mut self, key: &CallKey) -> Recipients<W> {
        match self.remove(key).map(|entry| entry.state) {
            Some(State::InProgress(recipients)) => recipients,
            _ => Recipients::NONE,
        }
    }

    /// Lets the entries of a connection that has ended expire after [`AGE_MAX`]: its client may
    /// retransmit over a new one.
    pub fn connection_ended(&mut self, connection: u64, now: Duration) {
        let origin = Origin::Connection(connection);
        if self.origins.contains_key(&origin) {
            self.ended.push_back((now + AGE_MAX, origin));
        }
        self.expire(now);
    }

    /// Removes the entries of a rebooted host, which may reuse transaction ids (B2.10). Running
    /// calls and entries active within `FRESH` may belong to the new kernel, and stay.
    pub fn forget(&mut self, of_host: impl Fn(&CallKey) -> bool, now: Duration) {
        let gone = |(key, entry): (&CallKey, &CachedCall<W, R>)| {
            let old = entry.active + FRESH <= now;
            let answered = matches!(entry.state, State::Answered { .. });
            (answered && old && of_host(key)).then_some(*key)
        };
        let gone: Vec<CallKey> = self.entries.iter().filter_map(gone).collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// Makes room for one entry, within the bound of its origin and those of the cache. False if
    /// nothing may be evicted.
    fn make_room(&mut self, origin: Origin, now: Duration) -> bool {
        while self.origins.get(&origin).is_some_and(|own| own.count >= self.bounds.per_origin) {
            // A connection loses its own oldest entry, whatever its age: its client waits for fewer
            // replies than that. Datagrams can be forged, so theirs must be old.
            let oldest = self.oldest_of(origin);
            let Some(key) = oldest.filter(|key| {
                matches!(origin, Origin::Connection(_)) || self.is_older(key, AGE_MIN, now)
            }) else {
                return false;
            };
            self.evicted = self.remove(&key);
        }
        while self.entries.len() >= self.bounds.entries || self.bytes > self.bounds.bytes {
            let Some(key) = self.oldest_evictable(now).or_else(|| self.own_oldest(origin)) else {
                return false;
            };
            self.evicted = self.remove(&key);
        }
        true
    }

    /// The oldest answered entry, if it is older than [`AGE_MIN`].
    fn oldest_evictable(&mut self, now: Duration) -> Option<CallKey> {
        if now < self.none_old_before {
            return None;
        }
        let entries = &self.entries;
        let firsts = self.origins.values_mut().filter_map(|origin| {
            let key = first_answered(&mut origin.keys, entries)?;
            entries.get(&key).map(|entry| (entry, key))
        });
        let (oldest, key) = firsts.min_by_key(|(entry, _)| entry.serial)?;
        self.none_old_before = oldest.entered + AGE_MIN;
        (self.none_old_before <= now).then_some(key)
    }

    fn oldest_of(&mut self, origin: Origin) -> Option<CallKey> {
        let entries = &self.entries;
        first_answered(&mut self.origins.get_mut(&origin)?.keys, entries)
    }

    /// The oldest answered entry of a connection that has more than [`OWN_ENTRIES_MIN`].
    fn own_oldest(&mut self, origin: Origin) -> Option<CallKey> {
        let count = self.origins.get(&origin)?.count;
        let may_evict = matches!(origin, Origin::Connection(_)) && count > OWN_ENTRIES_MIN;
        if may_evict { self.oldest_of(origin) } else { None }
    }

    fn is_older(&self, key: &CallKey, age: Duration, now: Duration) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.entered + age <= now)
    }

    /// Removes entries after [`AGE_MAX`]: of datagrams by age, of connections by the time since their
    /// end.
    fn expire(&mut self, now: Duration) {
        while let Some((due, origin)) = self.ended.front()
            && *due <= now
        {
            let origin = *origin;
            self.ended.pop_front();
            while let Some(key) = self.oldest_of(origin) {
                self.remove(&key);
            }
            // Running calls stay: a retransmission must not run them again.
            if self.origins.contains_key(&origin) {
                self.ended.push_back((now + AGE_MAX, origin));
            }
        }
        for _ in 0..self.datagrams.len() {
            let Some((key, serial)) = self.datagrams.front().copied() else { return };
            match self.entries.get(&key).filter(|entry| entry.serial == serial) {
                Some(entry) if entry.entered + AGE_MAX > now => return,
                Some(CachedCall { state: State::InProgress(_), .. }) => {
                    self.datagrams.push_back((key, serial));
                }
                Some(_) => drop(self.remove(&key)),
                None => {}
            }
            self.datagrams.pop_front();
        }
    }

    fn remove(&mut self, key: &CallKey) -> Option<CachedCall<W, R>> {
        let entry = self.entries.remove(key)?;
        if let State::Answered { bytes, .. } = entry.state {
            self.bytes -= bytes;
        }
        if let Some(own) = self.origins.get_mut(&entry.origin) {
            own.count -= 1;
            if own.count == 0 {
                self.origins.remove(&entry.origin);
            }
        }
        Some(entry)
    }
}

/// Appends a key, and drops skipped keys once they outnumber the `live` ones.
fn append<W, R>(keys: &mut KeyQueue, entry: (CallKey, u64), entries: &CallMap<W, R>, live: usize) {
    keys.push_back(entry);
    if keys.len() > 2 * live + 64 {
        keys.retain(|(key, serial)| entries.get(key).is_some_and(|e| e.serial == *serial));
    }
}

/// The first key whose call is answered. Drops skipped keys on the way, and moves running calls to the
/// back.
fn first_answered<W, R>(keys: &mut KeyQueue, entries: &CallMap<W, R>) -> Option<CallKey> {
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
