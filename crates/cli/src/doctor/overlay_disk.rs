//! A read-only view of a directory with writes kept in memory, so that a store can be opened exactly as
//! a server would open it without changing it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::embedded::disk::{Directory, DirectoryId, Disk, DiskFile};

pub(super) struct OverlayDisk {
    /// `None` if it does not exist.
    directory: Option<Directory>,
    changes: Mutex<Changes>,
}

/// Changes relative to the directory.
#[derive(Default)]
struct Changes {
    written: BTreeMap<String, Arc<InMemory>>,
    removed: BTreeSet<String>,
}

#[derive(Default)]
struct InMemory(Mutex<Vec<u8>>);

impl OverlayDisk {
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        // `Directory::new` would create it.
        let directory = if path.is_dir() { Some(Directory::new(path)?) } else { None };
        Ok(Self { directory, changes: Mutex::default() })
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_directory(&self, name: &str) -> io::Result<Box<dyn Read>> {
        match &self.directory {
            Some(directory) => directory.read(name),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The file's contents in memory, copied from the directory at first use.
    fn load(&self, changes: &mut Changes, name: &str) -> io::Result<Option<Arc<InMemory>>> {
        if let Some(file) = changes.written.get(name) {
            return Ok(Some(file.clone()));
        }
        let mut bytes = Vec::new();
        match self.read_directory(name) {
            Ok(_) if changes.removed.contains(name) => return Ok(None),
            Ok(mut file) => file.read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let file = Arc::new(InMemory(Mutex::new(bytes)));
        changes.written.insert(name.to_owned(), file.clone());
        Ok(Some(file))
    }
}

impl Disk for OverlayDisk {
    /// Always succeeds: nothing is written, so a running server need not be excluded.
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        Ok(Some(Box::new(())))
    }

    fn id(&self) -> io::Result<DirectoryId> {
        self.directory.as_ref().map_or(Ok(DirectoryId { device: 0, inode: 0 }), Disk::id)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn network_kind(&self) -> io::Result<Option<&'static str>> {
        Ok(None)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let changes = self.changes();
        let directory = self.directory.as_ref().map_or(Ok(Vec::new()), Disk::names)?;
        let mut names: BTreeSet<String> = directory.into_iter().collect();
        names.retain(|name| !changes.removed.contains(name));
        names.extend(changes.written.keys().cloned());
        Ok(names.into_iter().collect())
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>> {
        let changes = self.changes();
        if let Some(file) = changes.written.get(name) {
            return Ok(Box::new(Cursor::new(file.bytes().clone())));
        }
        if changes.removed.contains(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.read_directory(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut changes = self.changes();
        if let Some(file) = self.load(&mut changes, name)? {
            return Ok(file);
        }
        let file = Arc::<InMemory>::default();
        changes.written.insert(name.to_owned(), file.clone());
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut changes = self.changes();
        let file = self.load(&mut changes, from)?.ok_or(io::ErrorKind::NotFound)?;
        changes.written.remove(from);
        changes.removed.insert(from.to_owned());
        changes.written.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut changes = self.changes();
        changes.written.remove(name);
        changes.removed.insert(name.to_owned());
        Ok(())
    }

    fn length(&self, name: &str) -> io::Result<u64> {
        let mut bytes = Vec::new();
        self.read(name)?.read_to_end(&mut bytes).map(|length| length as u64)
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn display_path(&self, name: &str) -> String {
        self.directory
            .as_ref()
            .map_or_else(|| name.to_owned(), |directory| directory.display_path(name))
    }
}

impl InMemory {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskFile for InMemory {
    fn write(&self, new: &[u8], at: u64) -> io::Result<()> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        let mut bytes = self.bytes();
        if bytes.len() < at + new.len() {
            bytes.resize(at + new.len(), 0);
        }
        bytes[at..at + new.len()].copy_from_slice(new);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        self.bytes().resize(length, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_done_to_it_is_seen_and_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(home.path().join(name), name).unwrap();
        }
        let overlay_disk = OverlayDisk::new(home.path().to_owned()).unwrap();
        overlay_disk.open("a").unwrap().write(b"x", 1).unwrap();
        overlay_disk.rename("b", "d").unwrap();
        overlay_disk.remove("c").unwrap();
        overlay_disk.open("e").unwrap().write(b"new", 0).unwrap();
        assert_eq!(overlay_disk.names().unwrap(), ["a", "d", "e"]);
        let read = |name: &str| {
            let mut text = String::new();
            overlay_disk.read(name).map(|mut file| file.read_to_string(&mut text).unwrap())?;
            io::Result::Ok(text)
        };
        assert_eq!(read("a").unwrap(), "ax");
        assert_eq!(read("d").unwrap(), "b");
        assert!(read("b").is_err() && read("c").is_err());
        let mut left: Vec<_> =
            fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["a", "b", "c"]);
        assert_eq!(fs::read_to_string(home.path().join("a")).unwrap(), "a");
    }
}
