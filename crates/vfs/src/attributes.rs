//! File attributes (RFC 1813, `fattr3`, `sattr3` and `wcc_data`).

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Caller, Permissions};

/// Seconds and nanoseconds since 1970. Signed, as host file systems store it; on the wire the
/// seconds are cut to 32 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Whole seconds since 1970; negative before.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Time {
    /// The current time of the system.
    pub fn now() -> Self {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => {
                Self { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
            }
            Err(before) => {
                let before = before.duration();
                let (seconds, rest) = (before.as_secs() as i64, before.subsec_nanos());
                match rest {
                    0 => Self { seconds: -seconds, nanoseconds: 0 },
                    rest => Self { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - rest },
                }
            }
        }
    }
}

/// The type of a file (`ftype3`).
#[allow(missing_docs, reason = "the variants are POSIX file types")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    Regular,
    Directory,
    Block,
    Character,
    Symlink,
    Socket,
    Fifo,
}

/// The number of a block or character device.
#[allow(missing_docs, reason = "the fields are the two halves of a device number")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

/// The attributes of a file (`fattr3`). The file-system id that the wire format also carries comes
/// from [`FileSystem::id`](crate::FileSystem::id).
///
/// Made by [`Attributes::regular`] and the like, then changed field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// Never changes during the life of an object.
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky: 0o7777 at most.
    pub mode: u32,
    /// Hard links. 0 is not reported: a file without a name is [`Error::Stale`](crate::Error).
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Bytes allocated on disk.
    pub used: u64,
    /// Meaningful for block and character devices only.
    pub device: Device,
    /// The inode number: unique among the existing files of the file system, may be reused later.
    pub fileid: u64,
    /// Time of the last access (atime).
    pub accessed: Time,
    /// Time of the last change of the data (mtime).
    pub modified: Time,
    /// Time of the last change of data or attributes (ctime). Must differ after every change:
    /// clients discard cached data, attributes and directory contents when it does.
    pub changed: Time,
}

impl Attributes {
    /// An object of root, with one link, the mode 0644 (of directories 0755), no content, and all
    /// times 0.
    pub fn new(kind: FileKind, fileid: u64) -> Self {
        let (mode, links) = if kind == FileKind::Directory { (0o755, 2) } else { (0o644, 1) };
        let (uid, gid, size, used, device) = (0, 0, 0, 0, Device::default());
        let (accessed, modified, changed) = Default::default();
        Self {
            kind,
            mode,
            links,
            uid,
            gid,
            size,
            used,
            device,
            fileid,
            accessed,
            modified,
            changed,
        }
    }

    /// A regular file of this size.
    pub fn regular(fileid: u64, size: u64) -> Self {
        Self { size, used: size, ..Self::new(FileKind::Regular, fileid) }
    }

    /// A directory.
    pub fn directory(fileid: u64) -> Self {
        Self { size: 4096, used: 4096, ..Self::new(FileKind::Directory, fileid) }
    }

    /// With these permission bits.
    #[must_use]
    pub fn with_mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    /// With this owner and group.
    #[must_use]
    pub fn with_owner(self, uid: u32, gid: u32) -> Self {
        Self { uid, gid, ..self }
    }

    /// Last read, written and changed at this time.
    #[must_use]
    pub fn with_times(self, time: Time) -> Self {
        Self { accessed: time, modified: time, changed: time, ..self }
    }

    /// What the mode grants a caller, as ACCESS reports it: without the exceptions that let owners
    /// read and write what the mode denies them.
    pub fn permissions(&self, caller: &Caller) -> Permissions {
        let bits = caller.granted(self.kind, self.mode, self.uid, self.gid);
        Permissions { read: bits & 4 != 0, write: bits & 2 != 0, execute: bits & 1 != 0 }
    }
}

/// Attributes to set (`sattr3`); `None` and [`SetTime::Keep`] leave a value as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewAttributes {
    /// 0o7777 at most.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncates or extends a regular file.
    pub size: Option<u64>,
    /// Access time.
    pub accessed: SetTime,
    /// Modification time.
    pub modified: SetTime,
}

/// How to set a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// Set it to the server's current time.
    Now,
    /// Set it to this value.
    To(Time),
}

/// The attributes by which a client decides whether its cache is still valid (`wcc_attr`).
#[allow(missing_docs, reason = "the fields are those of `Attributes`")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WccAttributes {
    pub size: u64,
    pub modified: Time,
    pub changed: Time,
}

impl From<&Attributes> for WccAttributes {
    fn from(a: &Attributes) -> Self {
        Self { size: a.size, modified: a.modified, changed: a.changed }
    }
}

/// The attributes of a file immediately before and after an operation (`wcc_data`).
///
/// Give `before` only if no other change can fall between it and `after`, for example because the
/// file is locked from the first to the second. A client that finds its cached attributes in
/// `before` takes all of the difference to be its own change and keeps its cache. `None` is always
/// correct; it costs the client a GETATTR or its cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Read atomically with the operation, or `None`.
    pub before: Option<WccAttributes>,
    /// The attributes after the operation, if known.
    pub after: Option<Attributes>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_before_1970_have_positive_nanoseconds() {
        let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
        assert_eq!(Time::from(UNIX_EPOCH + Duration::new(3, 7)), time(3, 7));
        assert_eq!(Time::from(UNIX_EPOCH - Duration::from_secs(3)), time(-3, 0));
        assert_eq!(Time::from(UNIX_EPOCH - Duration::new(3, 7)), time(-4, 999_999_993));
    }

    #[test]
    fn the_mode_grants_by_owner_group_and_others() {
        let file = Attributes::regular(1, 0).with_mode(0o640).with_owner(7, 8);
        let of = |uid, gid| {
            let Permissions { read, write, execute } =
                file.permissions(&Caller::new(uid, gid, &[]));
            (read, write, execute)
        };
        assert_eq!(of(7, 9), (true, true, false));
        assert_eq!(of(9, 8), (true, false, false));
        assert_eq!(of(9, 9), (false, false, false));
        assert_eq!(of(0, 0), (true, true, false), "root executes only what is executable");
    }
}
