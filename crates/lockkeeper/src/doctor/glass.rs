//! A directory behind glass: what is written to it stays in memory. So a store can be opened as a
//! server would open it, and judged, and is afterwards what it was.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::embedded::disk::{Directory, Disk, DiskFile};

pub struct Glass {
    /// Nothing if there is no such directory.
    behind: Option<Directory>,
    over: Mutex<Over>,
}

/// What seems to have changed.
#[derive(Default)]
struct Over {
    written: BTreeMap<String, Arc<InMemory>>,
    removed: BTreeSet<String>,
}

#[derive(Default)]
struct InMemory(Mutex<Vec<u8>>);

impl Glass {
    pub fn new(path: PathBuf) -> io::Result<Self> {
        // One that is not there would be made.
        let behind = if path.is_dir() { Some(Directory::new(path)?) } else { None };
        Ok(Self { behind, over: Mutex::default() })
    }

    fn over(&self) -> MutexGuard<'_, Over> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_behind(&self, name: &str) -> io::Result<Box<dyn Read>> {
        match &self.behind {
            Some(directory) => directory.read(name),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Its bytes in memory, where they may change.
    fn take_over(&self, over: &mut Over, name: &str) -> io::Result<Option<Arc<InMemory>>> {
        if let Some(file) = over.written.get(name) {
            return Ok(Some(file.clone()));
        }
        let mut bytes = Vec::new();
        match self.read_behind(name) {
            Ok(_) if over.removed.contains(name) => return Ok(None),
            Ok(mut file) => file.read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let file = Arc::new(InMemory(Mutex::new(bytes)));
        over.written.insert(name.to_owned(), file.clone());
        Ok(Some(file))
    }
}

impl Disk for Glass {
    /// Whoever looks asks nobody to wait.
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        Ok(Some(Box::new(())))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let over = self.over();
        let behind = self.behind.as_ref().map_or(Ok(Vec::new()), Disk::names)?;
        let mut names: BTreeSet<String> = behind.into_iter().collect();
        names.retain(|name| !over.removed.contains(name));
        names.extend(over.written.keys().cloned());
        Ok(names.into_iter().collect())
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>> {
        let over = self.over();
        if let Some(file) = over.written.get(name) {
            return Ok(Box::new(Cursor::new(file.bytes().clone())));
        }
        if over.removed.contains(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.read_behind(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut over = self.over();
        if let Some(file) = self.take_over(&mut over, name)? {
            return Ok(file);
        }
        let file = Arc::<InMemory>::default();
        over.written.insert(name.to_owned(), file.clone());
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut over = self.over();
        let file = self.take_over(&mut over, from)?.ok_or(io::ErrorKind::NotFound)?;
        over.written.remove(from);
        over.removed.insert(from.to_owned());
        over.written.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut over = self.over();
        over.written.remove(name);
        over.removed.insert(name.to_owned());
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn place(&self, name: &str) -> String {
        self.behind.as_ref().map_or_else(|| name.to_owned(), |directory| directory.place(name))
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

    fn cut(&self, length: u64) -> io::Result<()> {
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
        let glass = Glass::new(home.path().to_owned()).unwrap();
        glass.open("a").unwrap().write(b"x", 1).unwrap();
        glass.rename("b", "d").unwrap();
        glass.remove("c").unwrap();
        glass.open("e").unwrap().write(b"new", 0).unwrap();
        assert_eq!(glass.names().unwrap(), ["a", "d", "e"]);
        let read = |name: &str| {
            let mut text = String::new();
            glass.read(name).map(|mut file| file.read_to_string(&mut text).unwrap())?;
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
