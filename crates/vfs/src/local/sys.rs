//! System calls without a safe wrapper.
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

/// The kernel's file handle of `path` below `dir`, and the id of its mount.
///
/// Does not follow a symbolic link. `OVERFLOW` if the handle does not fit into an [`ObjectId`].
pub(super) fn handle_at(dir: impl AsFd, path: impl Arg, flags: AtFlags) -> Result<(ObjectId, i32)> {
    path.into_with_c_str(|path| handle_of(dir.as_fd().as_raw_fd(), path, flags))
}

fn handle_of(dir: c_int, path: &CStr, flags: AtFlags) -> Result<(ObjectId, i32)> {
    let mut handle =
        FileHandle { bytes: KERNEL_HANDLE_MAX as c_uint, kind: 0, data: [0; KERNEL_HANDLE_MAX] };
    let mut mount: c_int = 0;
    // SAFETY: `path` ends in NUL; `handle` has the layout of `struct file_handle` and states its
    // capacity; `mount` outlives the call.
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

/// Opens the file of a handle from [`handle_at`]. `mount` is a descriptor of any file on the mount,
/// not opened with `O_PATH`.
pub(super) fn open_handle(mount: impl AsFd, object: &ObjectId, flags: OFlags) -> Result<OwnedFd> {
    let (kind, data) = object.as_bytes().split_first().ok_or(Errno::STALE)?;
    let mut handle = FileHandle {
        bytes: data.len() as c_uint,
        kind: c_int::from(*kind),
        data: [0; KERNEL_HANDLE_MAX],
    };
    handle.data.get_mut(..data.len()).ok_or(Errno::STALE)?.copy_from_slice(data);
    // SAFETY: `handle` has the layout of `struct file_handle` and states its length; the returned
    // descriptor is owned by nothing else.
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

/// Whether the current identity of the thread has `access` to the file of `fd`.
///
/// Safe wrappers fall back to checking the real uid if `faccessat2` is missing: that of the server,
/// which would allow everything.
pub(super) fn access(fd: impl AsFd, access: Access) -> Result<()> {
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is a constant that ends in NUL.
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

/// Sets the file-system uid of the thread and returns the previous one.
///
/// Failure is not reported; read the uid back with `u32::MAX`, which changes nothing.
pub(super) fn set_fs_uid(uid: u32) -> u32 {
    // SAFETY: takes an integer, accesses no memory. The raw call, because it is per thread.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) as u32 }
}

/// Like [`set_fs_uid`], for the gid.
pub(super) fn set_fs_gid(gid: u32) -> u32 {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) as u32 }
}

/// Gives this thread a umask and working directory of its own.
pub(super) fn unshare_fs() -> Result<()> {
    // SAFETY: CLONE_FS shares no memory and no descriptors.
    check(c_long::from(unsafe { libc::unshare(libc::CLONE_FS) })).map(drop)
}

/// Reads bytes of `fd` at `offset` into `buffer`; with `nowait` only from the page cache (`AGAIN` if none
/// are there).
pub(super) fn read_at(
    fd: impl AsFd,
    buffer: &mut [u8],
    offset: u64,
    nowait: bool,
) -> Result<usize> {
    let flags = if nowait { libc::RWF_NOWAIT } else { 0 };
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `vector` is `buffer`, which is borrowed for as long as the call lasts.
    let read = check(unsafe {
        libc::syscall(
            libc::SYS_preadv2,
            fd.as_fd().as_raw_fd(),
            &raw const vector,
            1,
            offset as c_long,
            // The upper half of the offset, ignored by 64-bit kernels.
            0 as c_long,
            flags,
        )
    })?;
    Ok(read as usize)
}

/// Whether a range of a file is in memory as a whole; `None` if the kernel (before 6.5) does not tell.
pub(super) fn is_cached(fd: impl AsFd, offset: u64, length: u64) -> Option<bool> {
    const PAGE: u64 = 4096;
    const SYS_CACHESTAT: c_long = 451;
    /// `struct cachestat_range`.
    #[repr(C)]
    struct Range {
        offset: u64,
        length: u64,
    }
    /// `struct cachestat`, in pages.
    #[repr(C)]
    #[derive(Default)]
    struct Pages {
        cached: u64,
        others: [u64; 4],
    }
    let (range, mut pages) = (Range { offset, length }, Pages::default());
    // SAFETY: the kernel reads one range and fills one structure of this layout.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            fd.as_fd().as_raw_fd(),
            &raw const range,
            &raw mut pages,
            0 as c_uint,
        )
    };
    let wanted = (offset + length).div_ceil(PAGE) - offset / PAGE;
    (result == 0).then_some(pages.cached >= wanted)
}

/// The UUID of the file system of `fd`, if the kernel (6.9 or later) and the file system report it.
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

/// The maximum number of hard links to a file, if the C library knows it.
pub(super) fn links_max(fd: impl AsFd) -> Option<u32> {
    // SAFETY: takes integers, accesses no memory.
    let max = unsafe { libc::fpathconf(fd.as_fd().as_raw_fd(), libc::_PC_LINK_MAX) };
    u32::try_from(max).ok().filter(|max| *max > 8)
}

pub(super) fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: the kernel writes at most `bytes.len()` bytes.
    let got =
        check(unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) })?;
    if got as usize == bytes.len() { Ok(u64::from_ne_bytes(bytes)) } else { Err(Errno::IO) }
}
