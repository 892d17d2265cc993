//! The permanent id of a host file system, part of every handle.
//!
//! Unless configured, it is a hash of the file system's UUID, or a random number if there is no
//! visible UUID. Device numbers are useless: they change between boots.
//!
//! The file `filesystems` in the state directory records each assignment in a line `id key`, where
//! the key is the UUID, alone or with a description of the root directory, that description alone,
//! or a mount. So an id persists when the UUID becomes visible later, with a newer kernel or outside
//! a container.

use std::{
    fmt::Write as _,
    fs,
    hash::Hasher,
    io::{ErrorKind, Result},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
    sync::Mutex,
};

use rustix::fs::{AtFlags, StatxFlags};
use siphasher::sip::SipHasher24;

use super::{device::Device, kind::Kind, node::lock, state, status::Status, sys};
use crate::FileSystemId;

const FILE: &str = "filesystems";

/// Lines for mounts that the file keeps; older ones are of mounts that are gone.
const MOUNTS_MAX: usize = 256;

/// An id, and how far it can be relied on.
pub(super) struct AssignedId {
    pub(super) id: FileSystemId,
    /// Every server assigns it to this file system: it depends on nothing but the UUID.
    pub(super) is_portable: bool,
}

/// How long inode number and birth time identify a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// For ever.
    Lasting,
    /// Until the file system is unmounted: it may number its files anew then, and has no birth times
    /// that would show it. Contains what identifies the mount.
    Mount(String),
    /// As [`Lifetime::Mount`], but the kernel does not tell one mount from the next, so they are
    /// relied on while the directory is open.
    Process,
}

impl Lifetime {
    pub(super) fn of(root: &OwnedFd, found: &Status, kind: Kind, device: &Device) -> Self {
        if kind.has_lasting_handles || found.born.is_some() {
            return Self::Lasting;
        }
        // The same for all exports of the device, which may be mounted several times.
        device.lifetime(|| {
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
            let connection = || fuse_connection(found.device).filter(|_| kind.has_daemon);
            let mount = connection().or_else(|| unique_mount_id(root));
            match (boot, mount) {
                (Some(boot), Some(mount)) => Self::Mount(format!("{}:{mount}", boot.trim())),
                _ => Self::Process,
            }
        })
    }
}

/// The id of the file system that `root` is on.
pub(super) fn identify(
    state: &Path,
    root: &OwnedFd,
    found: &Status,
    lifetime: &Lifetime,
    device: &Device,
) -> Result<AssignedId> {
    let uuid =
        sys::filesystem_uuid(root).map(|bytes| text(&bytes)).or_else(|| udev_uuid(found.device));
    let root_key = root_key(root, found);
    // From here on only the state directory is used: other exports may have to wait for this.
    static TABLE: Mutex<()> = Mutex::new(());
    let _table = lock(&TABLE);
    if let Some(uuid) = uuid {
        let uuid_key = format!("uuid:{uuid}");
        let id = id_by_uuid(state, &uuid_key, &root_key)?;
        return Ok(AssignedId { id, is_portable: id.0 == hash(uuid_key.as_bytes()) });
    }
    let id = device.id(|first| {
        let new = || first.map_or_else(|| Ok(sys::random()?), |id| Ok(id.0));
        match lifetime {
            // A recorded id stays, even if two directories of one file system have different ones
            // because they were first served by different processes: clients hold handles with it.
            Lifetime::Lasting => recorded_id(state, &root_key, new),
            Lifetime::Mount(mount) => {
                forget_other_mounts(state, mount)?;
                recorded_id(state, &format!("mount:{mount}"), new)
            }
            Lifetime::Process => new().map(|id| FileSystemId(id.max(1))),
        }
    })?;
    Ok(AssignedId { id, is_portable: false })
}

/// The id of a file system with a UUID: that of the UUID, but a root that was served before its UUID
/// was visible keeps the id that is in its clients' handles. Two file systems created in the same
/// second have indistinguishable roots, so an id that belongs to another UUID is not kept.
fn id_by_uuid(state: &Path, uuid_key: &str, root_key: &str) -> Result<FileSystemId> {
    let own_key = format!("{uuid_key}+{root_key}");
    let table = IdTable::read(state)?;
    if let Some(id) = table.find(&own_key) {
        return Ok(FileSystemId(id));
    }
    let by_uuid = table.find(uuid_key);
    let is_ours = |key: &str| key.strip_prefix(uuid_key).is_some_and(|rest| rest.starts_with('+'));
    // Version 0.1 gave all roots the id of the first one that it saw with its UUID.
    let is_of_0_1 = by_uuid.is_some() && !table.iter().any(|(_, key)| is_ours(key));
    let kept = table.find(root_key).filter(|id| !is_of_0_1 && !table.is_of_other(*id, uuid_key));
    let id = recorded_id(state, &own_key, || {
        Ok(kept.or(by_uuid).unwrap_or_else(|| hash(uuid_key.as_bytes())))
    })?;
    recorded_id(state, uuid_key, || Ok(id.0))?;
    Ok(id)
}

/// Removes the ids and inode maps of mounts before the last restart of the machine, and of old ones.
fn forget_other_mounts(state: &Path, mount: &str) -> Result<()> {
    let boot = mount.split_once(':').map_or(mount, |(boot, _)| boot);
    let table = IdTable::read(state)?;
    let is_mount = |key: &str| key.starts_with("mount:");
    let of_this_boot = |key: &str| key["mount:".len()..].starts_with(boot);
    let mut excess = table.iter().filter(|(_, key)| is_mount(key) && of_this_boot(key)).count();
    excess = excess.saturating_sub(MOUNTS_MAX);
    let (mut gone, mut kept) = (Vec::new(), String::new());
    for line in table.0.lines() {
        let parsed = line.split_once(' ').filter(|(_, key)| is_mount(key));
        let is_old = parsed.is_some_and(|(_, key)| !of_this_boot(key) || excess > 0);
        match parsed.filter(|(_, key)| is_old && !key.ends_with(mount)) {
            Some((id, key)) => {
                excess = excess.saturating_sub(usize::from(of_this_boot(key)));
                gone.push(format!("inodes-{id}-"));
            }
            None => {
                kept.push_str(line);
                kept.push('\n');
            }
        }
    }
    if gone.is_empty() {
        return Ok(());
    }
    // A configured id can be that of several mounts.
    let is_kept = |prefix: &String| {
        let id = prefix.trim_start_matches("inodes-").trim_end_matches('-');
        kept.lines().any(|line| line.split_once(' ').is_some_and(|(known, _)| known == id))
    };
    gone.retain(|prefix| !is_kept(prefix));
    remove_files(state, |name| gone.iter().any(|prefix| name.starts_with(prefix)))?;
    state::replace(&state.join(FILE), kept.as_bytes())
}

/// The name of the inode map's file. Maps of earlier mounts with the same id are removed.
pub(super) fn map_name(state: &Path, id: FileSystemId, lifetime: &Lifetime) -> Result<String> {
    let name = format!("inodes-{:016x}", id.0);
    let Lifetime::Mount(mount) = lifetime else { return Ok(name) };
    let prefix = format!("{name}-mount-");
    let own = format!("{prefix}{:016x}", hash(mount.as_bytes()));
    remove_files(state, |other| other.starts_with(&prefix) && other != own)?;
    Ok(own)
}

fn remove_files(state: &Path, is_obsolete: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(state)?.flatten() {
        if entry.file_name().to_str().is_some_and(&is_obsolete) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
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

    /// Whether the id belongs to a file system with another UUID.
    fn is_of_other(&self, id: u64, uuid_key: &str) -> bool {
        let mut keys = self.iter().filter(|(known, _)| *known == id).map(|(_, key)| key);
        keys.any(|key| {
            let uuid = key.split_once('+').map_or(key, |(uuid, _)| uuid);
            uuid.starts_with("uuid:") && uuid != uuid_key
        })
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

/// Identifies a mounted FUSE file system, wherever it is mounted: its connection to the daemon, by
/// the object in sysfs that the kernel makes for it.
fn fuse_connection(device: (u32, u32)) -> Option<String> {
    // As the kernel numbers devices inside.
    let number = (u64::from(device.0) << 20) | u64::from(device.1);
    let found = fs::metadata(format!("/sys/fs/fuse/connections/{number}")).ok()?;
    Some(format!("{number}.{}.{}.{}", found.ino(), found.ctime(), found.ctime_nsec()))
}

/// Identifies the mount that `fd` is on; no other mount of this kernel gets the same. Linux 6.8 and
/// later. A mount namespace has mounts of its own.
fn unique_mount_id(fd: &OwnedFd) -> Option<String> {
    const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
    let wanted = StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE);
    let found = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
    (found.stx_mask & STATX_MNT_ID_UNIQUE != 0).then(|| found.stx_mnt_id.to_string())
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
        assert_eq!(id_by_uuid(state.path(), "uuid:a", "root:2:99").unwrap(), before);
        // Another one whose root looks the same.
        assert_ne!(id_by_uuid(state.path(), "uuid:b", "root:2:99").unwrap(), before);
    }

    #[test]
    fn every_root_keeps_its_id_when_the_uuid_becomes_visible() {
        let state = tempfile::tempdir().unwrap();
        let recorded = |key, id| recorded_id(state.path(), key, || Ok(id)).unwrap();
        let by_uuid = |uuid, root| id_by_uuid(state.path(), uuid, root).unwrap();
        let before = [recorded("root:2:99", 9), recorded("root:7:99", 10)];
        assert_eq!([by_uuid("uuid:a", "root:2:99"), by_uuid("uuid:a", "root:7:99")], before);
        // Also the next time; another root of the file system gets the first one's id.
        assert_eq!([by_uuid("uuid:a", "root:2:99"), by_uuid("uuid:a", "root:7:99")], before);
        assert_eq!(by_uuid("uuid:a", "root:8:99"), before[0]);
    }

    #[test]
    fn an_id_that_0_1_assigned_by_uuid_stays() {
        let state = tempfile::tempdir().unwrap();
        let recorded = |key, id| recorded_id(state.path(), key, || Ok(id)).unwrap();
        let first = recorded("root:2:99", 9);
        recorded("root:7:99", 10);
        recorded("uuid:a", 9);
        for root in ["root:7:99", "root:2:99", "root:7:99"] {
            assert_eq!(id_by_uuid(state.path(), "uuid:a", root).unwrap(), first);
        }
    }

    #[test]
    fn ids_and_maps_of_mounts_that_are_gone_are_removed() {
        let state = tempfile::tempdir().unwrap();
        for mount in ["old:1", "boot:1", "boot:2"] {
            recorded_id(state.path(), &format!("mount:{mount}"), || Ok(hash(mount.as_bytes())))
                .unwrap();
        }
        let map = |mount: &str| {
            let id = FileSystemId(hash(mount.as_bytes()));
            let lifetime = Lifetime::Mount(mount.into());
            state.path().join(map_name(state.path(), id, &lifetime).unwrap())
        };
        let (old, new) = (map("old:1"), map("boot:1"));
        fs::write(&old, "").unwrap();
        fs::write(&new, "").unwrap();
        forget_other_mounts(state.path(), "boot:2").unwrap();
        assert!(!old.exists() && new.exists());
        let table = IdTable::read(state.path()).unwrap();
        assert!(table.find("mount:old:1").is_none() && table.find("mount:boot:1").is_some());
        for mount in 3..300 {
            recorded_id(state.path(), &format!("mount:boot:{mount}"), || Ok(mount)).unwrap();
        }
        forget_other_mounts(state.path(), "boot:299").unwrap();
        let table = IdTable::read(state.path()).unwrap();
        assert_eq!(table.iter().count(), MOUNTS_MAX);
        assert!(table.find("mount:boot:299").is_some() && !new.exists());
    }

    #[test]
    fn a_uuid_is_written_as_udev_does() {
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(text(&uuid), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
