//! `statx`, translated into [`Attributes`].

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, openat},
    io::{Errno, Result},
    path::Arg,
};

use crate::{Attributes, Device, FileKind, Time};

#[derive(Debug, Clone, Copy)]
pub(super) struct Status {
    pub(super) attributes: Attributes,
    /// The birth time in nanoseconds since 1970, if the file system records it.
    pub(super) born: Option<u64>,
    pub(super) device: (u32, u32),
    /// The id of its mount, from kernel 5.8 on.
    pub(super) mount: Option<u64>,
}

/// The status of the file that `fd` refers to.
pub(super) fn status(fd: impl AsFd) -> Result<Status> {
    status_at(fd, c"", AtFlags::EMPTY_PATH)
}

/// The status of the entry `name` of `dir`; a symbolic link is not followed.
pub(super) fn status_of_entry(dir: impl AsFd, name: impl Arg) -> Result<Status> {
    status_at(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn status_at(dir: impl AsFd, path: impl Arg, flags: AtFlags) -> Result<Status> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    let found = rustix::fs::statx(dir, path, flags | AtFlags::NO_AUTOMOUNT, wanted)?;
    Ok(Status {
        attributes: attributes(&found),
        born: (found.stx_mask & StatxFlags::BTIME.bits() != 0)
            .then(|| nanoseconds(found.stx_btime)),
        device: (found.stx_dev_major, found.stx_dev_minor),
        mount: (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id),
    })
}

/// The id of the mount that `fd` is on, as [`Status::mount`], from any kernel. `proc` is
/// `/proc/self/fd`.
pub(super) fn mount_of(proc: impl AsFd, fd: impl AsFd) -> Result<u64> {
    match status(&fd)?.mount {
        Some(mount) => Ok(mount),
        None => mount_by_proc(proc, fd),
    }
}

pub(super) fn mount_by_proc(proc: impl AsFd, fd: impl AsFd) -> Result<u64> {
    let name = format!("../fdinfo/{}", fd.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let info = openat(proc, name, flags, Mode::empty())?;
    let text = io::read_to_string(File::from(info)).map_err(|_| Errno::IO)?;
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    line.and_then(|id| id.trim().parse().ok()).ok_or(Errno::IO)
}

fn attributes(found: &Statx) -> Attributes {
    let kind = match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::Block,
        FileType::CharacterDevice => FileKind::Character,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::RegularFile | FileType::Unknown => FileKind::Regular,
    };
    Attributes {
        kind,
        mode: u32::from(found.stx_mode) & 0o7777,
        links: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: found.stx_size,
        used: found.stx_blocks.saturating_mul(512),
        device: Device { major: found.stx_rdev_major, minor: found.stx_rdev_minor },
        fileid: found.stx_ino,
        accessed: time(found.stx_atime),
        modified: time(found.stx_mtime),
        changed: time(found.stx_ctime),
    }
}

fn time(stamp: StatxTimestamp) -> Time {
    Time { seconds: stamp.tv_sec, nanoseconds: stamp.tv_nsec }
}

fn nanoseconds(stamp: StatxTimestamp) -> u64 {
    (stamp.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(stamp.tv_nsec.into())
}
