//! Finds contradictions in a loaded state: states that no lock server can have written.

use std::collections::BTreeMap;

use keeper::bytes::FileKey;
use keeper::change::{Lock, Snapshot};
use keeper::request::Mode;

use crate::transfer::is_unfinished;

/// Problems beyond this many are not reported.
const PROBLEMS_MAX: usize = 20;

/// One sentence for each contradiction; empty if the state is sound.
pub fn problems(saved: &Snapshot) -> Vec<String> {
    let mut problems = Vec::new();
    if is_unfinished(saved) {
        problems.push("a copy into this store was begun and not finished".to_owned());
    }
    for (id, lock) in &saved.locks {
        if !saved.clients.contains_key(&lock.owner.host) {
            problems.push(format!("lock {} belongs to a client that does not exist", id.0));
        }
        if id.0 >= saved.ids_below {
            problems.push(format!("lock {} has an id that was never handed out", id.0));
        }
    }
    for (id, share) in &saved.shares {
        if !saved.clients.contains_key(&share.owner.host) {
            problems.push(format!("share {} belongs to a client that does not exist", id.0));
        }
    }
    let mut by_file: BTreeMap<&FileKey, Vec<&Lock>> = BTreeMap::new();
    for lock in saved.locks.values() {
        by_file.entry(&lock.file).or_default().push(lock);
    }
    for locks in by_file.values_mut() {
        conflicts(locks, &mut problems);
    }
    problems.truncate(PROBLEMS_MAX);
    problems
}

/// Sweeps over the locks of one file by their first byte. The two locks of different owners that
/// reach furthest suffice: the next lock conflicts with one of them or with none.
fn conflicts(locks: &mut [&Lock], problems: &mut Vec<String>) {
    locks.sort_by_key(|lock| lock.range.first());
    let mut any = FurthestLocks::default();
    let mut exclusive = FurthestLocks::default();
    for lock in locks.iter() {
        let earlier = if lock.mode == Mode::Exclusive { &any } else { &exclusive };
        if let Some(other) = earlier.conflicting_with(lock) {
            problems.push(format!("locks {} and {} are in conflict", other.id.0, lock.id.0));
        }
        any.add(lock);
        if lock.mode == Mode::Exclusive {
            exclusive.add(lock);
        }
    }
}

/// Of two owners the lock that reaches furthest.
#[derive(Default)]
struct FurthestLocks<'a>([Option<&'a Lock>; 2]);

impl<'a> FurthestLocks<'a> {
    fn conflicting_with(&self, lock: &Lock) -> Option<&'a Lock> {
        let mut others = self.0.iter().flatten().filter(|other| other.owner != lock.owner);
        others.find(|other| other.range.last() >= lock.range.first()).copied()
    }

    fn add(&mut self, lock: &'a Lock) {
        let reach = |slot: &Option<&Lock>| slot.map(|lock| lock.range.last());
        let own = self.0.iter().position(|slot| slot.is_some_and(|it| it.owner == lock.owner));
        let slot = own.unwrap_or(usize::from(reach(&self.0[1]) < reach(&self.0[0])));
        if reach(&self.0[slot]) < Some(lock.range.last()) {
            self.0[slot] = Some(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use keeper::change::Change;
    use keeper::identity::LockId;
    use keeper::range::Range;
    use proptest::prelude::*;

    use super::*;
    use crate::conformance;

    fn state(locks: &[(u64, u64, u64, bool)]) -> Snapshot {
        let mut saved = Snapshot { ids_below: 1_000, ..Snapshot::default() };
        for host in 0..4 {
            saved.apply(conformance::client(host));
        }
        for (id, (host, first, length, exclusive)) in (0..).zip(locks) {
            let Change::Lock(lock) = conformance::lock(id, *host) else { continue };
            saved.apply(Change::Lock(Lock {
                file: FileKey::new(b"one"),
                range: Range::between(*first, first + length).unwrap(),
                mode: if *exclusive { Mode::Exclusive } else { Mode::Shared },
                ..lock
            }));
        }
        saved
    }

    proptest! {
        #[test]
        fn conflicts_are_found_if_and_only_if_there_are_any(
            locks in prop::collection::vec((0u64..4, 0u64..40, 0u64..12, any::<bool>()), 0..9)
        ) {
            let saved = state(&locks);
            let all: Vec<_> = saved.locks.values().collect();
            let conflict = all.iter().any(|a| all.iter().any(|b| {
                a.owner != b.owner
                    && a.range.overlaps(b.range)
                    && (a.mode == Mode::Exclusive || b.mode == Mode::Exclusive)
            }));
            prop_assert_eq!(!problems(&saved).is_empty(), conflict);
        }
    }

    #[test]
    fn the_furthest_lock_of_one_owner_does_not_hide_that_of_another() {
        let saved =
            state(&[(1, 0, 10, true), (2, 0, 20, true), (1, 5, 25, true), (1, 15, 1, true)]);
        let locks: Vec<&Lock> = saved.locks.values().collect();
        let mut furthest = FurthestLocks::default();
        locks[..3].iter().for_each(|lock| furthest.add(lock));
        let conflict = furthest.conflicting_with(locks[3]);
        assert_eq!(conflict.map(|lock| lock.id), Some(LockId(1)));
    }

    #[test]
    fn orphans_and_impossible_ids_are_found() {
        let mut saved = state(&[(1, 0, 5, true)]);
        assert_eq!(problems(&saved), Vec::<String>::new());
        saved.clients.clear();
        assert!(problems(&saved)[0].contains("lock 0 belongs to a client that does not exist"));
        let mut saved = state(&[(1, 0, 5, true)]);
        let lock = saved.locks[&LockId(0)].clone();
        saved.locks.insert(
            LockId(5_000),
            Lock { id: LockId(5_000), owner: Arc::clone(&lock.owner), ..lock },
        );
        assert!(problems(&saved)[0].contains("never handed out"));
    }
}
