//! Pages of the entries of one client, or on one file: a reader resumes after the last entry that it
//! was given, whose place is found by index, so a page costs what is on it (B7.120). What is there all
//! the time while a reader pages is given once; what comes and goes may be missed.

use std::ops::Bound;

use crate::bytes::FileKey;
use crate::change::Lock;
use crate::identity::{ClientId, LockId, ShareId};
use crate::interned::{FileId, OwnerId};
use crate::keeper::Keeper;
use crate::view::{LockView, ShareView, WaiterView};
use crate::waiters::WaiterId;

/// A lock, a share, a waiter, or a record of an inexact store.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "named as the rows that they are")]
pub enum Entry<'a> {
    Lock(LockView<'a>),
    Share(ShareView<'a>),
    Waiter(WaiterView<'a>),
    Remembered(&'a Lock),
}

/// The tables that are read, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "named as the tables that they are")]
pub enum Table {
    #[default]
    Locks,
    Shares,
    Waiters,
    Remembered,
}

/// The place of an entry among those of its client, or on its file; the default is before the first.
/// Places of one kind mean nothing for the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The table that has it.
    pub table: Table,
    /// `None` is before the first entry of the table.
    pub after: Option<(u64, u64)>,
}

impl Position {
    fn at(table: Table, major: u64, minor: u64) -> Self {
        Self { table, after: Some((major, minor)) }
    }

    /// Where to begin in a table that a reader comes to, or is in; `None` if it is beyond.
    fn within(self, table: Table) -> Option<Option<(u64, u64)>> {
        match table.cmp(&self.table) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(self.after),
            std::cmp::Ordering::Greater => Some(None),
        }
    }
}

impl Keeper {
    /// The entries of a client after a position. Of the records of an inexact store all are given,
    /// whosever they are: the reader examines them.
    pub fn entries_of(
        &self,
        client: ClientId,
        after: Position,
    ) -> impl Iterator<Item = (Position, Entry<'_>)> {
        let locks = after.within(Table::Locks).into_iter();
        let locks = locks.flat_map(move |after| self.locks_after(client, after));
        let shares = after.within(Table::Shares).into_iter().flat_map(move |after| {
            let after = ShareId(after.map_or(0, |(id, _)| id));
            self.shares.of_host_after(client, after).map(|share| {
                (Position::at(Table::Shares, share.id.0, 0), Entry::Share(self.view_share(share)))
            })
        });
        let waiters = after.within(Table::Waiters).into_iter();
        let waiters = waiters.flat_map(move |after| self.waiters_after(client, after));
        let remembered = after.within(Table::Remembered).into_iter().flat_map(move |after| {
            let after = LockId(after.map_or(0, |(id, _)| id));
            self.recovery.remembered.after(after).map(|lock| {
                (Position::at(Table::Remembered, lock.id.0, 0), Entry::Remembered(lock))
            })
        });
        locks.chain(shares).chain(waiters).chain(remembered)
    }

    /// By owner, file and first byte.
    fn locks_after(
        &self,
        client: ClientId,
        after: Option<(u64, u64)>,
    ) -> impl Iterator<Item = (Position, Entry<'_>)> {
        let (first, file, offset) = match after {
            Some((ids, offset)) => (owner_in(ids), file_in(ids), Some(offset)),
            None => (OwnerId(0), FileId(0), None),
        };
        let tracked = self.clients.get(client).into_iter();
        let owners = tracked.flat_map(move |tracked| tracked.owners.range(first..).copied());
        let held = owners.flat_map(move |owner| {
            let offset = offset.filter(|_| owner == first);
            self.table.of_owner_after(owner, file, offset)
        });
        held.map(|held| {
            let ids = both(held.owner, held.file);
            let position = Position::at(Table::Locks, ids, held.range.first());
            (position, Entry::Lock(self.view_lock(held)))
        })
    }

    /// By owner, file and arrival.
    fn waiters_after(
        &self,
        client: ClientId,
        after: Option<(u64, u64)>,
    ) -> impl Iterator<Item = (Position, Entry<'_>)> {
        let first = after.map_or(OwnerId(0), |(ids, _)| owner_in(ids));
        let tracked = self.clients.get(client).into_iter();
        let owners = tracked.flat_map(move |tracked| tracked.owners.range(first..).copied());
        let waiting = owners.flat_map(move |owner| {
            let after = after.filter(|_| owner == first);
            let after = after.map(|(ids, id)| (file_in(ids), WaiterId(id)));
            self.waiters.of_owner_after(owner, after)
        });
        waiting.map(|(id, waiter)| {
            let ids = both(waiter.owner, waiter.file);
            let position = Position::at(Table::Waiters, ids, id.0);
            (position, Entry::Waiter(self.view_waiter(id, waiter)))
        })
    }

    /// The entries on a file after a position.
    pub fn entries_on(
        &self,
        file: &FileKey,
        after: Position,
    ) -> impl Iterator<Item = (Position, Entry<'_>)> {
        let id = self.files.find(file);
        let locks = after.within(Table::Locks).into_iter().flat_map(move |after| {
            let after = after.map(|(first, owner)| (first, OwnerId(owner as u32)));
            let held = id.into_iter().flat_map(move |id| self.table.of_file_after(id, after));
            held.map(|held| {
                let owner = u64::from(held.owner.0);
                let position = Position::at(Table::Locks, held.range.first(), owner);
                (position, Entry::Lock(self.view_lock(held)))
            })
        });
        let shares = after.within(Table::Shares).into_iter().flat_map(move |after| {
            let after = ShareId(after.map_or(0, |(id, _)| id));
            // In order of id, as they are only ever appended.
            let ids = id.map_or(&[][..], |id| &self.files[id].shares);
            let ids = &ids[ids.partition_point(|id| *id <= after)..];
            let shares = ids.iter().filter_map(|id| self.shares.get(*id));
            shares.map(|share| {
                (Position::at(Table::Shares, share.id.0, 0), Entry::Share(self.view_share(share)))
            })
        });
        let waiters = after.within(Table::Waiters).into_iter().flat_map(move |after| {
            let after = WaiterId(after.map_or(0, |(id, _)| id));
            let there = id.into_iter().flat_map(move |id| {
                self.files[id].waiters.range((Bound::Excluded(after), Bound::Unbounded))
            });
            there.filter_map(|id| {
                let waiter = self.view_waiter(*id, self.waiters.get(*id)?);
                Some((Position::at(Table::Waiters, id.0, 0), Entry::Waiter(waiter)))
            })
        });
        let after = after.within(Table::Remembered).into_iter();
        let after = after.map(|after| LockId(after.map_or(0, |(id, _)| id)));
        let remembered = after.flat_map(|after| self.recovery.remembered.on_after(file, after));
        let remembered = remembered
            .map(|lock| (Position::at(Table::Remembered, lock.id.0, 0), Entry::Remembered(lock)));
        locks.chain(shares).chain(waiters).chain(remembered)
    }
}

fn both(owner: OwnerId, file: FileId) -> u64 {
    u64::from(owner.0) << 32 | u64::from(file.0)
}

fn owner_in(ids: u64) -> OwnerId {
    OwnerId((ids >> 32) as u32)
}

fn file_in(ids: u64) -> FileId {
    FileId(ids as u32)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bytes::{Handle, Name, OwnerTag};
    use crate::change::Snapshot;
    use crate::config::{Config, Limits};
    use crate::identity::{
        Caller, Epoch, HostKey, Incarnation, OwnerNamespace, RequestId, Transport,
    };
    use crate::range::Range;
    use crate::request::{Access, Form, LockRequest, Mode, OwnerName, ShareRequest};
    use crate::time::Time;

    const OWNERS: u32 = 50;

    fn now() -> Time {
        Time { mono: Duration::from_secs(1), wall_ms: 1 }
    }

    fn caller(host: u8) -> Caller {
        let ours = [10, 0, 0, 100].into();
        Caller {
            host: HostKey::new([10, 0, 0, host].into(), Name::from("alice")),
            namespace: OwnerNamespace::new(ours, Transport::Tcp, 4),
        }
    }

    fn file(number: u32) -> FileKey {
        FileKey::new(&number.to_be_bytes())
    }

    fn lock(keeper: &mut Keeper, host: u8, number: u32, on: u32, record: u64, wait: bool) {
        let request = LockRequest {
            id: RequestId(1),
            caller: caller(host),
            owner: OwnerName { number, tag: OwnerTag::from("x") },
            file: file(on),
            handle: Handle::new(b"h"),
            range: Range::between(20 * record, 20 * record + 9).unwrap(),
            mode: Mode::Exclusive,
            wait,
            reclaim: false,
            admitted: true,
            monitored: true,
            incarnation: Incarnation(3),
            form: Form::Call,
            stateless: false,
            connected: None,
        };
        keeper.handle_lock(request, now());
        keeper.poll_step();
    }

    /// Host 1 has `locks` locks of 50 owners on file 0, waits for what host 2 has on file 1, and has
    /// shares.
    fn keeper(locks: u64) -> (Keeper, ClientId) {
        let limits = Limits { locks_per_client: usize::MAX, ..Limits::default() };
        let config = Config { limits, seed: 7, ..Config::default() };
        let mut keeper = Keeper::restore(Snapshot::default(), Epoch(1), config, now());
        for record in 0..locks {
            lock(&mut keeper, 1, record as u32 % OWNERS, 0, record * 7_919 % locks, false);
        }
        for record in 0..9 {
            lock(&mut keeper, 2, 0, 1, record, false);
            lock(&mut keeper, 1, record as u32, 1, record, true);
            let share = ShareRequest {
                id: RequestId(1),
                caller: caller(1),
                tag: OwnerTag::from(format!("{record}").as_str()),
                file: file(1),
                access: Access { read: true, write: false },
                deny: Access { read: false, write: false },
                reclaim: false,
                admitted: true,
            };
            keeper.handle_share(share, now());
            keeper.poll_step();
        }
        let client = keeper.clients.find_host(&caller(1).host).unwrap();
        (keeper, client)
    }

    fn id(entry: &Entry<'_>) -> u64 {
        match entry {
            Entry::Lock(view) => view.id.0,
            Entry::Share(view) => view.id.0,
            Entry::Waiter(view) => view.id.0,
            Entry::Remembered(lock) => lock.id.0,
        }
    }

    /// All ids, read in pages of seven.
    fn paged<'a, I>(page: impl Fn(Position) -> I) -> Vec<u64>
    where
        I: Iterator<Item = (Position, Entry<'a>)>,
    {
        let (mut all, mut at) = (Vec::new(), Position::default());
        loop {
            let before = all.len();
            for (position, entry) in page(at).take(7) {
                assert!(position > at);
                at = position;
                all.push(id(&entry));
            }
            if all.len() == before {
                return all;
            }
        }
    }

    #[test]
    fn pages_have_every_entry_once() {
        let (keeper, client) = keeper(500);
        let sorted = |mut ids: Vec<u64>| {
            ids.sort_unstable();
            ids
        };
        let all = keeper.locks_of(client).map(|lock| lock.id.0);
        let all = all.chain(keeper.shares_of(client).map(|share| share.id.0));
        let all = sorted(all.chain(keeper.waiters_of(client).map(|it| it.id.0)).collect());
        assert_eq!(all.len(), 518);
        assert_eq!(sorted(paged(|at| keeper.entries_of(client, at))), all);
        for number in [0, 1] {
            let file = file(number);
            let all = keeper.locks_on(&file).map(|lock| lock.id.0);
            let all = all.chain(keeper.shares_on(&file).map(|share| share.id.0));
            let all = sorted(all.chain(keeper.waiters_on(&file).map(|it| it.id.0)).collect());
            assert_eq!(all.len(), [500, 27][number as usize]);
            assert_eq!(sorted(paged(|at| keeper.entries_on(&file, at))), all);
        }
    }

    /// B7.120: the cost of a page is that of its entries, however deep it is.
    #[test]
    fn a_deep_page_examines_no_more_than_it_shows() {
        const LOCKS: u64 = 20_000;
        let (keeper, client) = keeper(LOCKS);
        let file = file(0);
        let looked_at = || keeper.table.looked_at.take();
        let (mut of, mut on) = (Position::default(), Position::default());
        for _ in 0..LOCKS / 100 - 1 {
            looked_at();
            of = keeper.entries_of(client, of).take(100).last().unwrap().0;
            on = keeper.entries_on(&file, on).take(100).last().unwrap().0;
            let examined = looked_at();
            assert!(examined <= 2 * (100 + OWNERS as usize), "{examined}");
        }
    }
}
