//! What a file looks like, and how it is changed.

/// Seconds and nanoseconds since 1970. Signed, as host file systems keep it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky: 0o7777 at most.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Bytes on disk.
    pub used: u64,
    /// Of block and character devices.
    pub device: Device,
    /// A number that no other file of this file system has now.
    pub fileid: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
}

/// What to change; `None` and `Keep` stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: SetTime,
    pub modified: SetTime,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SetTime {
    #[default]
    Keep,
    Now,
    To(Time),
}

/// What tells a client whether somebody else changed the file in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    pub size: u64,
    pub modified: Time,
    pub changed: Time,
}

impl From<&Attributes> for Snapshot {
    fn from(a: &Attributes) -> Self {
        Self { size: a.size, modified: a.modified, changed: a.changed }
    }
}

/// A file just before and just after an operation.
///
/// `before` may be given only if nobody else served by this file system could change the file
/// between it and `after`: a client that finds its own cached state in `before` concludes that
/// its cache is still good. Leaving either out is always right and costs the client a look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Change {
    pub before: Option<Snapshot>,
    pub after: Option<Attributes>,
}
