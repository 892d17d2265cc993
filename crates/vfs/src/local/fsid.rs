//! Which file system this is: the number that every handle carries for ever.
//!
//! It comes from the configuration or, hashed, from the file system's UUID. A file system without
//! one gets a random number, which is kept with what its root looks like. Device numbers are no
//! help: they change from one start of the machine to the next.
//!
//! `filesystems` in the state directory has a line for each way in which a file system ever served
//! was recognised, `id key`: by its UUID and by its root. So an id stays when the UUID becomes
//! visible only later, with a newer kernel or outside a container.

use std::{
    fmt::Write as _,
    fs,
    hash::Hasher,
    io::{ErrorKind, Result},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
    sync::Mutex,
};

use rustix::fs::AtFlags;
use siphasher::sip::SipHasher24;

use super::{node::lock, state, status::Status, sys};
use crate::FileSystemId;

const FILE: &str = "filesystems";

/// File systems without a UUID that this process serves, by device number: two exports of one
/// must agree, although their roots look different.
static NAMELESS: Mutex<Vec<((u32, u32), FileSystemId)>> = Mutex::new(Vec::new());

/// The id of the file system that `root` is on.
pub(super) fn identify(state: &Path, root: &OwnedFd, found: &Status) -> Result<FileSystemId> {
    let mut nameless = lock(&NAMELESS);
    let uuid =
        sys::filesystem_uuid(root).map(|bytes| text(&bytes)).or_else(|| by_uuid(found.device));
    let root_key = root_key(root, found);
    if let Some(uuid) = uuid {
        return known_by_uuid(state, &format!("uuid:{uuid}"), &root_key);
    }
    // What was given once stays, even if two directories of one file system were given different
    // numbers because they were never served together before: handles are out in the world.
    let same_device = nameless.iter().find(|(device, _)| *device == found.device);
    let new = || same_device.map_or_else(|| Ok(sys::random()?), |(_, id)| Ok(id.0));
    let id = known(state, &root_key, new)?;
    nameless.push((found.device, id));
    Ok(id)
}

/// The id of a file system whose UUID is visible. If it was served before that was so, it is known
/// by its root, and keeps that id; but only one file system can: two that were made in the same
/// second have roots that look alike.
fn known_by_uuid(state: &Path, uuid_key: &str, root_key: &str) -> Result<FileSystemId> {
    let lines = Lines::read(state)?;
    let before = lines.find(root_key).filter(|id| !lines.has_uuid(*id));
    known(state, uuid_key, || Ok(before.unwrap_or_else(|| hash(uuid_key.as_bytes()))))
}

/// The id that was given to `key` before, or the one it gets now.
fn known(state: &Path, key: &str, new: impl FnOnce() -> Result<u64>) -> Result<FileSystemId> {
    let mut lines = Lines::read(state)?;
    if let Some(id) = lines.find(key) {
        return Ok(FileSystemId(id));
    }
    let id = new()?.max(1);
    if !lines.0.is_empty() && !lines.0.ends_with('\n') {
        lines.0.push('\n');
    }
    lines.0.push_str(&format!("{id:016x} {key}\n"));
    state::replace(&state.join(FILE), lines.0.as_bytes())?;
    Ok(FileSystemId(id))
}

/// What `filesystems` says.
struct Lines(String);

impl Lines {
    fn read(state: &Path) -> Result<Self> {
        match fs::read_to_string(state.join(FILE)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self(String::new())),
            other => other.map(Self),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        self.0.lines().filter_map(|line| {
            let (id, key) = line.split_once(' ')?;
            Some((u64::from_str_radix(id, 16).ok()?, key))
        })
    }

    fn find(&self, key: &str) -> Option<u64> {
        self.iter().find(|(_, known)| *known == key).map(|(id, _)| id)
    }

    fn has_uuid(&self, id: u64) -> bool {
        self.iter().any(|(known, key)| known == id && key.starts_with("uuid:"))
    }
}

/// What the root looks like: the kernel's handle, which has a generation, or number and birth.
fn root_key(root: &OwnedFd, found: &Status) -> String {
    match sys::handle_at(root, c"", AtFlags::EMPTY_PATH) {
        Ok((handle, _)) => format!("root:{}:{}", hex(handle.as_bytes()), found.born.unwrap_or(0)),
        Err(_) => format!("root:{}:{}", found.attributes.fileid, found.born.unwrap_or(0)),
    }
}

/// What udev found on the device.
fn by_uuid(device: (u32, u32)) -> Option<String> {
    let device = rustix::fs::makedev(device.0, device.1);
    fs::read_dir("/dev/disk/by-uuid").ok()?.flatten().find_map(|entry| {
        let same = fs::metadata(entry.path()).is_ok_and(|found| found.rdev() == device);
        same.then(|| entry.file_name().to_string_lossy().to_lowercase())
    })
}

/// As udev writes it: 8-4-4-4-12.
fn text(uuid: &[u8; 16]) -> String {
    let mut text = hex(uuid);
    [20, 16, 12, 8].iter().for_each(|at| text.insert(*at, '-'));
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_kept_and_another_file_system_gets_another_one() {
        let state = tempfile::tempdir().unwrap();
        let first = known(state.path(), "uuid:a", || Ok(7)).unwrap();
        assert_eq!(first, FileSystemId(7));
        assert_eq!(known(state.path(), "uuid:a", || Ok(8)).unwrap(), first);
        assert_eq!(known(state.path(), "uuid:b", || Ok(8)).unwrap(), FileSystemId(8));
        let mode = fs::metadata(state.path().join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_id_stays_when_the_uuid_becomes_visible_and_is_not_given_twice() {
        let state = tempfile::tempdir().unwrap();
        let before = known(state.path(), "root:2:99", || Ok(9)).unwrap();
        assert_eq!(known_by_uuid(state.path(), "uuid:a", "root:2:99").unwrap(), before);
        assert_eq!(known_by_uuid(state.path(), "uuid:a", "root:2:55").unwrap(), before);
        // Another one whose root looks the same.
        assert_ne!(known_by_uuid(state.path(), "uuid:b", "root:2:99").unwrap(), before);
    }

    #[test]
    fn a_uuid_is_written_as_udev_does() {
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(text(&uuid), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
