//! [`FileSystem`], the trait that every served file system implements, and its argument and reply
//! types.
//!
//! The methods follow the procedures of NFSv3 (RFC 1813, section 3.3) without XDR, file handles or
//! sockets, and are synchronous. `examples/hello_fs.rs` of the crate `lockkeeper` is a complete
//! small implementation; [`MemoryFs`](crate::memory::MemoryFs) is a complete large one.

use bytes::Bytes;

use crate::{
    AttributeChange, Attributes, Caller, Device, Error, FileSystemId, NewAttributes, Result,
    SetTime, Time,
};

/// The persistent name of an object (file, directory, link...) within its file system.
///
/// Up to [`ObjectId::MAX`] bytes that only the file system interprets. Clients keep it inside file
/// handles for as long as they like, so it must survive restarts and renames, all hard links of a
/// file must share it, and it must never refer to another object later: an inode number needs a
/// generation beside it. Locks are kept by it as well.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId {
    length: u8,
    bytes: [u8; Self::MAX],
}

impl ObjectId {
    /// What fits into an NFSv3 handle of 64 bytes beside the server's own fields.
    pub const MAX: usize = 42;

    /// `None` if there are more than [`ObjectId::MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut id = Self { length: bytes.len() as u8, bytes: [0; Self::MAX] };
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(id)
    }

    /// The bytes given to [`ObjectId::new`].
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

/// Whether an operation may block, for example on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockingMode {
    /// Called on a network thread: finish at once or return [`Error::WouldBlock`](crate::Error)
    /// without having changed anything. Used only if [`FileSystem::supports_nonblocking`].
    Nonblocking,
    /// Called on a worker thread.
    MayBlock,
}

/// On whose behalf an operation runs, and whether it may block.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The identity after the export's squash rules.
    pub caller: &'a Caller,
    /// Which thread this is.
    pub blocking: BlockingMode,
}

/// The permissions of a caller on an object, as reported by ACCESS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Read the file, or list the directory.
    pub read: bool,
    /// Write the file, or change the directory's entries.
    pub write: bool,
    /// Execute the file, or search the directory.
    pub execute: bool,
}

/// How durable a write is (`stable_how`). Ordered: later values include the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// May be lost in a crash until [`FileSystem::commit`]; the loss must change
    /// [`FileSystem::write_verifier`].
    Unstable,
    /// The data, and the metadata needed to read it back, are on stable storage.
    Data,
    /// Data and all metadata are on stable storage.
    File,
}

/// Identifies a period in which no unstable write was lost (`writeverf3`). See
/// [`FileSystem::write_verifier`].
pub type WriteVerifier = [u8; 8];

/// What [`FileSystem::create`] does if the name exists (`createhow3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// Use the existing regular file, and apply only the size, if one is given.
    Unchecked(NewAttributes),
    /// Fail with `Exists`.
    Guarded(NewAttributes),
    /// Fail with `Exists`, unless the file was created with this same verifier: then it is a
    /// retransmission and succeeds. The verifier must be as durable as the file;
    /// [`verifier_as_times`] is the usual way.
    Exclusive([u8; 8]),
}

/// The special file that [`FileSystem::make_node`] creates.
#[allow(missing_docs, reason = "the variants are POSIX file types")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    Character(Device),
    Block(Device),
    Socket,
    Fifo,
}

/// An object and its current attributes.
#[derive(Debug, Clone, Copy)]
pub struct LookupReply {
    /// Its persistent id.
    pub object: ObjectId,
    /// Its attributes.
    pub attributes: Attributes,
}

/// The result of the four operations that create an object.
#[derive(Debug, Clone, Copy)]
pub struct CreateReply {
    /// The new object (or the existing one; see [`CreateMode`]).
    pub object: ObjectId,
    /// Its attributes.
    pub attributes: Attributes,
    /// The directory that contains it.
    pub dir: AttributeChange,
}

/// The result of [`FileSystem::read`].
#[derive(Debug, Clone)]
pub struct ReadReply {
    /// At most as many bytes as requested.
    pub data: Bytes,
    /// The end of the file was reached.
    pub eof: bool,
    /// Must not be newer than the data: a client takes them as proof that its copy is current.
    pub attributes: Option<Attributes>,
}

/// The result of [`FileSystem::write`].
#[derive(Debug, Clone, Copy)]
pub struct WriteReply {
    /// Bytes written from the start of the data; fewer than requested only if space ran out.
    pub count: u32,
    /// At least what was requested.
    pub stability: Stability,
    /// The file.
    pub file: AttributeChange,
}

/// The result of [`FileSystem::remove`] and [`FileSystem::remove_dir`].
#[derive(Debug, Clone, Copy)]
pub struct RemoveReply {
    /// The directory that contained the entry.
    pub dir: AttributeChange,
}

/// The result of [`FileSystem::rename`].
#[derive(Debug, Clone, Copy)]
pub struct RenameReply {
    /// The source directory.
    pub from: AttributeChange,
    /// The target directory; the same as `from` if there is only one.
    pub to: AttributeChange,
}

/// One entry of a directory listing.
#[derive(Debug, Clone)]
pub struct DirEntry<'a> {
    /// The name, as bytes; `.` and `..` are entries too.
    pub name: &'a [u8],
    /// The inode number, as in [`Attributes::fileid`].
    pub fileid: u64,
    /// Where the listing continues after this entry; never 0.
    pub cookie: u64,
    /// Object and attributes, for READDIRPLUS; `None` costs the client a LOOKUP.
    pub lookup: Option<LookupReply>,
}

/// How a listing ended.
#[derive(Debug, Clone, Copy)]
pub struct ReadDirReply {
    /// Returned to [`FileSystem::read_dir`] with the next cookie; all zeros if cookies never
    /// become invalid.
    pub verifier: [u8; 8],
    /// The sink accepted the last entry of the directory.
    pub eof: bool,
    /// The directory's attributes.
    pub attributes: Option<Attributes>,
}

/// Free and total space (FSSTAT). "Available" is what an unprivileged user can use.
#[allow(missing_docs, reason = "the fields are those of FSSTAT")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Space {
    pub bytes_total: u64,
    pub bytes_free: u64,
    pub bytes_available: u64,
    pub files_total: u64,
    pub files_free: u64,
    pub files_available: u64,
}

/// Static information on a file system (FSINFO and PATHCONF).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct FileSystemInfo {
    /// The largest size of a file.
    pub file_size_max: u64,
    /// The longest name of an entry, in bytes. The server itself refuses more than 255.
    pub name_max: u32,
    /// The most hard links of a file.
    pub links_max: u32,
    /// The resolution of times.
    pub time_step: Time,
    /// Hard links exist.
    pub hard_links: bool,
    /// Symbolic links exist.
    pub symlinks: bool,
    /// Lookup ignores case.
    pub case_insensitive: bool,
    /// Names keep the case in which they were created.
    pub case_preserving: bool,
}

impl Default for FileSystemInfo {
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

/// A file system that can be exported.
///
/// # Calls
///
/// Methods are called from many threads at once, in no particular order; two requests for one
/// file may run in parallel. With [`BlockingMode::MayBlock`] the calling thread is a worker and
/// may block. With [`BlockingMode::Nonblocking`] it is a network thread, which serves other
/// clients: return `WouldBlock` if the answer is not in memory, and the call is repeated on a
/// worker. Only the methods that say so are called that way, and only if
/// [`supports_nonblocking`](FileSystem::supports_nonblocking). Methods without a [`Context`] are
/// called on any thread and must not block, except [`path`](FileSystem::path).
///
/// A panic is caught; its request gets no reply.
///
/// # What the server has checked
///
/// The handle is authentic, its export exists and admits the client, the export is writable where
/// an operation writes, and the caller has been squashed. Names are not empty and contain neither
/// `/` nor NUL. A name may be `.` or `..` in every method: [`lookup`](FileSystem::lookup) resolves
/// them, creating methods return `Exists`, the others `Invalid` (and RMDIR of `..`, `Exists`).
/// A name that is too long is `NameTooLong`.
///
/// # What is left to the file system
///
/// - **Permissions**, for [`Context::caller`]. NFS has no open, so
///   [`read`](FileSystem::read), [`write`](FileSystem::write) and changes of size must always
///   admit the owner (a program may create a file with mode 0444 and then write it), and `read`
///   must admit callers that may only execute. [`access`](FileSystem::access) reports the mode
///   without these exceptions.
/// - **Existence.** An object id of a removed object, or one that was never given out, is `Stale`.
/// - **Durability.** An operation that changes anything other than file data is on stable storage
///   when it returns (RFC 1813, section 4.7): the server replies at once, and the client will not
///   repeat it.
/// - **Atomicity.** A method that fails has changed nothing, except
///   [`set_attributes`](FileSystem::set_attributes) and file data partly written.
///
/// Each [`Error`] names the NFSv3 status that it becomes. Errors of the standard library
/// are converted by `?`.
///
/// # A read-only file system
///
/// It implements the six methods without a default: [`id`](FileSystem::id), [`root`](FileSystem::root),
/// [`attributes`](FileSystem::attributes), [`lookup`](FileSystem::lookup), [`read`](FileSystem::read)
/// and [`read_dir`](FileSystem::read_dir). By default the others refuse: with `ReadOnly` what every
/// writable file system has, with `NotSupported` what some of them lack (links and special files). In
/// an export with [`ExportAccess::ReadOnly`](crate::ExportAccess) all of them are `ReadOnly`, and none
/// is called.
///
/// # An asynchronous back end
///
/// Methods are synchronous; a future is awaited on the worker thread, which has no runtime of its
/// own: keep a `tokio::runtime::Handle` and call `lockkeeper::block_on`. On a network thread that
/// returns `WouldBlock` instead of a panic, and the server repeats the call on a worker.
#[expect(
    unused_variables,
    reason = "default bodies refuse; the names are for those that implement them"
)]
pub trait FileSystem: Send + Sync + 'static {
    /// The permanent id of the file system: part of every handle and of every lock. Two exports of
    /// one file system return the same id, and no two file systems of a server share one.
    fn id(&self) -> FileSystemId;

    /// The root directory; the same for the life of the file system. `..` of the root is the root.
    fn root(&self) -> ObjectId;

    /// The current path of an object below the root, without a leading `/`. For display only;
    /// `None` if unknown. May block.
    fn path(&self, _: &ObjectId) -> Option<Vec<u8>> {
        None
    }

    /// FSINFO and PATHCONF. Constant while the file system is served.
    fn info(&self) -> FileSystemInfo {
        FileSystemInfo::default()
    }

    /// The kind of file system, for operators: `ext`, `xfs`, `memory`.
    fn kind(&self) -> &'static str {
        "other"
    }

    /// Whether to try reading operations on the network thread first, with
    /// [`BlockingMode::Nonblocking`]. Saves a thread switch where answers are usually in memory.
    fn supports_nonblocking(&self) -> bool {
        false
    }

    /// GETATTR; also the attributes in replies to failed operations. Needs no permission. Called
    /// in both blocking modes.
    fn attributes(&self, context: &Context<'_>, object: &ObjectId) -> Result<Attributes>;

    /// SETATTR. Applies size, owner, mode and times, in this order; durable on return. Not
    /// atomic: a call that fails may have applied some of them.
    ///
    /// If `guard` is given and is not the current [`Attributes::changed`], fails with
    /// `NotSynchronised`; comparison and change are atomic. `NotOwner` if the caller may not
    /// change owner, mode or times, `Denied` if it may not write but changes the size or sets
    /// times to now, `IsADirectory` or `Invalid` for the size of anything but a regular file.
    fn set_attributes(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
        new: &NewAttributes,
        guard: Option<Time>,
    ) -> Result<AttributeChange> {
        Err(Error::ReadOnly)
    }

    /// LOOKUP, including `.` and `..`. Symbolic links are returned, not followed. Needs search
    /// permission on `dir`, which is `NotADirectory` if it is none. `NotFound` if there is no such
    /// entry. Called in both blocking modes.
    fn lookup(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<LookupReply>;

    /// ACCESS: what the mode allows the caller, without the exceptions for owners. By default what
    /// [`Attributes::permissions`] says. Called in both blocking modes.
    fn access(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
    ) -> Result<(Permissions, Attributes)> {
        let attributes = self.attributes(context, object)?;
        Ok((attributes.permissions(context.caller), attributes))
    }

    /// The check before a lock is granted: as [`access`](FileSystem::access), with the uid of the
    /// owner. The answer may be up to a second old, but reflects all changes by clients. Called in
    /// both blocking modes.
    fn lock_access(&self, context: &Context<'_>, object: &ObjectId) -> Result<(Permissions, u32)> {
        let (permissions, attributes) = self.access(context, object)?;
        Ok((permissions, attributes.uid))
    }

    /// READLINK: the text of a symbolic link, byte for byte. `Invalid` for any other file. Called
    /// in both blocking modes.
    fn read_link(&self, context: &Context<'_>, link: &ObjectId) -> Result<(Bytes, Attributes)> {
        Err(Error::Invalid)
    }

    /// READ: up to `count` bytes (1 MiB at most) from `offset`; fewer only at the end of the file,
    /// none beyond it. `IsADirectory` or `Invalid` for anything but a regular file. Called in both
    /// blocking modes.
    fn read(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<ReadReply>;

    /// WRITE: `data` (1 MiB at most) at `offset`; a gap before it reads as zeros. Replies with at
    /// least the requested [`Stability`], which holds on return. The server reads
    /// [`write_verifier`](FileSystem::write_verifier) before this call.
    ///
    /// `NoSpace` or `Quota` only if nothing was written; else a short `count`. `TooLarge` beyond
    /// the largest file size.
    fn write(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<WriteReply> {
        Err(Error::ReadOnly)
    }

    /// COMMIT: on return all unstable writes to `count` bytes from `offset` (0: to the end) are on
    /// stable storage, those of other clients included. More may be committed. The default is for file
    /// systems without unstable writes.
    ///
    /// On an error, [`write_verifier`](FileSystem::write_verifier) must change before this
    /// returns: storage that failed once may report success the next time.
    fn commit(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<AttributeChange> {
        Ok(AttributeChange { before: None, after: Some(self.attributes(context, file)?) })
    }

    /// The current write verifier, for the replies to WRITE and COMMIT. A client that sees it
    /// change sends its uncommitted data again.
    ///
    /// Must differ after every start that can have lost unstable writes, and after every failed
    /// write-back. Constant, as by default, if [`write`](FileSystem::write) never returns
    /// [`Stability::Unstable`].
    fn write_verifier(&self) -> WriteVerifier {
        [0; 8]
    }

    /// CREATE: a regular file; see [`CreateMode`] for an existing name. The owner is the caller
    /// unless the attributes name another and the caller may do that. File and entry are durable
    /// on return.
    fn create(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        mode: &CreateMode,
    ) -> Result<CreateReply> {
        Err(Error::ReadOnly)
    }

    /// MKDIR: an empty directory, durable on return. `Exists` if the name is taken.
    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        Err(Error::ReadOnly)
    }

    /// SYMLINK: a link with `text`, which is not empty and contains no NUL; durable on return. The
    /// mode in `new` may be ignored.
    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        text: &[u8],
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        Err(Error::NotSupported)
    }

    /// MKNOD: a special file, durable on return. `BadType` or `NotSupported` for kinds that the
    /// file system does not have, `NotOwner` for devices unless the caller is root.
    fn make_node(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        kind: NodeKind,
        new: &NewAttributes,
    ) -> Result<CreateReply> {
        Err(Error::NotSupported)
    }

    /// REMOVE: removes an entry that is not a directory (else `IsADirectory`), and the file with
    /// its last name; durable on return. Further uses of a file without a name are `Stale`.
    fn remove(&self, context: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<RemoveReply> {
        Err(Error::ReadOnly)
    }

    /// RMDIR: removes an empty directory, durable on return. `NotEmpty` if it has entries,
    /// `NotADirectory` if it is none.
    fn remove_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<RemoveReply> {
        Err(Error::ReadOnly)
    }

    /// RENAME: `from` and `to` are directory and name, of one export. Atomic: `to` refers to the
    /// old or to the new object at any time, and both entries are durable on return. Replaces an
    /// existing target of the same kind (a directory only if empty); two names of one file are
    /// left as they are.
    fn rename(
        &self,
        context: &Context<'_>,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<RenameReply> {
        Err(Error::ReadOnly)
    }

    /// LINK: one more name for `file`, durable on return. Returns the attributes of the file and
    /// the change of the directory. `IsADirectory` for directories.
    fn link(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<(Attributes, AttributeChange)> {
        Err(Error::NotSupported)
    }

    /// READDIR and READDIRPLUS (`plus`): passes entries to `sink`, from `cookie` on, until it
    /// returns `false` (that entry was not consumed) or the directory ends.
    ///
    /// `cookie` is 0 for the beginning, or the [`DirEntry::cookie`] of the last consumed entry,
    /// together with the `verifier` of the reply that contained it; minutes or a restart may lie
    /// between. An entry that exists throughout a listing is passed exactly once, whatever is
    /// created or removed meanwhile; [`Listing`](crate::Listing) gives names such cookies. A file system whose cookies can become invalid changes its
    /// verifier then, and returns `BadCookie` for the old one. Needs read permission on `dir`; with
    /// `plus`, objects and attributes are given only to callers with search permission.
    fn read_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        cookie: u64,
        verifier: [u8; 8],
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<ReadDirReply>;

    /// FSSTAT, of the volume that `object` is on. Called in both blocking modes.
    fn space(&self, context: &Context<'_>, object: &ObjectId) -> Result<Space> {
        Ok(Space::default())
    }
}

/// An exclusive-create verifier as access and modification time, for file systems with no better
/// place to store it. The client sets both times right after the creation (RFC 1813, 3.3.8).
pub fn verifier_as_times(verifier: [u8; 8]) -> (SetTime, SetTime) {
    // 31 bits of seconds fit into every file system.
    let word = |at: usize| {
        let bytes = [verifier[at], verifier[at + 1], verifier[at + 2], verifier[at + 3]];
        let seconds = i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff);
        SetTime::To(Time { seconds, nanoseconds: 0 })
    };
    (word(0), word(4))
}
