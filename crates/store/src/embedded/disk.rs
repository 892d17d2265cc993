//! All that the embedded store asks of a directory, in few enough words that a test can be one: a
//! disk that fills up, fails, or loses what was not synced.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

/// One directory.
pub trait Disk: Send + Sync {
    /// Takes the directory for this process until the guard is dropped or the process ends; `None`
    /// if another has it (I12).
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>>;

    fn names(&self) -> io::Result<Vec<String>>;

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>>;

    /// For writing: what is there already stays.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns when all names, renamings and removals up to now outlive the power.
    fn sync_names(&self) -> io::Result<()>;

    /// What a person calls `name`; the directory itself if it is empty.
    fn place(&self, name: &str) -> String;
}

pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes`, or fails with any part of them written.
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Returns when all that was written up to now outlives the power.
    fn sync(&self) -> io::Result<()>;

    /// Drops all that is behind `length`.
    fn cut(&self, length: u64) -> io::Result<()>;
}

/// A directory of this machine.
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes the directory if it is not there; what is in it is nobody else's business.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Ok(Self { path })
    }
}

impl Disk for Directory {
    /// The directory itself is locked, not a file in it that somebody could remove.
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        let directory = File::open(&self.path)?;
        match directory.try_lock() {
            Ok(()) => Ok(Some(Box::new(directory))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // What is not text is not ours.
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>> {
        Ok(Box::new(File::open(self.path.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        Ok(Arc::new(options.open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn place(&self, name: &str) -> String {
        match name {
            "" => self.path.display().to_string(),
            name => self.path.join(name).display().to_string(),
        }
    }
}

impl DiskFile for File {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}
