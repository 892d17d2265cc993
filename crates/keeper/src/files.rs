//! Files by small numbers, with what is on a file besides its locks: who waits, who shares.

use crate::bytes::FileKey;
use crate::identity::ShareId;
use crate::map::{Map, Seed};
use crate::table::FileId;
use crate::waiters::WaiterId;

pub struct Files {
    numbers: Map<FileKey, FileId>,
    rows: Vec<Option<File>>,
    free: Vec<FileId>,
}

pub struct File {
    pub key: FileKey,
    /// First come, first served.
    pub queue: Vec<WaiterId>,
    pub shares: Vec<ShareId>,
}

impl Files {
    pub fn new(seed: Seed) -> Self {
        Self { numbers: seed.map(), rows: Vec::new(), free: Vec::new() }
    }

    pub fn find(&self, key: &FileKey) -> Option<FileId> {
        self.numbers.get(key).copied()
    }

    pub fn intern(&mut self, key: &FileKey) -> FileId {
        if let Some(id) = self.find(key) {
            return id;
        }
        let row = Some(File { key: key.clone(), queue: Vec::new(), shares: Vec::new() });
        let id = match self.free.pop() {
            Some(id) => {
                self.rows[id.0 as usize] = row;
                id
            }
            None => {
                self.rows.push(row);
                FileId(self.rows.len() as u32 - 1)
            }
        };
        self.numbers.insert(key.clone(), id);
        id
    }

    pub fn file(&self, id: FileId) -> &File {
        match self.rows.get(id.0 as usize) {
            Some(Some(file)) => file,
            _ => unreachable!("a file in use has a row"),
        }
    }

    pub fn file_mut(&mut self, id: FileId) -> &mut File {
        match self.rows.get_mut(id.0 as usize) {
            Some(Some(file)) => file,
            _ => unreachable!("a file in use has a row"),
        }
    }

    pub fn key(&self, id: FileId) -> &FileKey {
        &self.file(id).key
    }

    /// Forgets a file without locks that nobody waits for or shares.
    pub fn forget_unused(&mut self, id: FileId) {
        let Some(slot) = self.rows.get_mut(id.0 as usize) else { return };
        let unused =
            slot.as_ref().is_some_and(|file| file.queue.is_empty() && file.shares.is_empty());
        if unused && let Some(file) = slot.take() {
            self.numbers.remove(&file.key);
            self.free.push(id);
        }
    }
}
