//! Whether what a store has can be the state of a lock server at all.

use std::collections::BTreeMap;

use keeper::bytes::FileKey;
use keeper::change::{Lock, Snapshot};
use keeper::request::Mode;

use crate::transfer::is_unfinished;

/// So many contradictions are told; more say nothing new.
const PROBLEMS_MAX: usize = 20;

/// What contradicts itself, in words; nothing, if all is well.
pub fn problems(saved: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    if is_unfinished(saved) {
        found.push("a copy into it was begun and not finished".to_owned());
    }
    for (id, lock) in &saved.locks {
        if !saved.clients.contains_key(&lock.owner.host) {
            found.push(format!("lock {} belongs to a client that is not there", id.0));
        }
        if id.0 >= saved.ids_below {
            found.push(format!("lock {} has an id that was never given", id.0));
        }
    }
    for (id, share) in &saved.shares {
        if !saved.clients.contains_key(&share.owner.host) {
            found.push(format!("share {} belongs to a client that is not there", id.0));
        }
    }
    let mut by_file: BTreeMap<&FileKey, Vec<&Lock>> = BTreeMap::new();
    for lock in saved.locks.values() {
        by_file.entry(&lock.file).or_default().push(lock);
    }
    for locks in by_file.values_mut() {
        conflicts(locks, &mut found);
    }
    found.truncate(PROBLEMS_MAX);
    found
}

/// Walks along the file. Of the locks so far it is enough to know the two, of different owners, that
/// reach furthest: what comes next conflicts with one of them or with none.
fn conflicts(locks: &mut [&Lock], found: &mut Vec<String>) {
    locks.sort_by_key(|lock| lock.range.first());
    let mut any = Furthest::default();
    let mut exclusive = Furthest::default();
    for lock in locks.iter() {
        let earlier = if lock.mode == Mode::Exclusive { &any } else { &exclusive };
        if let Some(other) = earlier.in_the_way_of(lock) {
            found.push(format!("locks {} and {} are in conflict", other.id.0, lock.id.0));
        }
        any.note(lock);
        if lock.mode == Mode::Exclusive {
            exclusive.note(lock);
        }
    }
}

#[derive(Default)]
struct Furthest<'a>([Option<&'a Lock>; 2]);

impl<'a> Furthest<'a> {
    fn in_the_way_of(&self, lock: &Lock) -> Option<&'a Lock> {
        let known = self.0.iter().flatten();
        let mut others = known.filter(|other| other.owner != lock.owner);
        others.find(|other| other.range.last() >= lock.range.first()).copied()
    }

    fn note(&mut self, lock: &'a Lock) {
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
    fn the_reach_of_one_owner_does_not_hide_that_of_another() {
        let saved =
            state(&[(1, 0, 10, true), (2, 0, 20, true), (1, 5, 25, true), (1, 15, 1, true)]);
        let locks: Vec<&Lock> = saved.locks.values().collect();
        let mut furthest = Furthest::default();
        locks[..3].iter().for_each(|lock| furthest.note(lock));
        let in_the_way = furthest.in_the_way_of(locks[3]);
        assert_eq!(in_the_way.map(|lock| lock.id), Some(LockId(1)));
    }

    #[test]
    fn orphans_and_impossible_ids_are_found() {
        let mut saved = state(&[(1, 0, 5, true)]);
        assert_eq!(problems(&saved), Vec::<String>::new());
        saved.clients.clear();
        assert!(problems(&saved)[0].contains("lock 0 belongs to a client that is not there"));
        let mut saved = state(&[(1, 0, 5, true)]);
        let lock = saved.locks[&LockId(0)].clone();
        saved.locks.insert(
            LockId(5_000),
            Lock { id: LockId(5_000), owner: Arc::clone(&lock.owner), ..lock },
        );
        assert!(problems(&saved)[0].contains("never given"));
    }
}
