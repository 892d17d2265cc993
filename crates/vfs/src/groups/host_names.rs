//! The host's name service, through the C library.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;

use super::NameService;

const GROUPS_MAX: usize = 65_536;
const TEXT_MIN: usize = 16 << 10;
const TEXT_MAX: usize = 4 << 20;

pub(super) struct HostNames;

impl NameService for HostNames {
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        match user(uid)? {
            Some((name, gid)) => groups(&name, gid).map(Some),
            None => Ok(None),
        }
    }
}

/// Name and primary group of a user.
#[allow(unsafe_code)]
fn user(uid: u32) -> io::Result<Option<(CString, u32)>> {
    let mut text = vec![0u8; TEXT_MIN];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut result = std::ptr::null_mut();
        let buffer = text.as_mut_ptr().cast();
        // SAFETY: all pointers are to live buffers of the lengths given.
        let status =
            unsafe { libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer, text.len(), &mut result) };
        match status {
            0 if result.is_null() => return Ok(None),
            0 => {
                // SAFETY: `result` says that `entry` was filled; its strings are in `text`.
                let entry = unsafe { entry.assume_init_ref() };
                // SAFETY: as above.
                let name = unsafe { CStr::from_ptr(entry.pw_name) };
                return Ok(Some((name.to_owned(), entry.pw_gid)));
            }
            libc::ERANGE if text.len() < TEXT_MAX => text.resize(text.len() * 4, 0),
            libc::EINTR => {}
            status if means_unknown(status) => return Ok(None),
            status => return Err(io::Error::from_raw_os_error(status)),
        }
    }
}

/// The values that getpwuid_r(3) lists for "the given name or uid was not found".
fn means_unknown(status: i32) -> bool {
    matches!(status, libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM)
}

#[allow(unsafe_code)]
fn groups(name: &CStr, gid: u32) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: `groups` has room for `count` entries.
        let status =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
        let wanted = usize::try_from(count).unwrap_or(0);
        if status >= 0 {
            groups.truncate(wanted);
            return Ok(groups);
        }
        // -1 means too little room, or else too little memory.
        if wanted <= groups.len() || wanted > GROUPS_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        groups.resize(wanted, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_errors_mean_that_there_is_no_such_user() {
        for unknown in [libc::ENOENT, libc::ESRCH, libc::EBADF, libc::EPERM] {
            assert!(means_unknown(unknown));
        }
        let failures = [libc::EIO, libc::EAGAIN, libc::ETIMEDOUT, libc::ENOMEM, libc::EMFILE];
        for failure in failures.into_iter().chain([libc::ENFILE, libc::ERANGE, libc::EINTR]) {
            assert!(!means_unknown(failure), "{failure}");
        }
    }
}
