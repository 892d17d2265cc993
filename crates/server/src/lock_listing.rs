//! Locks, clients and grace as an embedding program reads them: owned rows, in pages of a bounded size.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keeper::Keeper;
use keeper::bytes::Name;
use keeper::change::{Exactness, Lock, Protocol};
use keeper::identity::{ClientId, LockId, Owner};
use keeper::range::Range;
use keeper::request::{Mode, OperatorAction};
use keeper::view::{ClientView, LockState, LockView};
use vfs::FileKey;

use crate::control::{Control, ControlError, FileLocation};
use crate::files::file_of_lock;

/// Rows per look at the keeper: the engine waits meanwhile.
const LOOK_MAX: usize = 2_000;

/// A lock, as [`Control::locks`] lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Never used for another lock.
    pub id: LockId,
    /// The machine that has it.
    pub client: ClientId,
    /// Its name for itself.
    pub client_name: Name,
    /// The address that it calls from.
    pub client_address: IpAddr,
    /// The client's number for the owner, usually of a process.
    pub owner: u32,
    /// The file; `None` if its key in the store is not one of this server.
    pub file: Option<FileKey>,
    /// Where the file is, as far as that was found within a second.
    pub location: FileLocation,
    /// The bytes that are locked.
    pub range: Range,
    /// Shared or exclusive.
    pub mode: Mode,
    /// Held, or recovered and not yet reclaimed.
    pub state: LockState,
    /// When it was granted.
    pub since: SystemTime,
}

/// A machine that locks, or a client of another protocol, as [`Control::clients`] lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// Never used for another client.
    pub id: ClientId,
    /// [`Protocol::NLM`] for a machine that locks.
    pub protocol: Protocol,
    /// Its name for itself.
    pub name: Name,
    /// The address that it calls from.
    pub address: IpAddr,
    /// Locks that it has.
    pub locks: usize,
    /// Locks that it waits for.
    pub waiting: usize,
    /// Locks and shares that it has not reclaimed since the restart.
    pub unconfirmed: usize,
    /// How long ago it last called; `None` if it has not since the start.
    pub last_seen: Option<Duration>,
    /// An operator has shut it out.
    pub fenced: bool,
    /// It did not come back in the recovery window.
    pub crashed: bool,
    /// When it registered.
    pub since: SystemTime,
}

/// A grace period, as [`Control::grace`] reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraceInfo {
    /// The longest that it may still last.
    pub remaining: Duration,
    /// Locks and shares that it waits for.
    pub missing: usize,
    /// How far the recovered locks can be trusted.
    pub exactness: Exactness,
}

impl Control {
    /// At most `max` locks with ids above `after`, in order of id; `LockId(0)` is before the first. Ask
    /// again with the last id until fewer than `max` are returned.
    pub async fn locks(&self, after: LockId, max: usize) -> Result<Vec<LockInfo>, ControlError> {
        let mut rows = Vec::new();
        let mut after = after;
        while rows.len() < max {
            let count = (max - rows.len()).min(LOOK_MAX);
            let look = move |keeper: &Keeper| page_of_locks(keeper, after, count);
            let page = self.read(look).await?;
            let ends = page.len() < count;
            rows.extend(page);
            match rows.last() {
                Some((last, _)) if !ends => after = last.id,
                _ => break,
            }
        }
        let mut keys: Vec<_> = rows.iter().map(|(_, key)| key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut located = self.locate(keys).await;
        located.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let rows = rows.into_iter().map(|(row, key)| {
            let at = located.binary_search_by(|(located, _)| located.cmp(&key));
            let location = at.ok().map(|at| located[at].1.clone()).unwrap_or_default();
            LockInfo { location, ..row }
        });
        Ok(rows.collect())
    }

    /// At most `max` clients of all protocols with ids above `after`, in order of id; see
    /// [`Control::locks`].
    pub async fn clients(
        &self,
        after: ClientId,
        max: usize,
    ) -> Result<Vec<ClientInfo>, ControlError> {
        let mut rows: Vec<ClientInfo> = Vec::new();
        let mut after = after;
        while rows.len() < max {
            let (count, now) = ((max - rows.len()).min(LOOK_MAX), self.engine.clock().elapsed());
            let look = move |keeper: &Keeper| -> Vec<ClientInfo> {
                let page = keeper.clients(after).take(count);
                page.map(|view| client_info(&view, now)).collect()
            };
            let page = self.read(look).await?;
            let ends = page.len() < count;
            rows.extend(page);
            match rows.last() {
                Some(last) if !ends => after = last.id,
                _ => break,
            }
        }
        Ok(rows)
    }

    /// Releases a lock, in the name of the operator `by`: what waits for it is granted, and its owner is
    /// not told. Durable on return.
    pub async fn release(&self, lock: LockId, by: &str) -> Result<(), ControlError> {
        let released = self.operate(&Name::from(by), OperatorAction::Release(lock)).await;
        released.map(|_| ())
    }

    /// The grace period; `None` if there is none.
    pub async fn grace(&self) -> Result<Option<GraceInfo>, ControlError> {
        let now = self.engine.clock().elapsed();
        let read = move |keeper: &Keeper| {
            keeper.grace().map(|grace| GraceInfo {
                remaining: grace.remaining(now),
                missing: grace.missing,
                exactness: grace.exactness,
            })
        };
        self.read(read).await
    }

    /// Ends the grace period, in the name of the operator `by`. Locks that were not reclaimed are then
    /// granted to others that ask for them, if their clients do not answer.
    pub async fn end_grace(&self, by: &str) -> Result<(), ControlError> {
        self.operate(&Name::from(by), OperatorAction::EndGrace).await.map(|_| ())
    }
}

/// Held locks, and those that a store remembers which is not exact.
fn page_of_locks(
    keeper: &Keeper,
    after: LockId,
    count: usize,
) -> Vec<(LockInfo, keeper::bytes::FileKey)> {
    let held = keeper.locks(after).take(count);
    let held = held.map(|view| {
        let LockView { id, file, owner, range, mode, since_ms, state, .. } = view;
        let parts = LockParts { id, file, owner, range, mode, since_ms, state };
        (parts.into_info(keeper), file.clone())
    });
    let remembered = keeper.remembered(after).take(count);
    let remembered = remembered.map(|lock| {
        let Lock { id, file, owner, range, mode, since_ms, .. } = lock;
        let (id, range, mode, since_ms) = (*id, *range, *mode, *since_ms);
        let state = LockState::Remembered;
        let parts = LockParts { id, file, owner, range, mode, since_ms, state };
        (parts.into_info(keeper), file.clone())
    });
    let mut page: Vec<_> = held.chain(remembered).collect();
    page.sort_unstable_by_key(|(row, _)| row.id);
    page.truncate(count);
    page
}

/// What a held lock and a remembered one have in common.
struct LockParts<'a> {
    id: LockId,
    file: &'a keeper::bytes::FileKey,
    owner: &'a Owner,
    range: Range,
    mode: Mode,
    since_ms: u64,
    state: LockState,
}

impl LockParts<'_> {
    fn into_info(self, keeper: &Keeper) -> LockInfo {
        let client = keeper.client(self.owner.host).map(|view| view.client);
        LockInfo {
            id: self.id,
            client: self.owner.host,
            client_name: client.map_or_else(|| Name::from(""), |client| client.name.clone()),
            client_address: client.map_or(Ipv4Addr::UNSPECIFIED.into(), |client| client.address),
            owner: self.owner.number,
            file: file_of_lock(self.file),
            location: FileLocation::default(),
            range: self.range,
            mode: self.mode,
            state: self.state,
            since: time(self.since_ms),
        }
    }
}

fn client_info(view: &ClientView<'_>, now: Duration) -> ClientInfo {
    ClientInfo {
        id: view.client.id,
        protocol: view.client.protocol.clone(),
        name: view.client.name.clone(),
        address: view.client.address,
        locks: view.locks,
        waiting: view.waiting,
        unconfirmed: view.unconfirmed,
        last_seen: view.last_seen.map(|at| now.saturating_sub(at)),
        fenced: view.client.fenced,
        crashed: view.crashed,
        since: time(view.client.registered_at_ms),
    }
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}
