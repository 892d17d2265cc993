//! When two requests are one: who asked, and what, but not from which port (R3.8).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use wire::Message;
use wire::rpc::Call;

use crate::replay::{Replay, Verdict};
use crate::transport::{Peer, ReplyTo, Transport};

/// How much of a long request is looked at to tell it from another with the same xid.
const CHECKED: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    from: IpAddr,
    transport: Transport,
    xid: u32,
    what: (u32, u32, u32),
    checksum: u64,
    /// Of the name that the sender calls itself by, if the request says one.
    name: u64,
}

/// The requests that must not be done twice, and their replies.
pub struct Duplicates {
    checksums: RandomState,
    started: Instant,
    replay: Mutex<Replay<Key, ReplyTo, Message>>,
}

impl Duplicates {
    pub fn new(entries_max: usize, bytes_max: usize) -> Self {
        Self {
            checksums: RandomState::new(),
            started: Instant::now(),
            replay: Mutex::new(Replay::new(entries_max, bytes_max)),
        }
    }

    /// `record` is the request as it came, so that its credential counts too.
    pub fn key(&self, call: &Call, record: &Bytes, peer: &Peer, name: &[u8]) -> Key {
        Key {
            from: peer.remote.ip(),
            transport: peer.transport,
            xid: call.xid,
            what: (call.program, call.version, call.procedure),
            checksum: self.checksum(record),
            name: self.hash(name),
        }
    }

    pub fn begin(&self, key: &Key, to: &ReplyTo) -> Verdict<Message> {
        let now = self.started.elapsed();
        self.lock().begin(key, to.clone(), now, ReplyTo::same_as)
    }

    /// Keeps the reply and says who waits for it.
    pub fn answered(&self, key: Key, reply: &Message) -> Vec<ReplyTo> {
        let now = self.started.elapsed();
        self.lock().answered(key, reply.clone(), reply.len(), now)
    }

    pub fn abandoned(&self, key: &Key) {
        self.lock().abandoned(key);
    }

    /// The host that calls itself so rebooted.
    pub fn forget(&self, address: IpAddr, name: &[u8]) {
        let (name, now) = (self.hash(name), self.started.elapsed());
        self.lock().forget(|key| key.from == address && key.name == name, now);
    }

    fn checksum(&self, record: &Bytes) -> u64 {
        let mut hasher = self.checksums.build_hasher();
        hasher.write_usize(record.len());
        hasher.write(&record[..record.len().min(CHECKED)]);
        hasher.write(&record[record.len() - record.len().min(CHECKED)..]);
        hasher.finish()
    }

    fn hash(&self, name: &[u8]) -> u64 {
        if name.is_empty() {
            return 0;
        }
        self.checksums.hash_one(name)
    }

    fn lock(&self) -> MutexGuard<'_, Replay<Key, ReplyTo, Message>> {
        self.replay.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
