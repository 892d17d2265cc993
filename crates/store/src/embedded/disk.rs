//! The operations on a directory that the embedded store needs, as a trait, so that tests can run it
//! on a disk that fills up, fails, or loses what was not synced.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Which directory it is, of all of this machine, for as long as it is mounted. A copy is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryId {
    /// The device of its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// One directory. Names are file names without a path.
pub trait Disk: Send + Sync {
    /// Locks the directory for this process until the guard is dropped or the process ends; `None`
    /// if another process has locked it (I12).
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>>;

    /// Which directory this is.
    fn id(&self) -> io::Result<DirectoryId>;

    /// Bytes that this process may still write.
    fn free_bytes(&self) -> io::Result<u64>;

    /// The kind of file system, if [`lock`](Disk::lock) may not exclude other machines there.
    fn network_kind(&self) -> io::Result<Option<&'static str>>;

    /// The names of all files.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens a file for reading from its start.
    fn read(&self, name: &str) -> io::Result<Box<dyn Read>>;

    /// Opens a file for writing, and creates it if it does not exist. Its contents stay.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file, over an existing one if need be.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The length of a file.
    fn length(&self, name: &str) -> io::Result<u64>;

    /// The time since a file was last written. By default all files are new: right for a disk that ends
    /// with its process.
    fn age(&self, _name: &str) -> io::Result<Duration> {
        Ok(Duration::ZERO)
    }

    /// Protects a file from [`remove_unheld`](Disk::remove_unheld) until the guard is dropped or the
    /// process ends. By default it protects from nothing: right for a disk of one process.
    fn hold(&self, _name: &str) -> io::Result<Box<dyn Send>> {
        Ok(Box::new(()))
    }

    /// Removes a file unless a process holds it; returns whether it did. By default none does.
    fn remove_unheld(&self, name: &str) -> io::Result<bool> {
        self.remove(name).map(|()| true)
    }

    /// Returns when all creations, renames and removals so far survive a power loss.
    fn sync_names(&self) -> io::Result<()>;

    /// The path of `name` for error messages; of the directory if `name` is empty.
    fn display_path(&self, name: &str) -> String;
}

/// A file that is open for writing.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at this offset. After an error any part of them may be written.
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Returns when all writes so far survive a power loss.
    fn sync(&self) -> io::Result<()>;

    /// Truncates the file to `length`.
    fn truncate(&self, length: u64) -> io::Result<()>;
}

/// A directory of the operating system.
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Creates the directory, readable by its owner only, if it does not exist.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    /// The directory, if there is one; every operation fails if not.
    pub fn existing(path: PathBuf) -> Self {
        Self { path }
    }
}

impl Disk for Directory {
    /// Locks the directory itself: a lock file could be removed.
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        let directory = File::open(&self.path)?;
        match directory.try_lock() {
            Ok(()) => Ok(Some(Box::new(directory))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn id(&self) -> io::Result<DirectoryId> {
        let found = fs::metadata(&self.path)?;
        Ok(DirectoryId { device: found.dev(), inode: found.ino() })
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn network_kind(&self) -> io::Result<Option<&'static str>> {
        let found = rustix::fs::statfs(&self.path)?;
        // f_type is signed on some platforms.
        Ok(network_kind(found.f_type as u64 & 0xffff_ffff))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // A name that is not UTF-8 belongs to another program.
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

    fn length(&self, name: &str) -> io::Result<u64> {
        fs::metadata(self.path.join(name)).map(|found| found.len())
    }

    fn age(&self, name: &str) -> io::Result<Duration> {
        let written = fs::metadata(self.path.join(name))?.modified()?;
        // A clock that was set back makes a file young.
        Ok(SystemTime::now().duration_since(written).unwrap_or_default())
    }

    fn hold(&self, name: &str) -> io::Result<Box<dyn Send>> {
        let file = File::open(self.path.join(name))?;
        file.try_lock_shared()?;
        Ok(Box::new(file))
    }

    fn remove_unheld(&self, name: &str) -> io::Result<bool> {
        let file = File::open(self.path.join(name))?;
        match file.try_lock() {
            Ok(()) => self.remove(name).map(|()| true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn display_path(&self, name: &str) -> String {
        match name {
            "" => self.path.display().to_string(),
            name => self.path.join(name).display().to_string(),
        }
    }
}

/// By the magic numbers of statfs(2).
fn network_kind(magic: u64) -> Option<&'static str> {
    match magic {
        0x6969 => Some("NFS"),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => Some("SMB"),
        0x0102_1997 => Some("9p"),
        0x6573_5546 => Some("FUSE"),
        0x5346_414f => Some("AFS"),
        0x00c3_6400 => Some("Ceph"),
        _ => None,
    }
}

impl DiskFile for File {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_file_systems_are_no_network() {
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(network_kind(local), None);
        }
        assert_eq!(network_kind(0x6969), Some("NFS"));
    }
}
