//! The permanent id of a host file system, part of every handle.
//!
//! Unless configured, it is a hash of the file system's UUID, or a random number if there is no
//! visible UUID. Device numbers are useless: they change between boots.
//!
//! The file `filesystems` in the state directory records each assignment in a line `id key`, where
//! the key is the UUID or describes the root directory. So an id persists when the UUID becomes
//! visible later, with a newer kernel or outside a container.

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

/// The ids of file systems without a UUID that this process serves, by device number: two exports
/// of one file system must get the same id, although their root directories differ.
static WITHOUT_UUID: Mutex<Vec<((u32, u32), FileSystemId)>> = Mutex::new(Vec::new());

/// An id, and whether every server assigns it to this file system: it then depends on nothing but the
/// UUID.
pub(super) struct AssignedId {
    pub(super) id: FileSystemId,
    pub(super) is_portable: bool,
}

/// The id of the file system that `root` is on.
pub(super) fn identify(state: &Path, root: &OwnedFd, found: &Status) -> Result<AssignedId> {
    let mut without_uuid = lock(&WITHOUT_UUID);
    let uuid =
        sys::filesystem_uuid(root).map(|bytes| text(&bytes)).or_else(|| udev_uuid(found.device));
    let root_key = root_key(root, found);
    if let Some(uuid) = uuid {
        let uuid_key = format!("uuid:{uuid}");
        let id = id_by_uuid(state, &uuid_key, &root_key)?;
        return Ok(AssignedId { id, is_portable: id.0 == hash(uuid_key.as_bytes()) });
    }
    // A recorded id stays, even if two directories of one file system have different ones because
    // they were first served by different processes: clients hold handles with it.
    let same_device = without_uuid.iter().find(|(device, _)| *device == found.device);
    let new = || same_device.map_or_else(|| Ok(sys::random()?), |(_, id)| Ok(id.0));
    let id = recorded_id(state, &root_key, new)?;
    without_uuid.push((found.device, id));
    Ok(AssignedId { id, is_portable: false })
}

/// The id of a file system with a UUID. If it was served before its UUID was visible, it keeps the
/// id recorded for its root. Only the first UUID inherits that id: two file systems created in the
/// same second have indistinguishable roots.
fn id_by_uuid(state: &Path, uuid_key: &str, root_key: &str) -> Result<FileSystemId> {
    let table = IdTable::read(state)?;
    let before = table.find(root_key).filter(|id| !table.has_uuid(*id));
    recorded_id(state, uuid_key, || Ok(before.unwrap_or_else(|| hash(uuid_key.as_bytes()))))
}

/// The id recorded for `key`; if there is none, records that of `new`.
fn recorded_id(state: &Path, key: &str, new: impl FnOnce() -> Result<u64>) -> Result<FileSystemId> {
    let mut table = IdTable::read(state)?;
    if let Some(id) = table.find(key) {
        return Ok(FileSystemId(id));
    }
    let id = new()?.max(1);
    if !table.0.is_empty() && !table.0.ends_with('\n') {
        table.0.push('\n');
    }
    table.0.push_str(&format!("{id:016x} {key}\n"));
    state::replace(&state.join(FILE), table.0.as_bytes())?;
    Ok(FileSystemId(id))
}

/// The content of the file `filesystems`.
struct IdTable(String);

impl IdTable {
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

/// Describes a root directory: by the kernel's handle, which contains a generation, or by inode
/// number, and by birth time.
fn root_key(root: &OwnedFd, found: &Status) -> String {
    match sys::handle_at(root, c"", AtFlags::EMPTY_PATH) {
        Ok((handle, _)) => format!("root:{}:{}", hex(handle.as_bytes()), found.born.unwrap_or(0)),
        Err(_) => format!("root:{}:{}", found.attributes.fileid, found.born.unwrap_or(0)),
    }
}

/// The UUID that udev found on the device.
fn udev_uuid(device: (u32, u32)) -> Option<String> {
    let device = rustix::fs::makedev(device.0, device.1);
    fs::read_dir("/dev/disk/by-uuid").ok()?.flatten().find_map(|entry| {
        let same = fs::metadata(entry.path()).is_ok_and(|found| found.rdev() == device);
        same.then(|| entry.file_name().to_string_lossy().to_lowercase())
    })
}

/// In udev's notation, 8-4-4-4-12.
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
        let first = recorded_id(state.path(), "uuid:a", || Ok(7)).unwrap();
        assert_eq!(first, FileSystemId(7));
        assert_eq!(recorded_id(state.path(), "uuid:a", || Ok(8)).unwrap(), first);
        assert_eq!(recorded_id(state.path(), "uuid:b", || Ok(8)).unwrap(), FileSystemId(8));
        let mode = fs::metadata(state.path().join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_id_stays_when_the_uuid_becomes_visible_and_is_not_given_twice() {
        let state = tempfile::tempdir().unwrap();
        let before = recorded_id(state.path(), "root:2:99", || Ok(9)).unwrap();
        assert_eq!(id_by_uuid(state.path(), "uuid:a", "root:2:99").unwrap(), before);
        assert_eq!(id_by_uuid(state.path(), "uuid:a", "root:2:55").unwrap(), before);
        // Another one whose root looks the same.
        assert_ne!(id_by_uuid(state.path(), "uuid:b", "root:2:99").unwrap(), before);
    }

    #[test]
    fn a_uuid_is_written_as_udev_does() {
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(text(&uuid), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
