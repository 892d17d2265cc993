//! File attributes (RFC 1813, `fattr3`, `sattr3` and `wcc_data`).

/// Seconds and nanoseconds since 1970. Signed, as host file systems store it; on the wire the
/// seconds are cut to 32 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Whole seconds since 1970; negative before.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
