//! The name by which each file was last reached, so that lock listings can show paths.
//!
//! Bounded by two generations of a map: a recorded name goes into the young one, and when that is
//! full the old one is dropped. For display only, never used to open a file.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::{FileKey, FileSystemId, ObjectId};

/// A bounded cache of file names.
pub struct Names {
    generation_max: usize,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<FileKey, Name>,
    old: HashMap<FileKey, Name>,
}

#[derive(Clone)]
struct Name {
    dir: ObjectId,
    name: Bytes,
}

/// Deeper than real paths; ends a loop among stale names.
const DEPTH_MAX: usize = 256;

impl Names {
    /// A cache of at most `names_max` names.
    pub fn new(names_max: usize) -> Self {
        Self { generation_max: names_max.div_ceil(2), generations: Mutex::default() }
    }

    /// Records that `file` is the entry `name` of `dir`, a directory of the same file system.
    pub fn record(&self, file: &FileKey, dir: &ObjectId, name: &[u8]) {
        if name == b"." || name == b".." {
            return;
        }
        let mut names = self.lock();
        if names.young.get(file).is_some_and(|known| known.dir == *dir && known.name == name) {
            return;
        }
        if names.young.len() >= self.generation_max {
            names.old = mem::take(&mut names.young);
        }
        let name = Name { dir: *dir, name: Bytes::copy_from_slice(name) };
        names.young.insert(*file, name);
    }

    /// Drops the name of `file`.
    pub fn forget(&self, file: &FileKey) {
        let mut names = self.lock();
        names.young.remove(file);
        names.old.remove(file);
    }

    /// The path of `file` below `root`; `None` if the name of the file or of a directory on the
    /// way is unknown.
    pub fn path(&self, file: &FileKey, root: &ObjectId) -> Option<Vec<u8>> {
        let names = self.lock();
        let mut parts = Vec::new();
        let mut at = file.object;
        while at != *root {
            let known = names.get(file.filesystem, at)?;
            parts.push(known.name.clone());
            if parts.len() > DEPTH_MAX {
                return None;
            }
            at = known.dir;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn get(&self, filesystem: FileSystemId, object: ObjectId) -> Option<&Name> {
        let file = FileKey { filesystem, object };
        self.young.get(&file).or_else(|| self.old.get(&file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u64) -> FileKey {
        FileKey { filesystem: FileSystemId(1), object: number.into() }
    }

    #[test]
    fn a_path_is_put_together_from_recorded_names() {
        let names = Names::new(100);
        names.record(&file(2), &1.into(), b"projects");
        names.record(&file(3), &2.into(), b"a.db");
        assert_eq!(names.path(&file(3), &1.into()).unwrap(), b"projects/a.db");
        assert_eq!(names.path(&file(1), &1.into()).unwrap(), b"");
        assert_eq!(names.path(&file(4), &1.into()), None);
        names.record(&file(3), &1.into(), b"renamed");
        assert_eq!(names.path(&file(3), &1.into()).unwrap(), b"renamed");
        names.forget(&file(3));
        assert_eq!(names.path(&file(3), &1.into()), None);
    }

    #[test]
    fn a_million_names_leave_at_most_the_bound() {
        let names = Names::new(1000);
        for number in 2..1_000_000 {
            names.record(&file(number), &1.into(), b"x");
        }
        let generations = names.lock();
        assert!(generations.young.len() + generations.old.len() <= 1000);
        assert!(generations.young.contains_key(&file(999_999)));
    }

    #[test]
    fn a_loop_of_stale_names_ends() {
        let names = Names::new(10);
        names.record(&file(2), &3.into(), b"a");
        names.record(&file(3), &2.into(), b"b");
        assert_eq!(names.path(&file(2), &1.into()), None);
    }
}
