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
        // A root without a time of birth looks like that of any other file system of its kind.
        let root_key = found.born.map(|_| root_key);
        let keys: Vec<String> = [format!("uuid:{uuid}")].into_iter().chain(root_key).collect();
        return known(state, &keys, || Ok(hash(uuid.as_bytes())));
    }
    // What was given once stays, even if two directories of one file system were given different
    // numbers because they were never served together before: handles are out in the world.
    let same_device = nameless.iter().find(|(device, _)| *device == found.device);
    let new = || same_device.map_or_else(|| Ok(sys::random()?), |(_, id)| Ok(id.0));
    let id = known(state, &[root_key], new)?;
    nameless.push((found.device, id));
    Ok(id)
}

/// The id that was given to one of `keys` before, the first of them that is known, or the one that
/// they get now. All of them are known afterwards.
fn known(state: &Path, keys: &[String], new: impl FnOnce() -> Result<u64>) -> Result<FileSystemId> {
    let path = state.join(FILE);
    let mut lines = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        other => other?,
    };
    let find = |key: &String| {
        let mut entries = lines.lines().filter_map(|line| line.split_once(' '));
        let (id, _) = entries.find(|(_, known)| known == key)?;
        u64::from_str_radix(id, 16).ok()
    };
    let found: Vec<Option<u64>> = keys.iter().map(find).collect();
    let id = match found.iter().flatten().next() {
        Some(id) => *id,
        None => new()?.max(1),
    };
    let missing = keys.iter().zip(found).filter(|(_, known)| known.is_none());
    let added: String = missing.map(|(key, _)| format!("{id:016x} {key}\n")).collect();
    if !added.is_empty() {
        if !lines.is_empty() && !lines.ends_with('\n') {
            lines.push('\n');
        }
        state::replace(&path, (lines + &added).as_bytes())?;
    }
    Ok(FileSystemId(id))
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
        let known = |keys: &[&str], new| {
            let keys: Vec<String> = keys.iter().map(|key| key.to_string()).collect();
            known(state.path(), &keys, || Ok(new)).unwrap()
        };
        let first = known(&["uuid:a"], 7);
        assert_eq!(first, FileSystemId(7));
        assert_eq!(known(&["uuid:a"], 8), first);
        assert_eq!(known(&["uuid:b"], 8), FileSystemId(8));
        // Known by its root before its UUID could be seen, and the other way round.
        let second = known(&["root:2:99"], 9);
        assert_eq!(known(&["uuid:c", "root:2:99"], 10), second);
        assert_eq!(known(&["uuid:c"], 11), second);
        assert_eq!(known(&["uuid:a", "root:2:77"], 12), first);
        assert_eq!(known(&["root:2:77"], 13), first);
        let mode = fs::metadata(state.path().join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_uuid_is_written_as_udev_does() {
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(text(&uuid), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
