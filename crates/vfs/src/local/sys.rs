//! The system calls that no safe wrapper offers. The only unsafe code of this crate.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_int, c_long, c_uint},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use rustix::{
    fs::{Access, AtFlags, OFlags},
    io::{Errno, Result},
    path::Arg,
};

use crate::ObjectId;

/// The kernel's own limit (`MAX_HANDLE_SZ`).
const KERNEL_HANDLE_MAX: usize = 128;

/// `struct file_handle` with room for its bytes.
#[repr(C)]
struct FileHandle {
    bytes: c_uint,
    kind: c_int,
    data: [u8; KERNEL_HANDLE_MAX],
}

fn check(result: c_long) -> Result<c_long> {
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The kernel's handle of `path` below `dir`, and the number of the mount it is on.
///
/// A symbolic link is named itself, never what it points to. `OVERFLOW` if the handle is too long
/// for an [`ObjectId`].
pub(super) fn handle_at(dir: impl AsFd, path: impl Arg, flags: AtFlags) -> Result<(ObjectId, i32)> {
    path.into_with_c_str(|path| handle_of(dir.as_fd().as_raw_fd(), path, flags))
}

fn handle_of(dir: c_int, path: &CStr, flags: AtFlags) -> Result<(ObjectId, i32)> {
    let mut handle =
        FileHandle { bytes: KERNEL_HANDLE_MAX as c_uint, kind: 0, data: [0; KERNEL_HANDLE_MAX] };
    let mut mount: c_int = 0;
    // SAFETY: `path` ends in a zero byte; `handle` is laid out as `struct file_handle` and says
    // how much room it has; `mount` lives until the call is over.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            flags.bits() as c_int,
        )
    })?;
    let kind = u8::try_from(handle.kind).map_err(|_| Errno::OVERFLOW)?;
    let length = handle.bytes as usize;
    let mut bytes = [0; ObjectId::MAX];
    bytes[0] = kind;
    let room = bytes.get_mut(1..=length).ok_or(Errno::OVERFLOW)?;
    room.copy_from_slice(handle.data.get(..length).ok_or(Errno::OVERFLOW)?);
    Ok((ObjectId::new(&bytes[..=length]).ok_or(Errno::OVERFLOW)?, mount))
}

/// Opens what [`handle_at`] named. `mount` is any real (not `O_PATH`) descriptor of the mount.
pub(super) fn open_handle(mount: impl AsFd, object: &ObjectId, flags: OFlags) -> Result<OwnedFd> {
    let (kind, data) = object.as_bytes().split_first().ok_or(Errno::STALE)?;
    let mut handle = FileHandle {
        bytes: data.len() as c_uint,
        kind: c_int::from(*kind),
        data: [0; KERNEL_HANDLE_MAX],
    };
    handle.data.get_mut(..data.len()).ok_or(Errno::STALE)?.copy_from_slice(data);
    // SAFETY: `handle` is laid out as `struct file_handle` and says how long it is; a descriptor
    // that the kernel gives us is ours alone.
    unsafe {
        let fd = check(libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_fd().as_raw_fd(),
            &raw mut handle,
            (flags | OFlags::CLOEXEC).bits() as c_int,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd as c_int))
    }
}

/// Asks the kernel whether the thread's current identity may do `access` to what `fd` refers to.
///
/// The safe wrappers fall back to a check of the real user where `faccessat2` is missing, which
/// would be the server's and allow everything.
pub(super) fn access(fd: impl AsFd, access: Access) -> Result<()> {
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is a constant that ends in a zero byte.
    let result = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            access.bits() as c_int,
            flags,
        )
    };
    check(result).map(drop)
}

/// Sets the thread's file-system user and gives the one before.
///
/// The call cannot say that it failed; ask again with `u32::MAX`, which changes nothing.
pub(super) fn set_fs_uid(uid: u32) -> u32 {
    // SAFETY: takes a number, touches no memory. The raw call, because it is per thread.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) as u32 }
}

/// Like [`set_fs_uid`], for the group.
pub(super) fn set_fs_gid(gid: u32) -> u32 {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) as u32 }
}

/// Gives this thread its own umask and working directory.
pub(super) fn unshare_fs() -> Result<()> {
    // SAFETY: CLONE_FS shares no memory and no descriptors.
    check(c_long::from(unsafe { libc::unshare(libc::CLONE_FS) })).map(drop)
}

/// Appends up to `count` bytes of `fd` from `offset` on to `buffer`; with `nowait` only what is in
/// memory (`AGAIN` if nothing is).
pub(super) fn read_at(
    fd: impl AsFd,
    buffer: &mut Vec<u8>,
    count: usize,
    offset: u64,
    nowait: bool,
) -> Result<usize> {
    buffer.reserve(count);
    let flags = if nowait { libc::RWF_NOWAIT } else { 0 };
    let length = buffer.len();
    let spare = buffer.spare_capacity_mut();
    let count = count.min(spare.len());
    let vector = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: count };
    // SAFETY: `vector` is one range inside the spare capacity of `buffer`, and the kernel has
    // written as many bytes of it as it says.
    unsafe {
        let read = check(libc::syscall(
            libc::SYS_preadv2,
            fd.as_fd().as_raw_fd(),
            &raw const vector,
            1,
            offset as c_long,
            // The upper half, which 64-bit kernels ignore.
            0 as c_long,
            flags,
        ))? as usize;
        buffer.set_len(length + read.min(count));
        Ok(read)
    }
}

/// The UUID of the file system that `fd` is on, where the kernel (6.9) and the file system tell.
pub(super) fn filesystem_uuid(fd: impl AsFd) -> Option<[u8; 16]> {
    #[repr(C)]
    struct Uuid {
        length: u8,
        bytes: [u8; 16],
    }
    // _IOR(0x15, 0, struct fsuuid2)
    const FS_IOC_GETFSUUID: libc::Ioctl = 0x8011_1500;
    let mut uuid = Uuid { length: 0, bytes: [0; 16] };
    // SAFETY: the request fills a structure of this layout and size.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), FS_IOC_GETFSUUID, &raw mut uuid) };
    (result == 0 && uuid.length == 16 && uuid.bytes != [0; 16]).then_some(uuid.bytes)
}

/// The most names that one file can have, where the C library knows.
pub(super) fn links_max(fd: impl AsFd) -> Option<u32> {
    // SAFETY: takes numbers, touches no memory.
    let max = unsafe { libc::fpathconf(fd.as_fd().as_raw_fd(), libc::_PC_LINK_MAX) };
    u32::try_from(max).ok().filter(|max| *max > 8)
}

pub(super) fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: the kernel writes at most as many bytes as `bytes` has.
    let got =
        check(unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) })?;
    if got as usize == bytes.len() { Ok(u64::from_ne_bytes(bytes)) } else { Err(Errno::IO) }
}
