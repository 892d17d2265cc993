//! The table's behaviour, and the invariants of its trees.

use super::*;
use Mode::{Exclusive, Shared};

impl Table {
    /// Panics if an invariant of the trees is violated.
    pub(crate) fn check(&self) {
        let (mut in_files, mut in_owners) = (0, 0);
        for (number, tree) in self.files.iter().enumerate() {
            let file = FileId(number as u32);
            let slots = self.arena.check::<InFile>(tree.root);
            assert!(slots.iter().all(|&slot| self.arena.node(slot).held.file == file));
            assert_eq!(slots.len(), self.file_len(file));
            in_files += slots.len();
        }
        for (number, tree) in self.owners.iter().enumerate() {
            let owner = OwnerId(number as u32);
            let slots = self.arena.check::<InOwner>(tree.root);
            assert!(slots.iter().all(|&slot| self.arena.node(slot).held.owner == owner));
            assert_eq!(slots.len(), self.owner_len(owner));
            in_owners += slots.len();
        }
        assert_eq!((in_files, in_owners), (self.len(), self.len()));
        assert_eq!(self.arena.len(), self.len());
        for (&id, &slot) in &self.ids {
            assert_eq!(self.arena.node(slot).held.id, id);
        }
    }
}

const FILE: FileId = FileId(0);
const ALICE: OwnerId = OwnerId(0);
const BOB: OwnerId = OwnerId(1);
const CAROL: OwnerId = OwnerId(2);

struct Bench {
    table: Table,
    last_id: u64,
    edit: TableDelta,
}

impl Bench {
    fn new() -> Self {
        Self { table: Table::new(1), last_id: 0, edit: TableDelta::default() }
    }

    fn lock(&mut self, owner: OwnerId, first: u64, last: u64, mode: Mode) {
        self.lock_on(owner, first, last, kind(mode));
    }

    fn lock_on(&mut self, owner: OwnerId, first: u64, last: u64, kind: LockKind) {
        let id = &mut self.last_id;
        let mut next_id = || {
            *id += 1;
            LockId(*id)
        };
        let (range, edit) = (range(first, last), &mut self.edit);
        edit.clear();
        self.table.grant(FILE, owner, range, kind, 100 - first, &mut next_id, edit);
        self.table.check();
    }

    fn unlock(&mut self, owner: OwnerId, first: u64, last: u64) {
        let id = &mut self.last_id;
        let mut next_id = || {
            *id += 1;
            LockId(*id)
        };
        self.edit.clear();
        self.table.release(FILE, owner, range(first, last), &mut next_id, &mut self.edit);
        self.table.check();
    }

    /// As (id, first, last, mode); `x` is exclusive.
    fn locks(&self) -> Vec<(u64, u64, u64, char)> {
        self.table.of_file(FILE).map(brief).collect()
    }
}

fn brief(held: HeldLock) -> (u64, u64, u64, char) {
    let mode = if held.kind.mode == Mode::Exclusive { 'x' } else { 's' };
    (held.id.0, held.range.first(), held.range.last(), mode)
}

fn range(first: u64, last: u64) -> Range {
    Range::between(first, last).unwrap()
}

fn kind(mode: Mode) -> LockKind {
    LockKind { mode, incarnation: Incarnation(3), monitored: true, confirmed: true, reports: 0 }
}

#[test]
fn touching_locks_of_one_owner_become_one_as_old_as_the_oldest() {
    let mut bench = Bench::new();
    bench.lock(ALICE, 10, 19, Exclusive);
    bench.lock(ALICE, 0, 9, Exclusive);
    assert_eq!(bench.locks(), [(2, 0, 19, 'x')]);
    assert_eq!(bench.edit.gone.len(), 1);
    assert_eq!(bench.table.get(LockId(2)).unwrap().since_ms, 90);
    bench.lock(ALICE, 40, 49, Exclusive);
    bench.lock(ALICE, 15, 44, Exclusive);
    assert_eq!(bench.locks(), [(4, 0, 49, 'x')]);
}

#[test]
fn a_lock_that_is_held_already_changes_nothing() {
    let mut bench = Bench::new();
    bench.lock(ALICE, 0, 9, Exclusive);
    bench.lock(ALICE, 3, 5, Exclusive);
    assert!(bench.edit.is_empty());
    assert_eq!(bench.locks(), [(1, 0, 9, 'x')]);
}

#[test]
fn another_mode_cuts_what_was_there() {
    let mut bench = Bench::new();
    bench.lock(ALICE, 0, 9, Exclusive);
    bench.lock(ALICE, 3, 5, Shared);
    assert_eq!(bench.locks(), [(2, 0, 2, 'x'), (3, 3, 5, 's'), (4, 6, 9, 'x')]);
    assert!(bench.table.of_file(FILE).all(|held| held.since_ms == 97 || held.since_ms == 100));
    bench.lock(ALICE, 0, u64::MAX, Shared);
    assert_eq!(bench.locks(), [(5, 0, u64::MAX, 's')]);
    assert_eq!(bench.edit.gone.len(), 3);
}

#[test]
fn locks_on_other_terms_stay_apart() {
    let mut bench = Bench::new();
    bench.lock(ALICE, 0, 4, Exclusive);
    bench.lock_on(ALICE, 5, 9, LockKind { confirmed: false, ..kind(Exclusive) });
    bench.lock_on(ALICE, 10, 14, LockKind { monitored: false, ..kind(Exclusive) });
    bench.lock_on(ALICE, 15, 19, LockKind { incarnation: Incarnation(5), ..kind(Exclusive) });
    assert_eq!(bench.table.len(), 4);
    assert!(bench.edit.gone.is_empty());
}

#[test]
fn locks_that_became_equal_are_joined_by_a_lock_that_touches_one_of_them() {
    let mut bench = Bench::new();
    let unconfirmed = LockKind { confirmed: false, ..kind(Exclusive) };
    bench.lock_on(ALICE, 0, 4, unconfirmed);
    bench.lock(ALICE, 5, 9, Exclusive);
    bench.table.confirm(LockId(1));
    bench.lock(ALICE, 5, 9, Exclusive);
    assert!(bench.edit.is_empty());
    bench.lock(ALICE, 10, 11, Exclusive);
    assert_eq!(bench.locks(), [(3, 0, 11, 'x')]);
}

#[test]
fn an_unlock_in_the_middle_leaves_both_sides() {
    let mut bench = Bench::new();
    bench.lock(ALICE, 0, u64::MAX, Shared);
    bench.unlock(ALICE, 5, 9);
    assert_eq!(bench.locks(), [(2, 0, 4, 's'), (3, 10, u64::MAX, 's')]);
    bench.unlock(BOB, 0, u64::MAX);
    assert!(bench.edit.is_empty());
    bench.unlock(ALICE, 3, u64::MAX);
    assert_eq!(bench.locks(), [(4, 0, 2, 's')]);
}

#[test]
fn the_first_lock_in_the_way_is_found() {
    let mut bench = Bench::new();
    bench.lock(ALICE, 0, 9, Shared);
    bench.lock(BOB, 5, 14, Shared);
    bench.lock(CAROL, 20, 29, Exclusive);
    let conflict = |owner, first, last, mode| {
        bench.table.conflict(FILE, owner, range(first, last), mode).map(brief)
    };
    assert_eq!(conflict(CAROL, 7, 7, Shared), None);
    assert_eq!(conflict(CAROL, 7, 7, Exclusive), Some((1, 0, 9, 's')));
    assert_eq!(conflict(ALICE, 7, 7, Exclusive), Some((2, 5, 14, 's')));
    assert_eq!(conflict(ALICE, 0, 30, Shared), Some((3, 20, 29, 'x')));
    assert_eq!(conflict(CAROL, 15, 30, Exclusive), None);
    assert_eq!(conflict(BOB, 15, 19, Exclusive), None);
}

#[test]
fn a_restored_lock_is_refused_where_its_owner_has_one() {
    let mut bench = Bench::new();
    bench.lock(ALICE, 0, 9, Exclusive);
    let held = bench.table.get(LockId(1)).unwrap();
    assert!(!bench.table.insert(HeldLock { id: LockId(7), ..held }));
    assert!(!bench.table.insert(HeldLock { range: range(10, 11), ..held }));
    assert!(bench.table.insert(HeldLock { id: LockId(7), range: range(10, 11), ..held }));
    assert_eq!(bench.locks(), [(1, 0, 9, 'x'), (7, 10, 11, 'x')]);
    bench.table.check();
}

/// Whether there is a conflict, and how many locks the search visits.
fn looks(bench: &Bench, owner: OwnerId, range: Range, mode: Mode) -> (usize, bool) {
    bench.table.looked_at.set(0);
    let found = bench.table.conflict(FILE, owner, range, mode).is_some();
    (bench.table.looked_at.get(), found)
}

#[test]
fn a_search_is_short_however_many_locks_are_in_the_range() {
    let mut bench = Bench::new();
    let held = |id, owner, first, kind| HeldLock {
        id: LockId(id),
        file: FILE,
        owner,
        range: range(first, first + 15),
        kind,
        since_ms: 0,
    };
    for i in 0..20_000 {
        // Alice writes, the others read, and readers overlap.
        assert!(bench.table.insert(held(2 * i + 1, ALICE, 100 * i, kind(Exclusive))));
        let reader = OwnerId(2 + (i % 50) as u32);
        assert!(bench.table.insert(held(2 * i + 2, reader, 100 * i + 20, kind(Shared))));
        assert!(bench.table.insert(held(100_000 + i, OwnerId(60), 100 * i + 30, kind(Shared))));
    }
    let last = 2_000_000;
    for (owner, first, mode, expected) in [
        (ALICE, 0, Shared, false),
        (ALICE, 35, Shared, false),
        (ALICE, 1_999_950, Exclusive, false),
        (ALICE, 0, Exclusive, true),
        (BOB, 1_000_020, Shared, true),
        (BOB, 1_000_035, Exclusive, true),
        (BOB, 1_999_920, Shared, false),
    ] {
        let (looks, found) = looks(&bench, owner, range(first, last), mode);
        assert_eq!(found, expected, "{owner:?} {first} {mode:?}");
        assert!(looks < 100, "{owner:?} {first} {mode:?} looked at {looks} locks");
    }
    // Readers alone.
    let mut bench = Bench::new();
    for i in 0..20_000 {
        let reader = OwnerId((i % 50) as u32);
        assert!(bench.table.insert(held(i + 1, reader, 100 * i, kind(Shared))));
    }
    let (count, found) = looks(&bench, OwnerId(60), range(0, last), Shared);
    assert!(!found && count < 100, "looked at {count} locks");
    // The only conflicting lock is behind all those of the requesting owner.
    let mut bench = Bench::new();
    for i in 0..20_000 {
        assert!(bench.table.insert(held(i + 1, ALICE, 100 * i, kind(Exclusive))));
    }
    assert!(bench.table.insert(held(90_000, BOB, last, kind(Exclusive))));
    for mode in [Shared, Exclusive] {
        let (looks, found) = looks(&bench, ALICE, range(7, last), mode);
        assert!(found && looks < 100, "{mode:?} looked at {looks} locks");
    }
}

#[test]
fn all_locks_of_some_owners_go_together_and_come_out_file_by_file() {
    let mut bench = Bench::new();
    let mut id = 0;
    for (first, owner) in [(0, ALICE), (1, BOB), (2, CAROL), (3, ALICE), (4, BOB)] {
        for file in [FileId(2), FileId(1)] {
            id += 1;
            let (id, range) = (LockId(id), range(10 * first, 10 * first));
            let held = HeldLock { id, file, owner, range, kind: kind(Shared), since_ms: 0 };
            assert!(bench.table.insert(held));
        }
    }
    let (mut out, mut gone) = (Vec::new(), |held: &HeldLock| held.id != LockId(1));
    bench.table.remove_all_owned(&[BOB, ALICE], &mut gone, &mut out);
    bench.table.check();
    let ids: Vec<_> = out.iter().map(|held| held.id.0).collect();
    assert_eq!(ids, [2, 4, 8, 10, 3, 7, 9]);
    assert_eq!(bench.table.after(LockId(0)).map(|held| held.id.0).collect::<Vec<_>>(), [1, 5, 6]);
}
