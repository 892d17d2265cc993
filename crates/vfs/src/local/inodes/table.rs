//! The inode map in memory: which names lead to which inode.
//!
//! Divided into shards by inode, so that look-ups do not wait for the removal of unused entries, nor
//! for the table to be written. No two shards are locked at once.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use super::{
    super::node::lock,
    record::{Record, RecordKind},
};

const SHARDS: usize = 64;
const DEPTH_MAX: usize = 4096;

/// Names of one file that are tried when it is opened: the latest.
const TRIED_MAX: usize = 64;

/// Ids of removed files that each shard remembers, so that none is given to a new file.
const REMOVED_MAX: usize = 64;

pub(super) struct Table {
    shards: [Mutex<Shard>; SHARDS],
    /// Of all inodes.
    names: AtomicUsize,
    /// Counts uses, as the time of `Inode::seen`.
    clock: AtomicU64,
}

#[derive(Default)]
struct Shard {
    inodes: HashMap<u64, Inode>,
    /// How many names each directory is the parent of. A directory with names is never removed.
    children: HashMap<u64, u32>,
    /// Inode and generation of files that are gone, the latest last.
    removed: VecDeque<(u64, u64)>,
}

struct Inode {
    generation: u64,
    /// The birth time that the file system reports. Differs from the generation if the file was
    /// copied up by overlayfs, or if its id would have been that of a removed file.
    born: u64,
    seen: u64,
    /// A client has presented the handle since it was given out.
    is_used: bool,
    /// The latest first.
    names: Vec<PathComponent>,
}

/// A directory entry that refers to the inode.
#[derive(Clone, PartialEq, Eq)]
struct PathComponent {
    parent: u64,
    name: Box<[u8]>,
}

/// What is recorded of an inode, which may be another file's by now.
pub(super) struct Known {
    pub(super) generation: u64,
    pub(super) born: u64,
    /// It has the name that was asked for.
    pub(super) has_name: bool,
}

/// What opens an object: paths from the root to try, and the birth time that it must have.
pub(super) struct Candidates {
    pub(super) paths: Vec<Vec<Box<[u8]>>>,
    pub(super) born: u64,
}

impl Table {
    pub(super) fn new() -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, names: AtomicUsize::new(0), clock: AtomicU64::new(0) }
    }

    /// The number of names.
    pub(super) fn len(&self) -> usize {
        self.names.load(Relaxed)
    }

    /// What is recorded of an inode.
    pub(super) fn known(&self, inode: u64, parent: u64, name: &[u8]) -> Option<Known> {
        let shard = self.shard(inode);
        let known = shard.inodes.get(&inode)?;
        let has_name = known.names.iter().any(|n| n.parent == parent && *n.name == *name);
        Some(Known { generation: known.generation, born: known.born, has_name })
    }

    /// A generation for a file that is not known, with which its id is not that of a removed file:
    /// birth times repeat when an inode is used again within a tick of the clock.
    pub(super) fn new_generation(&self, inode: u64, wanted: u64) -> u64 {
        let shard = self.shard(inode);
        let mut generation = wanted;
        while shard.removed.contains(&(inode, generation)) {
            generation = generation.wrapping_add(1);
        }
        generation
    }

    /// The file has lost its last name and will not be seen again.
    pub(super) fn died(&self, inode: u64, generation: u64) {
        let removed = &mut self.shard(inode).removed;
        removed.push_back((inode, generation));
        if removed.len() > REMOVED_MAX {
            removed.pop_front();
        }
    }

    /// Applies a record, and calls `changed` if that changed anything, before anything else can change
    /// the inode. A repeated name marks the inode as used.
    pub(super) fn apply(&self, record: &Record<'_>, changed: impl FnOnce()) {
        let seen = self.clock.fetch_add(1, Relaxed);
        let Record { kind, inode, generation, parent, .. } = *record;
        match kind {
            RecordKind::Born => {
                let mut shard = self.shard(inode);
                if shard.reborn(inode, generation, parent) {
                    changed();
                }
                return;
            }
            // Before the name: a directory must not be removed in between.
            RecordKind::NameAdded => self.count_child(parent, seen),
            RecordKind::NameRemoved => {}
        }
        let mut shard = self.shard(inode);
        let applied = shard.apply(record, seen);
        self.names.fetch_add(usize::from(applied.added), Relaxed);
        self.names.fetch_sub(applied.orphaned.len(), Relaxed);
        if applied.changed {
            changed();
        }
        drop(shard);
        if kind == RecordKind::NameAdded && !applied.added {
            self.discount_child(parent);
        }
        applied.orphaned.iter().for_each(|parent| self.discount_child(*parent));
    }

    /// Whether this name is recorded; it then counts as seen.
    pub(super) fn has_name(&self, inode: u64, generation: u64, parent: u64, name: &[u8]) -> bool {
        let mut shard = self.shard(inode);
        let Some(known) = shard.inodes.get_mut(&inode) else { return false };
        let there = known.names.iter().any(|n| n.parent == parent && *n.name == *name);
        let is_known = known.generation == generation && there;
        if is_known {
            known.seen = self.clock.fetch_add(1, Relaxed);
        }
        is_known
    }

    /// Notes that a client has presented the handle; the first time, calls `first` with a name of the
    /// file, as [`apply`](Table::apply) does.
    pub(super) fn mark_used(&self, inode: u64, generation: u64, first: impl FnOnce(u64, &[u8])) {
        let seen = self.clock.fetch_add(1, Relaxed);
        let mut shard = self.shard(inode);
        let known = shard.inodes.get_mut(&inode).filter(|known| known.generation == generation);
        let Some(known) = known else { return };
        known.seen = seen;
        if !std::mem::replace(&mut known.is_used, true)
            && let Some(name) = known.names.first()
        {
            first(name.parent, &name.name);
        }
    }

    /// The known paths of an object, from the root.
    pub(super) fn candidates(&self, root: u64, inode: u64, generation: u64) -> Option<Candidates> {
        let (names, born) = {
            let shard = self.shard(inode);
            let known = shard.inodes.get(&inode).filter(|known| known.generation == generation)?;
            (known.names.iter().take(TRIED_MAX).cloned().collect::<Vec<_>>(), known.born)
        };
        let paths = names.into_iter().filter_map(|name| self.path(root, name)).collect();
        Some(Candidates { paths, born })
    }

    fn path(&self, root: u64, last: PathComponent) -> Option<Vec<Box<[u8]>>> {
        let mut parent = last.parent;
        let mut names = vec![last.name];
        while parent != root {
            let above = self.shard(parent).inodes.get(&parent)?.names.first()?.clone();
            names.push(above.name);
            if names.len() > DEPTH_MAX {
                return None;
            }
            parent = above.parent;
        }
        names.reverse();
        Some(names)
    }

    /// Removes entries that were not seen for the longest time, without names below them: if more than
    /// `unused_max` names are of files whose handle no client has presented since it was given out, so
    /// many that three quarters of it are left, and likewise of used ones beyond `used_max`.
    pub(super) fn prune(&self, unused_max: usize, used_max: usize) {
        for (used, max) in [(false, unused_max), (true, used_max)] {
            let Some(limit) = self.last_to_go(used, max) else { continue };
            for shard in &self.shards {
                let orphaned = {
                    let mut shard = lock(shard);
                    let orphaned = shard.remove_up_to(limit, used);
                    self.names.fetch_sub(orphaned.len(), Relaxed);
                    orphaned
                };
                orphaned.iter().for_each(|parent| self.discount_child(*parent));
            }
        }
    }

    /// When the last of the entries that must go was seen; `None` if there are no more than `max` names.
    fn last_to_go(&self, used: bool, max: usize) -> Option<u64> {
        let (mut names, mut removable) = (0, Vec::new());
        for shard in &self.shards {
            let Shard { inodes, children, .. } = &*lock(shard);
            for (number, inode) in inodes.iter().filter(|(_, inode)| inode.is_used == used) {
                names += inode.names.len();
                if !children.contains_key(number) {
                    removable.push((inode.seen, inode.names.len()));
                }
            }
        }
        if names <= max {
            return None;
        }
        removable.sort_unstable();
        let mut left = names;
        let enough = removable.iter().find(|(_, count)| {
            left -= count;
            left <= max - max / 4
        });
        enough.or(removable.last()).map(|(seen, _)| *seen)
    }

    /// Writes all entries as records, a shard at a time.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for shard in &self.shards {
            for (&inode, known) in &lock(shard).inodes {
                known.encode(inode, out);
            }
        }
    }

    fn count_child(&self, parent: u64, seen: u64) {
        let mut shard = self.shard(parent);
        *shard.children.entry(parent).or_default() += 1;
        if let Some(known) = shard.inodes.get_mut(&parent) {
            known.seen = seen;
        }
    }

    fn discount_child(&self, parent: u64) {
        let mut shard = self.shard(parent);
        if let Some(count) = shard.children.get_mut(&parent) {
            *count -= 1;
            if *count == 0 {
                shard.children.remove(&parent);
            }
        }
    }

    fn shard(&self, inode: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[inode as usize % SHARDS])
    }
}

/// What a record did to a shard.
#[derive(Default)]
struct Applied {
    changed: bool,
    /// A name was added.
    added: bool,
    /// The parents of names that were dropped.
    orphaned: Vec<u64>,
}

impl Shard {
    fn apply(&mut self, record: &Record<'_>, seen: u64) -> Applied {
        let Record { kind, inode, generation, parent, name } = *record;
        let mut applied = Applied::default();
        let is_addition = kind == RecordKind::NameAdded;
        let known = match self.inodes.get_mut(&inode) {
            Some(known) if known.generation == generation => known,
            other if is_addition => {
                // The inode belongs to another file now.
                applied.orphaned = other.map(|other| other.parents()).unwrap_or_default();
                let known = self.inodes.entry(inode).insert_entry(Inode::new(generation));
                known.into_mut()
            }
            _ => return applied,
        };
        known.seen = seen;
        let there = known.names.iter().position(|n| n.parent == parent && *n.name == *name);
        match (is_addition, there) {
            (true, Some(_)) => applied.changed = !std::mem::replace(&mut known.is_used, true),
            (true, None) => {
                // Most files have one name only.
                known.names.reserve_exact(usize::from(known.names.is_empty()));
                known.names.insert(0, PathComponent { parent, name: name.into() });
                (applied.added, applied.changed) = (true, true);
            }
            (false, Some(at)) => {
                known.names.remove(at);
                applied.orphaned.push(parent);
                applied.changed = true;
            }
            (false, None) => {}
        }
        if known.names.is_empty() {
            self.inodes.remove(&inode);
        }
        applied
    }

    fn reborn(&mut self, inode: u64, generation: u64, born: u64) -> bool {
        let known = self.inodes.entry(inode).or_insert_with(|| Inode::new(generation));
        // A new file is recorded by its birth before its name.
        if known.generation != generation && known.names.is_empty() {
            *known = Inode::new(generation);
        }
        let changed = known.generation == generation && known.born != born;
        if changed {
            known.born = born;
        }
        changed
    }

    /// Removes entries last seen at `limit` or before; returns the parents of their names.
    fn remove_up_to(&mut self, limit: u64, used: bool) -> Vec<u64> {
        let Self { inodes, children, .. } = self;
        let old = |number: &u64, inode: &mut Inode| {
            inode.seen <= limit && inode.is_used == used && !children.contains_key(number)
        };
        inodes.extract_if(old).flat_map(|(_, inode)| inode.parents()).collect()
    }
}

impl Inode {
    fn new(generation: u64) -> Self {
        Self { generation, born: generation, seen: 0, is_used: false, names: Vec::new() }
    }

    fn parents(&self) -> Vec<u64> {
        self.names.iter().map(|name| name.parent).collect()
    }

    fn encode(&self, inode: u64, out: &mut Vec<u8>) {
        let Self { generation, born, .. } = *self;
        let mut put = |kind, parent, name: &[u8]| {
            Record { kind, inode, generation, parent, name }.encode(out);
        };
        if born != generation {
            put(RecordKind::Born, born, b"");
        }
        for name in self.names.iter().rev() {
            put(RecordKind::NameAdded, name.parent, &name.name);
        }
        if let Some(name) = self.names.first().filter(|_| self.is_used) {
            put(RecordKind::NameAdded, name.parent, &name.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &Table, inode: u64, parent: u64, name: &str) {
        table.apply(&record(RecordKind::NameAdded, inode, parent, name), || ());
    }

    fn remove(table: &Table, inode: u64, parent: u64, name: &str) {
        table.apply(&record(RecordKind::NameRemoved, inode, parent, name), || ());
    }

    fn record(kind: RecordKind, inode: u64, parent: u64, name: &str) -> Record<'_> {
        Record { kind, inode, generation: 0, parent, name: name.as_bytes() }
    }

    /// Whether this was the first use.
    fn mark_used(table: &Table, inode: u64) -> bool {
        let mut is_first = false;
        table.mark_used(inode, 0, |_, _| is_first = true);
        is_first
    }

    fn path(table: &Table, inode: u64) -> Option<String> {
        let paths = table.candidates(1, inode, 0)?.paths;
        let names = paths.first()?.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        Some(names.collect::<Vec<_>>().join("/"))
    }

    #[test]
    fn the_longest_unseen_go_first_and_directories_stay_with_what_is_below() {
        let table = Table::new();
        add(&table, 2, 1, "old directory");
        for inode in 10..20 {
            add(&table, inode, 1, &inode.to_string());
        }
        add(&table, 30, 2, "new");
        table.prune(8, usize::MAX);
        assert_eq!(table.len(), 6);
        assert_eq!(path(&table, 30).as_deref(), Some("old directory/new"));
        assert_eq!(path(&table, 10), None);
        assert_eq!(path(&table, 19).as_deref(), Some("19"));
        remove(&table, 30, 2, "new");
        table.prune(0, usize::MAX);
        assert_eq!((path(&table, 2), table.len()), (None, 0));
    }

    #[test]
    fn a_handle_that_a_client_uses_stays_whatever_is_looked_up_after_it() {
        let table = Table::new();
        add(&table, 2, 1, "daily");
        assert!(mark_used(&table, 2) && !mark_used(&table, 2));
        for inode in 10..10_000 {
            add(&table, inode, 1, &inode.to_string());
        }
        table.prune(100, usize::MAX);
        assert_eq!(path(&table, 2).as_deref(), Some("daily"));
        assert_eq!(table.len(), 76);
    }

    #[test]
    fn used_handles_go_by_age_where_even_they_are_too_many() {
        let table = Table::new();
        for inode in 10..20 {
            add(&table, inode, 1, &inode.to_string());
            mark_used(&table, inode);
        }
        mark_used(&table, 10);
        table.prune(0, 10);
        assert_eq!(table.len(), 10);
        table.prune(0, 8);
        assert_eq!(table.len(), 6);
        assert!(path(&table, 10).is_some() && path(&table, 11).is_none());
    }

    #[test]
    fn handles_that_were_just_given_out_stay_beside_many_that_are_used() {
        let table = Table::new();
        for inode in 10..1_010 {
            add(&table, inode, 1, &inode.to_string());
            mark_used(&table, inode);
        }
        for inode in 2_000..2_100 {
            add(&table, inode, 1, &inode.to_string());
        }
        table.prune(100, 1_000);
        assert_eq!(table.len(), 1_100);
    }

    #[test]
    fn a_file_is_found_by_its_last_name_however_many_it_had() {
        let table = Table::new();
        for name in 0..300 {
            add(&table, 2, 1, &name.to_string());
        }
        for name in 1..300 {
            remove(&table, 2, 1, &name.to_string());
        }
        assert_eq!(path(&table, 2).as_deref(), Some("0"));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_loop_ends() {
        let table = Table::new();
        add(&table, 2, 3, "a");
        add(&table, 3, 2, "b");
        assert_eq!(path(&table, 2), None);
    }

    #[test]
    fn a_new_file_gets_no_id_of_a_removed_one() {
        let table = Table::new();
        add(&table, 2, 1, "a");
        remove(&table, 2, 1, "a");
        // It may have another name.
        assert_eq!(table.new_generation(2, 0), 0);
        table.died(2, 0);
        assert_eq!(table.new_generation(2, 0), 1);
        assert_eq!(table.new_generation(3, 0), 0);
    }

    #[test]
    fn what_is_encoded_gives_the_same_table() {
        let table = Table::new();
        add(&table, 2, 1, "d");
        add(&table, 3, 2, "f");
        mark_used(&table, 3);
        table.apply(&Record { parent: 77, ..record(RecordKind::Born, 3, 0, "") }, || ());
        let mut bytes = Vec::new();
        table.encode(&mut bytes);
        let (copy, mut rest) = (Table::new(), &bytes[..]);
        while let Some((record, length)) = Record::decode(rest) {
            copy.apply(&record, || ());
            rest = &rest[length..];
        }
        assert_eq!(path(&copy, 3).as_deref(), Some("d/f"));
        assert_eq!(copy.candidates(1, 3, 0).unwrap().born, 77);
        assert!(!mark_used(&copy, 3) && mark_used(&copy, 2));
    }
}
