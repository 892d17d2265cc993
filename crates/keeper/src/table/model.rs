//! The table against a naive model: for each file and owner, which lock is on which byte. There are
//! few bytes, but the last is `u64::MAX`.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use testbed::random::Random;

use super::*;

const FILES: u32 = 3;
const OWNERS: u32 = 4;

/// Bytes of the model: 8 at the beginning, the whole middle as one, 8 at the end.
const CELLS: usize = 17;

fn first_of(cell: usize) -> u64 {
    if cell <= 8 { cell as u64 } else { u64::MAX - (CELLS - 1 - cell) as u64 }
}

fn last_of(cell: usize) -> u64 {
    if cell + 1 == CELLS { u64::MAX } else { first_of(cell + 1) - 1 }
}

fn range_of(first: usize, last: usize) -> Range {
    Range::between(first_of(first), last_of(last)).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    /// `None` for a lock that is new or was split: its id must be new.
    id: Option<LockId>,
    kind: LockKind,
    since_ms: u64,
}

#[derive(Clone, Default)]
struct Model {
    cells: BTreeMap<(FileId, OwnerId), [Option<Mark>; CELLS]>,
}

impl Model {
    fn row(&mut self, file: FileId, owner: OwnerId) -> &mut [Option<Mark>; CELLS] {
        self.cells.entry((file, owner)).or_default()
    }

    fn grant(&mut self, file: FileId, owner: OwnerId, first: usize, last: usize, mut new: Mark) {
        let row = self.row(file, owner);
        let one = row[first].filter(|mark| mark.kind == new.kind);
        if one.is_some() && row[first..=last].iter().all(|mark| *mark == one) {
            return;
        }
        let (mut low, mut high) = (first, last);
        for mark in row[first..=last].iter().flatten().filter(|mark| mark.kind == new.kind) {
            new.since_ms = new.since_ms.min(mark.since_ms);
        }
        while let Some(mark) = low.checked_sub(1).and_then(|cell| row[cell])
            && mark.kind == new.kind
        {
            new.since_ms = new.since_ms.min(mark.since_ms);
            low -= 1;
        }
        while let Some(Some(mark)) = row.get(high + 1)
            && mark.kind == new.kind
        {
            new.since_ms = new.since_ms.min(mark.since_ms);
            high += 1;
        }
        self.paint(file, owner, low, high, None);
        self.row(file, owner)[low..=high].fill(Some(new));
    }

    /// A lock that loses a byte becomes new; `paint` with a mark restores it as it is.
    fn paint(
        &mut self,
        file: FileId,
        owner: OwnerId,
        first: usize,
        last: usize,
        mark: Option<Mark>,
    ) {
        let row = self.row(file, owner);
        let cut: Vec<_> = row[first..=last].iter().flatten().filter_map(|mark| mark.id).collect();
        for mark in row.iter_mut().flatten() {
            if mark.id.is_some_and(|id| cut.contains(&id)) {
                mark.id = None;
            }
        }
        row[first..=last].fill(mark);
    }

    /// Checks that all else is equal, then takes over the table's ids for what was new.
    fn compare(&mut self, table: &Table, known_id: u64) {
        for file in (0..FILES).map(FileId) {
            for owner in (0..OWNERS).map(OwnerId) {
                let held: Vec<_> = table.owned(owner, file, Range::ALL).collect();
                let row = self.row(file, owner);
                let mut seen = [None; CELLS];
                for held in &held {
                    for (cell, seen) in seen.iter_mut().enumerate() {
                        if held.range.covers(range_of(cell, cell)) {
                            assert_eq!(*seen, None, "two locks on one byte");
                            let HeldLock { id, kind, since_ms, .. } = *held;
                            *seen = Some(Mark { id: Some(id), kind, since_ms });
                        }
                    }
                    assert!(seen.iter().flatten().any(|mark| mark.id == Some(held.id)));
                }
                for (cell, (seen, mark)) in seen.iter().zip(row.iter_mut()).enumerate() {
                    if let (Some(Mark { id: Some(id), .. }), Some(mark)) = (seen, mark.as_mut())
                        && mark.id.is_none()
                    {
                        assert!(id.0 > known_id, "{id:?} is not new");
                        mark.id = Some(*id);
                    }
                    assert_eq!(seen, mark, "{file:?} {owner:?} byte {cell}");
                }
                // Adjacent bytes of one new lock must be one lock in the table.
                for (one, other) in held.iter().zip(held.iter().skip(1)) {
                    let both_new = one.id.0 > known_id && other.id.0 > known_id;
                    let joinable = one.kind == other.kind && one.range.touches(other.range);
                    assert!(!(both_new && joinable), "{one:?} and {other:?} are one lock");
                }
            }
        }
    }
}

struct Dice(Random);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0.below(sides)
    }

    fn cells(&mut self) -> (usize, usize) {
        let (one, other) = (self.roll(CELLS as u64) as usize, self.roll(CELLS as u64) as usize);
        (one.min(other), one.max(other))
    }

    fn kind(&mut self) -> LockKind {
        LockKind {
            mode: if self.roll(3) == 0 { Mode::Exclusive } else { Mode::Shared },
            incarnation: Incarnation(3 + 2 * u32::from(self.roll(8) == 0)),
            monitored: self.roll(8) > 0,
            confirmed: self.roll(3) > 0,
            reports: 0,
        }
    }
}

/// The table, the model, and a copy maintained from edits alone.
struct World {
    table: Table,
    model: Model,
    copy: BTreeMap<LockId, HeldLock>,
    last_id: u64,
    edit: TableDelta,
}

impl World {
    fn new(seed: u64) -> Self {
        let (model, copy) = (Model::default(), BTreeMap::new());
        Self { table: Table::new(seed), model, copy, last_id: 0, edit: TableDelta::default() }
    }

    fn step(&mut self, dice: &mut Dice) {
        let file = FileId(dice.roll(u64::from(FILES)) as u32);
        let owner = OwnerId(dice.roll(u64::from(OWNERS)) as u32);
        let (first, last) = dice.cells();
        let (range, kind, since_ms) = (range_of(first, last), dice.kind(), dice.roll(1000));
        let known_id = self.last_id;
        let last_id = &mut self.last_id;
        let mut next_id = || {
            *last_id += 1;
            LockId(*last_id)
        };
        let expected = in_the_way(&self.copy, file, owner, range, kind.mode);
        let found = self.table.conflict(file, owner, range, kind.mode);
        assert_eq!(found, expected.first().copied());
        let mut all = Vec::new();
        self.table.conflicts(file, owner, range, kind.mode, &mut |held| {
            all.push(*held);
            ControlFlow::Continue(())
        });
        assert_eq!(all, expected);

        self.edit.clear();
        match dice.roll(16) {
            0..8 => {
                if expected.is_empty() {
                    let edit = &mut self.edit;
                    self.table.grant(file, owner, range, kind, since_ms, &mut next_id, edit);
                    let mark = Mark { id: None, kind, since_ms };
                    self.model.grant(file, owner, first, last, mark);
                }
            }
            8..11 => {
                self.table.release(file, owner, range, &mut next_id, &mut self.edit);
                self.model.paint(file, owner, first, last, None);
            }
            11..13 => {
                let id =
                    LockId(if dice.roll(4) == 0 { dice.roll(known_id + 1) } else { next_id().0 });
                let held = HeldLock { id, file, owner, range, kind, since_ms };
                let free = self.model.row(file, owner)[first..=last].iter().all(Option::is_none);
                let done = self.table.insert(held);
                assert_eq!(done, free && !self.copy.contains_key(&id));
                if done {
                    self.edit.new.push(held);
                    let mark = Some(Mark { id: Some(id), kind, since_ms });
                    self.model.paint(file, owner, first, last, mark);
                }
            }
            13 => {
                let id = LockId(dice.roll(known_id + 1));
                let gone = self.table.remove(id);
                assert_eq!(gone, self.copy.get(&id).copied());
                self.edit.gone.extend(gone);
                self.model.forget(&|mark| mark.id == gone.map(|held| held.id));
            }
            14 => {
                let first_owned = self.table.owned(owner, file, range).next();
                if let Some(held) = first_owned {
                    self.table.confirm(held.id);
                    let kind = LockKind { confirmed: true, ..held.kind };
                    self.copy.insert(held.id, HeldLock { kind, ..held });
                    for mark in self.model.row(file, owner).iter_mut().flatten() {
                        if mark.id == Some(held.id) {
                            mark.kind.confirmed = true;
                        }
                    }
                }
            }
            _ => {
                let (out, spared) = (&mut self.edit.gone, dice.roll(3));
                let mut gone = |held: &HeldLock| spared == 0 || held.id.0 % 3 != spared;
                let other = OwnerId((owner.0 + 1) % OWNERS);
                let owners = [owner, other];
                let owners = &owners[..1 + dice.roll(2) as usize];
                self.table.remove_all_owned(owners, &mut gone, out);
                assert!(out.is_sorted_by_key(|held| (held.file, held.range.first(), held.owner)));
                for held in out {
                    assert!(owners.contains(&held.owner));
                    let id = Some(held.id);
                    self.model.forget(&|mark| mark.id == id);
                }
                assert!(self.table.of_owner(owner).all(|held| !gone(&held)));
            }
        }
        for held in &self.edit.gone {
            assert_eq!(self.copy.remove(&held.id), Some(*held));
        }
        for held in &self.edit.new {
            assert_eq!(self.copy.insert(held.id, *held), None);
        }
        self.table.check();
        self.model.compare(&self.table, known_id);
        self.compare_readers(file, owner);
    }

    fn compare_readers(&self, file: FileId, owner: OwnerId) {
        let half = LockId(self.last_id / 2);
        assert!(
            self.table.after(LockId(0)).eq(self.copy.range(LockId(1)..).map(|(_, held)| *held))
        );
        let upper = self.copy.range((Bound::Excluded(half), Bound::Unbounded));
        assert!(self.table.after(half).eq(upper.map(|(_, held)| *held)));
        let mut of_file: Vec<_> = self.copy.values().filter(|held| held.file == file).collect();
        of_file.sort_by_key(|held| (held.range.first(), held.owner));
        assert!(self.table.of_file(file).eq(of_file.into_iter().copied()));
        let mut of_owner: Vec<_> = self.copy.values().filter(|held| held.owner == owner).collect();
        of_owner.sort_by_key(|held| (held.file, held.range.first()));
        assert!(self.table.of_owner(owner).eq(of_owner.into_iter().copied()));
        assert!(self.copy.values().all(|held| self.table.get(held.id) == Some(*held)));
    }
}

impl Model {
    fn forget(&mut self, which: &dyn Fn(&Mark) -> bool) {
        for cell in self.cells.values_mut().flatten() {
            if cell.as_ref().is_some_and(which) {
                *cell = None;
            }
        }
    }
}

fn in_the_way(
    copy: &BTreeMap<LockId, HeldLock>,
    file: FileId,
    owner: OwnerId,
    range: Range,
    mode: Mode,
) -> Vec<HeldLock> {
    let hinders = |held: &&HeldLock| {
        held.file == file
            && held.owner != owner
            && held.range.overlaps(range)
            && held.kind.mode.conflicts(mode)
    };
    let mut found: Vec<_> = copy.values().filter(hinders).copied().collect();
    found.sort_by_key(|held| (held.range.first(), held.owner));
    found
}

#[test]
fn the_table_does_what_a_map_of_bytes_does() {
    for seed in 0..200 {
        let (mut world, mut dice) = (World::new(seed), Dice(Random::new(seed)));
        for _ in 0..150 {
            world.step(&mut dice);
        }
    }
}
