//! By what name each file was last seen, so that listings can show paths.
//!
//! Bounded: two generations of a map. A name that is seen moves to the young one; when that is
//! full the old one is forgotten. Names are a convenience, never a way to reach a file.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::{FileKey, FileSystemId, ObjectId};

pub struct Names {
    generation_max: usize,
    seen: Mutex<Generations>,
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

/// Deeper than any path that a client can spell; stops a loop of stale names.
const DEPTH_MAX: usize = 256;

impl Names {
    pub fn new(names_max: usize) -> Self {
        Self { generation_max: names_max.div_ceil(2), seen: Mutex::default() }
    }

    /// `file` was seen as `name` in the directory `dir` of the same file system.
    pub fn saw(&self, file: &FileKey, dir: &ObjectId, name: &[u8]) {
        if name == b"." || name == b".." {
            return;
        }
        let mut seen = self.lock();
        if seen.young.get(file).is_some_and(|known| known.dir == *dir && known.name == name) {
            return;
        }
        if seen.young.len() >= self.generation_max {
            seen.old = mem::take(&mut seen.young);
        }
        let name = Name { dir: *dir, name: Bytes::copy_from_slice(name) };
        seen.young.insert(*file, name);
    }

    pub fn forget(&self, file: &FileKey) {
        let mut seen = self.lock();
        seen.young.remove(file);
        seen.old.remove(file);
    }

    /// The path of `file` below `root`, or `None` where a part of it was never seen.
    pub fn path(&self, file: &FileKey, root: &ObjectId) -> Option<Vec<u8>> {
        let seen = self.lock();
        let mut parts = Vec::new();
        let mut at = file.object;
        while at != *root {
            let known = seen.get(file.filesystem, at)?;
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
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn a_path_is_put_together_from_the_names_seen() {
        let names = Names::new(100);
        names.saw(&file(2), &1.into(), b"projects");
        names.saw(&file(3), &2.into(), b"a.db");
        assert_eq!(names.path(&file(3), &1.into()).unwrap(), b"projects/a.db");
        assert_eq!(names.path(&file(1), &1.into()).unwrap(), b"");
        assert_eq!(names.path(&file(4), &1.into()), None);
        names.saw(&file(3), &1.into(), b"renamed");
        assert_eq!(names.path(&file(3), &1.into()).unwrap(), b"renamed");
        names.forget(&file(3));
        assert_eq!(names.path(&file(3), &1.into()), None);
    }

    #[test]
    fn a_million_names_leave_at_most_the_bound() {
        let names = Names::new(1000);
        for number in 2..1_000_000 {
            names.saw(&file(number), &1.into(), b"x");
        }
        let seen = names.lock();
        assert!(seen.young.len() + seen.old.len() <= 1000);
        assert!(seen.young.contains_key(&file(999_999)));
    }

    #[test]
    fn a_loop_of_stale_names_ends() {
        let names = Names::new(10);
        names.saw(&file(2), &3.into(), b"a");
        names.saw(&file(3), &2.into(), b"b");
        assert_eq!(names.path(&file(2), &1.into()), None);
    }
}
