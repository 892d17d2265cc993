//! A directory and its file system: kind, free space, time of the last change.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files examined for the newest; a store has a few dozen.
const FILES_MAX: usize = 1000;

#[derive(Debug, Clone)]
pub(super) struct DirectoryInfo {
    pub path: PathBuf,
    /// If false, `newest` is `None` and the rest describes the nearest existing ancestor.
    pub exists: bool,
    pub kind: FileSystemKind,
    pub free_bytes: u64,
    /// Free and total inodes; both 0 where the file system does not count them.
    pub free_files: u64,
    pub files: u64,
    pub mode: u32,
    /// The most recently modified of the directory and the files below it.
    pub newest: Option<(PathBuf, SystemTime)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileSystemKind {
    /// In memory: lost at reboot.
    Memory(&'static str),
    /// The upper layer of a container: lost with the container.
    Layer,
    Disk(String),
}

impl FileSystemKind {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Memory(name) => name,
            Self::Layer => "overlay",
            Self::Disk(name) => name,
        }
    }

    fn of(magic: u64) -> Self {
        let name = match magic {
            0x0102_1994 => return Self::Memory("tmpfs"),
            0x8584_58f6 => return Self::Memory("ramfs"),
            0x794c_7630 => return Self::Layer,
            0xef53 => "ext4",
            0x5846_5342 => "xfs",
            0x9123_683e => "btrfs",
            0x2fc1_2fc1 => "zfs",
            0xf2f5_2010 => "f2fs",
            0x6969 => "nfs",
            other => return Self::Disk(format!("a file system of type {other:#x}")),
        };
        Self::Disk(name.into())
    }
}

impl DirectoryInfo {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let there = nearest(path)?;
        let system = rustix::fs::statfs(&there)?;
        let found = fs::metadata(&there)?;
        let exists = there == path;
        if !found.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let block = u64::try_from(system.f_bsize).unwrap_or(0);
        Ok(Self {
            path: path.to_owned(),
            exists,
            // f_type is signed on some platforms.
            kind: FileSystemKind::of(system.f_type as u64 & 0xffff_ffff),
            free_bytes: system.f_bavail.saturating_mul(block),
            free_files: system.f_ffree,
            files: system.f_files,
            mode: found.mode(),
            newest: if exists { newest(path) } else { None },
        })
    }

    pub(super) fn shown(&self) -> String {
        format!("{} ({})", self.path.display(), self.kind.name())
    }
}

/// The path itself, or its nearest existing ancestor.
fn nearest(path: &Path) -> io::Result<PathBuf> {
    for ancestor in path.ancestors() {
        match fs::metadata(ancestor) {
            Ok(_) => return Ok(ancestor.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn newest(directory: &Path) -> Option<(PathBuf, SystemTime)> {
    let mut files = vec![directory.to_owned()];
    let mut next = 0;
    while let Some(file) = files.get(next).cloned() {
        next += 1;
        // Symlinks are not followed.
        let is_directory = fs::symlink_metadata(&file).is_ok_and(|found| found.is_dir());
        if is_directory && let Ok(list) = fs::read_dir(&file) {
            let room = FILES_MAX.saturating_sub(files.len());
            files.extend(list.flatten().map(|entry| entry.path()).take(room));
        }
    }
    let dated = |file: PathBuf| {
        let time = fs::symlink_metadata(&file).ok()?.modified().ok()?;
        Some((file, time))
    };
    files.into_iter().filter_map(dated).max_by_key(|(_, time)| *time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_yet_is_judged_by_the_one_above() {
        let home = tempfile::tempdir().unwrap();
        let place = DirectoryInfo::read(&home.path().join("a/b")).unwrap();
        assert!(!place.exists && place.newest.is_none());
        let above = DirectoryInfo::read(home.path()).unwrap();
        assert!(above.exists);
        assert_eq!((place.kind, place.files), (above.kind, above.files));
    }

    #[test]
    fn the_newest_file_is_found_below_too() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("store")).unwrap();
        let file = home.path().join("store/journal.1");
        let later = SystemTime::now() + std::time::Duration::from_secs(86_400);
        fs::File::create(&file).unwrap().set_modified(later).unwrap();
        let (newest, _) = DirectoryInfo::read(home.path()).unwrap().newest.unwrap();
        assert_eq!(newest, file);
    }
}
