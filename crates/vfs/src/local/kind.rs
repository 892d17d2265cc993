//! What a kind of host file system can be relied on for. The table is in `docs/filesystems.md`.
//!
//! Kernel handles, directory offsets and answers without waiting are promises of the file-system
//! driver that no system call reports, so they are known by type. An unknown type gets the
//! cautious answer, except for kernel handles: a driver that has them and whose handles can be
//! opened keeps them, unless it is listed here.

use std::{os::fd::AsFd, path::Path};

use rustix::{fs::fstatfs, io::Result};

const EXT: u32 = 0xEF53;
/// FUSE and virtiofs.
pub(super) const FUSE: u32 = 0x6573_5546;

/// Promises of a file-system driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    /// For operators; `other` if it is not in the table.
    pub(super) name: &'static str,
    /// A kernel file handle leads to its file or is stale, also after a restart of whatever
    /// provides the file system.
    pub(super) has_lasting_handles: bool,
    /// The offset of a directory entry stays while other entries come and go.
    pub(super) has_lasting_offsets: bool,
    /// Attributes and cached names are answered from memory, whatever the disk does.
    pub(super) answers_from_memory: bool,
    /// Times are written to a disk, or to a server.
    pub(super) has_disk: bool,
    /// A program of the host answers for the file system; when it ends, all files are gone.
    pub(super) has_daemon: bool,
    /// The birth time of a file never changes.
    pub(super) has_lasting_births: bool,
    /// The text of a short symbolic link is in the inode.
    pub(super) has_links_in_inode: bool,
    /// An `fsync` of a new file makes all earlier metadata changes durable: they share one log.
    pub(super) has_one_log: bool,
}

/// A file system on a local disk, with what all of them promise.
const DISK: Kind = Kind {
    name: "other",
    has_lasting_handles: true,
    has_lasting_offsets: true,
    answers_from_memory: true,
    has_disk: true,
    has_daemon: false,
    has_lasting_births: true,
    has_links_in_inode: false,
    has_one_log: false,
};

/// Not in the table.
const UNKNOWN: Kind = Kind { has_lasting_offsets: false, answers_from_memory: false, ..DISK };

/// Numbers its files anew whenever its daemon or server starts, or may wait for one.
const REMOTE: Kind = Kind { has_lasting_handles: false, ..UNKNOWN };

impl Kind {
    /// The kind of the file system of `fd`, which is on `device`.
    pub(super) fn of(fd: impl AsFd, device: (u32, u32)) -> Result<Self> {
        let (found, release) = (fstatfs(fd)?.f_type as u32, rustix::system::uname());
        let kind = Self::by_type(found, &release.release().to_string_lossy());
        // ext2, and ext4 without a journal, write each inode for itself.
        let has_one_log = kind.has_one_log && (found != EXT || has_journal(device));
        Ok(Self { has_one_log, name: name_of(found), ..kind })
    }

    /// `number` is `statfs.f_type`, `release` that of the kernel.
    fn by_type(number: u32, release: &str) -> Self {
        match number {
            // ext2, ext3, ext4; XFS.
            EXT | 0x5846_5342 => Kind { has_links_in_inode: true, has_one_log: true, ..DISK },
            // Btrfs, F2FS, ZFS, bcachefs.
            0x9123_683E | 0xF2F5_2010 | 0x2FC1_2FC1 | 0xCA45_1A4E => DISK,
            // tmpfs: before 6.6 an offset was a position in a list.
            0x0102_1994 => Kind {
                has_lasting_offsets: is_at_least(release, 6, 6),
                has_disk: false,
                has_links_in_inode: true,
                ..DISK
            },
            // overlayfs: a file is born again when its first change copies it up.
            0x794C_7630 => Kind { has_lasting_births: false, ..UNKNOWN },
            FUSE => Kind { has_daemon: true, ..REMOTE },
            // 9p, CIFS, SMB2, vboxsf, AFS, Coda.
            0x0102_1997 | 0xFF53_4D42 | 0xFE53_4D42 | 0x786F_4256 | 0x5346_414F | 0x7375_7245 => {
                REMOTE
            }
            _ => UNKNOWN,
        }
    }
}

/// The name of a `statfs.f_type`. The three ext file systems share theirs.
fn name_of(number: u32) -> &'static str {
    const NAMES: [(u32, &str); 17] = [
        (EXT, "ext"),
        (0x5846_5342, "xfs"),
        (0x9123_683E, "btrfs"),
        (0xF2F5_2010, "f2fs"),
        (0x2FC1_2FC1, "zfs"),
        (0xCA45_1A4E, "bcachefs"),
        (0x0102_1994, "tmpfs"),
        (0x794C_7630, "overlay"),
        (FUSE, "fuse"),
        (0x0102_1997, "9p"),
        (0xFF53_4D42, "cifs"),
        (0xFE53_4D42, "smb2"),
        (0x786F_4256, "vboxsf"),
        (0x5346_414F, "afs"),
        (0x7375_7245, "coda"),
        (0x6969, "nfs"),
        (0x00C3_6400, "ceph"),
    ];
    NAMES.iter().find(|(known, _)| *known == number).map_or("other", |(_, name)| name)
}

/// Whether the ext2, ext3 or ext4 file system on a device has a journal, as far as the kernel tells.
fn has_journal(device: (u32, u32)) -> bool {
    let device = std::fs::read_link(format!("/sys/dev/block/{}:{}", device.0, device.1));
    let name = device.ok().and_then(|path| Some(path.file_name()?.to_owned()));
    let task = name.map(|name| Path::new("/sys/fs/ext4").join(name).join("journal_task"));
    // A process id, or `<none>`.
    let task = task.and_then(|path| std::fs::read_to_string(path).ok());
    task.is_some_and(|task| task.trim().parse::<u32>().is_ok())
}

fn is_at_least(release: &str, major: u32, minor: u32) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TMPFS: u32 = 0x0102_1994;

    #[test]
    fn only_known_local_file_systems_are_called_on_network_threads() {
        assert!(Kind::by_type(0xEF53, "6.1.0").answers_from_memory);
        assert!(Kind::by_type(TMPFS, "6.1.0").answers_from_memory);
        for number in [FUSE, 0x6969, 0x794C_7630, 0x0BAD_0BAD] {
            assert!(!Kind::by_type(number, "6.18.0").answers_from_memory, "{number:x}");
        }
    }

    #[test]
    fn handles_of_what_numbers_its_files_anew_do_not_last() {
        for number in [FUSE, 0x0102_1997, 0xFE53_4D42] {
            assert!(!Kind::by_type(number, "6.18.0").has_lasting_handles, "{number:x}");
        }
        assert!(Kind::by_type(0xEF53, "6.18.0").has_lasting_handles);
        // By trying.
        assert!(Kind::by_type(0x0BAD_0BAD, "6.18.0").has_lasting_handles);
    }

    #[test]
    fn offsets_of_tmpfs_last_since_linux_6_6() {
        let lasts = |release| Kind::by_type(TMPFS, release).has_lasting_offsets;
        assert!(!lasts("6.1.0-28-amd64") && !lasts("5.15") && !lasts("garbage"));
        assert!(lasts("6.6.0") && lasts("6.18.44-fc-v595") && lasts("7.0"));
    }

    #[test]
    fn a_directory_of_this_host_has_a_kind() {
        let dir = std::fs::File::open("/proc").unwrap();
        assert_eq!(Kind::of(&dir, (0, 0)).unwrap(), UNKNOWN);
    }
}
