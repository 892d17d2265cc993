//! Duplicate requests: a retransmission gets the first reply again (I8).
//!
//! A client that hears nothing asks again with the same xid, perhaps over a new connection. A
//! REMOVE that was done must not answer NOENT the second time, and one that is still being done
//! must not be started twice. Bounded by entries, by bytes and by age.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use wire::Message;
use wire::rpc::Call;

use crate::transport::{Peer, ReplyTo, Transport};

/// Longer than any client goes on repeating one request without reconnecting.
const AGE_MAX: Duration = Duration::from_secs(120);
/// How much of a long request is looked at to tell it from another with the same xid.
const CHECKED: usize = 512;

/// What makes two requests the same: who asked, and what, but not from which port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    from: IpAddr,
    transport: Transport,
    xid: u32,
    what: (u32, u32, u32),
    checksum: u64,
}

pub struct Replay {
    entries_max: usize,
    bytes_max: usize,
    checksums: RandomState,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    entries: HashMap<Key, Entry>,
    /// Answered entries, oldest first.
    order: VecDeque<(Key, Instant)>,
    bytes: usize,
}

enum Entry {
    /// Being done; the reply goes to all of these.
    Started(Vec<ReplyTo>),
    Answered(Message),
}

/// What is to be done with a request.
pub enum Verdict {
    /// Seen for the first time: do it, then call [`Replay::answered`].
    New(Key),
    /// Done before: send this again.
    Again(Message),
    /// Being done: its reply will be sent here too.
    Started,
}

/// A peer that repeats a request over ever new connections gets the reply on this many, the
/// newest: the others are gone.
const WAITING_MAX: usize = 8;

impl Replay {
    pub fn new(entries_max: usize, bytes_max: usize) -> Self {
        Self { entries_max, bytes_max, checksums: RandomState::new(), seen: Mutex::default() }
    }

    /// `record` is the request as it came, so that its credential counts too.
    pub fn begin(&self, call: &Call, record: &Bytes, peer: &Peer, to: &ReplyTo) -> Verdict {
        let key = Key {
            from: peer.remote.ip(),
            transport: peer.transport,
            xid: call.xid,
            what: (call.program, call.version, call.procedure),
            checksum: self.checksum(record),
        };
        let mut seen = self.lock();
        self.forget_old(&mut seen, Instant::now());
        match seen.entries.get_mut(&key) {
            Some(Entry::Answered(reply)) => Verdict::Again(reply.clone()),
            Some(Entry::Started(waiting)) => {
                if !waiting.iter().any(|known| known.same_as(to)) {
                    if waiting.len() == WAITING_MAX {
                        waiting.remove(0);
                    }
                    waiting.push(to.clone());
                }
                Verdict::Started
            }
            None => {
                seen.entries.insert(key, Entry::Started(vec![to.clone()]));
                Verdict::New(key)
            }
        }
    }

    /// Keeps the reply and says who waits for it.
    pub fn answered(&self, key: Key, reply: &Message) -> Vec<ReplyTo> {
        let now = Instant::now();
        let mut seen = self.lock();
        let before = seen.entries.insert(key, Entry::Answered(reply.clone()));
        seen.order.push_back((key, now));
        seen.bytes += reply.len();
        self.forget_old(&mut seen, now);
        match before {
            Some(Entry::Started(waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    /// The request was not done after all (it panicked): a repetition may try again.
    pub fn abandoned(&self, key: &Key) {
        self.lock().entries.remove(key);
    }

    fn forget_old(&self, seen: &mut Seen, now: Instant) {
        while let Some((oldest, since)) = seen.order.front().copied()
            && (seen.order.len() > self.entries_max
                || seen.bytes > self.bytes_max
                || now.saturating_duration_since(since) > AGE_MAX)
        {
            seen.order.pop_front();
            if let Some(Entry::Answered(reply)) = seen.entries.remove(&oldest) {
                seen.bytes -= reply.len();
            }
        }
    }

    fn checksum(&self, record: &Bytes) -> u64 {
        let mut hasher = self.checksums.build_hasher();
        hasher.write_usize(record.len());
        hasher.write(&record[..record.len().min(CHECKED)]);
        hasher.write(&record[record.len() - record.len().min(CHECKED)..]);
        hasher.finish()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
