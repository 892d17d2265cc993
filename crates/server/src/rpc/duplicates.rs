//! The duplicate request cache in its parts, so that calls of one kind do not evict those of another.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use wire::Message;
use wire::rpc::Call;

use super::duplicate_cache::{CacheBounds, CacheLookup, CallKey, DuplicateCache};
use crate::service::CacheClass;
use crate::transport::recipient::Recipient;
use crate::transport::{Peer, ReplyTo};

/// The checksum of a call covers this many bytes at either end of its record.
const CHECKSUM_BYTES: usize = 512;

/// See the [module](self).
pub(super) struct DuplicateCaches {
    checksums: RandomState,
    started: Instant,
    once: Mutex<Cache>,
    /// WRITE, which is mostly harmless to repeat: a quarter of the bounds.
    bulk: Mutex<Cache>,
    /// Lock calls, which a reboot of their host removes.
    locks: Mutex<Cache>,
    /// Calls of no other part, while a worker has them: a repeat takes no second worker. A quarter of
    /// the bounds; nothing is kept.
    under_way: Mutex<Cache>,
}

type Cache = DuplicateCache<Recipient, Message>;

impl DuplicateCaches {
    pub(super) fn new(bounds: CacheBounds) -> Self {
        let cache = |divisor: usize| {
            let CacheBounds { per_origin, entries, bytes } = bounds;
            let (per_origin, entries) = (per_origin / divisor, entries / divisor);
            Mutex::new(Cache::new(CacheBounds { per_origin, entries, bytes: bytes / divisor }))
        };
        Self {
            checksums: RandomState::new(),
            started: Instant::now(),
            once: cache(1),
            bulk: cache(4),
            locks: cache(1),
            under_way: cache(4),
        }
    }

    fn lock(&self, class: CacheClass) -> Option<MutexGuard<'_, Cache>> {
        let part = match class {
            CacheClass::Uncached => return None,
            CacheClass::Once => &self.once,
            CacheClass::Bulk => &self.bulk,
            CacheClass::Lock => &self.locks,
            CacheClass::UnderWay => &self.under_way,
        };
        Some(part.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn begin(
        &self,
        class: CacheClass,
        key: CallKey,
        peer: &Peer,
        to: &ReplyTo,
    ) -> CacheLookup<Message> {
        let (origin, now) = (to.origin(peer), self.started.elapsed());
        let recipient = Recipient::new(to.clone());
        let Some(mut cache) = self.lock(class) else { return CacheLookup::New };
        let found = cache.begin(key, origin, recipient, now, Recipient::same_as, Recipient::join);
        let evicted = cache.take_evicted();
        drop(cache);
        // Dropping an entry takes time, so the lock goes first.
        drop(evicted);
        found
    }

    /// `record` is the whole call, with its credential.
    pub(super) fn key(&self, call: &Call, record: &[u8], peer: &Peer, name: &[u8]) -> CallKey {
        let mut hasher = self.checksums.build_hasher();
        hasher.write_usize(record.len());
        hasher.write(&record[..record.len().min(CHECKSUM_BYTES)]);
        if record.len() > CHECKSUM_BYTES {
            hasher.write(&record[record.len() - CHECKSUM_BYTES..]);
        }
        CallKey {
            from: peer.remote.ip(),
            transport: peer.transport,
            reserved_port: peer.uses_reserved_port(),
            xid: call.xid,
            procedure: (call.program, call.version, call.procedure),
            checksum: hasher.finish(),
            name: self.hash(name),
        }
    }

    fn hash(&self, name: &[u8]) -> u64 {
        if name.is_empty() { 0 } else { self.checksums.hash_one(name) }
    }

    /// Stores the reply for retransmissions, or removes the call if there is none to store. Returns
    /// the recipients.
    pub(super) fn complete(
        &self,
        class: CacheClass,
        key: &CallKey,
        kept: Option<Message>,
    ) -> impl IntoIterator<Item = Recipient> + use<> {
        let now = self.started.elapsed();
        let mut cache = self.lock(class);
        let recipients = cache.as_mut().map(|cache| match kept {
            Some(kept) if class != CacheClass::UnderWay => {
                let bytes = kept.len();
                cache.answered(key, kept, bytes, now)
            }
            _ => cache.abandoned(key),
        });
        drop(cache);
        recipients.into_iter().flatten()
    }

    /// Lets the cached calls of a connection expire.
    pub(super) fn connection_ended(&self, connection: u64) {
        let now = self.started.elapsed();
        for class in [CacheClass::Once, CacheClass::Bulk, CacheClass::Lock] {
            if let Some(mut cache) = self.lock(class) {
                cache.connection_ended(connection, now);
            }
        }
    }

    /// Removes the cached lock calls of a host that rebooted, since it may reuse transaction ids.
    pub(super) fn forget_host(&self, address: IpAddr, name: &[u8]) {
        let (name, now) = (self.hash(name), self.started.elapsed());
        if let Some(mut locks) = self.lock(CacheClass::Lock) {
            locks.forget(|key| key.from == address && key.name == name, now);
        }
    }
}
