//! The trait behind which every served file system stands.
//!
//! It is shaped by NFSv3 but speaks plain English, knows no XDR and no sockets, and is blocking:
//! the server calls it on worker threads. A complete small file system is in
//! `examples/hello_fs.rs` of the `lockkeeper` crate.

use bytes::Bytes;

use crate::{
    Attributes, Caller, Change, Device, FileSystemId, NewAttributes, Result, SetTime, Time,
};

/// A file or directory of one file system, named so that the name survives restart and rename.
///
/// Up to [`ObjectId::MAX`] bytes that only the file system understands. It must never name
/// another file later: an inode number alone is not enough, add a generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId {
    length: u8,
    bytes: [u8; Self::MAX],
}

impl ObjectId {
    pub const MAX: usize = 42;

    /// `None` if there are more than [`ObjectId::MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut id = Self { length: bytes.len() as u8, bytes: [0; Self::MAX] };
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(id)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl From<u64> for ObjectId {
    fn from(number: u64) -> Self {
        let mut id = Self { length: 8, bytes: [0; Self::MAX] };
        id.bytes[..8].copy_from_slice(&number.to_be_bytes());
        id
    }
}

impl std::fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ObjectId(")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Whether an operation may wait for a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Called on a network thread: answer from memory or return `Error::WouldBlock`.
    Now,
    /// Called on a worker thread.
    Wait,
}

/// For whom, and how patiently, an operation is done.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub caller: &'a Caller,
    pub patience: Patience,
}

/// Permissions asked for or granted, as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions {
    pub read: bool,
    pub write: bool,
    /// Of a directory: search.
    pub execute: bool,
}

/// How far a write must have got before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    Unstable,
    Data,
    File,
}

/// Changes whenever unstable writes may have been lost.
pub type WriteVerifier = [u8; 8];

/// What `create` does when the name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// Take the file that is there (and apply a new size, if one is given).
    Unchecked(NewAttributes),
    /// Refuse.
    Guarded(NewAttributes),
    /// Refuse, unless the file was made by a request with this verifier.
    Exclusive([u8; 8]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    Character(Device),
    Block(Device),
    Socket,
    Fifo,
}

/// A file found by name.
#[derive(Debug, Clone, Copy)]
pub struct Looked {
    pub object: ObjectId,
    pub attributes: Attributes,
}

/// A file made; `dir` is the directory around it.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub object: ObjectId,
    pub attributes: Attributes,
    pub dir: Change,
}

#[derive(Debug, Clone)]
pub struct ReadOut {
    pub data: Bytes,
    pub eof: bool,
    pub attributes: Option<Attributes>,
}

#[derive(Debug, Clone, Copy)]
pub struct Written {
    pub count: u32,
    /// At least what was asked for.
    pub stability: Stability,
    pub file: Change,
}

#[derive(Debug, Clone, Copy)]
pub struct Removed {
    pub dir: Change,
}

#[derive(Debug, Clone, Copy)]
pub struct Renamed {
    pub from: Change,
    pub to: Change,
}

/// One entry of a listing. `.` and `..` are entries too.
#[derive(Debug, Clone)]
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    pub fileid: u64,
    /// Where a listing goes on after this entry; never 0.
    pub cookie: u64,
    /// Only where attributes were asked for and could be had.
    pub found: Option<Looked>,
}

/// How a listing ended.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    pub verifier: [u8; 8],
    /// The last entry of the directory was handed out.
    pub eof: bool,
    pub attributes: Option<Attributes>,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Space {
    pub bytes_total: u64,
    pub bytes_free: u64,
    pub bytes_available: u64,
    pub files_total: u64,
    pub files_free: u64,
    pub files_available: u64,
}

/// What does not change while the file system is served.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    pub file_size_max: u64,
    pub name_max: u32,
    pub links_max: u32,
    /// The smallest step between two times.
    pub time_step: Time,
    pub hard_links: bool,
    pub symlinks: bool,
    pub case_insensitive: bool,
    pub case_preserving: bool,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            file_size_max: i64::MAX as u64,
            name_max: 255,
            links_max: 32_000,
            time_step: Time { seconds: 0, nanoseconds: 1 },
            hard_links: true,
            symlinks: true,
            case_insensitive: false,
            case_preserving: true,
        }
    }
}

/// A file system that can be served.
///
/// Methods are called from many threads at once. `name` is never empty, never contains `/` or a
/// zero byte, and is `.` or `..` only in [`lookup`](FileSystem::lookup). An object that is gone is
/// `Error::Stale`. Permissions are the file system's business: `context.caller` says who asks.
/// READ, WRITE and changes of size must let the owner of a file through whatever its mode says,
/// because NFS has no open: a file created 0444 is written by its creator after the creation.
pub trait FileSystem: Send + Sync + 'static {
    /// Kept for ever: part of every handle. Two exports of one file system give the same id.
    fn id(&self) -> FileSystemId;

    fn root(&self) -> ObjectId;

    /// Where an object is now, below the root, if that can be told. For people to read, never a way
    /// to reach it.
    fn path(&self, _: &ObjectId) -> Option<Vec<u8>> {
        None
    }

    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// Whether operations are worth trying on the network thread, with [`Patience::Now`].
    fn prompt(&self) -> bool {
        false
    }

    fn attributes(&self, context: &Context<'_>, object: &ObjectId) -> Result<Attributes>;

    /// `guard`: change only if this is still the change time, else `Error::NotSynchronised`.
    fn set_attributes(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
        new: &NewAttributes,
        guard: Option<Time>,
    ) -> Result<Change>;

    fn lookup(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<Looked>;

    /// What the caller may do, exactly, without the owner's override.
    fn access(&self, context: &Context<'_>, object: &ObjectId)
    -> Result<(Permissions, Attributes)>;

    fn read_link(&self, context: &Context<'_>, link: &ObjectId) -> Result<(Bytes, Attributes)>;

    /// Up to `count` bytes; fewer only at the end of the file.
    fn read(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<ReadOut>;

    fn write(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<Written>;

    /// Makes earlier unstable writes durable. An error here must also change the verifier.
    fn commit(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<Change>;

    /// New at each start, and after any write-back that failed.
    fn write_verifier(&self) -> WriteVerifier;

    fn create(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        mode: &CreateMode,
    ) -> Result<Made>;

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<Made>;

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        text: &[u8],
        new: &NewAttributes,
    ) -> Result<Made>;

    fn make_node(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        kind: NodeKind,
        new: &NewAttributes,
    ) -> Result<Made>;

    fn remove(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<Removed>;

    fn remove_dir(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<Removed>;

    fn rename(
        &self,
        context: &Context<'_>,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<Renamed>;

    /// A second name for `file`; gives the file's attributes and the directory's change.
    fn link(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<(Attributes, Change)>;

    /// Hands entries to `sink` from `cookie` on (0 is the beginning) until it answers `false`
    /// (that entry was not taken) or the directory ends. `verifier` is what an earlier part of
    /// the listing gave. An entry that exists during the whole listing is given exactly once,
    /// whatever else is created or removed meanwhile.
    fn read_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        cookie: u64,
        verifier: [u8; 8],
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<Listed>;

    fn space(&self, context: &Context<'_>, object: &ObjectId) -> Result<Space>;
}

/// The form in which an exclusive create keeps its verifier where a file system has no better
/// place: in the two times, which the client sets right afterwards.
pub fn verifier_as_times(verifier: [u8; 8]) -> (SetTime, SetTime) {
    // 31 bits, so that every file system can hold it.
    let word = |at: usize| {
        let bytes = [verifier[at], verifier[at + 1], verifier[at + 2], verifier[at + 3]];
        let seconds = i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff);
        SetTime::To(Time { seconds, nanoseconds: 0 })
    };
    (word(0), word(4))
}
